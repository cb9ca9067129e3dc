"""The services of docs/deployment/containers/, as an engine would run them: user, root, network, secrets, volumes."""

from __future__ import annotations

import json
import shutil
import time

import pytest

from tests.deployment.containers import ROOT, pods, reason_to_skip, running

RUN = """
[data]
name = "files"
[training]
epochs = 1
batch_size = 200
[attack]
names = []
[transport]
kind = "stream"
host = "0.0.0.0"
advertise = "10.213.78.1"
port = 9093
connect_timeout = 240
"""


@pytest.mark.flower
@pytest.mark.nginx
@pytest.mark.timeout(400)
def test_the_services_of_three_hosts_train_together(parts, tmp_path):
    if reason := reason_to_skip():
        pytest.skip(reason)
    with pods(tmp_path, ["shop", "club"]) as (label, *others):
        for pod, party in zip((label, *others), ("bank", "shop", "club"), strict=True):
            shutil.copytree(parts / party, pod.data / "data")
            pod.work.mkdir(parents=True)
        (label.work / "run.toml").write_text(RUN)
        for party in ("shop", "club"):
            shutil.copy(label.keys / f"{party}.pub", label.work)
        for pod in (label, *others):
            pod.own()
        label.start("superlink")
        label.wait_healthy("superlink")
        for service in ("proxy", "serverapp"):
            label.start(service)
        for pod, party in zip(others, ("shop", "club"), strict=True):
            done = label.run("cli", "flwr", "supernode", "register", f"/work/{party}.pub", "vfl", "--name", party)
            assert done.returncode == 0, done.stdout + done.stderr
            pod.start("supernode")
            pod.wait_healthy("supernode")
            pod.start("clientapp")
        made = label.run(
            "cli", "flower-vfl", "app", "run.toml", "--out", "app", "--results", "/var/lib/flower-vfl/first"
        )
        assert made.returncode == 0, made.stderr
        done = label.run("cli", "flwr", "run", "app", "vfl", "--stream")
        logs = "\n".join(path.read_text(errors="replace")[-3000:] for path in tmp_path.glob("*/*.log"))
        result = label.state / "serverapp" / "first" / "result.json"
        assert result.exists(), f"{done.stdout}{done.stderr}\n{logs}"
        assert json.loads(result.read_text())["status"] == "finished"
        for pod in others:
            assert list((pod.state / "clientapp" / "weights").rglob("*.safetensors"))
            pod.wait_healthy("clientapp")
        for service in ("proxy", "serverapp"):
            label.wait_healthy(service)
        _check_isolation(label, others[0])
    deadline = time.monotonic() + 30
    while running():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def _check_isolation(label, party):
    """Check that no service can read, write or reach what it must not."""
    for pod, service, path in (
        (label, "superlink", "/srv/flower-vfl"),
        (label, "serverapp", "/etc/flower-vfl/server.key"),
        (label, "proxy", "/etc/flower-vfl/superexec.secret"),
        (party, "supernode", "/srv/flower-vfl"),
        (party, "clientapp", "/etc/flower-vfl/party.key"),
    ):
        assert pod.execute(service, "ls", path).returncode == 2, (service, path)
    for path in ("/x", "/srv/flower-vfl/x", "/etc/flower-vfl/x", f"{ROOT}/x"):
        assert "Read-only file system" in label.execute("serverapp", "touch", path).stderr
    status = label.execute("serverapp", "cat", "/proc/self/status").stdout
    assert "CapBnd:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    assert label.execute("serverapp", "id", "-u").stdout == "49999\n"
    for port in (9091, 9095, 9096):  # the Control API and the rest: on the loopback of the host alone
        tried = party.execute("clientapp", "bash", "-c", f"exec 3<>/dev/tcp/10.213.78.1/{port}")
        assert "Connection refused" in tried.stderr
