"""`--engine flower`: the same run in Flower's simulation runtime, on a SuperLink of its own that ends with the run."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import tomli_w

from flower_vfl import errors
from flower_vfl.apps.alignment.client import ALIGNMENT_RESULT
from flower_vfl.apps.alignment.place import remove_empty, remove_unfinished
from flower_vfl.apps.alignment.start import sources_of
from flower_vfl.apps.factories import open_data, parties_here
from flower_vfl.apps.folder import check_folder, check_free, has_ended, read_result
from flower_vfl.apps.label_party import check_methods
from flower_vfl.apps.prediction_server import NO_PREDICTION
from flower_vfl.config import Config, to_run_config
from flower_vfl.config.parsing import Value
from flower_vfl.data.store.layout import new_folder
from flower_vfl.errors import ConfigError, FolderInUseError, SessionError, SetupError
from flower_vfl.files import FolderLock
from flower_vfl.reports import renew
from flower_vfl.simulations.cluster import Cluster, check_reachable, ray_cluster, settings
from flower_vfl.simulations.process_cleanup import ending_with_this, passing_folder
from flower_vfl.simulations.resources import Resources, read_resources
from flower_vfl.simulations.variables import ERROR_FILE_VARIABLE, STARTER_VARIABLE
from flower_vfl.terminal import console
from flower_vfl.version import VERSION

BUNDLES_VARIABLE = "FLOWER_VFL_BUNDLES"
"""Variable with the resources of each feature party's process: Ray's bundles, as JSON."""

OWN_RAY = "local"
"""Ray's address for a new local cluster."""

COMMAND = "flwr-simulation"
"""Command of Flower's simulation process, which its SuperExec finds on the PATH."""

_NAME = "flower-vfl-run"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_START_SECONDS = 60.0
_STOP_SECONDS = 15.0
_LEAVE_SECONDS = 60.0
"""Longest wait for an interrupted run to leave its folder: its attacks may be about to be summarised."""


def run_flower(
    config: Config, out: Path, *, resume: bool = False, resources: Sequence[str] = (), address: str = ""
) -> dict[str, Any]:
    """Run a configuration with `flwr run` and return its `result.json`.

    Parameters
    ----------
    config : Config
        The configuration; the label party is a thread of a process on this machine.
    out : Path
        Folder of the results; every node of a cluster that is joined must have access to it.
    resume : bool
        True if a run that was interrupted in this folder goes on; one that has ended is left as it is.
    resources : Sequence[str]
        The resources of the feature parties' processes: see `read_resources`.
    address : str
        Address of a running Ray cluster of which this machine is a node; empty for a local one of this run.

    Raises
    ------
    ConfigError
        When the resources cannot be parsed, or do not fit the configuration.
    SetupError
        When the cluster cannot be joined, or has no room for all parties at once.
    SessionError
        When Flower could not be started, or the run failed; the message ends with the error of the run.
    FolderInUseError
        When another process works in the folder.
    """
    out = out.expanduser().absolute()
    config = in_processes(config)
    if not check_folder(out, config, resume=resume):
        renew(out)
        return read_result(out)
    if (out / FolderLock.NAME).exists():
        FolderLock(out).release()  # refuse a folder in use before Flower starts
    given = read_resources(resources, parties_here(config, open_data(config)))
    check_devices(config, given)
    config = reachable(config, cluster_for(given, address, out))
    try:
        code = flwr_run({**to_run_config(config), "out": str(out), "resume": resume}, given, address)
    except KeyboardInterrupt:
        _wait_until_free(out)
        raise
    if not has_ended(out):  # it had not ended before, so a result is not that of an earlier attempt
        raise SessionError(
            f"the Flower run broke off and did not say why (flwr run ended with {code}); its log is above"
        )
    return read_result(out)


