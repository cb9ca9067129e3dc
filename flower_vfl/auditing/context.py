"""Gradients beside others of the same sample: of rows with almost the same noise, and of neighbours in the batch.

Noise hides a gradient only where it is drawn for this gradient alone. Noise that several rows of a batch share, or that
is drawn from the same seed in each step, cancels in a difference of two gradients. A mean over neighbours in a batch is
partly undone with the means beside it.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flower_vfl.auditing.features import COMPARED
from flower_vfl.auditing.readers import WIDEST_READER

NEAREST = 3
"""Number of other rows of the batch, those with the largest cosines, from which a gradient is subtracted."""

_PIECES = NEAREST + 4


def in_context(x: Tensor, batches: NDArray[np.int64]) -> Tensor:
    """Return columns (n, K) that compare each gradient with others, for gradients (n, D) batch by batch.

    They are the gradient; its differences from the `NEAREST` rows of its batch, and from the mean of the rows at its
    position in the other batches; and the rows before and after it. Rows are compared in all their numbers. If the
    columns were more than `WIDEST_READER`, they are made of evenly spaced numbers of the gradient.

    Parameters
    ----------
    x
        (n, D) gradients in units of their batches, in the order in which they were sent.
    batches
        (n,) number of each row's batch; the rows of a batch lie together.
    """
    step = max(1, -(-x.shape[1] // (WIDEST_READER // _PIECES)))
    pieces = torch.split(x, np.unique(batches, return_counts=True)[1].tolist())
    longest = max((len(piece) for piece in pieces), default=0)
    sums, counts = x.new_zeros(longest, len(range(0, x.shape[1], step))), x.new_zeros(longest, 1)
    for piece in pieces:
        sums[: len(piece)] += piece[:, ::step]
        counts[: len(piece)] += 1
    found = [_compared(piece, piece[:, ::step], sums, counts) for piece in pieces]
    return torch.cat(found) if found else x


def _compared(g: Tensor, x: Tensor, sums: Tensor, counts: Tensor) -> Tensor:
    """Return the columns of one batch: rows (B, D), the numbers (B, d) that are kept, and sums of these by position."""
    others = (sums[: len(x)] - x) / (counts[: len(x)] - 1).clamp(min=1)
    differences = [x - x[place] for place in _nearest(g).unbind(dim=1)]
    return torch.cat([x, *differences, x - others, x.roll(1, 0), x.roll(-1, 0)], dim=1)


def _nearest(g: Tensor) -> Tensor:
    """Return the positions (B, `NEAREST`) of the rows with the largest cosines; itself where there are fewer."""
    units = torch.nn.functional.normalize(g, dim=1)
    places = torch.arange(len(g))[:, None].repeat(1, NEAREST)
    cosines = (units @ units[:COMPARED].mT).fill_diagonal_(-2.0)
    count = min(NEAREST, cosines.shape[1] - 1)
    if count > 0:
        places[:, :count] = cosines.topk(count, dim=1).indices
    return places
