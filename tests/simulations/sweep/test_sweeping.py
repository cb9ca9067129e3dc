"""Whole sweeps, on a Ray of their own, through the command line."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from flower_vfl.apps.local import run
from flower_vfl.config import load_config
from flower_vfl.simulations.stacked.running import train_stack
from flower_vfl.simulations.sweep.definition import load_definition
from flower_vfl.simulations.sweep.folder import SweepFolder
from flower_vfl.simulations.sweep.trials import trials_of
from tests.commands import flower_vfl
from tests.faults.common import small_disk

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

TOY = """
[set]
data.name = "toy-gap"
training = { epochs = 2, batch_size = 200 }
model = { bottom = [8], cut = 4, top = [] }
attack = { names = ["norm"], snapshots = [], embeddings = 0, informed = 0 }
[grid]
seed = [0, 1]
defenses = ["none", "max_norm"]
[sweep]
stacking = "off"
"""


def command(*words):
    return [sys.executable, "-m", "flower_vfl", "sweep", *map(str, words)]


def sweep(*words, **more):
    """Run a sweep, by default with one worker: each further worker imports torch and Flower again."""
    words = words if "--workers" in words else (*words, "--workers", 1)
    return subprocess.run(command(*words), capture_output=True, text=True, check=False, timeout=500, **more)


@pytest.fixture
def toy(tmp_path):
    path = tmp_path / "toy.toml"
    path.write_text(TOY, encoding="utf8")
    return path


def test_a_sweep_gives_what_its_runs_give_by_themselves_and_is_not_done_twice(toy, tmp_path):
    out = tmp_path / "out"
    done = sweep(toy, "--out", out, "--workers", 2)
    assert done.returncode == 0, done.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert [entry["run"] for entry in summary] == ["seed0-none", "seed0-max-norm", "seed1-none", "seed1-max-norm"]
    for entry in summary:
        folder = out / entry["run"]
        assert json.loads((folder / "result.json").read_text()) == {k: v for k, v in entry.items() if k != "run"}
        assert {"config.toml", "steps.parquet", "report.html"} <= {path.name for path in folder.iterdir()}
    alone = run(load_config(str(out / "seed1-max-norm" / "config.toml"))).summary
    assert alone["weights"] == summary[3]["weights"]
    assert pq.read_table(out / "trials.parquet").column("status").to_pylist() == ["finished"] * 4
    assert "seed1-none" in (out / "report.html").read_text()
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/result.json")}
    again = flower_vfl("sweep", toy, "--out", out, "--resume")
    assert again.returncode == 0, again.stderr
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/result.json")} == before
    refused = flower_vfl("sweep", toy, "--out", out)
    assert refused.returncode == 2
    assert "--resume" in refused.stderr


METHOD = """
import os, signal
from pathlib import Path
import torch
from flower_vfl.strategies import GradientDefense

class {name}(GradientDefense):
    name = "{short}"
    def __init__(self, strategy, place="", **more):
        super().__init__(strategy, **more)
        self.place, self.calls = place, 0
    @property
    def params(self):
        return {{"place": self.place}}
    def perturb(self, g, y):
        self.calls += 1
        mark = Path(self.place)
        if self.calls == 4:
            {action}
        return g, {{}}
