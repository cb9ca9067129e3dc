"""Base class of the defenses that add a term on embeddings to the loss."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from flower_vfl.errors import ConfigError
from flower_vfl.parties.hooks import Log
from flower_vfl.strategies.base import Defense, HookedStrategy
from flower_vfl.strategies.gradients.checks import strength


class Regulariser(Defense):
    """A defense that adds alpha times a term to the loss; subclasses implement `term`.

    The term is computed from the feature parties' embeddings as the top model reads them: side by side, and
    layer-normalised if this or another defense of the chain normalises. The label party's own embedding is not sent,
    and not part of it.

    Parameters
    ----------
    strategy : HookedStrategy
        The wrapped strategy.
    alpha : float
        Weight of the term, at least 0.
    normalise : bool
        True if each party's embedding is layer-normalised, without weights, before the top model reads it.
    """

    twice: ClassVar[str] = "give the sum of both alphas to one"

    def __init__(self, strategy: HookedStrategy, alpha: float, *, normalise: bool) -> None:
        super().__init__(strategy)
        self.alpha = strength(f"{self.name}: alpha", alpha)
        if not isinstance(normalise, bool):
            raise ConfigError(f"{self.name}: normalise must be true or false, given {normalise!r}")
        self.normalise = normalise

    @abstractmethod
    def term(self, z: Tensor, labels: Tensor) -> Tensor:
        """Return the term for embeddings (B, D) with prepared labels (B,)."""

    def embed(self, z: Tensor, *, party: str = "", train: bool = True) -> tuple[Tensor, Log]:
        """Let the inner strategy embed first, then normalise."""
        inner, log = self.strategy.embed(z, party=party, train=train)
        return (layer_norm(inner, self.name) if self.normalise else inner), log

    def loss(self, logits: Tensor, labels: Tensor, z: Tensor) -> tuple[Tensor, Log]:
        """Add the term to the inner strategy's loss and log it."""
        inner, log = self.strategy.loss(logits, labels, z)
        added = self.alpha * self.term(z, labels)
        return inner + added, {**log, f"{self.name}.term": added.item()}


def layer_norm(z: Tensor, name: str) -> Tensor:
    """Return the rows (B, ...) with mean 0 and variance 1 each, so that they lie on a sphere of zero-mean vectors.

    Raises
    ------
    ConfigError
        When rows have fewer than three numbers (such a sphere is two points or one), or are not of floating point.
    """
    if not z.is_floating_point():
        raise ConfigError(f"{name}: the embedding must be of floating point, given {z.dtype}; convert it first")
    shape = z.shape[1:]
    if shape.numel() < 3:
        raise ConfigError(
            f"{name} layer-normalises the embedding of each party, which needs 3 numbers a row, given {shape.numel()}: "
            "of fewer no more than a sign would be left; give each party a cut of 3 or more (model.cut)"
        )
    return torch.nn.functional.layer_norm(z, shape)
