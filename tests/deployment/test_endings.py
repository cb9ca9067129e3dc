"""A deployed run with a closed port, a leak above its limit, a signal or a kill: logs and files of each host."""

from __future__ import annotations

import os
import re
import signal
import threading
import time

import pytest
import torch
from safetensors.torch import load_file

from flower_vfl.apps import run
from flower_vfl.config import build_config
from tests.deployment.hosts import NAME
from tests.deployment.test_deployment import check_equal, config, result_of
from tests.deployment.test_recovery import below, beyond, command, kill

pytestmark = [pytest.mark.flower, pytest.mark.timeout(590)]

CLOSED = {"grpc_proxy": "http://127.0.0.1:9", "no_grpc_proxy": "127.0.0.1"}
"""Environment of a SuperNode that can dial no name, as behind a firewall: no proxy listens at that address."""
SILENT = {"names": [], "monitor": False}
"""Options of a local run whose weights and utility alone are compared."""
UNREACHED = r"session endpoint localhost:\d+ could not be reached within 40 s"


def changed(settings, **sections):
    values = settings.model_dump()
    return build_config({**values, **{name: {**values[name], **some} for name, some in sections.items()}})


LIMITS = {
    "leak limit": {"defenses": [], "attack": {"names": ["remembered_norm"], "max_leak": 0.855}},
    "bound limit": {"defenses": [{"name": "marvell", "s": 4.0}], "attack": {"names": [], "max_bound": 0.85}},
}
"""Without a defense the leak by `remembered_norm` grows each epoch and passes the limit before the last one. Marvell's
bound is 0.72 after the first epoch, then 0.79 and 0.91."""


def limited(settings, status):
    values = settings.model_dump()
    limits = LIMITS[status]
    attack = {**values["attack"], **limits["attack"]}
    training = {**values["training"], "epochs": 6}
    return build_config({**values, "defenses": limits["defenses"], "attack": attack, "training": training})


@pytest.mark.parametrize("status", ["leak limit", pytest.param("bound limit", marks=pytest.mark.slow)])
def test_a_limit_that_is_passed_stops_the_run_and_every_party_keeps_the_model_from_before(
    hosts, parts, tmp_path, status
):
    local = run(limited(config(parts / "whole", "inproc"), status), out=tmp_path / "local").summary
    assert local["status"] == status
    assert local["model"]["epoch"] > 0
    done = hosts.run(limited(config(), status), status.split()[0])
    assert done.returncode == 0, done.stdout + hosts.all_logs()
    result = result_of(hosts, status.split()[0])
    for name in ("status", "model", "budget", "weights", "utility"):
        assert result[name] == local[name]
    kept = {party: hosts.folder / party / "out" / "weights" for party in ("shop", "club")}
    for party, folder in {**kept, "label": hosts.folder / status.split()[0] / "weights"}.items():
        name = f"{party}.safetensors"
        ours, theirs = load_file(folder / name), load_file(tmp_path / "local" / "weights" / name)
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    model = result["model"]
    assert f"the model of step {model['step']}, epoch {model['epoch']}, is kept" in done.stdout


def terminated_and_killed(path="", kind="stream", **attack):
    """Return a run with frequent checkpoints, most of which are still to come when its processes are ended."""
    settings = config(path, kind, reconnect_timeout=5.0, rejoin_timeout=240.0)
    return changed(settings, training={"epochs": 40}, checkpoint={"every": 20}, attack=attack)


def terminate_server_app(hosts, out):
    """Terminate the ServerApp of the run after its first checkpoint."""
    deadline = time.monotonic() + 120
    while not list((out / "checkpoints" / "label").glob("step-*[1-9]0.safetensors")):
        assert time.monotonic() < deadline, hosts.all_logs()
        time.sleep(0.1)
    (server,) = [pid for pid in below(hosts.process("superlink").pid) if "flwr-serverapp" in command(pid)]
    os.kill(server, signal.SIGTERM)
    return server


