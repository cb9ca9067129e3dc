"""A run that kills itself: what the tests of faults start as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from flower_vfl import build_config, run
from flower_vfl.attacks.embedding import model_completion
from flower_vfl.strategies import Observer
from tests.faults.common import ATTACKER_EPOCHS


def die() -> None:
    """End as a plug that is pulled ends: no handler runs, nothing is written."""
    os.kill(os.getpid(), signal.SIGKILL)


class KillAfter(Observer):
    """Dies after a step, or after the evaluation of an epoch."""

    def __init__(self, step: int = -1, epoch: int = -1) -> None:
        self.step, self.epoch = step, epoch

    def on_step(self, step: int, epoch: int, loss: float, leak: float) -> None:
        if step == self.step:
            die()

    def on_epoch(self, step: int, epoch: int, metrics: object) -> None:
        if epoch == self.epoch:
            die()


def kill_around_replacing(count: int, *, before: bool) -> None:
    """Die just before or just after the n-th time that a file takes its place: in the middle of a checkpoint."""
    replace, left = os.replace, [count]

    def counted(*args: object, **kwargs: object) -> None:
        left[0] -= 1
        if left[0] == 0 and before:
            die()
        replace(*args, **kwargs)  # type: ignore[arg-type]
        if left[0] == 0:
            die()

    os.replace = counted


def main() -> None:
    """Run the configuration with the kill, both JSON, that the command line names."""
    out, values, kill = Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])
    if "replacing" in kill:
        kill_around_replacing(kill["replacing"], before=kill["before"])
        kill = {}
    model_completion.EPOCHS = ATTACKER_EPOCHS  # as in the runs that it is compared with
    run(build_config(values), out=out, resume=True, observers=(KillAfter(**kill),))


if __name__ == "__main__":
    main()
