"""The norm of the mean gradient in the row memory: fresh noise adds up slower than gradients do."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from flower_vfl.attacks.gradient import norm
from flower_vfl.attacks.longitudinal.base import NO_KNOWN_ROWS, KnownRows, Memory, MemoryAttack

if TYPE_CHECKING:
    from torch import Tensor


class RememberedNormAttack(MemoryAttack):
    r"""An attack that scores each row by the norm of the mean of its gradients.

    .. math:: r_i = \Big\| \tfrac1T \sum_{t=1}^{T} x_{it} \Big\|_2

    with :math:`x_{it}` the row's gradient in epoch t, in units of its batch. Independent noise of variance v a
    coordinate has the variance v / T in the mean. The attack needs no label.
    """

    name: ClassVar[str] = "remembered_norm"

    def score(self, memory: Memory, known: KnownRows = NO_KNOWN_ROWS) -> Tensor:
        """Return the norms of the mean gradients, (N,)."""
        return torch.cat([norm.score(piece) for piece in memory.pieces("mean")])
