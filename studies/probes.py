"""What studies put around a defense: it acts in each so many steps and lets the others pass."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor

from flower_vfl.parties.hooks import Log, StepView
from flower_vfl.strategies import Defense, HookedStrategy


class Occasional(Defense):
    """Acts in each so many steps, the first among them, on what the defenses inside it made of the gradients.

    Parameters
    ----------
    strategy : HookedStrategy
        What it wraps.
    every : int
        Act in each so many steps.
    """

    def __init__(self, strategy: HookedStrategy, *, every: int = 10) -> None:
        super().__init__(strategy)
        self._every, self._step = every, 0

    @property
    def params(self) -> dict[str, Any]:
        """How often it acts."""
        return {"every": self._every}

    def protect(self, grads: Tensor, labels: Tensor, step: StepView | None = None) -> tuple[Tensor, Log]:
        """Let the inner strategy protect first, then act if it is time."""
        sent, log = self.strategy.protect(grads, labels, step)
        if self._step % self._every == 0:
            sent, more = self.act(sent, labels)
            log = {**log, **more}
        self._step += 1
        return sent, log

    @abstractmethod
    def act(self, grads: Tensor, labels: Tensor) -> tuple[Tensor, Log]:
        """Return what is sent instead of gradients (B, D) of examples with labels (B,), and what is logged."""


def two_of_each(labels: Tensor) -> bool:
    """Whether a batch has two rows of either class at least."""
    return 2 <= int(labels.sum()) <= len(labels) - 2
