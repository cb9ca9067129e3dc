"""Code of the tutorials that are no notebooks."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

from flower_vfl.errors import CheckError
from flower_vfl.testing import check_defense

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"


def marked(page, mark):
    """Return the block of Python that follows a mark."""
    text = (TUTORIALS / page).read_text(encoding="utf8")
    return re.search(rf"<!-- {mark} -->\n```python\n(.*?)```", text, re.DOTALL)[1]


@pytest.fixture
def defense_from(tmp_path, monkeypatch):
    """Return a function that imports a module with this text and returns its defense."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def saved(text):
        (tmp_path / "mine.py").write_text(text)
        sys.modules.pop("mine", None)
        import mine

        return mine.NoisySign

    yield saved
    sys.modules.pop("mine", None)


def test_the_first_version_of_the_defense_fails_as_the_tutorial_says(defense_from):
    page = (TUTORIALS / "your-own-defense.md").read_text(encoding="utf8")
    documented = re.search(r"```text\n(flower_vfl\.errors\.CheckError: .*?)```", page, re.DOTALL)[1]
    with pytest.raises(CheckError) as failed:
        check_defense(defense_from(marked("your-own-defense.md", "first")), flip=0.2)
    found = f"flower_vfl.errors.CheckError: {failed.value}".splitlines()
    assert [line for line in documented.splitlines() if line != "..." and line not in found] == []


def test_the_second_version_passes(defense_from):
    first = marked("your-own-defense.md", "first").split("    def perturb")[0]
    check_defense(defense_from(first + marked("your-own-defense.md", "second")), flip=0.2)


def test_the_app_for_flower_users_is_that_of_the_example():
    text = (TUTORIALS / "flower-users.md").read_text(encoding="utf8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    own = ROOT / "examples" / "own-app" / "own_app"
    for name in ("server_app", "client_app"):
        shown = next(block for block in blocks if block.startswith(f"# {name}.py"))
        assert ast.unparse(ast.parse(shown)) in ast.unparse(ast.parse((own / f"{name}.py").read_text(encoding="utf8")))
    task = ast.parse((own / "task.py").read_text(encoding="utf8"))
    whole = {one.name: ast.unparse(ast.Module(one.body, [])) for one in task.body if isinstance(one, ast.FunctionDef)}
    shown = ast.parse(next(block for block in blocks if "def open_data" in block))
    for one in shown.body:
        assert ast.unparse(ast.Module(one.body, [])) == whole[one.name], one.name
