"""Checks of the parties' processes in Flower's simulation: all must be able to run at once."""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import Future

from flower_vfl.errors import SetupError

_RAY_SECONDS = 60.0


STARTED: Future[None] = Future()
"""Future that is done once every party's process is up, in a simulation that `--engine flower` starts."""


def handlers() -> int:
    """Return the largest number of ClientApps that Flower's simulation runs at once, for any number of Ray's processes.

    They are called from a `ThreadPoolExecutor()`, and this is its default (flwr 1.41, `vce_api.run_api`).
    """
    return min(32, (os.cpu_count() or 1) + 4)


def wait_for_workers(parties: int, *, at_once: bool) -> None:
    """Wait until Flower's simulation, which runs this app in a thread, is ready for the feature parties.

    Parameters
    ----------
    parties : int
        Number of feature parties.
    at_once : bool
        True if their handlers must all run at the same time: a session over a stream takes one for as long as it lasts.

    Raises
    ------
    SetupError
        When it cannot be ready.
    """
    if STARTED.running() or STARTED.done():
        STARTED.result()
        return
    if at_once and parties > handlers():
        raise SetupError(
            f"Flower's simulation runs {handlers()} ClientApps at once on this machine (4 more than it has processors, "
            f"32 at most), and this run has {parties} feature parties, each with a session as long as the training. "
            "`flower-vfl run ... --engine flower` runs them all; or set transport-kind='messages', which is slow"
        )
    wait_for_ray()


def wait_for_ray() -> None:
    """Wait until Flower's simulation, which runs this app in a thread, has started Ray.

    Ray forks, and a process that forks while threads of a gRPC server are busy loses one child in fifty: the simulation
    then ends with "the current node timed out during startup" (docs/decisions/0007). So the session endpoint waits.
    """
    deadline = time.monotonic() + _RAY_SECONDS
    while time.monotonic() < deadline:
        has_started = getattr(sys.modules.get("ray"), "is_initialized", None)  # another thread is importing it
        if has_started is not None and has_started():
            return
        time.sleep(0.02)
