"""What the study puts around a defense: one that looks at the shape of what leaves, one that gives rows to others."""

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


class Shuffled(Defense):
    """Gives each row of a batch the gradient of another, in each so many steps, the first among them.

    What an attacker still reads there at a layer of its own model is what that model makes of its own columns: the
    gradients that came tell nothing of the rows. The outermost defense.

    Parameters
    ----------
    strategy : HookedStrategy
        What it wraps.
    every : int
        Shuffle each so many steps: those that are attacked.
    """

    name: ClassVar[str] = "shuffled"

    def __init__(self, strategy: HookedStrategy, *, every: int = 5) -> None:
        super().__init__(strategy)
        self._every, self._step = every, 0

    @property
    def params(self) -> dict[str, Any]:
        """How often it shuffles."""
        return {"every": self._every}

    def protect(self, grads: Tensor, labels: Tensor) -> tuple[Tensor, Log]:
        """Pass on what the others made of the gradients, in another order if it is time."""
        sent, log = self.strategy.protect(grads, labels)
        if self._step % self._every == 0:
            order = torch.randperm(len(sent), generator=torch.Generator().manual_seed(self._step))
            sent = sent[order.to(sent.device)]
        self._step += 1
        return sent, log


def spectra(grads: Tensor, labels: Tensor) -> Log:
    """Return the variances of gradients (B, D) of the classes 0 and 1, the largest first, at most `AXES` each."""
    x = grads.double() / grads.double().square().mean().sqrt()
    log: Log = {}
    for name, label in (("negative", 0), ("positive", 1)):
        rows = x[labels == label]
        variances = torch.linalg.svdvals(rows - rows.mean(dim=0)).square() / len(rows)
        log |= {f"spectra.{name}.{place}": float(value) for place, value in enumerate(variances[:AXES])}
    return log
