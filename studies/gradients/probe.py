"""A defense that defends nothing and looks: what L22 section 3.3 observes about undefended gradients."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from flower_vfl.parties.hooks import Log
from studies.probes import Occasional, two_of_each

PAIRS = ("positive", "negative", "across")
"""Pairs of examples: both positive, both negative, one of each."""


class Probe(Occasional):
    """Logs, for each class, |p1 - y|, the norm of dh/dz and how rows of dh/dz and of g point to each other.

    A row of the cut gradient is g = (p1 - y) / B * dh/dz, so that dh/dz comes from dividing (Observations 1, 2 and 4).
    The only defense.
    """

    name: ClassVar[str] = "probe"
    _logits = torch.empty(0)

    def loss(self, logits: Tensor, labels: Tensor, z: Tensor) -> tuple[Tensor, Log]:
        """Keep the logits of the batch."""
        self._logits = logits.detach()
        return super().loss(logits, labels, z)

    def act(self, grads: Tensor, labels: Tensor) -> tuple[Tensor, Log]:
        """Log what the gradients are made of."""
        return grads, observe(grads, self._logits, labels) if two_of_each(labels) else {}


def observe(grads: Tensor, logits: Tensor, labels: Tensor) -> Log:
    """Return what Observations 1, 2 and 4 are about, for one batch.

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
