"""Embeddings of numeric columns: a piecewise linear encoding in bins of the training rows, then a layer a column."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

MOST_BINS = 32
"""Largest number of bins of a column."""

_MOST_OUTSIDE = 2.0
"""Largest distance of a number from the outer bins, in widths of these bins; larger distances are clamped."""

Quantiles = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""A function of Q probabilities that returns quantiles of numeric columns: (Q, F) of the training rows, and below them
(Q, F) of the distinct values."""


def knots_of(quantiles: Quantiles | None, columns: int) -> Tensor:
    """Return the limits of the bins of columns, (F, `MOST_BINS` + 1), the last one repeated where there are fewer.

    Half of them are quantiles of the rows, half of the distinct values: a column that is mostly zero has bins for its
    other values, too. No label is needed. Without quantiles, for a model that gets saved weights, they are evenly
    spaced.
    """
    if quantiles is None:
        return torch.linspace(-2.0, 2.0, MOST_BINS + 1).expand(columns, -1).clone()
    found = quantiles(np.linspace(0.0, 1.0, MOST_BINS // 2 + 1))
    rows = np.empty((columns, MOST_BINS + 1), dtype=np.float32)
    for row, column in zip(rows, found.T, strict=True):
        knots = np.unique(column.astype(np.float32))
        if len(knots) < 2:
            knots = np.array([knots[0], knots[0] + 1.0], dtype=np.float32)
        row[: len(knots)] = knots[: MOST_BINS + 1]
        row[len(knots) :] = knots[-1]
    return torch.from_numpy(rows)


class NumericEmbedding(nn.Module):
    r"""Embeddings of numeric columns, each of its own: the piecewise linear encoding, a linear layer and a ReLU.

    In bin t from :math:`b_{t-1}` to :math:`b_t`, a number x becomes :math:`(x - b_{t-1}) / (b_t - b_{t-1})`, cut at 0
    and 1; the first bin extends below, the last one above.

    Parameters
    ----------
    columns : int
        Numeric columns F.
    width : int
        Width W of the embedding of one column.
    quantiles : callable, optional
        See `knots_of`.

    References
    ----------
    Gorishniy et al., *On Embeddings for Numerical Features in Tabular Deep Learning*, NeurIPS 2022, equation 1.
    """

    def __init__(self, columns: int, width: int, quantiles: Quantiles | None = None) -> None:
        super().__init__()
        self.register_buffer("knots", knots_of(quantiles, columns))
        self.knots: Tensor
        self.weight = nn.Parameter(torch.randn(columns, MOST_BINS, width) / MOST_BINS**0.5)
        self.bias = nn.Parameter(torch.zeros(columns, width))

    def forward(self, x: Tensor) -> Tensor:
        """Map numbers (B, F) to embeddings (B, F W)."""
        encoded = torch.einsum("bft,ftw->bfw", self._encoded(x), self.weight)
        return torch.relu(encoded + self.bias).flatten(1)

    def _encoded(self, x: Tensor) -> Tensor:
        """Return the piecewise linear encoding (B, F, `MOST_BINS`); bins that a column does not have stay 0."""
        low, high = self.knots[:, :-1], self.knots[:, 1:]
        exists = high > low
        last = exists & (high == self.knots[:, -1:])
        first = (low == self.knots[:, :1]) & exists
        inside = (x[:, :, None] - low) / torch.where(exists, high - low, 1.0)
        return torch.clamp(inside, -_MOST_OUTSIDE * first, 1.0 + _MOST_OUTSIDE * last) * exists
