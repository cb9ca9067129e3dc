"""The base class of wrappers around a defense that act only in some steps."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor

from flower_vfl.parties.hooks import Log, StepView
from flower_vfl.strategies import Defense, HookedStrategy


class Occasional(Defense):
    """Wrapper that acts on the gradients after the inner defenses, in every `every`-th step from the first one on.

    Parameters
    ----------
    strategy : HookedStrategy
        The wrapped strategy.
    every : int
        Number of steps from one action to the next.
    """

    def __init__(self, strategy: HookedStrategy, *, every: int = 10) -> None:
        super().__init__(strategy)
        self._every, self._step = every, 0

    @property
    def params(self) -> dict[str, Any]:
        """Number of steps from one action to the next."""
        return {"every": self._every}

    def protect(self, grads: Tensor, labels: Tensor, step: StepView | None = None) -> tuple[Tensor, Log]:
        """Return the inner strategy's gradients, after `act` in the steps in which it is due."""
        sent, log = self.strategy.protect(grads, labels, step)
        if self._step % self._every == 0:
            sent, more = self.act(sent, labels)
            log = {**log, **more}
        self._step += 1
        return sent, log

    @abstractmethod
    def act(self, grads: Tensor, labels: Tensor) -> tuple[Tensor, Log]:
        """Return the gradients (B, D) to send instead of these, of examples with labels (B,), and the log."""


def two_of_each(labels: Tensor) -> bool:
    """Return True if a batch has at least two rows of each class."""
    return 2 <= int(labels.sum()) <= len(labels) - 2
