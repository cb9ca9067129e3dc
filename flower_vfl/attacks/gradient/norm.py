"""The norm attack: confident mistakes have long gradients, and are mostly on examples of the rare class."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from flower_vfl.attacks.base import RowAttack
from flower_vfl.attacks.rows import as_rows, in_own_units, narrowed

if TYPE_CHECKING:
    from torch import Tensor


_SAFE = {torch.float32: (1e-15, 1e18), torch.float64: (1e-140, 1e150)}
"""Range of norms in which no square that matters to the last digit has vanished, lost digits or overflowed."""


def score(g: Tensor) -> Tensor:
    r"""Score each example by the length of its gradient.

    .. math:: r(g_i) = \| g_i \|_2, \qquad g_i = (p_i - y_i) \, \partial h / \partial z

    With few positives the model is rarely wrong on a negative, so \|p - y\| and with it the norm are larger on
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
        When ``g`` is no floating point tensor with a row for each example.

    References
    ----------
    Li et al., *Label Leakage and Protection in Two-party Split Learning*, ICLR 2022, section 3.3.

    Examples
    --------
    >>> score(torch.tensor([[3.0, 4.0], [0.0, 0.0]]) * 1e-30) / 1e-30
    tensor([5., 0.])
    """
    return _norms(as_rows(g))


def _norms(rows: Tensor) -> Tensor:
    """Return the norms (...) of rows (..., D)."""
    rows = narrowed(rows, rows)
    norms: Tensor = torch.linalg.vector_norm(rows, dim=-1)  # four times as fast as by way of float64
    shortest, longest = _SAFE[norms.dtype]
    ends = torch.aminmax(norms) if norms.numel() else (torch.ones(()), torch.ones(()))
    low, high = torch.stack(ends).tolist()
    if not (low > shortest and high < longest):
        unsafe = ~((norms > shortest) & (norms < longest))
        x, unit = in_own_units(rows[unsafe])
        norms[unsafe] = torch.linalg.vector_norm(x, dim=-1) * unit
    return norms


class NormAttack(RowAttack):
    """An attack that scores each example by the norm of its gradient; it works from the first step on."""

    name: ClassVar[str] = "norm"

    def rate(self, rows: Tensor, known: Tensor | None) -> Tensor:
        """Return the norms of the rows."""
        return _norms(rows)
