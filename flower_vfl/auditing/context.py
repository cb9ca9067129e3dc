"""Gradients beside others of the same sample: with almost the same noise, of neighbours, and of the steps around.

Noise hides a gradient only where it is drawn for this gradient alone. Noise that several rows of a batch share, or that
is drawn from the same seed in each step, cancels in a difference of two gradients; that of which another row has the
opposite, in a sum. A mean over neighbours in a batch is
partly undone with the means beside it, the better the more of them: of the nearest ones all numbers are read, of those
farther away the score of a first reader. Where a row's noise depends on that of the row before it, products of numbers
of both show it. A gradient that is sent a step too early or too late stands at its row's position in another batch. The
one before it also undoes a mean over earlier steps.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flower_vfl.auditing.features import COMPARED
from flower_vfl.auditing.readers import WIDEST_READER

NEAREST = 3
"""Number of other rows of the batch, those with the largest cosines, from which a gradient is subtracted."""

REACH = 8
"""Number of rows before a row, and of rows after it, whose scores are read for two classes."""

_PIECES = NEAREST + 5

_TINY = 1e-6
"""Magnitude below which a number counts as zero, where a batch's root mean square is 1."""


def in_context(x: Tensor, batches: NDArray[np.int64]) -> Tensor:
    """Return columns (n, K) that compare each gradient with others, for gradients (n, D) batch by batch.

    They are the gradient; its differences from the `NEAREST` rows of its batch, and from the mean of the rows at its
    position in the other batches; its sum with the row that is most opposite; and the rows before and after it. Rows
    are compared in all their numbers. If these columns and those of `scores_around` were more than `WIDEST_READER`,
    they are made of evenly spaced numbers of the gradient.

    Parameters
    ----------
    x
        (n, D) gradients in units of their batches, in the order in which they were sent.
    batches
        (n,) number of each row's batch; the rows of a batch lie together.
    """
    step = max(1, -(-x.shape[1] // ((WIDEST_READER - 2 * REACH) // _PIECES)))
    pieces = torch.split(x, np.unique(batches, return_counts=True)[1].tolist())
    longest = max((len(piece) for piece in pieces), default=0)
    sums, counts = x.new_zeros(longest, len(range(0, x.shape[1], step))), x.new_zeros(longest, 1)
    for piece in pieces:
        sums[: len(piece)] += piece[:, ::step]
        counts[: len(piece)] += 1
    found = [_compared(piece, piece[:, ::step], sums, counts) for piece in pieces]
    return torch.cat(found) if found else x


def scores_around(scores: Tensor, batches: NDArray[np.int64]) -> Tensor:
    """Return as columns (n, K) the scores of the rows before and after each row of its batch, cyclically.

    They are `REACH` rows on each side for two classes and fewer for more, so that there are at most 2 `REACH` columns.

    Parameters
    ----------
    scores
        (n, C) scores of the classes, up to a constant of the row.
    batches
        (n,) number of each row's batch; the rows of a batch lie together.
    """
    known = scores[:, 1:] - scores[:, :1]
    reach = REACH // max(1, known.shape[1])
    places = [place for place in range(-reach, reach + 1) if place]
    if not places:
        return scores[:, :0]
    pieces = torch.split(known, np.unique(batches, return_counts=True)[1].tolist())
    return torch.cat([torch.cat([piece.roll(place, 0) for place in places], dim=1) for piece in pieces])


def for_products(x: Tensor, batches: NDArray[np.int64]) -> Tensor:
    """Return columns (n, K) for a reader of products of two: gradients (n, D), their magnitudes, and their neighbours.

    They are the gradient, the logarithms of its numbers' magnitudes, and the rows before and after it in its batch,
    cyclically; made of evenly spaced numbers of the gradient if they were more than `WIDEST_READER`.

    Parameters
    ----------
    x
        (n, D) gradients in units of their batches, in the order in which they were sent.
    batches
        (n,) number of each row's batch; the rows of a batch lie together.
    """
    x = _thinned(x, 4)
    pieces = torch.split(x, np.unique(batches, return_counts=True)[1].tolist())
    around = [torch.cat([piece.roll(place, 0) for piece in pieces]) if pieces else x for place in (1, -1)]
    return torch.cat([x, x.abs().clamp(min=_TINY).log(), *around], dim=1)


def in_steps_around(x: Tensor, steps: NDArray[np.int64]) -> Tensor | None:
    """Return columns (n, K): each gradient, and those at its row's position one step before and one step after its own.

    The latter are zeros where that step was not sampled or has fewer rows. Without any two consecutive steps there are
    no columns. They are made of evenly spaced numbers of the gradient if they were more than `WIDEST_READER`.

    Parameters
    ----------
    x
        (n, D) gradients in units of their batches, in the order in which they were sent.
    steps
        (n,) step of each row; the rows of a step lie together.
    """
    x = _thinned(x, 3)
    numbers, counts = np.unique(steps, return_counts=True)
    before, after = torch.zeros_like(x), torch.zeros_like(x)
    ends, found = np.cumsum(counts), False
    for place, (first, second) in enumerate(pairwise(numbers.tolist())):
        if second == first + 1:
            low, middle, found = ends[place] - counts[place], ends[place], True
            both = min(counts[place], counts[place + 1])
            before[middle : middle + both], after[low : low + both] = x[low : low + both], x[middle : middle + both]
    return torch.cat([x, before, after], dim=1) if found else None


def _thinned(x: Tensor, pieces: int) -> Tensor:
    """Return evenly spaced columns, all if possible, so that this number of pieces has at most `WIDEST_READER`."""
    return x[:, :: max(1, -(-x.shape[1] // (WIDEST_READER // pieces)))]


def _compared(g: Tensor, x: Tensor, sums: Tensor, counts: Tensor) -> Tensor:
    """Return the columns of one batch: rows (B, D), the numbers (B, d) that are kept, and sums of these by position."""
    others = (sums[: len(x)] - x) / (counts[: len(x)] - 1).clamp(min=1)
    nearest, opposite = _nearest(g)
    differences = [x - x[place] for place in nearest.unbind(dim=1)]
    return torch.cat([x, *differences, x + x[opposite], x - others, x.roll(1, 0), x.roll(-1, 0)], dim=1)


def _nearest(g: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positions of the rows with the largest cosines, (B, `NEAREST`), and with the smallest one, (B,).

    A row stands for itself where there are fewer.
    """
    units = torch.nn.functional.normalize(g, dim=1)
    places = torch.arange(len(g))[:, None].repeat(1, NEAREST)
    cosines = units @ units[:COMPARED].mT
    opposite = cosines.argmin(dim=1)
    cosines.fill_diagonal_(-2.0)
    count = min(NEAREST, cosines.shape[1] - 1)
    if count > 0:
        places[:, :count] = cosines.topk(count, dim=1).indices
    return places, opposite
