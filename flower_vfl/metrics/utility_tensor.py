"""The utility of many runs on two classes, measured at once on the device of their logits."""

from __future__ import annotations

import torch
from torch import Tensor

from flower_vfl.metrics.leakage_tensor import separations

_BINS = 15


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
    said = scores > 0
    right = (said == positive).double()
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
