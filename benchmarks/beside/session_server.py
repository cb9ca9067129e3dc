"""The label party of a run of flower-vfl that reports each step to the benchmark."""

from __future__ import annotations

from typing import Any

from plain import Ticks

from flower_vfl import make_server_app
from flower_vfl.strategies import Observer


class StepReporter(Observer):
    """An observer that reports each step, without the evaluation."""

    def on_start(self, steps: int, epochs: int, parties: Any) -> None:
        """Connect to the benchmark."""
        self._ticks = Ticks()

    def on_step(self, step: int, epoch: int, loss: float, leak: float) -> None:
        """Report the step."""
        self._ticks.tick(loss)

    def on_epoch(self, step: int, epoch: int, metrics: Any) -> None:
        """Leave the evaluation out."""
        self._ticks.interrupt()


app = make_server_app(observers=(StepReporter(),))
