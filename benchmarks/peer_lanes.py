"""Lanes of other packages: each starts a training in processes of its own, which report each step over a socket."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from beside.plain import LOSS
from harness import Gate
from lanes import networks
from torch import nn

from flower_vfl.apps.factories import open_data
from flower_vfl.config import Config, to_run_config
from flower_vfl.simulations.flower_engine import super_link, tool, write_app
from flower_vfl.training.factories import schedule_of

BESIDE = Path(__file__).parent / "beside"
_START_SECONDS = 120.0
_BATCHES = 1_000  # more than a benchmark takes


def write_work(config: Config, file: Path) -> int:
    """Write the initial weights, the batches and the labels of a run; return the bytes of a message.

    Parameters
    ----------
    config : Config
        Configuration of the run, with numeric columns only, so that every bottom model is a perceptron.
    file : Path
        File that `beside/plain.py` reads.
    """
    data = open_data(config)
    bottoms, tables, top = networks(config, data)
    schedule = schedule_of(config, data.alignment.rows, data.alignment.test_rows)
    every = torch.arange(data.alignment.rows).numpy()
    found = {
        "columns": {party: table.train.gather(every)[0] for party, table in tables.items()},
        "labels": torch.from_numpy(data.labels().train).float(),
        "bottoms": {party: _linear(bottom) for party, bottom in bottoms.items()},
        "top": _linear(top),
        "batches": [torch.from_numpy(schedule.train_batch(step)) for step in range(min(schedule.steps, _BATCHES))],
        "rate": config.training.learning_rate,
        "optimizer": config.training.optimizer,
    }
    torch.save(found, file)
    return 4 * config.training.batch_size * config.model.cut


def _linear(network: nn.Module) -> list[tuple[torch.Tensor, torch.Tensor]]:
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    return [(layer.weight.detach().clone(), layer.bias.detach().clone()) for layer in layers]


@contextlib.contextmanager
def _followed(gate: Gate, folder: Path) -> Iterator[Any]:
    """Listen in this folder; yield a function that counts the steps of a process until the benchmark is over."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "ticks"))
        server.listen()
        server.settimeout(0.5)

        def follow(process: subprocess.Popen[bytes], log: Path) -> None:
            deadline = time.monotonic() + _START_SECONDS
            while process.poll() is None and time.monotonic() < deadline:
                with contextlib.suppress(TimeoutError):
                    connection, _ = server.accept()
                    break
            else:
                raise SystemExit(f"{process.args!r} did not begin:\n{log.read_text(errors='replace')[-4000:]}")
            with connection:
                connection.settimeout(None)
                while len(received := connection.recv(LOSS.size, socket.MSG_WAITALL)) == LOSS.size:
                    (loss,) = LOSS.unpack(received)
                    gate.interrupt() if math.isnan(loss) else gate.tick(loss)
                    connection.sendall(b"+")
            raise SystemExit(f"{process.args!r} ended early:\n{log.read_text(errors='replace')[-4000:]}")

        yield follow


def _environment(folder: Path, work: Path, **more: str) -> dict[str, str]:
    """Return the environment of a peer, without this package's Python."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {**clean, "BESIDE_WORK": str(work), "BESIDE_TICKS": str(folder / "ticks"), "OMP_NUM_THREADS": "1", **more}


def _run(gate: Gate, folder: Path, command: list[str], work: Path) -> None:
    """Run a process that reports its steps, in this folder, and end it with all its processes."""
    log = folder / "log"
    with _followed(gate, folder) as follow, log.open("wb") as words:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=_environment(folder, work),
            stdout=words,
            stderr=words,
            start_new_session=True,
        )
        try:
            follow(process, log)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def fate(gate: Gate, python: str, work: Path) -> None:
    """Train by FATE's trainers for networks, each side a process, with FATE's own federation on one machine."""
    with tempfile.TemporaryDirectory(prefix="flower-vfl-benchmark-") as temporary:
        _run(gate, Path(temporary), [python, str(BESIDE / "hetero_nn.py")], work)


def nvflare(gate: Gate, python: str, work: Path) -> None:
    """Train by NVFlare's SplitNN workflow in its simulator, each site a process, the server between them."""
    with tempfile.TemporaryDirectory(prefix="flower-vfl-benchmark-") as temporary:
        folder = Path(temporary)
        job = folder / "job"
        _write_job(job)
        command = [python, "-m", "nvflare.cli", "simulator", str(job), "-w", str(folder / "workspace"), "-n", "2"]
        _run(gate, folder, [*command, "-t", "2"], work)


def _write_job(folder: Path) -> None:
    custom, config = folder / "app" / "custom", folder / "app" / "config"
    custom.mkdir(parents=True)
    config.mkdir()
    for name in ("plain.py", "split_learner.py"):
        shutil.copy(BESIDE / name, custom)
    model = {"persistor_id": "persistor", "shareable_generator_id": "generator"}
    workflow = {"id": "splitnn", "path": "nvflare.app_common.workflows.splitnn_workflow.SplitNNController"}
    generator = "nvflare.app_common.shareablegenerators.full_model_shareable_generator.FullModelShareableGenerator"
    server = {
        "components": [
            {"id": "persistor", "path": "split_learner.NoPersistor", "args": {}},
            {"id": "generator", "path": generator, "args": {}},
        ],
        "workflows": [{**workflow, "args": {"task_timeout": 0, **model}}],
    }
    executor = {"path": "nvflare.app_common.executors.splitnn_learner_executor.SplitNNLearnerExecutor"}
    tasks = ["_splitnn_task_init_model_", "_splitnn_task_train_"]
    client = {
        "executors": [{"tasks": tasks, "executor": {**executor, "args": {"learner_id": "learner"}}}],
        "components": [{"id": "learner", "path": "split_learner.SplitLearner", "args": {}}],
    }
    meta = {"name": "split", "min_clients": 2, "deploy_map": {"app": ["@ALL"]}}
    for file, content in (
        (folder / "meta.json", meta),
        (config / "config_fed_server.json", {"format_version": 2, **server}),
        (config / "config_fed_client.json", {"format_version": 2, **client}),
    ):
        file.write_text(json.dumps(content), encoding="utf8")


def flower(gate: Gate, config: Config, work: Path, parties: int, messages: bool) -> None:
    """Train by `flwr run` in Flower's simulation: by messages as in its vertical example, or over sessions, as ours."""
    with tempfile.TemporaryDirectory(prefix="flower-vfl-benchmark-") as temporary:
        folder = Path(temporary)
        home, app = folder / "home", folder / "app"
        write_app(app, to_run_config(config))
        shutil.copy(BESIDE / "plain.py", app)
        if messages:
            shutil.copy(BESIDE / "messages_client.py", app / "client_app.py")
        server = "messages_server.py" if messages else "session_server.py"
        shutil.copy(BESIDE / server, app / "server_app.py")
        switches = ("FLWR_DISABLE_UPDATE_CHECK", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION")
        environment = {**os.environ, **_environment(folder, work), "FLWR_HOME": str(home)} | dict.fromkeys(
            switches, "1"
        )
        size = f"num-supernodes={parties} client-resources-num-cpus=1 init-args-num-cpus={parties}"
        command = [tool("flwr"), "run", str(app), "--stream", "--federation-config", size]
        log = folder / "log"
        with (
            _followed(gate, folder) as follow,
            super_link(home, environment),
            log.open("wb") as words,
            subprocess.Popen(command, env=environment, stdout=words, stderr=words) as process,
        ):
            try:
                follow(process, log)
            finally:
                process.terminate()
