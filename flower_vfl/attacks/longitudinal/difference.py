"""The difference of two epochs: noise that comes again with a row is not in it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import torch

from flower_vfl.attacks.base import one_of
from flower_vfl.attacks.gradient import norm
from flower_vfl.attacks.longitudinal import direction
from flower_vfl.attacks.longitudinal.base import NOBODY, Kept, KnownRows, Memory, MemoryAttack

if TYPE_CHECKING:
    from torch import Tensor

By = Literal["norm", "direction"]


class RememberedDifferenceAttack(MemoryAttack):
    r"""Scores each row by what has changed between the last two epochs.

    .. math:: d_i = x_{iT} - x_{i,T-1}

    What is the same in both cancels, noise too: where a defense gives each row a persistent share of noise, that share
    is gone. It cannot read anything before the second epoch. Needs no label.

    Parameters
    ----------
    by
        "norm": scores by the length of the difference; "direction": by its place along the direction in which the
        differences differ most, the rarer side counting as positive.
    """

    name: ClassVar[str] = "remembered_difference"
    keeps: frozenset[Kept] = frozenset({"difference"})
    first_epoch: int = 2

    def __init__(self, by: By = "norm") -> None:
        self.by = one_of(self.name, "by", by, get_args(By))

    @property
    def params(self) -> dict[str, Any]:
        """By what differences are scored."""
        return {"by": self.by}

    def score(self, memory: Memory, known: KnownRows = NOBODY) -> Tensor:
        """Return the scores of the differences, (N,)."""
        pieces = partial(memory.pieces, "difference")
        if self.by == "direction":
            return direction.score(pieces)
        return torch.cat([norm.score(piece) for piece in pieces()])
