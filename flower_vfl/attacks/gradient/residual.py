"""The residual attack: gradients lie near a few directions, noise does not, and one class may have more noise."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from flower_vfl.attacks.base import RowAttack, is_whole, whole
from flower_vfl.attacks.rows import as_rows, in_safe_units, narrowed
from flower_vfl.errors import ArgumentError

if TYPE_CHECKING:
    from torch import Tensor

ALL_DIRECTIONS = 64
"""Largest number of rows or columns, whichever are fewer, for which all directions are computed, in float64."""

SPARE_DIRECTIONS = 2
"""Number of additional directions in the subspace iteration that finds the first ones of more rows and columns."""

ODD = 100
"""Number of rows for each one that is clamped at either end before lengths are split: a few outliers are no class."""

_ROUNDING = 16.0
"""Residual length, in units of the longest row times the gradients' precision, up to which it may be rounding."""


def score(g: Tensor, *, r: int = 4) -> Tensor:
    r"""Score each example by the length of its gradient without the first principal directions of its batch.

    .. math:: r(g_i) = \pm \big( \log \| (I - V_r V_r^\top)(g_i - \bar g) \|_2 - c \big)

    with :math:`V_r` the top r principal directions of the batch, and c the threshold that splits the logarithms best
    into two groups (2-means on a line, with the hundredth at either end clamped). The sign is chosen without labels:
    the smaller group counts as positive, of two equal ones that with the longer residuals.

    A defense that adds more noise in all directions to one class than to the other, as the optimal noise of Marvell's
    isotropic model does, makes two groups of residual lengths: those of the noise, and the mostly tiny ones of the
    other class. The tiny ones spread over orders of magnitude, and the longest overlap with the noise where few
    directions are left; as logarithms both groups are compact. No scale of the gradients is too small or too large.

    Parameters
    ----------
    g
        (B, D) gradients, one row an example; further dimensions are flattened. Where B and D are both above 64, the
        directions come from two rounds of subspace iteration: those whose variance is near that of the next ones are
        mixed with them.
    r
        Number of directions that are removed, at least 1; never more than half of D, and fewer than B.

    Returns
    -------
    Tensor
        (B,) scores, float32 for the half precisions, else of the type of ``g``; lengths that may be rounding errors of
        the longest row count as equal, so that all scores are 0 where r directions span the rows and where all rows are
        equal. NaN for each row of a batch that is not finite.

    Raises
    ------
    ArgumentError
        When ``g`` is no floating point tensor with a row for each example, and for an r that is no whole number
        from 1.

    Examples
    --------
    >>> g = torch.tensor([[9.0, 0.0, 1.0], [-9.0, 0.0, -1.0], [6.0, 0.0, -1.0], [-6.0, 0.0, 1.0], [0.0, 4.0, 0.0]])
    >>> score(g, r=1).argmax()
    tensor(4)
    """
    if not is_whole(r):
        raise ArgumentError(f"r is {r!r}, the number of directions that are taken out; give a whole number from 1.")
    return _scores(as_rows(g), r)


def _scores(rows: Tensor, r: int) -> Tensor:
    """Return the scores (..., B) of rows (..., B, D), each within its own batch."""
    if rows.shape[-2] < 2 or not rows.numel():
        return narrowed(rows.new_zeros(rows.shape[:-1]), rows)
    x = rows.to(torch.promote_types(rows.dtype, torch.float32))
    x, longest, finite = in_safe_units(x if x.dim() < 4 else x.flatten(0, -3))
    rounding = _ROUNDING * torch.finfo(torch.promote_types(rows.dtype, torch.float32)).eps
    scores = _split((residual_lengths(x, r) / longest[..., None].double()).clamp_(min=rounding).log_())
    if finite is not None:
        scores = scores.where(finite[..., None], torch.nan)
    return narrowed(scores, rows).view(rows.shape[:-1])


