"""Runs in Flower's simulation runtime: SuperLink, Ray actors, sessions between processes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from pathlib import Path

import pytest
import tomli_w

from flower_vfl.apps import run
from flower_vfl.config import build_config, to_run_config
from flower_vfl.errors import OutputExistsError, PartyError, SessionError, SetupError
from flower_vfl.files import FolderLock
from flower_vfl.simulations import flower_engine
from flower_vfl.simulations.flower_engine import run_flower, write_app, write_deployment
from flower_vfl.tracking import read_steps
from tests.faults.common import Interrupt

pytestmark = [pytest.mark.flower, pytest.mark.timeout(280)]

TWO = {
    "data": {"name": "breast-cancer"},
    "parties": {"features": ["a", "b"], "label_features": False},
    "training": {"epochs": 2, "batch_size": 64},
    "attack": {"names": ["norm"], "informed": 0, "snapshots": [], "embeddings": 0},
}


def check_equal(folder, simulated, local, names, layers):
    """Compare a run in Flower's simulation runtime with the same one of the local engine."""
    for part in ("weights", "utility", "leakage"):
        assert simulated[part] == local[part], part
    read = {(entry["layer"], entry["label"]) for entry in simulated["leakage"] if entry["source"] == "attacker"}
    assert {(layer, name) for layer in layers for name in names} <= read
    assert (folder / "report.html").is_file()
    assert not list(folder.glob("*.journal"))


def test_a_simulation_over_messages_equals_the_local_run(tmp_path):
    names = ["norm", "clustering", "model_completion(k=2,draws=1)"]
    values = {
        "data": {"name": "digits"},
        "parties": {"features": ["left", "right"], "label_features": False},
        "training": {"epochs": 1, "batch_size": 128},
        "attack": {"names": names, "informed": 0, "snapshots": [], "embeddings": 0},
        "defenses": [{"name": "potential_energy"}],
    }
    messages = {"kind": "messages", "in_flight": 1}
    simulated = run_flower(build_config({**values, "transport": messages}), tmp_path / "run")
    check_equal(tmp_path / "run", simulated, run(build_config(values)).summary, names, ["cut", "first"])


