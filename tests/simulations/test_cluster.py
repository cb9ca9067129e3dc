"""Address, capacity, files and signals of a Ray cluster."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from flower_vfl.errors import SetupError
from flower_vfl.simulations import cluster
from flower_vfl.simulations.cluster import Cluster, check_reachable


@pytest.mark.parametrize("address", ["nonsense", "host:", ":6379", "host:99999", "a b:1", "http://host:1"])
def test_what_is_no_address_is_refused_at_once(address):
    with pytest.raises(SetupError, match="is no address of a Ray cluster"):
        check_reachable(address)


def test_the_address_of_rays_client_is_refused():
    with pytest.raises(SetupError, match="--address auto"):
        check_reachable("ray://127.0.0.1:10001")


def test_a_port_at_which_nobody_listens_is_refused_in_words():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(SetupError, match=f"no Ray cluster answers at 127.0.0.1:{port}"):
        check_reachable(f"127.0.0.1:{port}")


def test_something_that_listens_and_never_answers_is_given_up(monkeypatch):
    monkeypatch.setattr(cluster, "_JOIN_SECONDS", 0.5)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(SetupError, match=r"cannot be joined from here: no answer in"):
            check_reachable(f"127.0.0.1:{silent.getsockname()[1]}")


@pytest.mark.parametrize(
    ("nodes", "cpus", "gpus", "places"),
    [
        (((2.0, 0.0),), 1.0, 0.0, 2),
        (((2.0, 0.0), (7.0, 0.0)), 2.0, 0.0, 4),
        (((16.0, 1.0), (16.0, 0.0)), 1.0, 0.25, 4),
        (((2.0, 4.0),), 1.0, 0.25, 2),
        (((16.0, 1.0),), 1.0, 0.1, 10),
    ],
)
def test_trials_share_processors_and_gpus_of_every_node(nodes, cpus, gpus, places):
    assert Cluster(nodes).places(cpus, gpus) == places


def test_a_trial_that_fits_no_node_is_refused_with_what_there_is():
    with pytest.raises(SetupError, match="8 processors and 0 GPUs, and no machine has as much: 2 processors"):
        Cluster(((2.0, 0.0), (4.0, 0.0))).places(8.0, 0.0)


HOLDS = """
import signal, sys
from flower_vfl.simulations.cluster import own_files
signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background of a shell ignore it
with own_files() as folder:
    open(folder + "/log", "w").close()
    print(folder, flush=True)
    signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_rays_files_go_whatever_ends_the_process_that_has_made_them(number):
    with subprocess.Popen([sys.executable, "-c", HOLDS], stdout=subprocess.PIPE, text=True) as process:
        folder = Path(process.stdout.readline().strip())
        assert (folder / "log").is_file()
        process.send_signal(number)
    deadline = time.monotonic() + 20
    while folder.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _receive_sigterm_while_ray_starts():
    with cluster._own_signals():
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
        signal.raise_signal(signal.SIGTERM)


def test_a_signal_while_ray_starts_reaches_the_handler_that_was_set_before():
    """Ray sets a handler of its own meanwhile, which ends the process with another code and no message."""
    received = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        with pytest.raises(SystemExit):
            _receive_sigterm_while_ray_starts()
        assert received == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.slow
def test_ray_is_started_again_where_its_first_start_fails(monkeypatch, tmp_path):
    """One of its processes may abort, where it is forked beside threads of gRPC."""
    import ray

    failures, start = [RuntimeError("The current node timed out during startup.")], ray.init

    def failing_once(**options):
        if failures:
            raise failures.pop()
        return start(**options)

    monkeypatch.setattr("ray.init", failing_once)
    with cluster.ray_cluster("", tmp_path) as found:
        assert found.places(1.0, 0.0) >= 1
    assert not ray.is_initialized()


def test_a_ray_that_does_not_start_is_reported_in_a_sentence(monkeypatch, tmp_path):
    def failing(**_):
        raise RuntimeError("Failed to start GCS.\n Last 0 lines of error files:")

    monkeypatch.setattr("ray.init", failing)
    words = r"Ray did not start: Failed to start GCS\.; [^\n]*start this again$"
    with pytest.raises(SetupError, match=words), cluster.ray_cluster("", tmp_path):
        pass


@pytest.mark.parametrize("length", [25, 26, 60])
def test_the_paths_of_rays_sockets_are_short_enough_wherever_temporary_files_go(length, monkeypatch):
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t" * (length - 13)) as usual:
        assert len(usual) == length
        monkeypatch.setattr(tempfile, "tempdir", usual)
        with cluster.own_files() as folder:
            assert (Path(folder).parent == Path(usual)) == (length == 25)
            assert len(f"{folder}/ray/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store") <= 107
        assert not Path(folder).exists()


_AFTER_AN_IMPORT = """
import ray, pathlib
from ray._raylet import AuthenticationMode, get_authentication_mode
from flower_vfl.simulations.cluster import ray_cluster
modes = [get_authentication_mode() == AuthenticationMode.TOKEN]
with ray_cluster("", pathlib.Path()):
    modes.append(get_authentication_mode() == AuthenticationMode.TOKEN)
modes.append(get_authentication_mode() == AuthenticationMode.TOKEN)
print(*modes)
"""


@pytest.mark.slow
def test_a_cluster_starts_after_an_import_of_ray_and_leaves_its_settings_as_they_were(tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    command = [sys.executable, "-c", _AFTER_AN_IMPORT]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert run.stdout.split()[-3:] == ["False", "True", "False"], run.stderr[-2000:]
