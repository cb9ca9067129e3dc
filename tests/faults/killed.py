"""A run that kills its own process."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from flower_vfl import build_config, run
from flower_vfl.attacks.embedding import model_completion
from flower_vfl.strategies import Observer
from tests.faults.common import ATTACKER_EPOCHS


def die() -> None:
    """Kill this process: no handler runs, and nothing more is written."""
    os.kill(os.getpid(), signal.SIGKILL)


class KillAfter(Observer):
    """An observer that kills the process after a step, or after the evaluation of an epoch."""

    def __init__(self, step: int = -1, epoch: int = -1) -> None:
        self.step, self.epoch = step, epoch

    def on_step(self, step: int, epoch: int, loss: float, leak: float) -> None:
        if step == self.step:
            die()

    def on_epoch(self, step: int, epoch: int, metrics: object) -> None:
        if epoch == self.epoch:
            die()


def kill_around_replacing(count: int, *, before: bool) -> None:
    """Kill the process just before or after the n-th `os.replace`: in the middle of a checkpoint."""
    replace, left = os.replace, [count]

    def counted(*args: object, **kwargs: object) -> None:
        left[0] -= 1
        if left[0] == 0 and before:
            die()
        replace(*args, **kwargs)  # type: ignore[arg-type]
        if left[0] == 0:
            die()

    os.replace = counted


def train(folder: Path, values: dict[str, Any], kill: dict[str, Any]) -> None:
    """Run a configuration with a kill in a folder, or resume the run that is there."""
    os.environ["FLOWER_VFL_STATE"] = str(folder / "state")
    if "replacing" in kill:
        kill_around_replacing(kill["replacing"], before=kill["before"])
        kill = {}
    model_completion.MOST_EPOCHS = ATTACKER_EPOCHS  # as in the runs that it is compared with
    run(build_config(values), out=folder / "run", resume=True, observers=(KillAfter(**kill),))


def start(folder: Path, values: dict[str, Any], kill: dict[str, Any]) -> int | None:
    """Call `train` in a process forked from one that has everything imported, and return its exit code."""
    forks = multiprocessing.get_context("forkserver")
    # With all that a run imports, scikit-learn for its attacks too: each fork would import it again.
    forks.set_forkserver_preload([__name__, "flower_vfl.apps.local", "flower_vfl.simulations", "sklearn.cluster"])
    process = forks.Process(target=train, args=(folder, values, kill))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(
            Path(__file__).parents[2]
        )  # an earlier test may have started the process without this module
        process.start()
    process.join(240)
    return process.exitcode