def _wait_until_free(folder: Path) -> None:
    """Wait until the interrupted run has written what was measured and left its folder; not for ever."""
    deadline = time.monotonic() + _LEAVE_SECONDS
    while (folder / FolderLock.NAME).exists() and time.monotonic() < deadline:
        try:
            FolderLock(folder).release()
        except FolderInUseError:
            time.sleep(0.1)
        else:
            return


def align_flower(config: Config, out: Path, *, resources: Sequence[str] = (), address: str = "") -> dict[str, Path]:
    """Align the IDs of a configuration's files with `flwr run`, and return each party's alignment file.

    Parameters
    ----------
    config : Config
        Configuration that names the files of all parties.
    out : Path
        Folder of the results.
    resources, address
        As in `run_flower`.

    Raises
    ------
    ConfigError
        When the resources cannot be parsed, or contain GPUs.
    FlowerVflError
        The error that ended the run.
    """
    out = out.expanduser().absolute()
    check_free(out)
    label_party, sources = sources_of(config)
    given = read_resources(resources, [party for party in sources if party != label_party])
    if any(party.gpus for party in given):
        raise ConfigError("--resources gives parties GPUs, and an alignment computes on processors only")
    cluster_for(given, address, out)
    found = {party: out / party / ALIGNMENT_RESULT for party in sources}
    try:
        code = flwr_run({**to_run_config(config), "out": str(out), "job": "align"}, given, address)
        if not all(path.is_file() for path in found.values()):
            raise SessionError(f"the Flower run left no alignment (flwr run ended with {code}); its log is above")
    except BaseException:
        remove_unfinished(found.values())
        remove_empty(out)
        raise
    return found


def cluster_for(given: Sequence[Resources], address: str, out: Path) -> Cluster:
    """Return the Ray cluster to run on, which has the resources of the parties.

    Parameters
    ----------
    given : Sequence[Resources]
        Resources of each feature party's process.
    address : str
        Address of a running cluster; empty for a local one that is yet to start.
    out : Path
        Folder of the results, absolute; every node of a cluster that is joined must have access to it.

    Raises
    ------
    SetupError
        When the cluster cannot be joined, or has no room for all parties at once.
    """
    cluster = _joined(address, out) if address else _local_cluster(given)
    check_room(cluster, given)
    return cluster


def _joined(address: str, out: Path) -> Cluster:
    """Return the cluster at an address, every node of which can run a party and has access to the folder of results."""
    check_reachable(address)
    existing = next(folder for folder in out.parents if folder.is_dir())
    with ray_cluster(address, existing) as cluster:
        return cluster


def _local_cluster(given: Sequence[Resources]) -> Cluster:
    """Return a local cluster with the processors that the parties ask for, and with all GPUs of this machine."""
    gpus = 0
    if any(party.gpus for party in given):
        import torch

        gpus = torch.cuda.device_count()
    return Cluster(((_processors(given), float(gpus)),))


def _processors(given: Sequence[Resources]) -> int:
    return math.ceil(sum(party.cpus for party in given))


def reachable(config: Config, cluster: Cluster) -> Config:
    """Return the configuration with an address at which the other nodes reach the label party, unless it names one."""
    transport = config.transport
    if transport.kind != "stream" or transport.advertise or transport.host not in _LOOPBACK:
        return config
    if set(cluster.addresses) <= {cluster.here}:
        return config
    return config.model_copy(update={"transport": transport.model_copy(update={"host": cluster.here})})


def check_devices(config: Config, given: Sequence[Resources]) -> None:
    """Refuse GPUs that do not fit the configuration.

    Raises
    ------
    ConfigError
        When parties get GPUs and device is the CPU, a party gets none and device is a GPU, or device names one GPU.
    """
    if config.device == "cpu" and any(party.gpus for party in given):
        raise ConfigError("--resources gives parties GPUs, and device is 'cpu'; set it to 'cuda'")
    if config.device != "cpu" and not all(party.gpus for party in given):
        raise ConfigError(
            f"device is {config.device!r}, and not every party gets a GPU: --resources gpus=0.25 puts four on one"
        )
    if ":" in config.device:
        raise ConfigError(f"device is {config.device!r}; here it is 'cuda': Ray chooses the GPU of each party")


