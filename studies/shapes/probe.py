"""Wrappers around a defense: one logs the spectra of the sent gradients, one shuffles their rows."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from flower_vfl.parties.hooks import Log
from studies.probes import Occasional, two_of_each

AXES = 64
"""Largest number of variances that are logged."""


class Spectra(Occasional):
    """Wrapper that logs the variances of each class's sent cut gradients along their principal directions.

    It must be the outermost defense. Variances are in units of the batch's mean square number.
    """

    name: ClassVar[str] = "spectra"

    def act(self, grads: Tensor, labels: Tensor) -> tuple[Tensor, Log]:
        """Return the gradients unchanged, and the log of their spectra."""
        return grads, spectra(grads, labels) if two_of_each(labels) else {}


class Shuffled(Occasional):
    """Wrapper that gives each row of a batch the gradient of another.

    A leak that remains at a layer of an attacker's model comes from its own columns: the received gradients carry no
    information on the rows. It must be the outermost defense.
    """

    name: ClassVar[str] = "shuffled"

    def act(self, grads: Tensor, labels: Tensor) -> tuple[Tensor, Log]:
        """Return the gradients in another order."""
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
