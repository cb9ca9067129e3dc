"""Many feature parties in Flower's simulation runtime, on the nodes of an existing Ray cluster."""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from unittest.mock import MagicMock, Mock

import pytest
import tomli_w

from flower_vfl.apps import predict, run
from flower_vfl.config import build_config, load_config
from flower_vfl.data.store.alignment import AlignmentFile
from flower_vfl.simulations.flower_engine import BUNDLES_VARIABLE, free_port, tool

pytestmark = [pytest.mark.flower, pytest.mark.timeout(580)]

OTHER = "127.0.0.2"
"""Address of the second node: across two machines a label party must not listen on 127.0.0.1 alone."""


def values(parties, kind="stream"):
    options = {"rows": 400, "test_rows": 100, "parties": parties + 1, "numeric": 2, "categorical": 0}
    return {
        "data": {"name": "synthetic", "options": options},
        "parties": {"label_features": False},
        "model": {"bottom": [4], "cut": 2, "top": [8]},
        "training": {"epochs": 1, "batch_size": 64},
        "attack": {"names": ["norm"], "snapshots": [], "embeddings": 0},
        "transport": {"kind": kind},
    }


def descendants(*pids):
    """Return the processes that those of `pids` started, and those that they started."""
    parents = {}
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            parents[int(number)] = int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [*pids]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found[len(pids) :]


ALL_THERE = """
import sys, time, ray
ray.init(address=sys.argv[1])
for _ in range(60):
    if len(ray.nodes()) == int(sys.argv[2]):
        sys.exit(0)
    time.sleep(0.5)
sys.exit(1)
"""


class Nodes:
    """A cluster of Ray nodes on this machine, each with an address and resources of its own."""

    def __init__(self, *sizes):
        self.place = tempfile.mkdtemp(prefix="fvfl-", dir="/tmp")  # Ray's sockets need a short path
        self.address = f"127.0.0.1:{free_port()}"
        self.environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self.environment["RAY_prestart_worker_first_driver"] = "0"  # no idle process for each processor
        self._started = []
        head, *others = sizes
        port = self.address.partition(":")[2]
        client = f"--ray-client-server-port={free_port()}"
        self._start("--head", f"--port={port}", client, "--include-dashboard=false", f"--temp-dir={self.place}", *head)
        self._wait_for_port(int(port))
        for other in others:
            self._start(f"--address={self.address}", f"--node-ip-address={OTHER}", *other)
        self._wait(1 + len(others))

    def _start(self, *words):
        command = [tool("ray"), "start", "--block", "--disable-usage-stats", "--object-store-memory=100000000"]
        log = subprocess.DEVNULL
        self._started.append(subprocess.Popen([*command, *words], env=self.environment, stdout=log, stderr=log))

    def _wait_for_port(self, port):
        deadline = time.monotonic() + 90
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            assert time.monotonic() < deadline
            time.sleep(0.2)

    def _wait(self, count):
        deadline = time.monotonic() + 90
        while self.run("-c", ALL_THERE, self.address, str(count)).returncode:
            assert time.monotonic() < deadline
            time.sleep(0.5)

    def run(self, *words):
        command = [sys.executable, *words]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False, timeout=550)

    def nodes_of_parties(self):
        """Return the node of each process of a feature party, by process ids."""
        found = {}
        for process in descendants(*(started.pid for started in self._started)):
            try:
                if "ClientAppActor" in Path(f"/proc/{process}/cmdline").read_text():
                    environment = Path(f"/proc/{process}/environ").read_text().split("\0")
                    found[process] = next(entry for entry in environment if entry.startswith("RAY_RAYLET_PID="))
            except OSError:
                continue
        return found

    def close(self):
        ours = descendants(*(started.pid for started in self._started))
        for started in reversed(self._started):
            started.terminate()
        for started in self._started:
            try:
                started.wait(20)
            except subprocess.TimeoutExpired:
                started.kill()
        for process in ours:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        shutil.rmtree(self.place, ignore_errors=True)


@pytest.fixture(scope="module")
def nodes():
    cluster = Nodes(["--num-cpus=4"], ["--num-cpus=4", "--num-gpus=2"])
    try:
        yield cluster
    finally:
        cluster.close()