def kill_supernode(hosts, out, step):
    """Kill a SuperNode with all its processes after a later checkpoint, and start it again."""
    deadline = time.monotonic() + 120
    while not beyond(out / "checkpoints" / "label", step + 1):
        assert time.monotonic() < deadline, hosts.all_logs()
        time.sleep(0.1)
    kill(below(hosts.process("shop").pid))
    time.sleep(40)  # the SuperLink believes for 30 to 60 s that it is alive, and each start takes seconds of a core
    hosts.start_again("shop")


def test_a_terminated_run_resumes_through_a_killed_supernode_to_the_same_result(hosts, parts):
    """The ServerApp keeps its measurements; the SuperNode is killed in the run that resumes it."""
    done, out = [], hosts.folder / "ended"
    running = threading.Thread(target=lambda: done.append(hosts.run(terminated_and_killed(), "ended")))
    running.start()
    server = terminate_server_app(hosts, out)
    running.join()
    assert "Task stopped by user" in done[0].stdout  # and `flwr run` ends with 0
    deadline = time.monotonic() + 30  # Flower tells the SuperLink first, and lets a process end after that
    while not (out / "result.json").exists() or command(server):
        assert time.monotonic() < deadline, hosts.all_logs()
        time.sleep(0.1)
    steps = result_of(hosts, "ended")["cost"]["steps"]
    assert result_of(hosts, "ended")["status"] == "interrupted"
    assert 0 < steps < 560
    for party in ("shop", "club"):
        hosts.wait_for(party, "the label party ended the session")
    resume = ("run", str(hosts.folder / "app-ended"), NAME, "--run-config", "resume=true", "--stream")
    running = threading.Thread(target=lambda: done.append(hosts.flwr(*resume, timeout=400)))
    running.start()
    kill_supernode(hosts, out, steps)
    running.join()
    assert done[1].returncode == 0, done[1].stdout + hosts.all_logs()
    assert "is asked again" in done[1].stdout + hosts.all_logs()
    assert result_of(hosts, "ended")["status"] == "finished", done[1].stdout + hosts.all_logs()
    check_equal(hosts, "ended", run(terminated_and_killed(parts / "whole", "inproc", **SILENT)).summary)


@pytest.fixture(scope="module")
def behind_a_firewall(hosts):
    """The deployment with a SuperNode that can dial no name; the tests that use it are the last ones."""
    hosts.restart("club", more=CLOSED)
    return hosts


@pytest.mark.parametrize("fallback", [pytest.param("messages", marks=pytest.mark.slow), "none"])
def test_a_party_that_cannot_reach_the_port_uses_messages_where_the_run_allows_it(behind_a_firewall, parts, fallback):
    """One epoch of one batch, as each message takes seconds; the other party goes on by its stream."""
    hosts = behind_a_firewall
    short = {"training": {"epochs": 1, "validation": 0.0}, "checkpoint": {"every": -1}}
    transport = {"host": "127.0.0.1", "advertise": "localhost", "fallback": fallback, "connect_timeout": 80.0}
    before = {party: len(hosts.log(party)) for party in ("club", "shop")}
    done = hosts.run(changed(config(batch_size=952, **transport), **short), f"closed-{fallback}", timeout=400)
    club, shop = (hosts.log(party)[length:] for party, length in before.items())
    for log in (done.stdout, club):
        assert re.search(UNREACHED, log), log
    assert not re.search(UNREACHED, shop)
    if fallback == "none":
        assert result_of(hosts, "closed-none")["status"] == "failed"
        return
    assert done.returncode == 0, done.stdout + hosts.all_logs()
    assert "takes part through Flower's own messages, which is slow (transport.fallback)" in done.stdout
    assert "Frames travel in Flower's own messages instead, which is slow" in club
    assert "Flower's own messages" not in shop
    local = run(changed(config(parts / "whole", "inproc", 952), **short, attack=SILENT)).summary
    check_equal(hosts, "closed-messages", local)
