"""SuperLink and SuperNodes with TLS and authentication: a run there ends as it does in one process."""

from __future__ import annotations

import json
import os
import re
import shutil
import ssl
import subprocess
from glob import glob

import httpx
import pytest

from flower_vfl.apps import run
from flower_vfl.config import build_config
from flower_vfl.simulations.flower_engine import tool
from flower_vfl.simulations.host import Host, findings
from flower_vfl.simulations.keys import write_keys
from tests.deployment.conftest import SEED, feature_parts, write_parts
from tests.deployment.hosts import ROOT, deployed

pytestmark = [pytest.mark.flower, pytest.mark.timeout(590)]

REFUSED, GRACEFUL = "Exit Code: 305", "SuperNode terminated gracefully"
PAGE = (ROOT / "docs" / "deployment" / "README.md").read_text()
assert "exit code 305" in PAGE
assert GRACEFUL in PAGE


def ended_as_explained(hosts, name):
    """Wait for the end of a refused SuperNode; return True if it ends in one of the two ways that the pages explain.

    Flower interrupts itself and raises at once, and either may come first: it ends with an error and logs 305, or with
    0 and logs that it ended gracefully.
    """
    code, log = hosts.exit_code(name, 120), hosts.log(name)
    return (code > 0 and REFUSED in log) or (code == 0 and GRACEFUL in log)


def config(path="", kind="stream", batch_size=64, epochs=2, informed=0, **transport):
    """Return a small run, without readers that are fitted to labels: they take longer than the rest of it."""
    return build_config(
        {
            "seed": SEED,
            "data": {"name": "files", "path": str(path)},
            "model": {"embedding_width": 2, "bottom": [8], "top": [8], "cut": 4},
            "training": {"epochs": epochs, "batch_size": batch_size, "eval_batch_size": 2000},
            "attack": {"informed": informed},
            "defenses": [{"name": "marvell"}],
            "transport": {"kind": kind, **transport},
        }
    )


def locally(parts, **training):
    return run(config(parts / "whole", "inproc", **training)).summary


def result_of(hosts, name):
    return json.loads((hosts.folder / name / "result.json").read_text())


def check_equal(hosts, name, local):
    result = result_of(hosts, name)
    assert result["weights"] == local["weights"]
    assert result["utility"] == local["utility"]
    assert [entry for entry in result["leakage"] if entry["source"] != "monitor"] == []  # no attacker, no oracle
    return result


@pytest.mark.release
@pytest.mark.slow
def test_messages_need_no_port_and_end_with_the_same_weights(hosts, parts):
    two_steps = {"batch_size": 500, "epochs": 1}  # each takes seconds
    done = hosts.run(config(kind="messages", **two_steps), "messages", timeout=500)
    assert done.returncode == 0, done.stdout + hosts.all_logs()
    result = check_equal(hosts, "messages", locally(parts, **two_steps))
    assert result["environment"]["transport"] == "messages"
    assert result["cost"]["steps"] == 2


@pytest.mark.release
def test_processes_of_their_own_end_with_the_same_weights(parts, tmp_path):
    with deployed(tmp_path, parts / "bank", feature_parts(parts), isolation="process", seed=SEED) as hosts:
        done = hosts.run(config(), "stream")
        assert done.returncode == 0, done.stdout + hosts.all_logs()
        check_equal(hosts, "stream", locally(parts))


def test_doctor_finds_the_deployed_hosts_ready(hosts, parts):
    for party in ("shop", "club"):
        keys = hosts.keys / party
        address = f"127.0.0.1:{hosts.port}"
        host = Host(parts / party, party, address, keys / "ca.crt", keys / f"{party}.key")
        states = {what: state for what, state, _ in findings(host) if what != "root certificates"}  # they end soon
        assert set(states.values()) == {"ok"}
        assert {"data", "key", "clock", f"SuperLink {address}"} <= set(states)


@pytest.fixture(scope="module")
def nginx():
    """Return the path of nginx, or None where it is not installed."""
    return shutil.which("nginx") or shutil.which("/usr/sbin/nginx")