def test_parties_that_do_not_fit_all_at_once_are_refused_with_what_there_is_and_leave_nothing(tmp_path, monkeypatch):
    """Another job can take processors after the cluster was checked."""
    monkeypatch.setattr(flower_engine, "_processors", lambda given: 1)
    monkeypatch.setattr(flower_engine, "check_room", lambda cluster, given: None)
    with pytest.raises(SetupError, match=r"no room for all 2 feature parties.*2 x \(1 CPU\); .* has 1 CPU, 0 GPU"):
        run_flower(build_config(TWO), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def descends_from_here(pid):
    """Return True if `pid` is a descendant of this process; those of other runs on the machine are not."""
    while pid > 1:
        if pid == os.getpid():
            return True
        with open(f"/proc/{pid}/status", encoding="utf8") as file:
            pid = int(re.search(r"PPid:\s*(\d+)", file.read())[1])
    return False


def actor_processes():
    """Return the ids of the processes of the Ray actors that run the handlers of this test's simulation."""
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            with open(f"/proc/{pid}/cmdline", encoding="utf8") as file:
                if "ClientAppActor" in file.read() and descends_from_here(pid):
                    found.append(pid)
        except OSError:
            continue
    return found


def test_a_killed_actor_ends_the_run_in_seconds_and_leaves_what_was_measured(tmp_path):
    config = build_config({**TWO, "training": {"epochs": 2000, "batch_size": 16}, "transport": {"kind": "stream"}})
    killed = []

    def kill_one():
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            journal = tmp_path / "run" / "label.journal"
            if journal.exists() and journal.stat().st_size > 0 and actor_processes():
                time.sleep(1.0)
                os.kill(actor_processes()[0], signal.SIGKILL)
                killed.append(time.monotonic())
                return
            time.sleep(0.1)

    killer = threading.Thread(target=kill_one)
    killer.start()
    with pytest.raises(PartyError, match=re.compile("'[ab]'.*died or lost")):
        run_flower(config, tmp_path / "run")
    killer.join()
    assert killed
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "failed"
    assert result["cost"]["steps"] > 0
    assert len(read_steps(tmp_path / "run")) > 0


@pytest.mark.parametrize("begun", [False, True], ids=["from the beginning", "going on"])
def test_a_simulation_that_breaks_off_without_a_word_is_a_failure_also_where_an_earlier_attempt_left_a_result(
    begun, tmp_path, monkeypatch
):
    config = build_config({**TWO, "transport": {"kind": "stream"}})
    if begun:
        with pytest.raises(KeyboardInterrupt):
            run(config, out=tmp_path / "run", observers=(Interrupt(5),))
        assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "interrupted"
    monkeypatch.setattr(flower_engine, "flwr_run", lambda *_: -signal.SIGKILL)
    with pytest.raises(SessionError, match=r"broke off and did not say why \(flwr run ended with -9\)"):
        run_flower(config, tmp_path / "run", resume=begun)


def test_the_written_app_holds_the_whole_configuration(tmp_path):
    from flower_vfl.config import from_run_config

    config = build_config({**TWO, "seed": 7, "defenses": [{"name": "iso", "t": 2.0}]})
    write_app(tmp_path / "app", {**to_run_config(config), "out": str(tmp_path / "out")})
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    assert from_run_config(project["tool"]["flwr"]["app"]["config"]) == config


def test_the_app_of_a_deployment_runs_over_streams_and_names_no_data(tmp_path):
    from flower_vfl.config import from_run_config
    from flower_vfl.errors import ConfigError

    write_deployment(tmp_path / "app", build_config(TWO), None)
    run_config = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert (run_config["out"], from_run_config(run_config).transport.kind) == ("", "stream")
    assert (run_config["job"], run_config["predict-run"], run_config["predict-overwrite"]) == ("train", "", False)
    assert {file.name for file in (tmp_path / "app").iterdir()} == {"pyproject.toml", "server_app.py", "client_app.py"}
    with pytest.raises(OutputExistsError):
        write_deployment(tmp_path / "app", build_config(TWO), None)
    with pytest.raises(ConfigError, match="reaches every party; each host names its own"):
        write_deployment(tmp_path / "other", build_config({**TWO, "data": {"path": "/srv"}}), None)


@pytest.fixture
def temporary(monkeypatch):
    """Yield a folder for temporary files whose path is short enough for Ray's sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t-") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def test_engine_flower_equals_the_local_run_and_leaves_no_ray_files(tmp_path, temporary, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch"))  # attacks on trained models make torch's own
    names = ["norm", "remembered_norm", "spectral", "clustering", "model_completion(k=2,draws=1)"]
    values = {**TWO, "attack": {"names": names, "informed": 128}}
    (tmp_path / "run.toml").write_text(tomli_w.dumps(values))
    command = [sys.executable, "-m", "flower_vfl", "run", str(tmp_path / "run.toml"), "--engine", "flower"]
    done = subprocess.run([*command, "--out", str(tmp_path / "out")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Leak AUC" in done.stdout
    assert not list(temporary.iterdir())
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["environment"]["transport"] == "stream"
    check_equal(tmp_path / "out", result, run(build_config(values)).summary, names, ["cut"])
    assert {"auc", "monitor_auc", "train_loss"} <= set(read_steps(tmp_path / "out")["metric"].to_pylist())


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.release)])
def test_a_run_that_a_signal_ends_ends_with_flowers_processes_and_keeps_what_was_measured(number, tmp_path, temporary):
    """Flower's simulation would outlive its SuperLink, and keep the folder of the run in use for hours."""
    out, preset = tmp_path / "run", tmp_path / "long.toml"
    long = {**TWO, "training": {"epochs": 5000, "batch_size": 64}, "checkpoint": {"every": 50}}
    preset.write_text(tomli_w.dumps(long))
    words = [sys.executable, "-m", "flower_vfl", "run", str(preset), "--engine", "flower", "--out", str(out)]
    with (tmp_path / "errors").open("wb") as errors, subprocess.Popen(words, stderr=errors) as process:
        try:
            wait_until(lambda: list((out / "checkpoints" / "label").glob("step-*[1-9]*.safetensors")), 200)
            (settings,) = temporary.glob("*/home/config.toml")
            link = tomllib.loads(settings.read_text())["superlink"]["flower-vfl-run"]["address"]
            assert answers(link)
        finally:
            process.send_signal(number)
        assert process.wait(60) == {signal.SIGTERM: 143, signal.SIGKILL: -signal.SIGKILL}[number]
    if number == signal.SIGTERM:
        assert "stopping Flower's processes" in (tmp_path / "errors").read_text()
        assert (out / "result.json").is_file()  # so --resume works as soon as the command has ended
        assert not in_use(out)
    wait_until((out / "result.json").is_file, 30)
    assert json.loads((out / "result.json").read_text())["status"] == "interrupted"
    wait_until(lambda: not in_use(out), 30)
    wait_until(lambda: not answers(link), 30)
    wait_until(lambda: not list(temporary.iterdir()), 30)


def test_a_folder_in_use_is_refused_before_flower_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(flower_engine, "flwr_run", lambda *_: pytest.fail("Flower was started"))
    config = build_config({**TWO, "transport": {"kind": "stream"}})
    with pytest.raises(KeyboardInterrupt):
        run(config, out=tmp_path / "run", observers=(Interrupt(5),))
    lock = FolderLock(tmp_path / "run")
    with pytest.raises(OutputExistsError, match="is in use by process"):
        run_flower(config, tmp_path / "run", resume=True)
    lock.release()


def answers(address):
    """Return True if something listens at an address of this machine."""
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def in_use(folder):
    try:
        FolderLock(folder).release()
    except OutputExistsError:
        return True
    return False


def wait_until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)