def residual_lengths(x: Tensor, r: int) -> Tensor:
    """Return the lengths (B,) or (R, B) of rows (B, D) or (R, B, D), once centred, outside r principal directions.

    At most half of D directions are removed, and fewer than B.
    """
    count, width = x.shape[-2:]
    r = max(min(r, width // 2, count - 1), 0)
    if min(count, width) <= ALL_DIRECTIONS:
        x = x.double()
    return _lengths_beyond(x, r) if min(count, width) <= ALL_DIRECTIONS or r == 0 else _lengths_beyond_most(x, r)


def _lengths_beyond(x: Tensor, r: int) -> Tensor:
    """Return the residual lengths by all principal directions."""
    x = x - x.mean(dim=-2, keepdim=True)
    lengths: Tensor
    if r > 0 and x.shape[-1] <= x.shape[-2]:
        x = x @ _right_singular_vectors(x)[..., :-r]
    elif r > 0:  # the residual is the same from both sides, X (I - V V') = (I - U U') X
        u = _right_singular_vectors(x.mT)[..., -r:]
        x = x - u @ (u.mT @ x)
    lengths = torch.linalg.vector_norm(x, dim=-1)
    return lengths


def _lengths_beyond_most(x: Tensor, r: int) -> Tensor:
    """Return nearly the same lengths in less time, by the first directions from two subspace iterations.

    The products are centred, not the rows: each pass over the rows takes as long as a product. Coordinates (B, k) along
    a few directions are columns: as rows (k, B), they take twice as long.
    """
    start = _start(x.shape[-1], r + SPARE_DIRECTIONS, x.dtype).to(x.device).expand(*x.shape[:-2], -1, -1)
    basis = torch.linalg.qr((_coordinates(x, start).mT @ x).mT).Q
    ones = x.new_ones((*x.shape[:-1], 1))
    products = torch.cat([_coordinates(x, basis.mT.contiguous()), ones], dim=-1).mT @ x
    basis, small = torch.linalg.qr(products[..., :-1, :].mT)
    directions = (basis @ torch.linalg.svd(small).U[..., :r]).mT.contiguous()
    taken = torch.cat([_coordinates(x, directions), ones], dim=-1)
    out = torch.cat([directions, products[..., -1:, :] / x.shape[-2]], dim=-2)
    subtract = torch.addmm if x.dim() == 2 else torch.baddbmm
    lengths: Tensor = torch.linalg.vector_norm(subtract(x, taken, out, alpha=-1), dim=-1)
    return lengths


def _coordinates(x: Tensor, directions: Tensor) -> Tensor:
    """Return the centred coordinates (..., B, k) of rows (..., B, D) along directions (..., k, D)."""
    return _centred(x @ directions.mT, dim=-2)


def _centred(values: Tensor, dim: int = -1) -> Tensor:
    return values - values.mean(dim=dim, keepdim=True)


def _right_singular_vectors(tall: Tensor) -> Tensor:
    """Return the right-singular vectors (..., D, D) of (..., N, D), the largest last."""
    vectors: Tensor = torch.linalg.eigh(tall.mT @ tall).eigenvectors
    return vectors


@lru_cache(maxsize=16)
def _start(width: int, rows: int, dtype: torch.dtype) -> Tensor:
    """Return the fixed random vectors (rows, D) at which the subspace iteration starts."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(min(width, rows), width, generator=generator, dtype=torch.float64).to(dtype)


def _split(values: Tensor) -> Tensor:
    """Return values (..., B) less the threshold that splits them with the least squares, the smaller group above 0.

    With a common mean of 0, the groups' means explain S^2 (1 / k + 1 / (B - k)), S the sum of the k smallest.
    """
    ordered = _sorted(values)
    count = values.shape[-1]
    clamped = count // ODD
    ordered = ordered.clamp(ordered[..., clamped, None], ordered[..., count - 1 - clamped, None])
    weights, sides, ends = _split_weights(count, values.device)
    explained = _centred(ordered).cumsum(dim=-1)[..., :-1].square() * weights
    best = explained.argmax(dim=-1, keepdim=True)
    threshold = ordered.gather(-1, best + ends).mean(dim=-1, keepdim=True)
    return (values - threshold) * sides[best]


def _sorted(values: Tensor) -> Tensor:
    """Return values (..., B) in order; NumPy takes a tenth of the time of PyTorch, which also returns positions."""
    on_gpu = values.device.type != "cpu"
    return values.sort(dim=-1).values if on_gpu else torch.from_numpy(np.sort(values.numpy(), axis=-1))


@lru_cache(maxsize=16)
def _split_weights(count: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return, for each size k of the lower group, 1 / k + 1 / (B - k) and the sign of the upper one; and (0, 1)."""
    below = torch.arange(1, count, dtype=torch.float64, device=device)
    sides = torch.where(2 * below < count, -1.0, 1.0).double()
    return 1.0 / below + 1.0 / (count - below), sides, torch.arange(2, device=device)


class ResidualAttack(RowAttack):
    """An attack that scores each example by its gradient's length outside the first directions of its batch.

    Parameters
    ----------
    r
        Number of directions that are removed, at least 1; never more than half of the width, and fewer than the rows.
    """

    name: ClassVar[str] = "residual"

    def __init__(self, r: int = 4) -> None:
        self.r = whole(self.name, "r", r)

    def rate(self, rows: Tensor, known: Tensor | None) -> Tensor:
        """Return the scores of the rows, each within its batch."""
        return _scores(rows, self.r)
