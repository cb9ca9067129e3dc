"""Strangers open more connections than there are handles; the run goes on, and its parties come back meanwhile."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults.common import assert_same
from tests.faults.flooding import flooding

ROOT = Path(__file__).parents[2]


def run_in_flood(folder, connections, *, limits, sources=""):
    """Run with lines that are cut in a flood; return the counts of both, and the errors of the run."""
    command = [sys.executable, "-m", "tests.faults.flooded", str(folder), *map(str, limits)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        while not (folder / "endpoint").exists() and process.poll() is None:
            time.sleep(0.05)
        with flooding(str(folder / "endpoint"), connections, sources=sources) as (flood, counts):
            flood.stdout.readline()  # until the flood is complete
            (folder / "flooded").touch()
            out, errors = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 0, errors[-3000:]
    return json.loads(out.splitlines()[-1]), counts, errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("connections", "limits", "sources"),
    [(1200, (200, 400), "127.0.0.2"), (10_000, (1024, 0), "")],
    ids=["more than handles, from another address", "ten thousand, from the parties' address"],
)
def test_a_run_finishes_in_a_flood_and_its_parties_come_back(
    tmp_path, undisturbed_run_of_few, connections, limits, sources
):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if 0 <= hard < connections + 500:
        pytest.skip(f"a process may have {hard} file handles here; the stranger needs {connections + 500}")
    ran, counts, errors = run_in_flood(tmp_path, connections, limits=(limits[0], limits[1] or hard), sources=sources)
    assert counts["dialled"] >= connections
    assert ran["cuts"] > 3
    assert sum(ran["connections"]) > len(ran["connections"])  # parties came back
    assert "no party's were closed" in errors
    assert_same(tmp_path / "run", undisturbed_run_of_few("stream"))
