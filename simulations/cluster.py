"""The Ray cluster of a sweep or of `--engine flower`: a local one that ends with it, or one that is already running."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from flower_vfl.errors import SetupError
from flower_vfl.simulations.process_cleanup import passing_folder
from flower_vfl.version import refusal, software

RUNNING_CLUSTER = "auto"
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_prestart_worker_first_driver": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "GRPC_ENABLE_FORK_SUPPORT": "0",
}
"""Environment of Ray: no usage statistics, duplicate logs or SIGINT handler, and no idle process for each processor.

Fork support: docs/decisions/0007.
"""

_LEVELS = {
    "ray": logging.ERROR,
    "ray.tune": logging.ERROR,
    "ray.tune.tune": logging.CRITICAL,
    "ray.tune.execution.experiment_state": logging.CRITICAL,
}
"""Log levels. The last two loggers report failed trials by Ray's names, and states of Tune that were not saved."""

_STORE_BYTES = 128 * 2**20
_DIAL_SECONDS, _JOIN_SECONDS, _NODE_SECONDS = 5.0, 20.0, 60.0
_LONGEST_TEMPORARY = 25
"""Most characters of the path of temporary files: Ray's sockets add up to 82, and a socket's path may have 107."""

_MARKER = ".seen-"

_PROBE = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"


@dataclass(frozen=True)
class Cluster:
    """The nodes of a cluster.

    Attributes
    ----------
    nodes
        For each node, its processors and GPUs.
    addresses
        For each node, its address in the cluster.
    here
        Address of this machine in the cluster.
    """

    nodes: tuple[tuple[float, float], ...]
    addresses: tuple[str, ...] = ()
    here: str = ""

    def places(self, cpus: float, gpus: float) -> int:
        """Return the number of trials that run at once.

        Raises
        ------
        SetupError
            When a trial fits no node.
        """
        count = sum(
            min(int(have / need + 1e-9) for have, need in ((node[0], cpus), (node[1], gpus)) if need)
            for node in self.nodes
        )
        if not count:
            most = ", ".join(f"{node[0]:g} processors and {node[1]:g} GPUs" for node in self.nodes)
            raise SetupError(
                f"a trial needs {cpus:g} processors and {gpus:g} GPUs, and no machine has as much: {most}; lower cpus "
                "or gpus in [sweep], or name a larger cluster with --address"
            )
        return count


def settings(address: str) -> dict[str, str]:
    """Return the environment variables for a local Ray cluster (an empty address), or for a running one."""
    return _ENVIRONMENT if address else {**_ENVIRONMENT, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _token()}


@contextlib.contextmanager
def ray_cluster(address: str, folder: Path) -> Iterator[Cluster]:
    """Start Ray on this machine, or join the cluster at an address, and leave it at the end.

    Parameters
    ----------
    address : str
        HOST:PORT of a cluster of which this machine is a node, "auto" for the one that runs here; empty to start Ray.
    folder : Path
        Folder of the results; every node of a cluster must have access to it.

    Raises
    ------
    SetupError
        When Ray does not start, the cluster cannot be reached, or its nodes are not set up for this.
    """
    with contextlib.ExitStack() as ending:
        ending.enter_context(_environment(settings(address)))
        ray = importlib.import_module("ray")
        if not ray.is_initialized():
            options: dict[str, Any] = {"address": address}
            if not address:  # no dashboard, and files in a folder of this process
                options = {"address": "local", "include_dashboard": False, "object_store_memory": _STORE_BYTES}
                options["_temp_dir"] = ending.enter_context(own_files())
            ending.callback(ray.shutdown)
            with _own_signals(), _start_errors(address):
                start = partial(ray.init, **options, log_to_driver=False, logging_level=logging.ERROR)
                try:
                    start()
                except Exception:
                    if address:
                        raise
                    ray.shutdown()  # beside threads of gRPC, a process of Ray's sometimes aborts at its start
                    start()
        for name, level in _LEVELS.items():
            logging.getLogger(name).setLevel(level)
        if address:
            _check_nodes(folder)
        nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
        yield Cluster(
            tuple(map(_resources, nodes.values())),
            tuple(node["NodeManagerAddress"] for node in nodes.values()),
            nodes[ray.get_runtime_context().get_node_id()]["NodeManagerAddress"],
        )


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    _read_authentication()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _read_authentication()


def _read_authentication() -> None:
    """Reset Ray's copy of RAY_AUTH_MODE and of the token, which it reads when it is first imported."""
    raylet = importlib.import_module("ray._raylet")
    raylet.AuthenticationTokenLoader.instance().reset_cache()
    raylet.Config.initialize("")


