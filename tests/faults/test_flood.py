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
    """Run with lines that are cut while so many connections come; return what the run and the flood counted."""
    command = [sys.executable, "-m", "tests.faults.flooded", str(folder), *map(str, limits)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        while not (folder / "endpoint").exists() and process.poll() is None:
            time.sleep(0.05)
        with flooding(str(folder / "endpoint"), connections, sources=sources) as (flood, counts):
            flood.stdout.readline()  # until it is there
            (folder / "flooded").touch()
            out, errors = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 0, errors[-3000:]
    return json.loads(out.splitlines()[-1]), counts, errors


@pytest.mark.slow
@pytest.mark.parametrize("sources", ["", "127.0.0.2"], ids=["from the parties' address", "from another one"])
def test_a_run_outlives_more_strangers_than_it_may_have_handles(tmp_path, left_alone, sources):
    ran, counts, errors = run_in_flood(tmp_path, 1200, limits=(200, 400), sources=sources)
    assert counts["dialled"] >= 1200
    assert sum(ran["connections"]) > len(ran["connections"])  # parties came back
    assert ran["cuts"] > 3
    assert "no party's were closed" in errors
    assert_same(tmp_path / "run", left_alone("stream"))


@pytest.mark.slow
def test_a_run_outlives_ten_thousand_strangers(tmp_path, left_alone):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if 0 <= hard < 10_500:
        pytest.skip(f"a process may have {hard} file handles here; the stranger needs 10,500")
    ran, counts, _ = run_in_flood(tmp_path, 10_000, limits=(1024, hard))
    assert counts["dialled"] >= 10_000
    assert sum(ran["connections"]) > len(ran["connections"])
    assert_same(tmp_path / "run", left_alone("stream"))
