"""The scale of a row's batches in the row memory: where noise follows the longest row of a batch, it reveals it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from flower_vfl.attacks.longitudinal.base import NO_KNOWN_ROWS, Kept, KnownRows, Memory, MemoryAttack

if TYPE_CHECKING:
    from torch import Tensor


class RememberedScalesAttack(MemoryAttack):
    r"""An attack that scores each row by the mean logarithm of the scale of its batches.

    .. math:: r_i = \tfrac1T \sum_{t=1}^{T} \log \sqrt{\tfrac{1}{BD} \sum_{j} \| g_{jt} - \bar g_t \|^2}

    A defense whose noise is as strong as the longest row of the batch needs, such as isotropic noise, makes batches
    with a positive louder. All batches of a positive are loud, those of a negative only where a positive happens to be
    among the other rows. The attack needs no label: rows of louder batches count as positive.
    """

    name: ClassVar[str] = "remembered_scales"
    keeps: frozenset[Kept] = frozenset({"scales"})

    def score(self, memory: Memory, known: KnownRows = NO_KNOWN_ROWS) -> Tensor:
        """Return the mean logarithms of the scales of the batches, (N,)."""
        return torch.cat([piece[:, 0] for piece in memory.pieces("scales")])