@cache
def _token() -> str:
    """Return the token that authenticates Ray's processes, which listen on every address and would serve anybody.

    It is the same for the life of this process, since Ray keeps the first one.
    """
    return secrets.token_hex(32)


@contextlib.contextmanager
def own_files() -> Iterator[str]:
    """Make a temporary folder for the files of a local Ray, which would otherwise leave its logs and sockets.

    Its path is short enough for Ray's sockets. It is removed when this process ends, even by a kill.
    """
    usual = tempfile.gettempdir()
    with passing_folder(Path(usual if len(usual) <= _LONGEST_TEMPORARY else "/tmp")) as folder:
        yield str(folder)


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Restore the SIGTERM handler that Ray replaces by one that ends the process without a message."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit:  # SIGTERM arrived during Ray's start, in which nothing else raises it
        signal.signal(signal.SIGTERM, before)
        signal.raise_signal(signal.SIGTERM)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _start_errors(address: str) -> Iterator[None]:
    """Turn errors of `ray.init`, which are of any class and many lines long, into a `SetupError` of one line."""
    try:
        yield
    except Exception as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        failed = f"the Ray cluster at {address} could not be joined" if address else "Ray did not start"
        raise SetupError(
            f"{failed}: {line[:400]}; Ray has a time limit for this, which a machine without free processors or memory "
            "may not meet: let other work end, then start this again"
        ) from error


def _resources(node: dict[str, Any]) -> tuple[float, float]:
    return float(node["Resources"].get("CPU", 0.0)), float(node["Resources"].get("GPU", 0.0))


def check_reachable(address: str) -> None:
    """Check within seconds that a cluster answers; Ray itself would wait for minutes, or end the process.

    Raises
    ------
    SetupError
        When it does not, or this machine is not one of its nodes.
    """
    if address.startswith("ray://"):
        raise SetupError(
            f"--address {address} is one of Ray's client, which nothing can run through here: start this on a node of "
            "the cluster, with --address auto"
        )
    if address != RUNNING_CLUSTER:
        match = re.fullmatch(r"([^\s:/]+|\[[0-9a-fA-F:]+\]):(\d{1,5})", address)
        if match is None or int(match[2]) > 65535:
            raise SetupError(
                f"--address {address!r} is no address of a Ray cluster: HOST:PORT (ray start shows it), or auto"
            )
        try:
            socket.create_connection((match[1].strip("[]"), int(match[2])), timeout=_DIAL_SECONDS).close()
        except OSError as error:
            raise SetupError(
                f"no Ray cluster answers at {address}: {error.strerror or error}; `ray status` on a node of it shows "
                "whether it runs, `ray start --head` starts one"
            ) from None
    try:
        command = [sys.executable, "-c", _PROBE, address]
        asked = subprocess.run(command, capture_output=True, text=True, timeout=_JOIN_SECONDS, check=False)
        reason = (asked.stderr.strip().splitlines() or ["no reason given"])[-1] if asked.returncode else ""
    except subprocess.TimeoutExpired:
        reason = f"no answer in {_JOIN_SECONDS:.0f} seconds"
    if reason:
        raise SetupError(
            f"the Ray cluster at {address} cannot be joined from here: {reason[:400]}; this machine must be one of its "
            "nodes (ray start --address=...), with the same versions of Ray and Python"
        )


def _check_nodes(folder: Path) -> None:
    """Check that every node has this package and access to the folder of the results."""
    ray = importlib.import_module("ray")
    affinity = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    probe = ray.remote(num_cpus=0)(_probe_node)
    nodes = [node for node in ray.nodes() if node["Alive"]]
    with tempfile.NamedTemporaryFile(prefix=_MARKER, suffix=".tmp", dir=folder) as mark:
        asked = [
            probe.options(scheduling_strategy=affinity(node["NodeID"], soft=False)).remote(mark.name) for node in nodes
        ]
        _check_answers(folder, nodes, asked)


def _check_answers(folder: Path, nodes: list[dict[str, Any]], asked: list[Any]) -> None:
    ray = importlib.import_module("ray")
    for node, answer in zip(nodes, asked, strict=True):
        name = node["NodeManagerAddress"]
        try:
            found, has_access = ray.get(answer, timeout=_NODE_SECONDS)
        except ray.exceptions.RayError as error:
            line = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            raise SetupError(f"node {name} cannot be used: {line}; install flower-vfl there") from None
        words = refusal(found, f"node {name}", asking="this one")
        if words:
            raise SetupError(words)
        if not has_access:
            raise SetupError(
                f"node {name} does not see {folder}: name with --out a folder on a file system that all nodes share"
            )


def _probe_node(mark: str) -> tuple[dict[str, str], bool]:
    return software(), Path(mark).is_file()
