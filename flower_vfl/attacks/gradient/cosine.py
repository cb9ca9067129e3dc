"""The cosine attack: an oracle attack with the direction of one positive's clean gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from flower_vfl.attacks.base import REFERENCE, RowAttack
from flower_vfl.attacks.rows import as_known, as_rows, cosines, narrowed, required

if TYPE_CHECKING:
    from torch import Tensor


def score(g: Tensor, reference: Tensor) -> Tensor:
    r"""Score each example by the cosine of its gradient and that of a known positive.

    .. math:: r(g_i) = \frac{\langle g_i, g_+ \rangle}{\| g_i \|_2 \, \| g_+ \|_2}

    A gradient is :math:`(p_1 - y) \, \partial h / \partial z`: the sign of the factor depends on the class, and where
    :math:`\partial h / \partial z` has a similar direction for all examples, positives lie on one side and negatives on
    the other.

    Parameters
    ----------
    g
        (B, D) gradients, one row an example; further dimensions are flattened.
    reference
        (D,) the clean gradient of a positive at the same layer; further dimensions are flattened. The example that
        supplies it must be left out of the measurement.

    Returns
    -------
    Tensor
        (B,) cosines, 0 for a row of zeros and for a reference of zeros; float32 for the half precisions, else of the
        type of ``g``.

    Raises
    ------
    ArgumentError
        When ``g`` is no floating point tensor with a row for each example, or the reference is of another width.

    References
    ----------
    Li et al., *Label Leakage and Protection in Two-party Split Learning*, ICLR 2022, section 3.3.

    Examples
    --------
    >>> import torch
    >>> score(torch.tensor([[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0], [0.0, 0.0]]) * 1e-30, torch.tensor([1e30, 0.0]))
    tensor([ 1.,  0., -1.,  0.])
    """
    rows = as_rows(g)
    return _cosines(rows, as_known(reference.reshape(1, -1), rows, "A reference"))


def _cosines(rows: Tensor, known: Tensor) -> Tensor:
    """Return the cosines (..., B) of rows (..., B, D) with the only known one (..., 1, D)."""
    return narrowed(cosines(known, rows)[..., 0, :], rows)


class CosineAttack(RowAttack):
    """An attack that scores each example by its cosine with the clean gradient of a positive; it needs an oracle."""

    name: ClassVar[str] = "cosine"
    needs: ClassVar[frozenset[str]] = frozenset({REFERENCE})

    def rate(self, rows: Tensor, known: Tensor | None) -> Tensor:
        """Return the cosines of the rows with the reference of their batch."""
        return _cosines(rows, required(known, self.label))
