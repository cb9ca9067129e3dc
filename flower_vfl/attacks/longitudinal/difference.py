"""The difference of two epochs: persistent noise of a row cancels in it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

import torch

from flower_vfl.attacks.base import one_of
from flower_vfl.attacks.gradient import norm
from flower_vfl.attacks.longitudinal import direction
from flower_vfl.attacks.longitudinal.base import NO_KNOWN_ROWS, Kept, KnownRows, Memory, MemoryAttack

if TYPE_CHECKING:
    from torch import Tensor

By = Literal["norm", "direction"]


class RememberedDifferenceAttack(MemoryAttack):
    r"""An attack that scores each row by the change of its gradient between the last two epochs.

    .. math:: d_i = x_{iT} - x_{i,T-1}

    Everything that is the same in both cancels, also the persistent share of the noise that a defense gives each row.
    The attack needs two epochs, and no label.

    Parameters
    ----------
    by
        Score of a difference: "norm", its length; "direction", its coordinate along the first principal direction of
        the differences, the rarer side counting as positive.
    """

    name: ClassVar[str] = "remembered_difference"
    keeps: frozenset[Kept] = frozenset({"difference"})
    first_epoch: int = 2

    def __init__(self, by: By = "norm") -> None:
        self.by = one_of(self.name, "by", by, get_args(By))

    def score(self, memory: Memory, known: KnownRows = NO_KNOWN_ROWS) -> Tensor:
        """Return the scores of the differences, (N,)."""
        pieces = partial(memory.pieces, "difference")
        if self.by == "direction":
            return direction.score(pieces)
        return torch.cat([norm.score(piece) for piece in pieces()])
