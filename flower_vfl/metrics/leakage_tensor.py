"""The leak AUC and the detection error of many score vectors at once, on their device: nothing leaves a GPU."""

from __future__ import annotations

import torch
from torch import Tensor


def separations(scores: Tensor, positive: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `flower_vfl.metrics.separation` gives for each vector: counts of whole numbers, the same to the bit.

    Parameters
    ----------
    scores
        (..., B), higher means more likely positive; none may be NaN.
    positive
        (..., B) of bool: the labels.
    kept
        (..., B) of bool: what is measured; the others are left out.

    Returns
    -------
    tuple[Tensor, Tensor]
        (...) float64 leak AUC and detection error; NaN where a class is missing among what is kept.

    Examples
    --------
    >>> scores, positive = torch.tensor([[0.1, 0.4, 0.35, 0.8]]), torch.tensor([[False, False, True, True]])
    >>> separations(scores, positive, torch.ones_like(positive))
    (tensor([0.7500], dtype=torch.float64), tensor([0.2500], dtype=torch.float64))
    """
    scores, positive, kept = torch.broadcast_tensors(scores, positive, kept)  # type: ignore[no-untyped-call]
    ordered, order = scores.sort(dim=-1)
    yes = (positive & kept).gather(-1, order)
    no = (~positive & kept).gather(-1, order)
    first = torch.searchsorted(ordered, ordered)  # where a tie begins, and ends
    last = torch.searchsorted(ordered, ordered, right=True)
    yes_before, no_before = (_before(which) for which in (yes, no))
    positives, negatives = yes_before[..., -1].double(), no_before[..., -1].double()
    no_below = no_before.gather(-1, first)
    twice = ((no_below + no_before.gather(-1, last)) * yes).sum(dim=-1)
    auc = twice / (2 * positives * negatives)
    missed = yes_before.gather(-1, first) / positives[..., None]
    errors = missed + (negatives[..., None] - no_below) / negatives[..., None]
    error = errors.where(yes, torch.inf).amin(dim=-1) / 2
    both = (positives > 0) & (negatives > 0)
    return auc.where(both, torch.nan), error.where(both, torch.nan)


def _before(which: Tensor) -> Tensor:
    """Return how many of the first 0, 1, ... B entries are true, (..., B + 1)."""
    return torch.nn.functional.pad(which.cumsum(dim=-1), (1, 0))
