"""Three network namespaces as three hosts, with no way from one to another but the documented ports' addresses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from flower_vfl.apps import run
from flower_vfl.config import load_config

pytestmark = [pytest.mark.flower, pytest.mark.nginx, pytest.mark.timeout(400)]

SCRIPT = Path(__file__).parents[2] / "docs" / "deployment" / "three-hosts.sh"


def reason_to_skip():
    """Return the reason that there are no namespaces here, else an empty text."""
    for tool in ("ip", "nginx"):
        if shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
            return f"{tool} is not installed"
    name = f"probe{uuid.uuid4().hex[:8]}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"network namespaces are not allowed here: {made.stderr.strip()}"
    bridge = ["ip", "netns", "exec", name, "ip", "link", "add", "switch", "type", "bridge"]
    bridged = subprocess.run(bridge, capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", name], check=True)
    return f"no bridge can be made here: {bridged.stderr.strip()}" if bridged.returncode else ""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    if reason := reason_to_skip():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("three")
    extra = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin:/sbin",
        "PYTHONPATH": str(SCRIPT.parents[2]),
    }
    done = subprocess.run(
        [str(SCRIPT), str(folder)],
        env={**os.environ, **extra},
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout


def test_three_hosts_train_together_and_each_keeps_what_is_its_own(trained):
    folder, output = trained
    assert "three hosts have trained together" in output
    result = json.loads((folder / "label" / "run" / "result.json").read_text())
    assert result["status"] == "finished"
    assert set(result["weights"]) == {"label", "left", "right"}
    for party in ("left", "right"):
        assert [path.stem for path in (folder / party / "weights" / "weights").iterdir()] == [party]
        assert not (folder / party / "data" / "labels").exists()
    assert [path.stem for path in (folder / "label" / "run" / "weights").iterdir()] == ["label"]


def test_each_party_found_its_host_ready_and_the_control_api_closed(trained):
    assert trained[1].count("everything that is needed is here") == 2
    assert trained[1].count("closed to this host") == 2


def test_other_hosts_compute_what_one_process_would_but_for_their_own_secrets(trained):
    folder, _ = trained
    result = json.loads((folder / "label" / "run" / "result.json").read_text())
    config = load_config(str(folder / "run.toml"), {"data.path": str(folder / "whole"), "transport.kind": "inproc"})
    local = run(config).summary
    assert result["dataset"] == local["dataset"]
    assert result["cost"]["steps"] == local["cost"]["steps"]
    assert result["weights"] != local["weights"]  # initial weights come from each host's operating system


def test_no_process_and_nothing_of_the_network_is_left(trained):
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert [command for command in commands if str(trained[0]).encode() in command] == []
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert "vfl" not in left
