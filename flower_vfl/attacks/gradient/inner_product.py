"""The inner product attack: the cosine attack without the division by the lengths of the gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from flower_vfl.attacks.base import REFERENCE, RowAttack
from flower_vfl.attacks.rows import as_known, as_rows, inner_products, required

if TYPE_CHECKING:
    from torch import Tensor


def score(g: Tensor, reference: Tensor) -> Tensor:
    r"""Score each example by the inner product of its gradient and that of a known positive.

    .. math:: r(g_i) = \langle g_i, g_+ \rangle

    It combines direction and length: where positives are also the confident mistakes, it is more accurate than the
    cosine, and noise that is stronger than the gradients affects it less.

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
        (B,) float64, whatever the type of ``g``: the product of two numbers of 1e-30 is out of float32's range.

    Raises
    ------
    ArgumentError
        When ``g`` is no floating point tensor with a row for each example, or the reference is of another width.

    References
    ----------
    Li et al., *Label Leakage and Protection in Two-party Split Learning*, 2021 workshop version, section 5.3.

    Examples
    --------
    >>> import torch
    >>> score(torch.tensor([[2.0, 0.0], [0.0, 3.0], [-1.0, 5.0]]), torch.tensor([2.0, 0.0]))
    tensor([ 4.,  0., -2.], dtype=torch.float64)
    """
    rows = as_rows(g)
    return inner_products(as_known(reference.reshape(1, -1), rows, "A reference"), rows)[0]


class InnerProductAttack(RowAttack):
    """An attack that scores each example by its inner product with a positive's clean gradient; it needs an oracle."""

    name: ClassVar[str] = "inner_product"
    needs: ClassVar[frozenset[str]] = frozenset({REFERENCE})

    def rate(self, rows: Tensor, known: Tensor | None) -> Tensor:
        """Return the inner products of the rows with the reference of their batch."""
        return inner_products(required(known, self.label), rows)[..., 0, :]
