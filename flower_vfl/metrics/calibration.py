"""The calibration of predicted probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flower_vfl.errors import ArgumentError
from flower_vfl.metrics.arrays import as_numpy

if TYPE_CHECKING:
    from flower_vfl.metrics.arrays import Array


def adaptive_calibration_error(probs: Array, labels: Array, bins: int = 15) -> float:
    r"""Return the mean gap between predicted and observed frequency, over bins of equal mass and over classes.

    .. math:: ACE = \frac{1}{C R} \sum_{c=1}^{C} \sum_{r=1}^{R} | freq(r, c) - conf(r, c) |

    For each class the examples are sorted (stably) by that class's probability and cut into R bins whose sizes differ
    by one at most, the larger ones first; conf is a bin's mean probability, freq its share of that class.

    Parameters
    ----------
    probs
        (N,) probabilities of the positive class, which makes two classes, or (N, C).
    labels
        (N,) class numbers 0 ... C - 1.
    bins
        Number of bins R; no more than there are examples are used.

    Returns
    -------
    float
        In [0, 1]; 0 is perfectly calibrated.

    Raises
    ------
    ArgumentError
        For shapes that do not fit, no examples, values outside [0, 1], unknown classes or fewer than one bin.

    References
    ----------
    Nixon et al., *Measuring Calibration in Deep Learning*, 2019, section 4; used by Li et al. 2021, section 5.2.

    Examples
    --------
    >>> round(adaptive_calibration_error([0.0, 0.1, 0.9, 1.0], [0, 0, 1, 1], bins=2), 6)
    0.05
    """
    p, y = as_numpy(probs).astype(np.float64), as_numpy(labels)
    if p.ndim == 1:
        p = np.stack([1 - p, p], axis=1)
    if p.ndim != 2 or y.shape != p.shape[:1] or not y.size:
        raise ArgumentError(f"Probabilities {p.shape} and labels {y.shape}: give (N,) or (N, C), and (N,), with N > 0.")
    if bins < 1:
        raise ArgumentError(f"bins is {bins}: give at least 1.")
    if not ((p >= 0) & (p <= 1)).all():
        raise ArgumentError("Some probabilities are NaN or outside [0, 1]: give probabilities, not logits.")
    if not np.isin(y, np.arange(p.shape[1])).all():
        raise ArgumentError(f"Some labels are no class number: give whole numbers from 0 to {p.shape[1] - 1}.")
    edges = np.array_split(np.arange(y.size), min(bins, y.size))
    starts = [edge[0] for edge in edges]
    sizes = np.array([edge.size for edge in edges])
    gaps = []
    for c in range(p.shape[1]):
        order = np.argsort(p[:, c], kind="stable")
        excess = np.add.reduceat((y == c)[order] - p[order, c], starts)
        gaps.append(np.abs(excess / sizes).mean())
    return float(np.mean(gaps))
