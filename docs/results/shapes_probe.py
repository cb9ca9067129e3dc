"""A defense that changes nothing and looks at the shape of what leaves: the spectrum of each class's covariance."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from flower_vfl.parties.label import Log
from flower_vfl.strategies import Defense, HookedStrategy

AXES = 64
"""How many variances are logged at most."""


class Spectra(Defense):
    """Logs the variances of each class's cut gradients along their principal directions, as they are sent.

    The outermost defense. Variances are in units of the batch's mean square number.

    Parameters
    ----------
    strategy : HookedStrategy
        What it wraps.
    every : int
        Look at each so many steps.
    """

    name: ClassVar[str] = "spectra"

    def __init__(self, strategy: HookedStrategy, *, every: int = 50) -> None:
        super().__init__(strategy)
        self._every, self._step = every, 0

    @property
    def params(self) -> dict[str, Any]:
        """How often it looks."""
        return {"every": self._every}

    def protect(self, grads: Tensor, labels: Tensor) -> tuple[Tensor, Log]:
        """Pass on what the others made of the gradients, and log its spectra."""
        sent, log = self.strategy.protect(grads, labels)
        due = self._step % self._every == 0 and 2 <= int(labels.sum()) <= len(labels) - 2
        self._step += 1
        return sent, {**log, **(spectra(sent, labels) if due else {})}


def spectra(grads: Tensor, labels: Tensor) -> Log:
    """Return the variances of gradients (B, D) of the classes 0 and 1, the largest first, at most `AXES` each."""
    x = grads.double() / grads.double().square().mean().sqrt()
    log: Log = {}
    for name, label in (("negative", 0), ("positive", 1)):
        rows = x[labels == label]
        variances = torch.linalg.svdvals(rows - rows.mean(dim=0)).square() / len(rows)
        log |= {f"spectra.{name}.{place}": float(value) for place, value in enumerate(variances[:AXES])}
    return log
