"""The residual attack: gradients lie near a few directions, noise does not, and one class may have more of it."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from flower_vfl.attacks.base import RowAttack, is_whole, whole
from flower_vfl.attacks.rows import as_rows, in_own_units, narrowed, rarer_side_up
from flower_vfl.errors import ArgumentError

if TYPE_CHECKING:
    from torch import Tensor

DENSE = 64
"""Up to so many rows or columns, whichever are fewer, all principal directions are found, in float64."""

SPARE = 8
"""Beyond, the first ones come from so many columns more than are wanted, in one round of subspace iteration."""


def score(g: Tensor, *, r: int = 4) -> Tensor:
    r"""Score each example by the length of what the first principal directions of its batch leave of its gradient.

    .. math:: r(g_i) = \pm \big( \| (I - V_r V_r^\top)(g_i - \bar g) \|_2 - c \big)

    with :math:`V_r` the top r principal directions of the batch, and c the place that parts the lengths best into two
    groups (2-means on a line). The sign is settled without labels: the smaller group counts as positive.

    A defense that adds noise in all directions to one class more than to the other, as the optimal noise of Marvell's
    isotropic model does, leaves two lengths there: that of the noise, and next to nothing. No scale of the gradients
    is too small or too large.

    Parameters
    ----------
    g
        (B, D) gradients, one row an example; further dimensions are flattened. Where B and D are both above 64, the
        directions come from one round of subspace iteration: those whose variance is near that of the next ones are
        mixed with them.
    r
        How many directions are taken out, at least 1; never more than half of D, and fewer than B.

    Returns
    -------
    Tensor
        (B,), float32 for the half precisions, else of the type of ``g``; zeros where r directions hold all there is,
        rounding errors aside, and where all rows are equal. NaN for each row of a batch that is not finite.

    Raises
    ------
    ArgumentError
        Where ``g`` is no floating point tensor with a row for each example, and for an r that is no whole number
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
    count, width = rows.shape[-2:]
    if count < 2 or not rows.numel():
        return narrowed(rows.new_zeros(rows.shape[:-1]), rows)
    x = rows.to(torch.promote_types(rows.dtype, torch.float64 if min(count, width) <= DENSE else torch.float32))
    x, unit = in_own_units(x.reshape(-1, count * width))  # from here on x is ours, and changed in place
    finite = x.sum(dim=-1).isfinite()
    if not bool(finite.all()):
        x = x.where(finite[:, None], 0.0)
    x = x.view(-1, count, width)
    x -= x.mean(dim=-2, keepdim=True)
    lengths = _lengths_beyond(x, min(r, width // 2, count - 1)).double()
    rounding = 4.0 * width**0.5 * torch.finfo(narrowed(rows.new_empty(()), rows).dtype).eps  # entries were up to 2
    lengths = lengths.where(lengths > rounding, 0.0)
    scores = rarer_side_up(lengths - _parting(lengths)) * unit[:, None]
    return narrowed(scores.where(finite[:, None], torch.nan), rows).view(rows.shape[:-1])


def _lengths_beyond(x: Tensor, r: int) -> Tensor:
    """Return the lengths (R, B) of centred rows (R, B, D) outside their first r principal directions; x is spent.

    What principal directions leave is the same from both sides, X (I - V V') = (I - U U') X: the smaller side is used.
    """
    if r > 0 and x.shape[-1] <= x.shape[-2]:
        v = _directions(x, r)
        x.baddbmm_(x @ v, v.mT, alpha=-1)
    elif r > 0:
        u = _directions(x.mT, r)
        x.baddbmm_(u, u.mT @ x, alpha=-1)
    lengths: Tensor = torch.linalg.vector_norm(x, dim=-1)
    return lengths


def _directions(tall: Tensor, r: int) -> Tensor:
    """Return the first r right-singular vectors (R, D, r) of (R, N, D)."""
    if tall.shape[-1] <= DENSE:
        return _all(tall)[..., -r:]
    basis = torch.linalg.qr(tall.mT @ (tall @ _start(tall.shape[-1], r + SPARE).to(tall))).Q
    found: Tensor = basis @ _all(tall @ basis)[..., -r:]
    return found


def _all(tall: Tensor) -> Tensor:
    """Return the right-singular vectors (R, D, D) of (R, N, D), the largest last."""
    vectors: Tensor = torch.linalg.eigh(tall.mT @ tall).eigenvectors
    return vectors


@lru_cache(maxsize=16)
def _start(width: int, columns: int) -> Tensor:
    """Return where the search begins, (D, columns): the same each time, along no axis."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(width, min(width, columns), generator=generator, dtype=torch.float64)


def _parting(lengths: Tensor) -> Tensor:
    """Return the place (..., 1) that parts lengths (..., B) into two groups with the least squares around their means.

    Around a common mean of 0, what the groups' means explain is S^2 (1 / k + 1 / (B - k)), S the sum of the k smallest.
    """
    ordered = lengths.sort(dim=-1).values
    count = lengths.shape[-1]
    sums = (ordered - ordered.mean(dim=-1, keepdim=True)).cumsum(dim=-1)[..., :-1]
    below = torch.arange(1, count, device=lengths.device)
    last = (sums.square() / (below * (count - below))).argmax(dim=-1, keepdim=True)
    return (ordered.gather(-1, last) + ordered.gather(-1, last + 1)) / 2


class ResidualAttack(RowAttack):
    """Scores each example by how far its gradient lies from the few directions of its batch; needs nothing.

    Parameters
    ----------
    r
        How many directions are taken out, at least 1; never more than half of the width, and fewer than the rows.
    """

    name: ClassVar[str] = "residual"

    def __init__(self, r: int = 4) -> None:
        self.r = whole(self.name, "r", r)

    @property
    def params(self) -> dict[str, Any]:
        """How many directions are taken out."""
        return {"r": self.r}

    def rate(self, rows: Tensor, known: Tensor | None) -> Tensor:
        """Return how far the rows lie from the few directions of their batch."""
        return _scores(rows, self.r)