"""
ACTIONS = {
    "Dies": "if not mark.exists():\n                mark.touch(); os.kill(os.getpid(), signal.SIGKILL)",
    "Fails": "raise RuntimeError('a bug' + '.' * 600)",
}


def test_a_worker_that_dies_is_tried_again_and_what_fails_again_is_reported_beside_the_rest(tmp_path):
    for name, action in ACTIONS.items():
        text = METHOD.format(name=name, short=name.lower(), action=action)
        (tmp_path / f"own_{name.lower()}.py").write_text(text)
    place = json.dumps(str(tmp_path / "mark"))
    chains = f'["none", {{ name = "own_dies:Dies", place = {place} }}, "own_fails:Fails"]'
    text = TOY.replace("[0, 1]", "[0]").replace('["none", "max_norm"]', chains)
    (tmp_path / "own.toml").write_text(text)
    out = tmp_path / "out"
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    done = sweep(tmp_path / "own.toml", "--out", out, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 1, done.stderr
    assert "1 of 3 trials failed" in done.stderr
    assert "RuntimeError: a bug" in done.stderr
    rows = {row["run"]: row for row in pq.read_table(out / "trials.parquet").to_pylist()}
    (dies,), (fails,) = ([row for run, row in rows.items() if word in run] for word in ("dies", "fails"))
    assert (dies["status"], dies["attempts"]) == ("finished", 2)
    assert (fails["status"], fails["attempts"]) == ("failed", 2)
    assert fails["error"] == "RuntimeError: a bug" + "." * 600
    errors = (out / "errors.log").read_text()
    assert errors.count(f"{fails['run']}:\n") == errors.count("in perturb") == 2
    assert errors.count(f"{dies['run']}:\n") == 1
    assert str(out / "errors.log") in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert "Trials did not complete" not in done.stderr + done.stdout
    assert rows["none"]["status"] == "finished"


@pytest.mark.parametrize(
    "number",
    [pytest.param(number, marks=pytest.mark.release) for number in (signal.SIGTERM, signal.SIGKILL)] + [signal.SIGINT],
)
def test_a_sweep_that_was_ended_by_a_signal_goes_on_without_repeating_what_has_finished(toy, tmp_path, number):
    out = tmp_path / "out"
    toy.write_text(TOY.replace("epochs = 2", "epochs = 8"))
    process = subprocess.Popen(command(toy, "--out", out, "--workers", "1"), stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if "finished:" in line:
            break
    process.send_signal(number)
    rest = process.stderr.read()
    code = process.wait(200)
    if number != signal.SIGKILL:
        assert code == {signal.SIGTERM: 143, signal.SIGINT: 130}[number]
        assert "it goes on with: flower-vfl sweep" in rest
        assert json.loads((out / "summary.json").read_text())
    finished = {path: path.stat().st_mtime_ns for path in out.glob("*/result.json") if ended(path)}
    assert 1 <= len(finished) < 4
    next(iter(finished)).with_name("report.html").unlink()  # as after a kill right after its result was written
    done = sweep(toy, "--out", out, "--resume")
    assert done.returncode == 0, done.stderr
    assert len(json.loads((out / "summary.json").read_text())) == 4
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    attempts = {row["run"]: row["attempts"] for row in pq.read_table(out / "trials.parquet").to_pylist()}
    assert {attempts[path.parent.name] for path in finished} == {1}
    assert min(attempts.values()) == 1
    assert len(list(out.glob("*/report.html"))) == 4


def descendants(process: int) -> dict[int, str]:
    """Return the descendants of a process by their ids, each with the first word of its command line."""
    parents, names = {}, {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(place.name)] = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            names[int(place.name)] = (place / "cmdline").read_bytes().split(b"\0")[0].decode()
    found = [process]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return {one: names[one] for one in found[1:]}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc")
@pytest.mark.release
@pytest.mark.parametrize(("victim", "stacking"), [("raylet", "off"), ("driver", "on")])
def test_a_kill_of_rays_process_or_of_the_driver_loses_and_repeats_nothing_and_leaves_no_trial_running(
    toy, tmp_path, victim, stacking
):
    out, epochs = tmp_path / "out", {"off": 10, "on": 80}[stacking]
    text = TOY.replace("epochs = 2", f"epochs = {epochs}").replace("[0, 1]", "[0]").replace('"off"', f'"{stacking}"')
    toy.write_text(text)
    process = subprocess.Popen(command(toy, "--out", out, "--workers", "1"), stderr=subprocess.PIPE, text=True)
    if stacking == "off":
        while "finished:" not in process.stderr.readline():
            assert process.poll() is None
    else:
        while not list(out.glob("*/checkpoints")):  # the stack is under way
            assert process.poll() is None
            time.sleep(0.05)
    below = descendants(process.pid)
    raylet = next(one for one, name in below.items() if name.endswith("/raylet"))
    os.kill(process.pid if victim == "driver" else raylet, signal.SIGKILL)
    stderr = process.stderr.read()
    assert process.wait(60) == {"driver": -signal.SIGKILL, "raylet": 1}[victim]
    assert f"what has finished is in {out}, --resume goes on" in stderr
    finished = {path: path.stat().st_mtime_ns for path in out.glob("*/result.json") if ended(path)}
    assert len(finished) == (stacking == "off")
    done = sweep(toy, "--out", out, "--resume")
    assert done.returncode == 0, done.stderr
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    table = pq.read_table(out / "trials.parquet")
    assert table.column("status").to_pylist() == ["finished"] * 2
    assert table.column("attempts").to_pylist()[0] == 1
    left = {name for one, name in below.items() if Path(f"/proc/{one}").exists()}
    assert left <= {"ray::DashboardAgent", "ray::RuntimeEnvAgent"}  # which check for the others each minute


def ended(path: Path) -> bool:
    return json.loads(path.read_text())["status"] == "finished"


@pytest.mark.release
@pytest.mark.parametrize(
    ("kibibytes", "least", "stacking"),
    [pytest.param(100, 0, "on", id="from the start"), pytest.param(4000, 1, "off", id="in the midst")],
)
def test_a_full_disk_ends_a_sweep_by_name_and_with_space_it_goes_on_without_repeating_what_has_finished(
    toy, tmp_path, kibibytes, least, stacking
):
    text = TOY.replace("epochs = 2", "epochs = 5").replace('"off"', f'"{stacking}"')
    toy.write_text(text if least else text.replace("[0, 1]", "[0]"))
    with small_disk(tmp_path / "disk", kibibytes) as disk:
        out = disk / "out"
        process = subprocess.Popen(command(toy, "--out", out, "--workers", "1"), stderr=subprocess.PIPE, text=True)
        stderr = ""
        for line in process.stderr:
            stderr += line
            if least and "finished:" in line:
                with suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
                    while filler.write(bytes(4096)):
                        pass
                break
        stderr += process.stderr.read()
        assert process.wait(100) == 1, stderr
        assert "Traceback" not in stderr
        assert "it goes on with: flower-vfl sweep" in stderr
        assert re.search(r"flower-vfl: \S+ could not be written: No space left on device.* make space", stderr)
        finished = {path: path.stat().st_mtime_ns for path in out.glob("*/result.json") if ended(path)}
        assert least <= len(finished) < 4
        (disk / "filler").unlink(missing_ok=True)
        subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
        done = sweep(toy, "--out", out, "--resume")
        assert done.returncode == 0, done.stderr
        assert {path: path.stat().st_mtime_ns for path in finished} == finished
        statuses = pq.read_table(out / "trials.parquet").column("status").to_pylist()
        assert statuses == ["finished"] * (4 if least else 2)
        assert len(list(out.glob("*/report.html"))) == len(statuses)


@pytest.fixture
def head():
    """Yield the address of a Ray cluster of one node, which ends with the test."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = "{}:{}".format(*free.getsockname())
    with tempfile.TemporaryDirectory(prefix="fvfl-", dir="/tmp", ignore_cleanup_errors=True) as short:
        words = [f"--port={address.split(':')[1]}", "--node-ip-address=127.0.0.1", f"--temp-dir={short}"]
        words += ["--num-cpus=1", "--include-dashboard=false", "--disable-usage-stats", "--block"]
        ray = str(Path(sys.executable).parent / "ray")
        process = subprocess.Popen(
            [ray, "start", "--head", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            yield address
            assert process.poll() is None
        finally:
            process.terminate()
            process.wait(60)


@pytest.mark.release
def test_a_cluster_that_is_there_is_joined_and_left_running(toy, tmp_path, head):
    for _ in range(20):
        done = sweep(toy, "--out", tmp_path / "out", "--address", head)
        # Its port answers before its first node is there, and joining then fails with an error of Ray itself.
        if "no Ray cluster answers" not in done.stderr and "cannot be joined from here" not in done.stderr:
            break
        time.sleep(1.0)
    assert done.returncode == 0, done.stderr
    assert len(json.loads((tmp_path / "out" / "summary.json").read_text())) == 4


STACKED = TOY.replace('"off"', '"on"')


def test_trials_that_are_trained_together_are_reported_like_others_and_a_finished_stack_is_not_repeated(toy, tmp_path):
    toy.write_text(STACKED, encoding="utf8")
    out, trials = tmp_path / "out", trials_of(load_definition(str(toy)))
    with SweepFolder(out, STACKED, trials) as folder:  # a sweep that was interrupted after its first stack
        first = [folder.of(trial) for trial in folder.trials[:2]]
        assert train_stack([trial.config for trial in trials[:2]], first) == []
    kept = [(path / "checkpoints" / "label" / "committed.json").read_bytes() for path in first]
    done = sweep(toy, "--out", out, "--resume")
    assert done.returncode == 0, done.stderr
    assert "2 trials are trained in 1 stack:" in done.stderr + done.stdout
    assert [(path / "checkpoints" / "label" / "committed.json").read_bytes() for path in first] == kept
    table = pq.read_table(out / "trials.parquet")
    assert table.column("status").to_pylist() == ["finished"] * 4
    assert table.column("cost/together").to_pylist() == [2] * 4
    assert table.column("attempts").to_pylist() == [1] * 4
    for entry in json.loads((out / "summary.json").read_text()):
        folder = out / entry["run"]
        assert {"config.toml", "steps.parquet", "report.html", "weights"} <= {path.name for path in folder.iterdir()}
        alone = run(load_config(str(folder / "config.toml"))).summary
        assert entry["utility"]["last"] == pytest.approx(alone["utility"]["last"], abs=1e-5)
    toy.write_text(STACKED.replace("[0, 1]", "[0]"), encoding="utf8")
    apart = sweep(toy, "--out", tmp_path / "apart", "--no-stacking")
    assert apart.returncode == 0, apart.stderr
    assert pq.read_table(tmp_path / "apart" / "trials.parquet").column("cost/together").to_pylist() == [1] * 2
