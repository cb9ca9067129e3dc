"""The output of commands that pages show is that of this version."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.commands import assert_alike, flower_vfl

ROOT = Path(__file__).parents[2]


def shown(page, command):
    """Return the output that a page shows below a command, from the verdict on."""
    text = (ROOT / page).read_text(encoding="utf8")
    return re.search(rf"{re.escape(command)}.*?((?:Verdict|Proven): .*?)report: ", text, re.DOTALL)[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "command"),
    [
        ("README.md", 'flower-vfl run census --set training.epochs=1 --set "defenses=marvell(s=4)"'),
        (
            "docs/tutorials/first-run.md",
            'flower-vfl run census --set training.epochs=1 --set "defenses=local_head(epsi',
        ),
    ],
    ids=["README", "first run"],
)
def test_the_verdict_that_a_page_shows_is_that_of_this_version(page, command, tmp_path):
    expected = shown(page, command)
    line = next(one for one in (ROOT / page).read_text(encoding="utf8").splitlines() if command in one)
    _, *words = shlex.split(line.removeprefix("$ ").split(" --out ")[0])
    done = flower_vfl(*words, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert_alike(re.search(r"((?:Verdict|Proven): .*?)report: ", done.stdout, re.DOTALL)[1], expected)