def command(preset, out, *more):
    return ["-m", "flower_vfl", "run", str(preset), "--engine", "flower", "--out", str(out), *more]


def trained_across(nodes, config, place, *more):
    """Run a configuration on the cluster; return its folder, and how many parties ran on each node."""
    (place / "run.toml").write_text(tomli_w.dumps(config))
    out, seen = place / "out", {}
    words = [sys.executable, *command(place / "run.toml", out, "--address", nodes.address, *more)]
    with (
        (place / "log").open("w") as log,
        subprocess.Popen(words, env=nodes.environment, stdout=log, stderr=log) as run,
    ):
        while run.poll() is None:
            seen.update(nodes.nodes_of_parties())
            time.sleep(1.0)
    assert run.returncode == 0, (place / "log").read_text()
    return out, Counter(seen.values())


def test_four_parties_on_two_nodes_end_with_the_weights_of_one_process(nodes, tmp_path):
    out, placed = trained_across(nodes, values(4), tmp_path)
    assert sorted(placed.values()) == [2, 2]
    result = json.loads((out / "result.json").read_text())
    assert result["weights"] == run(build_config(values(4))).summary["weights"]
    assert load_config(str(out / "config.toml")).transport.host not in ("127.0.0.1", OTHER)
    assert (result["status"], len(result["weights"])) == ("finished", 5)


class Parties:
    """A backend of Flower's simulation whose parties all wait for each other, as they do in a session."""

    num_workers = 40

    def __init__(self, ended):
        self._ended, self._together, self.answered = ended, threading.Barrier(self.num_workers), 0
        self._waiting = [Mock() for _ in range(self.num_workers)]
        self.nodes = {number: number for number in range(self.num_workers)}

    def build(self, app):
        """Start nothing."""

    def terminate(self):
        """End nothing."""

    def get_message_ins(self, node_id, limit):
        return [self._waiting.pop()] if self._waiting else []

    def process_message(self, message, context):
        try:
            if self._together.wait(20) == 0:
                self.answered = self.num_workers
            return Mock(), context
        finally:
            self._ended.set()

    def store_message_res(self, message):
        """Keep no reply."""


def test_flower_handles_a_message_of_every_party_at_once(monkeypatch):
    """Flower by itself would handle four more than there are processors, at most 32; the others would never connect."""
    from flwr.server.superlink.fleet.vce import vce_api
    from flwr.server.superlink.fleet.vce.backend import raybackend

    from flower_vfl.simulations import flwr_simulation

    ended = threading.Event()
    parties = Parties(ended)

    def simulate():
        state = Mock(state=lambda: parties)
        vce_api.run_api(Mock(), lambda: parties, parties.nodes, state, MagicMock(), ended, Mock())

    monkeypatch.setattr(raybackend, "RayBackend", raybackend.RayBackend)  # `main` replaces these for its process
    monkeypatch.setattr(vce_api, "ThreadPoolExecutor", vce_api.ThreadPoolExecutor)
    monkeypatch.setattr(sys, "argv", ["flwr-simulation"])
    monkeypatch.setattr(flwr_simulation, "STARTED", Future())
    monkeypatch.setattr(flwr_simulation, "flwr_simulation", simulate)
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    monkeypatch.setenv(BUNDLES_VARIABLE, json.dumps([{"CPU": 1.0}] * parties.num_workers))
    flwr_simulation.main()
    assert parties.answered == 40


@pytest.mark.release
def test_frames_in_messages_reach_each_partys_own_process_on_either_node(nodes, tmp_path):
    """One party is placed on the second node by name; the other two need all processors of a node together."""
    more = ["--resources", "cpus=2", "--resources", f"a: node={OTHER}"]
    out, placed = trained_across(nodes, values(3, "messages"), tmp_path, *more)
    assert sorted(placed.values()) == [1, 2]
    result = json.loads((out / "result.json").read_text())
    assert result["weights"] == run(build_config(values(3))).summary["weights"]


