"""A party's process is killed in a deployment; it comes back, and the run ends the same.

`test_endings.py` kills a whole SuperNode.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from flower_vfl.apps import run
from flower_vfl.config import build_config
from tests.deployment.conftest import SEED, feature_parts
from tests.deployment.hosts import deployed
from tests.deployment.test_deployment import config

pytestmark = [pytest.mark.flower, pytest.mark.slow, pytest.mark.timeout(590)]


def long_run(path="", kind="stream"):
    """Return a run with frequent checkpoints, two thirds of which are still to come when a party is killed."""
    values = config(path, kind, reconnect_timeout=5.0, rejoin_timeout=240.0).model_dump()
    values["training"] |= {"epochs": 60}
    return build_config({**values, "checkpoint": {"every": 50}})


def below(root):
    """Return the process and all that descend from it, oldest first."""
    children = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def kill(pids):
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def beyond(folder, step):
    """Return True if a folder has a checkpoint of this step or a later one."""
    steps = [int("".join(filter(str.isdigit, path.stem)) or 0) for path in folder.glob("*.safetensors")]
    return max(steps, default=0) >= step


@pytest.mark.release
def test_a_party_that_is_killed_comes_back_and_the_run_ends_with_the_same_weights(parts, tmp_path):
    with deployed(tmp_path, parts / "bank", feature_parts(parts), seed=SEED) as hosts:
        done = []
        running = threading.Thread(target=lambda: done.append(hosts.run(long_run(), "run", timeout=500)))
        running.start()
        commits = tmp_path / "run" / "checkpoints" / "label"
        deadline = time.monotonic() + 120
        while not beyond(commits, 150):
            assert time.monotonic() < deadline, hosts.all_logs()
            time.sleep(0.1)
        kill(pid for pid in below(hosts.process("shop").pid) if "flwr-clientapp" in command(pid))
        running.join()
        assert done[0].returncode == 0, done[0].stdout + hosts.all_logs()
        result = json.loads((tmp_path / "run" / "result.json").read_text())
    local = run(long_run(parts / "whole", "inproc")).summary
    assert "is asked again" in done[0].stdout + hosts.all_logs()
    assert result["status"] == "finished"
    assert result["weights"] == local["weights"]
    assert result["utility"] == local["utility"]
