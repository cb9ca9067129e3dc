"""Flower's simulation process, as `--engine flower` starts it: each feature party has a process of its own.

By itself Flower gives every ClientApp the same resources, starts as many processes as the cluster could hold, sends a
message to any of them, and only to a few at once. Sessions need all at once: docs/decisions/0017-party-processes.md.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import ray
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.server.superlink.fleet.vce import vce_api
from flwr.server.superlink.fleet.vce.backend import raybackend
from flwr.simulation.app import flwr_simulation
from flwr.simulation.ray_transport.ray_actor import ClientAppActor
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from flower_vfl.apps.workers import STARTED
from flower_vfl.errors import SetupError
from flower_vfl.simulations.cluster import own_files
from flower_vfl.simulations.flower_engine import BUNDLES_VARIABLE, COMMAND, OWN_RAY

_RESERVE_SECONDS = 30.0
_START_SECONDS, _START_SECONDS_EACH = 120.0, 15.0
"""Time limit until all processes run, in all and for each: they import torch, and share the processors."""


class PartyBackend(raybackend.RayBackend):
    """Backend with one process for each feature party, all placed together; messages of a party go to its process.

    Raises
    ------
    SetupError
        When the cluster has no room for all of them, or one does not start.
    """

    def __init__(self, backend_config: Any) -> None:
        self._actors: list[Any] = []
        try:
            super().__init__(backend_config)
        except BaseException as error:
            STARTED.set_exception(SetupError(f"Ray did not start: {error}"))
            raise

    @property
    def num_workers(self) -> int:
        """The number of processes."""
        return len(self._actors)

    def is_worker_idle(self) -> bool:
        """Return True: messages are always taken, since each party has its own process."""
        return True

    def build(self, app_fn: Callable[[], ClientApp]) -> None:
        """Start the processes, and notify the label party when all are up."""
        self.app_fn = app_fn
        try:
            self._actors = start(json.loads(os.environ[BUNDLES_VARIABLE]))
        except BaseException as error:  # the label party waits for a result or an error
            STARTED.set_exception(error)
            raise
        STARTED.set_result(None)

    def process_message(self, message: Message, context: Context) -> tuple[Message, Context]:
        """Return the reply of the party's process to a message, and the updated context."""
        partition = int(str(context.node_config["partition-id"]))
        answer = self._actors[partition].run.remote(self.app_fn, message, str(partition), context)
        _, reply, updated = ray.get(answer)
        return reply, updated


def start(bundles: list[dict[str, float]]) -> list[Any]:
    """Start a process for each bundle of resources, evenly over the nodes, and wait until all are up.

    Raises
    ------
    SetupError
        When there is no room for all of them at once, or one does not start.
    """
    group = placement_group(bundles, strategy="SPREAD")
    if not group.wait(_RESERVE_SECONDS):
        room = _room()
        remove_placement_group(group)
        raise SetupError(
            f"there is no room for all {len(bundles)} feature parties at once within {_RESERVE_SECONDS:.0f} s. They "
            f"ask for {_listed(bundles)}; {room}. Free what else runs there, add nodes, or lower --resources"
        )
    kind: Any = ClientAppActor
    begin = partial(importlib.import_module, "flower_vfl.apps.client_app")  # imports torch before time limits begin
    actors = [
        kind.options(
            num_cpus=bundle["CPU"],
            num_gpus=bundle.get("GPU", 0.0),
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
        ).remote(on_actor_init_fn=begin)
        for index, bundle in enumerate(bundles)
    ]
    limit = _START_SECONDS + _START_SECONDS_EACH * len(actors)
    try:
        ray.get([actor.__ray_ready__.remote() for actor in actors], timeout=limit)
    except ray.exceptions.RayError as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise SetupError(f"a feature party's process did not start: {line}") from None
    return actors


def _listed(bundles: list[dict[str, float]]) -> str:
    """Return the requested resources as text, equal bundles together."""
    words = [", ".join(_worded(name, amount) for name, amount in bundle.items()) for bundle in bundles]
    return "; ".join(f"{words.count(word)} x ({word})" for word in dict.fromkeys(words))


def _worded(name: str, amount: float) -> str:
    node = name.removeprefix("node:")
    return f"on {node}" if node != name else f"{amount:g} {name}"


def _room() -> str:
    """Return the resources of the nodes, and the free part, as text."""
    nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    has = "; ".join(f"{node['NodeManagerAddress']} has {_amounts(node['Resources'])}" for node in nodes)
    free = ray.available_resources()  # type: ignore[no-untyped-call]
    return f"{has}; free are, all together, {_amounts(free)}"


def _amounts(resources: dict[str, float]) -> str:
    return ", ".join(f"{resources.get(name, 0.0):g} {name}" for name in ("CPU", "GPU"))


def main() -> None:
    """Run Flower's simulation with this backend."""
    STARTED.set_running_or_notify_cancel()
    parties = len(json.loads(os.environ[BUNDLES_VARIABLE]))
    setattr(raybackend, "RayBackend", PartyBackend)  # noqa: B010 - Flower finds both by these names
    setattr(vce_api, "ThreadPoolExecutor", partial(ThreadPoolExecutor, max_workers=parties))  # noqa: B010
    sys.argv[0] = COMMAND
    with _own_files() if os.environ.get("RAY_ADDRESS") == OWN_RAY else contextlib.nullcontext():
        flwr_simulation()


@contextlib.contextmanager
def _own_files() -> Iterator[None]:
    """Make Ray write into a temporary folder, removed with this process: Flower's simulation may end abruptly."""
    with own_files() as folder:
        os.environ["RAY_TMPDIR"] = folder
        try:
            yield
        finally:
            ray.shutdown()


if __name__ == "__main__":
    main()