def check_room(cluster: Cluster, given: Sequence[Resources]) -> None:
    """Refuse resources that exceed those of a whole cluster; Ray would wait for them for ever.

    Raises
    ------
    SetupError
        When they do, or name an unknown node; the message has the requested and the available resources.
    """
    unknown = sorted({party.node for party in given} - {"", *cluster.addresses})
    if unknown:
        known = ", ".join(cluster.addresses) or "this machine, without an address; --address joins a cluster"
        raise SetupError(f"--resources names node {unknown[0]}, which is none of the cluster; there is {known}")
    asked = [sum(amounts) for amounts in zip(*((party.cpus, party.gpus) for party in given), strict=True)]
    there = [sum(amounts) for amounts in zip(*cluster.nodes, strict=True)]
    if any(need > have + 1e-9 for need, have in zip(asked, there, strict=True)):
        raise SetupError(
            f"all {len(given)} feature parties run at once and ask for {asked[0]:g} processors and {asked[1]:g} GPUs; "
            f"there are {there[0]:g} and {there[1]:g}. Ask for less with --resources, or join a larger cluster with "
            "--address"
        )


def flwr_run(run_config: Mapping[str, Value], given: Sequence[Resources], address: str = "") -> int:
    """Run the ready-made apps with `flwr run` in the simulation runtime and return its exit code.

    Parameters
    ----------
    run_config : Mapping
        Flower's run config.
    given : Sequence[Resources]
        Resources of each feature party's process, in the order of the parties.
    address : str
        Address of a Ray cluster to join; empty for a local one.

    Raises
    ------
    SessionError
        When Flower could not be started.
    FlowerVflError
        The error that ended the ServerApp, if it reported one.
    """
    with passing_folder() as temporary:
        home, app = temporary / "home", temporary / "app"
        starter = temporary / "starter"
        starter.touch()
        write_app(app, run_config)
        size = {"num-supernodes": len(given), **({} if address else {"init-args-num-cpus": _processors(given)})}
        environment = {
            **os.environ,
            **settings(address),
            "RAY_ADDRESS": address or OWN_RAY,  # without it Ray would join a cluster that happens to run here
            BUNDLES_VARIABLE: json.dumps([party.bundle for party in given]),
            "PATH": f"{_write_command(temporary / 'bin')}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "FLWR_HOME": str(home),
            ERROR_FILE_VARIABLE: str(temporary / "error"),
            STARTER_VARIABLE: str(starter),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3",
        }
        with super_link(home, environment):
            federation = " ".join(f"{key}={value}" for key, value in size.items())
            command = [tool("flwr"), "run", str(app), _NAME, "--stream", "--federation-config", federation]
            try:
                code = _wait_for(command, environment)
            finally:
                starter.unlink()
        _raise_again(temporary / "error")
    return code