@pytest.fixture(scope="module")
def joined_late(hosts, nginx):
    """Return a run that one of two nodes joined late, behind the proxy where nginx is installed."""
    hosts.stop("club")
    if nginx is not None:
        hosts.start_proxy(nginx)
    hosts.start_later("club", 12.0)
    done = hosts.run(config(informed=4096), "stream")
    assert done.returncode == 0, done.stdout + hosts.all_logs()
    return done


def test_a_deployment_that_a_node_joins_late_ends_with_the_weights_of_the_local_run(hosts, parts, joined_late):
    result = check_equal(hosts, "stream", locally(parts))
    assert any(entry["label"] == "informed" for entry in result["leakage"])
    assert result["environment"]["transport"] == "stream"
    assert "without proof" not in joined_late.stdout  # names were registered
    for party in ("shop", "club"):  # weights stay where they were trained
        assert list((hosts.folder / party / "out").rglob("*.safetensors"))
    assert [path.name for path in (hosts.folder / "stream" / "weights").iterdir()] == ["label.safetensors"]


@pytest.mark.nginx
def test_behind_the_proxy_a_party_trains_and_nobody_else_commands_the_superlink(hosts, joined_late, nginx):
    if nginx is None:
        pytest.skip("nginx is not installed")
    assert hosts.dialled != hosts.port
    assert f"127.0.0.1:{hosts.dialled}" in hosts.process("club").args  # and the run ended well, by the proxy
    context = ssl.create_default_context(cafile=str(hosts.keys / "shop" / "ca.crt"))

    def status(port, path):
        return httpx.get(f"https://127.0.0.1:{port}{path}", verify=context, trust_env=False).status_code

    behind = [status(hosts.port, path) for path in ("/health", "/v1/fleet/pull-messages", "/v1/control/start-run")]
    assert behind == [200, 405, 405]  # they take POST: that is how doctor recognises them
    assert [status(hosts.dialled, path) for path in ("/health", "/v1/fleet/pull-messages")] == [200, 405]
    shut = ("/v1/control/start-run", "/v1/runtime/pull-task-input", "/docs", "/", "/v1/fleet/../control/start-run")
    assert {status(hosts.dialled, path) for path in shut} == {403}


# In the following tests the club's node stays as the test before left it: each starts it as it needs it.


def test_a_node_with_other_data_is_refused_and_both_hosts_say_what_to_do(hosts, tmp_path):
    others = write_parts(tmp_path / "others", rows=900)
    hosts.restart("club", data=others / "club")
    done = hosts.run(config(), "other")
    assert result_of(hosts, "other")["status"] == "failed"
    for log in (done.stdout, hosts.log("club")):
        assert "party 'club' does not fit" in log
        assert "prepare or align the data again at both parties" in log


def test_an_error_in_a_nodes_data_is_described_on_its_host_alone(hosts, parts, tmp_path):
    shutil.copytree(parts / "club", tmp_path / "damaged")
    (tmp_path / "damaged" / "club" / "party.json").write_text('["a row of the club"]')
    hosts.restart("club", data=tmp_path / "damaged")
    done = hosts.run(config(), "damaged")
    assert "party 'club' could not take part in the training; the log of its host says why" in done.stdout
    assert "damaged/club" not in done.stdout + hosts.log("superlink")
    assert f"{tmp_path / 'damaged' / 'club' / 'party.json'} holds list, a JSON object is needed" in hosts.log("club")


def test_a_node_whose_key_was_registered_for_another_party_is_refused_on_both_hosts(hosts):
    hosts.restart("club", party="shop")
    done = hosts.run(config(connect_timeout=30), "impostor")
    for log in (done.stdout, hosts.log("club")):
        assert "the node that is registered as 'club' says that it is party 'shop'" in log


def test_a_node_whose_owner_named_no_party_takes_no_part_and_both_hosts_say_what_to_do(hosts):
    hosts.restart("club", config="partition-id=0 num-partitions=2")  # as in Flower's own examples
    done = hosts.run(config(), "nameless")
    for log in (done.stdout, hosts.log("club")):
        assert "this node has no party: start its SuperNode with --node-config" in log


