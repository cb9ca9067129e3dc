"""An observer that reports the share of a run's steps that is done."""

from __future__ import annotations

from flower_vfl.simulations.demo.pool import Report
from flower_vfl.strategies import Observer


class Steps(Observer):
    """An observer that reports the share of the steps that is done.

    Parameters
    ----------
    report : Callable
        Function that receives the share.
    """

    def __init__(self, report: Report) -> None:
        self._report, self._steps = report, 0

    def on_start(self, steps: int, epochs: int, parties: tuple[str, ...]) -> None:
        """Note the number of steps."""
        self._steps = steps
        self._report(0.0)

    def on_step(self, step: int, epoch: int, loss: float, leak: float) -> None:
        """Report the share that is done."""
        self._report((step + 1) / max(self._steps, step + 1))