def _wait_for(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command, which ends with this process, and return its exit code; the SuperLink waits for its clients."""
    with subprocess.Popen(command, env=environment) as process, ending_with_this(process):
        try:
            return process.wait()
        except BaseException:
            process.kill()
            raise


def _write_command(folder: Path) -> Path:
    """Write the command that Flower starts as its simulation, and return its folder, to be first on the PATH."""
    folder.mkdir()
    command = folder / COMMAND
    python, module = shlex.quote(sys.executable), "flower_vfl.simulations.flwr_simulation"
    command.write_text(f'#!/bin/sh\nPYTHONSAFEPATH=1 exec {python} -m {module} "$@"\n', encoding="utf8")
    command.chmod(0o700)
    return folder


def in_processes(config: Config) -> Config:
    """Return the configuration with a transport that crosses processes: `inproc` is the default of a local run."""
    if config.transport.kind != "inproc":
        return config
    return config.model_copy(update={"transport": config.transport.model_copy(update={"kind": "stream"})})


def write_deployment(folder: Path, config: Config, results: Path | None) -> None:
    """Write a Flower App for a deployment: `flwr run FOLDER NAME`.

    Parameters
    ----------
    folder : Path
        Folder of the app; it must not exist, or be empty.
    config : Config
        The configuration, which is sent to every party.
    results : Path, optional
        Folder of the results on the label party's host; `--run-config "out='/FOLDER'"` names another for each run, and
        `--run-config resume=true` goes on with an interrupted one.

    Raises
    ------
    ConfigError
        When the configuration names a path of data, which is each host's own, or an attack or a defense that cannot
        be made.
    OutputExistsError
        When `folder` is not empty.
    """
    if config.data.path:
        raise ConfigError(
            f"data.path is {config.data.path!r}, and a configuration reaches every party; each host names its own: "
            "a SuperNode in --node-config, the label party in FLOWER_VFL_DATA"
        )
    check_methods(config)
    with new_folder(folder) as temporary:
        own: dict[str, Value] = {"out": str(results or ""), "resume": False}
        write_app(temporary, {**to_run_config(in_processes(config)), **NO_PREDICTION, **own})


def _raise_again(file: Path) -> None:
    """Raise the error that ended the ServerApp, with its original class."""
    if not file.is_file():
        return
    name, _, words = file.read_text(encoding="utf8").partition(": ")
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, errors.FlowerVflError):
        raise kind(words)
    raise SessionError(f"the Flower run failed: {name}: {words}")


def write_app(folder: Path, run_config: Mapping[str, Value]) -> None:
    """Write the Flower App of one run: the two thin apps and its run config."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("server_app.py", "client_app.py"):
        text = (files("flower_vfl") / "simulations" / name).read_text(encoding="utf8")
        (folder / name).write_text(text, encoding="utf8")
    project = {
        "project": {
            "name": _NAME,
            "version": VERSION,
            "description": "One run of flower-vfl",
            "license": "Apache-2.0",
            "dependencies": [],
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "flower-vfl",
                    "components": {"serverapp": "server_app:app", "clientapp": "client_app:app"},
                    "config": dict(run_config),
                }
            }
        },
    }
    (folder / "pyproject.toml").write_text(tomli_w.dumps(project), encoding="utf8")


@contextlib.contextmanager
def super_link(home: Path, environment: dict[str, str]) -> Iterator[str]:
    """Start a SuperLink for simulations on free ports, write its address into `home`, and end it afterwards.

    It also ends when this process does, even by a kill: by itself it would wait for the next run for ever.
    """
    home.mkdir(parents=True, exist_ok=True)
    port, control = free_port(), free_port()
    address = f"127.0.0.1:{port}"
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "{_NAME}"\n\n[superlink.{_NAME}]\naddress = "{address}"\ninsecure = true\n',
        encoding="utf8",
    )
    environment = {**environment, "GRPC_ENABLE_FORK_SUPPORT": "0"}  # docs/decisions/0007
    command = [tool("flower-superlink"), "--insecure", "--simulation", "--isolation", "subprocess"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--control-api-address", f"127.0.0.1:{control}"]
    log = (home / "superlink.log").open("wb")
    with log, subprocess.Popen(command, env=environment, stdout=log, stderr=log) as process:
        try:
            with ending_with_this(process):
                _wait_until_up(address, process, home)
                yield address
        except KeyboardInterrupt:
            console().print("stopping Flower's processes …")  # which takes seconds
            raise
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_until_up(address: str, process: subprocess.Popen[bytes], home: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"http://{address}/health", timeout=1.0).is_success:
                return
        time.sleep(0.1)
    words = (home / "superlink.log").read_text(encoding="utf8", errors="replace")[-1000:]
    raise SessionError(f"Flower's SuperLink did not start: {words}")


def free_port() -> int:
    """Return a port of the loopback interface that is free at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def tool(name: str) -> str:
    """Return the path of a command of this environment, activated or not."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name
