"""A defense that changes nothing and logs the observations of L22 section 3.3 on undefended gradients."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from flower_vfl.parties.hooks import Log
from studies.probes import Occasional, two_of_each

PAIRS = ("positive", "negative", "across")
"""Pairs of examples: both positive, both negative, one of each."""


class Probe(Occasional):
    """Wrapper that logs, for each class, |p1 - y|, the norm of dh/dz and the cosines of rows of dh/dz and of g.

    A row of the cut gradient is g = (p1 - y) / B * dh/dz, so that dh/dz follows by division (Observations 1, 2 and 4).
    It must be the only defense.
    """

    name: ClassVar[str] = "probe"
    _logits = torch.empty(0)

    def loss(self, logits: Tensor, labels: Tensor, z: Tensor) -> tuple[Tensor, Log]:
        """Keep the logits of the batch."""
        self._logits = logits.detach()
        return super().loss(logits, labels, z)

    def act(self, grads: Tensor, labels: Tensor) -> tuple[Tensor, Log]:
        """Return the gradients unchanged, and the log of `observe`."""
        return grads, observe(grads, self._logits, labels) if two_of_each(labels) else {}


def observe(grads: Tensor, logits: Tensor, labels: Tensor) -> Log:
    """Return the quantities of Observations 1, 2 and 4 for one batch.

    Parameters
    ----------
    grads, logits, labels : Tensor
        (B, D) cut gradients of the mean loss, (B,) and (B,) of 0 and 1, two of each at least.
    """
    positive = labels == 1
    # 1 - p1 of a positive is sigmoid(-l): no difference of two numbers near 1.
    error = torch.sigmoid(torch.where(positive, -logits, logits).double())
    slope = grads.double() * len(grads) / torch.where(positive, -error, error)[:, None]
    log: Log = {}
    for name, rows in (("positive", positive), ("negative", ~positive)):
        log[f"probe.error.{name}"] = float(error[rows].mean())
        log[f"probe.slope.{name}"] = float(slope[rows].norm(dim=1).median())
    for kind, vectors in (("slope", slope), ("gradient", grads.double())):
        directions = torch.nn.functional.normalize(vectors, dim=1, eps=1e-300)
        cosines = directions @ directions.T
        for pair, chosen in zip(PAIRS, _pairs(positive), strict=True):
            values = cosines[chosen]
            log[f"probe.{kind}_cosine.{pair}"] = float(values.median())
            log[f"probe.{kind}_share.{pair}"] = float((values > 0).double().mean())
    return log


def _pairs(positive: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return masks (B, B) of the unordered pairs of `PAIRS`."""
    upper = torch.ones(len(positive), len(positive), dtype=torch.bool).triu(1)
    both, neither = positive[:, None] & positive, ~(positive[:, None] | positive)
    return both & upper, neither & upper, ~(both | neither) & upper