@pytest.mark.release
def test_a_prediction_and_an_alignment_run_on_the_nodes_of_a_cluster(nodes, tmp_path):
    run(build_config(values(3)), out=tmp_path / "run")
    predict(tmp_path / "run", tmp_path / "here.csv")
    more = ["--engine", "flower", "--address", nodes.address, "--resources", f"a: node={OTHER}"]
    words = ["-m", "flower_vfl", "predict", str(tmp_path / "run"), "--out", str(tmp_path / "there.csv"), *more]
    done = nodes.run(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "there.csv").read_bytes() == (tmp_path / "here.csv").read_bytes()
    for party in ("labels", "a", "b"):
        column = "label" if party == "labels" else "x"
        (tmp_path / f"{party}.csv").write_text(f"id,{column}\n" + "".join(f"p{i},{i % 2}\n" for i in range(20)))
    options = {"labels_file": "labels.csv", "files": {"a": "a.csv", "b": "b.csv"}}
    people = {"data": {"name": "files", "path": str(tmp_path), "options": options}}
    (tmp_path / "people.toml").write_text(tomli_w.dumps(people))
    words = ["-m", "flower_vfl", "align", str(tmp_path / "people.toml"), "--out", str(tmp_path / "aligned"), *more]
    done = nodes.run(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    for party in ("label", "a", "b"):
        assert len(AlignmentFile.read(tmp_path / "aligned" / party / "alignment.parquet").ids) == 20


EACH = """
import os, sys, ray
from flower_vfl.errors import SetupError
from flower_vfl.simulations import flwr_simulation
from flower_vfl.simulations.resources import read_resources

def app():
    def seen(message, context):
        import ray
        had = ray.get_runtime_context().get_assigned_resources()
        return ray.util.get_node_ip_address(), had["CPU"], had.get("GPU", 0.0), os.environ.get("CUDA_VISIBLE_DEVICES")
    return seen

ray.init(address=sys.argv[1], log_to_driver=False)
given = ["cpus=0.5", "a: node=OTHER", "b: gpus=0.5", "c: cpus=2, gpus=1", "d: gpus=0.5"]
actors = flwr_simulation.start([party.bundle for party in read_resources(given, "abcde")])
print([ray.get(actor.run.remote(app, None, "", None))[1] for actor in actors])
flwr_simulation._RESERVE_SECONDS = 2.0
try:
    flwr_simulation.start([{"CPU": 1.5}] * 3)
except SetupError as error:
    print(error)
"""


def test_each_party_has_its_own_processors_gpus_and_node_and_a_lack_of_them_is_refused(nodes):
    """The GPUs exist in the settings of Ray alone; it sets CUDA_VISIBLE_DEVICES as it does for real ones."""
    done = nodes.run("-c", EACH.replace("OTHER", OTHER), nodes.address)
    assert done.returncode == 0, done.stderr
    each, refusal = done.stdout.strip().splitlines()
    seen = eval(each)
    assert seen[:4] == [(OTHER, 0.5, 0.0, ""), (OTHER, 0.5, 0.5, "0"), (OTHER, 2.0, 1.0, "1"), (OTHER, 0.5, 0.5, "0")]
    assert seen[4][1:3] == (0.5, 0.0)
    assert "no room for all 3 feature parties at once within 2 s. They ask for 3 x (1.5 CPU)" in refusal
    assert "4 CPU, 2 GPU" in refusal
    assert "free are, all together, 4 CPU, 0 GPU" in refusal


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--resources", "cpus=2"], "ask for 16 processors and 0 GPUs; there are 8 and 2"),
        (["--resources", "a: node=10.9.9.9"], "names node 10.9.9.9, which is none of the cluster"),
    ],
)
def test_what_the_cluster_never_has_is_refused_before_anything_starts(nodes, tmp_path, more, words):
    (tmp_path / "run.toml").write_text(tomli_w.dumps(values(8)))
    done = nodes.run(*command(tmp_path / "run.toml", tmp_path / "out", "--address", nodes.address, *more))
    assert (done.returncode, "Flower" in done.stdout) == (2, False)
    assert words in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.release
def test_thirty_two_parties_on_two_nodes_end_with_the_weights_of_one_process(tmp_path):
    cluster = Nodes(["--num-cpus=16"], ["--num-cpus=16"])
    try:
        out, placed = trained_across(cluster, values(32), tmp_path)
    finally:
        cluster.close()
    assert sorted(placed.values()) == [16, 16]
    result = json.loads((out / "result.json").read_text())
    assert result["weights"] == run(build_config(values(32))).summary["weights"]
    assert len(result["weights"]) == 33
