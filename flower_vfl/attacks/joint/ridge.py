"""Ridge regression of very many rows, which are read in pieces, and of the few rows with known labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

FOLDS = 5
"""Number of folds. Row i is in fold i mod FOLDS, and is predicted by a fit to the other folds."""

PENALTIES = tuple(10.0**power for power in range(-4, 3))
"""Penalties that are tried, in units of the number of rows."""

FEW_PENALTIES = tuple(10.0**power for power in (-3, -2.5, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2))
"""Penalties that are tried for a fit to known rows, in units of their mean squared length."""


def cross_fitted(rows: Callable[[], Iterable[Tensor]], targets: Tensor) -> tuple[Tensor, Tensor]:
    r"""Regress targets on rows, and predict the targets of each row by a fit to the other folds.

    .. math:: w_\alpha = (X^T X + \alpha n I)^{-1} X^T t

    The penalty of each target is the one of `PENALTIES` with the smallest squared error of rows that it was not fitted
    to. The rows are read twice; memory holds one (F, F) matrix a fold.

    Parameters
    ----------
    rows
        Function that yields the rows in pieces (n, F); each column has the mean 0.
    targets
        (n, T) targets, each with mean 0 and variance 1, or zeros.

    Returns
    -------
    tuple[Tensor, Tensor]
        (n, T) predictions of the rows, out of fold, and the weights (F, T) of the fit to all rows; float64.

    References
    ----------
    Hoerl and Kennard, *Ridge regression: biased estimation for nonorthogonal problems*, Technometrics 12, 1970.
    """
    targets = targets.double()
    grams, crosses = _moments(rows, targets)
    counts = torch.tensor([len(range(fold, len(targets), FOLDS)) for fold in range(FOLDS)], dtype=torch.float64)
    fits = [
        _solutions(grams.sum(0) - grams[k], crosses.sum(0) - crosses[k], float(counts.sum() - counts[k]))
        for k in range(FOLDS)
    ]
    weights = torch.stack(fits).flatten(2)  # (FOLDS, F, penalties * T)
    held_out = torch.empty(len(targets), len(PENALTIES), targets.shape[1], dtype=torch.float64)
    low = 0
    for piece in rows():
        for fold in range(FOLDS):
            mine = slice((fold - low) % FOLDS, None, FOLDS)
            at = slice(low + mine.start, low + len(piece), FOLDS)
            found = piece[mine] @ weights[fold].to(piece)
            held_out[at] = found.double().reshape(-1, len(PENALTIES), targets.shape[1])
        low += len(piece)
    best = (held_out - targets[:, None]).square().sum(dim=0).argmin(dim=0)  # index of each target's penalty
    every = _solutions(grams.sum(0), crosses.sum(0), float(len(targets)))
    chosen = torch.arange(targets.shape[1])
    return held_out[:, best, chosen], every[:, best, chosen]


def _moments(rows: Callable[[], Iterable[Tensor]], targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the products of rows with each other (FOLDS, F, F) and with the targets (FOLDS, F, T), by fold."""
    grams: Tensor | None = None
    crosses = torch.zeros(0)
    low = 0
    for piece in rows():
        if grams is None:
            width = piece.shape[1]
            grams = torch.zeros(FOLDS, width, width, dtype=torch.float64)
            crosses = torch.zeros(FOLDS, width, targets.shape[1], dtype=torch.float64)
        for fold in range(FOLDS):
            start = (fold - low) % FOLDS
            x = piece[start::FOLDS]
            grams[fold] += (x.T @ x).double()
            crosses[fold] += x.T.double() @ targets[low + start : low + len(piece) : FOLDS]
        low += len(piece)
    return (torch.zeros(FOLDS, 0, 0, dtype=torch.float64) if grams is None else grams), crosses


def _solutions(gram: Tensor, cross: Tensor, count: float) -> Tensor:
    """Return the weights for each penalty, (F, penalties, T)."""
    values, vectors = torch.linalg.eigh(gram)
    along = vectors.T @ cross
    penalties = torch.tensor(PENALTIES, dtype=torch.float64)[None, :, None] * count
    scaled = along[:, None] / (values.clamp(min=0.0)[:, None, None] + penalties)
    weights: Tensor = vectors @ scaled.flatten(1)
    return weights.reshape(scaled.shape)


def leave_one_out(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    r"""Fit the labels of known rows, and predict the label of each by a fit to the others.

    .. math:: H_\alpha = K (K + \alpha I)^{-1}, \qquad \hat y_i^{(-i)} = y_i - \frac{y_i - (H y)_i}{1 - H_{ii}},
        \qquad K = X X^T

    The penalty is the one of `FEW_PENALTIES` with the smallest squared error, in units of the mean squared
    length.

    Parameters
    ----------
    x
        (n, F) rows, float64, around their mean.
    y
        (n,) labels -1 and 1.

    Returns
    -------
    tuple[Tensor, Tensor]
        (n,) predictions, each by a fit to the other rows, and the weights (F,) of the fit to all.
    """
    gram = x @ x.T
    unit = float(gram.diagonal().mean())
    if not unit > 0:  # all known rows are equal
        return torch.zeros_like(y), x.new_zeros(x.shape[1])
    values, vectors = torch.linalg.eigh(gram)
    along, best = vectors.T @ y, (float("inf"), torch.zeros_like(y), x.new_zeros(x.shape[1]))
    for penalty in FEW_PENALTIES:
        shrunk = values.clamp(min=0.0) / (values.clamp(min=0.0) + penalty * unit)
        fitted = vectors @ (shrunk * along)
        left = (1.0 - vectors.square() @ shrunk).clamp(min=1e-12)
        expected = y - (y - fitted) / left
        error = float((y - expected).square().mean())
        if error < best[0]:
            dual = vectors @ (along / (values.clamp(min=0.0) + penalty * unit))
            best = (error, expected, x.T @ dual)
    return best[1], best[2]
