"""A defense with a network of its own: embeddings pass a bottleneck before the top model reads them."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from flower_vfl.errors import ConfigError
from flower_vfl.strategies import Defense, HookedStrategy


def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    r"""Return the mean over rows of the divergence of their distributions from the standard normal one.

    .. math:: \frac1{2B} \sum_{i,d} \big( \mu_{id}^2 + \sigma_{id}^2 - 1 - \log \sigma_{id}^2 \big)

    Parameters
    ----------
    mean, log_variance : Tensor
        (B, D) of each row.
    """
    return 0.5 * (mean.square() + log_variance.exp() - 1.0 - log_variance).sum(dim=1).mean()


class Bottleneck(Defense):
    """Limits what the network's output can tell of an embedding, and with it what a gradient can tell of the label.

    A small network turns each party's embedding into a normal distribution, and the top model reads a draw from it. The
    loss gets `weight` times the divergence of these distributions from the standard normal one, which bounds the mutual
    information of embedding and prediction. A prediction reads the mean.

    Parameters
    ----------
    strategy : HookedStrategy
        The wrapped strategy.
    weight : float
        Weight of the divergence in the loss, at least 0.

    References
    ----------
    Zou, Liu, Zhang, *Mutual Information Regularization for Vertical Federated Learning*, arXiv 2301.01142.
    """

    name: ClassVar[str] = "bottleneck"

    def __init__(self, strategy: HookedStrategy, weight: float = 0.01) -> None:
        super().__init__(strategy)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0.0 <= weight < float("inf"):
            raise ConfigError(f"bottleneck: weight must be a finite number of at least 0, given {weight!r}")
        self.weight = weight
        self._terms: dict[str, Tensor] = {}

    @property
    def params(self) -> dict[str, Any]:
        """The weight of the divergence."""
        return {"weight": self.weight}

    def build(self, cut: Mapping[str, tuple[int, ...]], device: torch.device) -> None:
        """Make a network for each party: mean and logarithm of the variance for each entry of its embedding."""
        for party, shape in cut.items():
            width = prod(shape)
            self.modules[party] = nn.Linear(width, 2 * width)

    def begin_batch(self, rows: Any) -> None:
        """Forget the divergences of the last batch."""
        self._terms = {}

    def embed(self, z: Tensor, *, party: str = "", train: bool = True) -> tuple[Tensor, dict[str, float]]:
        """Let the inner strategy embed first; return a draw from each row's distribution, or its mean."""
        inner, log = self.strategy.embed(z, party=party, train=train)
        name = party or next(iter(self.modules))
        mean, log_variance = self.modules[name](inner.flatten(1)).chunk(2, dim=1)
        if not train:
            return mean.view_as(inner), log
        log_variance = log_variance.clamp(-10.0, 10.0)
        self._terms[name] = divergence(mean, log_variance)
        draw = torch.randn(mean.shape, generator=self.generator(z.device), device=z.device, dtype=mean.dtype)
        return (mean + (0.5 * log_variance).exp() * draw).view_as(inner), log

    def loss(self, logits: Tensor, labels: Tensor, z: Tensor) -> tuple[Tensor, dict[str, float]]:
        """Add the weighted divergence of all parties to the inner strategy's loss."""
        inner, log = self.strategy.loss(logits, labels, z)
        if not self._terms:
            return inner, log
        added = self.weight * torch.stack(list(self._terms.values())).sum()
        return inner + added, {**log, f"{self.name}.term": added.item()}
