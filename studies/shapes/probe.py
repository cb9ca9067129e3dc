"""What the study puts around a defense: one that looks at the shape of what leaves, one that gives rows to others."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from flower_vfl.parties.hooks import Log
from studies.probes import Occasional, two_of_each

AXES = 64
"""How many variances are logged at most."""


class Spectra(Occasional):
    """Logs the variances of each class's cut gradients along their principal directions, as they are sent.

    The outermost defense. Variances are in units of the batch's mean square number.
    """

    name: ClassVar[str] = "spectra"

    def act(self, grads: Tensor, labels: Tensor) -> tuple[Tensor, Log]:
        """Log the spectra of what is sent."""
        return grads, spectra(grads, labels) if two_of_each(labels) else {}


class Shuffled(Occasional):
    """Gives each row of a batch the gradient of another.

    What an attacker still reads there at a layer of its own model is what that model makes of its own columns: the
    gradients that came tell nothing of the rows. The outermost defense.
    """

    name: ClassVar[str] = "shuffled"

    def act(self, grads: Tensor, labels: Tensor) -> tuple[Tensor, Log]:
        """Put what is sent into another order."""
        order = torch.randperm(len(grads), generator=torch.Generator().manual_seed(self._step))
        return grads[order.to(grads.device)], {}


def spectra(grads: Tensor, labels: Tensor) -> Log:
    """Return the variances of gradients (B, D) of the classes 0 and 1, the largest first, at most `AXES` each."""
    x = grads.double() / grads.double().square().mean().sqrt()
    log: Log = {}
    for name, label in (("negative", 0), ("positive", 1)):
        rows = x[labels == label]
        variances = torch.linalg.svdvals(rows - rows.mean(dim=0)).square() / len(rows)
        log |= {f"spectra.{name}.{place}": float(value) for place, value in enumerate(variances[:AXES])}
    return log
