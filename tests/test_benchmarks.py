"""Every benchmark runs and ends with one line of JSON; no test here asserts a speed."""

from __future__ import annotations

import functools
import importlib
import json
import multiprocessing
import os
import runpy
import sys
import tempfile
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
IMPORTED = ["flower_vfl.apps.local", "flower_vfl.simulations.running", "torch._dynamo", "sklearn"]
"""Modules that benchmarks import; PyTorch's optimizers, with which they compare ours, import its compiler."""


def execute(script, output, errors):
    """Run a script in this process as if Python had started it; what it writes goes to two files."""
    for number, file in ((1, output), (2, errors)):
        with open(file, "wb") as opened:
            os.dup2(opened.fileno(), number)
    sys.argv = [str(script), "--quick"]
    sys.path[0] = str(script.parent)
    runpy.run_path(str(script), run_name="__main__")


@functools.cache
def last_line(name):
    """Run a benchmark in a process forked from one that has its imports, as its own processes are; they take longer."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(IMPORTED)
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder) / "output", Path(folder) / "errors"
        process = forks.Process(target=execute, args=(BENCHMARKS / name, output, errors))
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(BENCHMARKS.parent)  # from where the process imports `execute`
            process.start()
        process.join(280)
        process.kill()
        process.join()
        assert process.exitcode == 0, errors.read_text()[-2000:]
        return json.loads(output.read_text().splitlines()[-1])


@pytest.fixture
def harness(monkeypatch):
    """The module `harness` of the benchmarks; the environment variables that it sets are restored."""
    for name in ("OMP_NUM_THREADS", "FLWR_TELEMETRY_ENABLED"):
        monkeypatch.setenv(name, os.environ.get(name, "1"))
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("harness")
    del sys.modules["harness"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux reports resident memory")
def test_resident_memory_is_what_the_system_counts(harness):
    found = harness.resident()
    pages = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    assert found["rss"] == pytest.approx(pages, rel=0.01)
    assert 0 < found["rss_anon"] < found["rss"]


def test_resident_memory_that_the_system_does_not_report_is_never_taken_for_none(harness, monkeypatch):
    measured = harness.Measured([], [[{"rss": 5}, {"rss": 7}], [{"rss": 6}, {}]])
    assert measured.memory(0, "rss") == 6
    for lane, kind in ((1, "rss"), (0, "rss_anon")):
        with pytest.raises(SystemExit, match="does not say how much memory is resident"):
            measured.memory(lane, kind)
    monkeypatch.setattr(harness.Path, "exists", lambda path: False)
    assert harness.resident() == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("inproc.py", "stream.py", "optimal_noise.py", "regularisers.py", "alignment.py"),
        *("checkpoints.py", "prepare.py", "sparse.py", "memory.py", "often.py", "accounting.py"),
        *(
            pytest.param(name, marks=pytest.mark.release)
            for name in (
                "metrics.py",
                "methods.py",
                "links.py",
                "own_data.py",
                "watching.py",
                "table_size.py",
                "vocabulary.py",
                "utility.py",
                "sweep.py",
                "stacked.py",
            )
        ),
        *(pytest.param(name, marks=pytest.mark.release) for name in ("real_size.py", "loading.py", "card.py")),
    ],
)
def test_a_benchmark_prints_what_it_measured_beside_its_target(name):
    line = last_line(name)
    assert line["benchmark"] == name.removesuffix(".py")
    assert line["quick"] is True
    assert {"target", "met", "machine", "versions"} <= set(line)


@pytest.mark.slow
def test_over_a_slow_link_more_than_one_step_is_in_flight():
    line = last_line("links.py")
    for link in line["links"].values():
        assert min(link["in_flight"]) > 1


@pytest.mark.slow
def test_regularisers_hold_at_most_three_numbers_a_pair():
    line = last_line("regularisers.py")
    for name in ("potential_energy", "distance_correlation"):
        assert 0 < line[name]["floats_over_b2"] <= 3.0 < line[name]["autograd_floats_over_b2"]


@pytest.mark.release
@pytest.mark.flower
def test_the_benchmark_of_sessions_measures_the_seconds_until_each_run_begins():
    line = last_line("session_up.py")
    assert line["benchmark"] == "session_up"
    assert all(seconds > 0 for seconds in line["seconds"])


@pytest.mark.release
@pytest.mark.flower
def test_the_benchmark_of_a_deployment_compares_it_with_one_process():
    line = last_line("deployed.py")
    assert line["ratios"] == [line["ratio"]]
    assert line["ratio"] > 0
    assert min(line["steps_a_second"][name] for name in ("deployed", "inproc")) > 0


@pytest.mark.release
@pytest.mark.flower
def test_the_benchmark_of_flowers_own_messages_measures_both_runtimes():
    line = last_line("flower_messages.py")
    for runtime in ("simulation", "deployment"):
        assert line[runtime]["messages_ms"] > line[runtime]["session_ms"] > 0
