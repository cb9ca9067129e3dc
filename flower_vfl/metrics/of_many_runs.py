"""Leak AUC, detection error and utility of many runs at once, on the device of their tensors: nothing leaves a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

_BINS = 15


def separations(scores: Tensor, positive: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Return leak AUC and detection error of each vector, bit for bit those of `flower_vfl.metrics.separation`.

    Parameters
    ----------
    scores
        (..., B), higher means more likely positive; none may be NaN.
    positive
        (..., B) of bool: the labels.
    kept
        (..., B) of bool: the rows that are measured.

    Returns
    -------
    tuple[Tensor, Tensor]
        (...) float64 leak AUC and detection error; NaN where a class is missing among the measured rows.

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
    first = torch.searchsorted(ordered, ordered)  # beginning and end of each tie
    last = torch.searchsorted(ordered, ordered, right=True)
    yes_before, no_before = (_counts_before(which) for which in (yes, no))
    positives, negatives = yes_before[..., -1].double(), no_before[..., -1].double()
    no_below = no_before.gather(-1, first)
    twice = ((no_below + no_before.gather(-1, last)) * yes).sum(dim=-1)
    auc = twice / (2 * positives * negatives)
    missed = yes_before.gather(-1, first) / positives[..., None]
    errors = missed + (negatives[..., None] - no_below) / negatives[..., None]
    error = errors.where(yes, torch.inf).amin(dim=-1) / 2
    both = (positives > 0) & (negatives > 0)
    return auc.where(both, torch.nan), error.where(both, torch.nan)


def _counts_before(which: Tensor) -> Tensor:
    """Return the numbers (..., B + 1) of true entries among the first 0, 1, ... B."""
    return torch.nn.functional.pad(which.cumsum(dim=-1), (1, 0))


def utilities(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return AUC, loss, accuracy, balanced accuracy and calibration error of each run, (R,) float64 each.

    It is the counterpart of `flower_vfl.metrics.utility.utility` for one run.

    Parameters
    ----------
    logits
        (R, N), N > 0.
    labels
        (R, N) true labels 0 and 1.

    Examples
    --------
    >>> found = utilities(torch.tensor([[-1.0, 2.0, 1.0]]), torch.tensor([[0, 1, 0]]))
    >>> found["auc"].item(), round(found["accuracy"].item(), 4)
    (1.0, 0.6667)
    """
    scores, positive = logits.double(), labels == 1
    predicted = scores > 0
    right = (predicted == positive).double()
    counts = torch.stack([(positive == which).sum(dim=1) for which in (False, True)])
    recalled = torch.stack([(right * (positive == which)).sum(dim=1) for which in (False, True)]) / counts
    loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, positive.double(), reduction="none")
    return {
        "auc": separations(scores, positive, torch.ones_like(positive))[0],
        "loss": loss.mean(dim=1),
        "accuracy": right.mean(dim=1),
        "balanced_accuracy": recalled.nanmean(dim=0),
        "ace": _calibration_errors(torch.sigmoid(scores), positive),
    }


def _calibration_errors(p: Tensor, positive: Tensor) -> Tensor:
    """Return the adaptive calibration error of probabilities (R, N) of the positive class, (R,)."""
    rows, bins = p.shape[1], min(_BINS, p.shape[1])
    sizes = torch.full((bins,), rows // bins, device=p.device)
    sizes[: rows % bins] += 1
    places = torch.repeat_interleave(torch.arange(bins, device=p.device), sizes)
    gaps = []
    for q, mine in ((1 - p, ~positive), (p, positive)):
        ordered, order = q.sort(dim=1, stable=True)
        excess = mine.gather(1, order).double() - ordered
        sums = p.new_zeros(len(p), bins).index_add_(1, places, excess)
        gaps.append((sums / sizes).abs().mean(dim=1))
    return torch.stack(gaps).mean(dim=0)
