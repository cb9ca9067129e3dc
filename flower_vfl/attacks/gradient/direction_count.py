"""The direction count: gradients of one class have similar directions, and the smaller group is the rare class."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, get_args

import torch
from torch.nn.functional import linear

from flower_vfl.attacks.base import RowAttack, one_of
from flower_vfl.attacks.rows import as_rows, in_own_units
from flower_vfl.errors import ArgumentError, suggestion

if TYPE_CHECKING:
    from torch import Tensor

Minority = Literal["positive", "negative"]
TILE = 256
ONEDNN: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
MOST_EXACT_PRODUCTS = 1 << 23
"""Largest number of products of batches that are counted in float64, which costs less than a tenth of a millisecond."""


def score(g: Tensor, *, minority: Minority = "positive") -> Tensor:
    r"""Score each example by the number of others with a gradient on the same side, negated.

    .. math:: c_i = \# \{ j \neq i : \cos(g_i, g_j) > 0 \}, \qquad r(g_i) = -c_i

    It needs no oracle and no hint, only that positives are rare. Where they are the majority, the score is :math:`c_i`.
    A row of zeros has cosine 0 with all others, hence the count 0.

    Parameters
    ----------
    g
        (B, D) gradients, one row an example; further dimensions are flattened. All pairs are compared, with
        :math:`B^2 D / 2` products, in large batches of float32: there the side of pairs that are orthogonal to six
        digits is arbitrary.
    minority
        "positive" or "negative": the class that the attacker takes for the rarer one.

    Returns
    -------
    Tensor
        (B,) float32 of whole numbers, many of them equal.

    Raises
    ------
    ArgumentError
        When ``g`` is no floating point tensor with a row for each example, and for an unknown minority.

    References
    ----------
    Li et al., *Label Leakage and Protection in Two-party Split Learning*, 2021 workshop version, section 5.3.

    Examples
    --------
    >>> score(torch.tensor([[1.0, 0.0], [2.0, 1.0], [3.0, -1.0], [-1.0, 0.0]]))
    tensor([-2., -2., -2.,  0.])
    """
    if minority not in get_args(Minority):
        raise ArgumentError(f"There is no minority {minority!r}; {suggestion(str(minority), get_args(Minority))}.")
    return _scores(as_rows(g), minority)


def _scores(rows: Tensor, minority: Minority) -> Tensor:
    """Return the scores (..., B) of rows (..., B, D), each counted among those of its own batch."""
    wide = rows.dtype == torch.float64 or rows.shape[-1] * rows.shape[-2] ** 2 <= MOST_EXACT_PRODUCTS
    x, _ = in_own_units(rows.to(torch.promote_types(rows.dtype, torch.float64 if wide else torch.float32)))
    counts = (_same_side(x) - 1.0).clamp_(min=0.0)  # without itself, which a row of zeros does not count
    return 0.0 - counts if minority == "positive" else counts


def _same_side(x: Tensor) -> Tensor:
    """Return for each row of (..., B, D) the number of rows of its batch on its side, by inner product, with itself.

    Inner products are symmetric: only those on and above the diagonal are computed, a band of rows at a time.
    """
    if x.dim() > 2 and _by_onednn(x):
        return torch.stack([_same_side(batch) for batch in x])
    counts = torch.zeros(x.shape[:-1], dtype=torch.float32, device=x.device)
    for start in range(0, x.shape[-2], TILE):
        products = _products(x[..., start : start + TILE, :], x[..., start:, :])
        positive = torch.gt(products, 0.0, out=products)
        counts[..., start : start + TILE] += positive.sum(dim=-1)
        counts[..., start + TILE :] += positive[..., TILE:].sum(dim=-2)
    return counts


def _products(x: Tensor, y: Tensor) -> Tensor:
    """Return the inner products (..., B, C) of rows (..., B, D) and (..., C, D).

    On a CPU oneDNN computes them: its kernels use the whole vector unit of all vendors' processors; the library behind
    ``@`` took 1.8 times as long on an AMD one (1,024 rows of 256 columns, in bands, counting included).
    """
    return linear(x.to_mkldnn(), y).to_dense() if _by_onednn(x) else x @ y.mT


def _by_onednn(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype == torch.float32 and x.numel() > 0 and ONEDNN


class DirectionCountAttack(RowAttack):
    """An attack that scores each example by the number of gradients on its side; a practical attack, without an oracle.

    Parameters
    ----------
    minority
        "positive" or "negative": the class that the attacker takes for the rarer one.
    """

    name: ClassVar[str] = "direction_count"

    def __init__(self, minority: Minority = "positive") -> None:
        self.minority = one_of(self.name, "minority", minority, get_args(Minority))

    def rate(self, rows: Tensor, known: Tensor | None) -> Tensor:
        """Return the direction counts of the rows among those of their batch."""
        return _scores(rows, self.minority)