def test_a_missing_party_is_named_and_the_other_host_logs_it(hosts):
    hosts.stop("club")
    done = hosts.run(config(connect_timeout=40), "missing")
    hosts.start_node("club")
    assert "1 nodes are connected, the run has 2 feature parties (shop, club)" in done.stdout
    assert "flower-vfl doctor --dial" in done.stdout
    hosts.wait_for("shop", "these parties have not arrived: club")


def test_a_second_supernode_with_the_same_key_ends_as_the_pages_explain(hosts):
    hosts.wait_for("club", "SuperNode ID")
    hosts.start_node("club", name="club-again")
    assert ended_as_explained(hosts, "club-again")


def test_a_key_that_nobody_registered_ends_as_the_pages_explain(hosts, tmp_path):
    write_keys(tmp_path / "keys", ["127.0.0.1"], ["club"], days=1)
    shutil.copytree(hosts.keys / "club", hosts.keys / "stranger")
    shutil.copyfile(tmp_path / "keys" / "club" / "club.key", hosts.keys / "stranger" / "stranger.key")
    hosts.start_node("stranger", party="club")
    assert ended_as_explained(hosts, "stranger")


@pytest.fixture
def another_clock(tmp_path):
    """Return environment variables that change the time of a process, by the Debian package `libfaketime`."""
    place = os.environ.get("FAKETIME_LIBRARY") or next(iter(glob("/usr/lib/*/faketime/libfaketimeMT.so.1")), None)
    if place is None:
        pytest.skip("libfaketime is not installed, and FAKETIME_LIBRARY names none")
    # with a monotonic clock that is left alone, the library breaks the call by which Python sleeps
    shim = "import select, time\ntime.sleep = lambda seconds: select.select([], [], [], seconds)\n"
    (tmp_path / "sitecustomize.py").write_text(shim)
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    return {"LD_PRELOAD": place, "FAKETIME_DONT_FAKE_MONOTONIC": "1", "PYTHONPATH": path}


@pytest.mark.parametrize(
    ("difference", "logged", "advice"),
    [
        ("-10m", "", r"(5[89]\d|6\d\d) s behind the SuperLink's.* Set the wrong one: timedatectl set-ntp true"),
        ("+10m", "", r"(59\d|6\d\d) s ahead of the SuperLink's.* Set the wrong one: timedatectl set-ntp true"),
        ("-2d", "CERTIFICATE_VERIFY_FAILED", r"valid only from .* UTC on; this host's clock says .*; if that is wrong"),
    ],
)
def test_a_wrong_clock_ends_the_supernode_and_doctor_says_whose_it_is(hosts, difference, logged, advice, another_clock):
    clock, keys, name = {**another_clock, "FAKETIME": difference}, hosts.keys / "club", f"club{difference}"
    hosts.stop("club")
    hosts.start_node("club", name=name, more=clock)
    explained = ended_as_explained(hosts, name)
    hosts.start_node("club")
    assert explained
    assert logged in hosts.log(name)
    doctor = [tool("flower-vfl"), "doctor", "--superlink", f"127.0.0.1:{hosts.port}"]
    doctor += ["--root-certificates", str(keys / "ca.crt"), "--key", str(keys / "club.key")]
    environment = hosts.environment("club", COLUMNS="400", **clock)
    done = subprocess.run(doctor, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(advice, done.stdout), done.stdout


def test_a_wrong_authority_ends_the_supernode_and_doctor_says_what_to_do(hosts, tmp_path):
    write_keys(tmp_path / "keys", ["127.0.0.1"], ["club"], days=1)
    wrong = tmp_path / "keys" / "club" / "ca.crt"
    hosts.start_node("club", name="club-misled", authority=wrong)
    assert ended_as_explained(hosts, "club-misled")
    assert "CERTIFICATE_VERIFY_FAILED" in hosts.log("club-misled")
    host = Host(superlink=f"127.0.0.1:{hosts.port}", authority=wrong)
    (advice,) = [text for what, state, text in findings(host) if what.startswith("SuperLink") and state == "wrong"]
    assert "ask the label party for the ca.crt" in advice
