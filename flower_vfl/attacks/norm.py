"""The norm attack: confident mistakes have long gradients, and the rare class is where the mistakes are."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from flower_vfl.attacks.base import NOTHING, Attack
from flower_vfl.metrics import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from flower_vfl.protocol.transcript import Transcript


def score(g: Tensor) -> Tensor:
    r"""Score each example by the length of its gradient.

    .. math:: r(g_i) = \| g_i \|_2, \qquad g_i = (p_i - y_i) \, \partial h / \partial z

    With few positives the model is rarely far off on a negative, so \|p - y\| and with it the norm are larger on
    positives. No scale of the gradients is too small or too large: neither 1e-30 nor 1e30 loses the ranking.

    Parameters
    ----------
    g
        (B, D) gradients, one row an example; further dimensions are flattened.

    Returns
    -------
    Tensor
        (B,) norms, 0 for a row of zeros; float32 for the half precisions, else of the type of ``g``.

    Raises
    ------
    ArgumentError
        Where ``g`` is no floating point tensor with a row for each example.

    References
    ----------
    Li et al., *Label Leakage and Protection in Two-party Split Learning*, ICLR 2022, section 3.3.

    Examples
    --------
    >>> score(torch.tensor([[3.0, 4.0], [0.0, 0.0]]) * 1e-30) / 1e-30
    tensor([5., 0.])
    """
    if g.dim() < 2 or not g.is_floating_point():
        raise ArgumentError(f"Gradients of shape {tuple(g.shape)}, {g.dtype}: give a floating point tensor (B, D).")
    rows = g.detach().flatten(1)
    if rows.dtype == torch.float64:  # nothing wider to square in: every row is measured in units of its largest entry
        unit = rows.abs().amax(dim=1, keepdim=True) if rows.shape[1] else rows.new_zeros(len(rows), 1)
        scaled = rows / unit.where(unit > 0, 1.0)
        norms: Tensor = torch.linalg.vector_norm(scaled, dim=1) * unit[:, 0]
        return norms
    norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return norms.float()


class NormAttack(Attack):
    """Scores each example by the norm of its gradient; needs nothing and works from the first step on."""

    name: ClassVar[str] = "norm"

    def score(self, transcript: Transcript, layer: str, side: Mapping[str, Tensor] = NOTHING) -> Tensor:
        """Return the norms of the layer's gradients in the last step, (B,)."""
        return score(transcript.last.gradients[layer])
