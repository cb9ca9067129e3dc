"""The leak AUC and the detection error of scores."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from flower_vfl.metrics.arrays import binary, refuse_nan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from flower_vfl.metrics.arrays import Array

MANY_QUERIES = 1 << 14  # from here on sorted queries save more cache misses than their sort costs


def leak_auc(scores: Array, labels: Array) -> float:
    r"""Return the area under the ROC curve: the chance that a positive scores higher than a negative, a tie half.

    .. math:: AUC = \frac{1}{P N} \sum_{i: y_i=1} \sum_{j: y_j=0} [r_i > r_j] + \tfrac12 [r_i = r_j]

    0.5 means that the scores do not rank the classes, 1 that they separate them. The same number serves as test AUC.

    Parameters
    ----------
    scores
        (B,), higher means more likely positive; infinities are allowed and are in order.
    labels
        (B,) of 0 and 1.

    Returns
    -------
    float
        The AUC, equal to ``sklearn.metrics.roc_auc_score`` with ties included; NaN where a class is missing.

    Raises
    ------
    ArgumentError
        For two vectors that do not fit, labels other than 0 and 1, or a NaN among the scores.

    References
    ----------
    Li et al., *Label Leakage and Protection in Two-party Split Learning*, ICLR 2022, section 3.2.

    Examples
    --------
    >>> leak_auc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
    0.75
    """
    values, positive = binary(scores, labels)
    ordered, positives = _sorted(values, positive, MANY_QUERIES)
    return _area(ordered, positives, ordered.searchsorted(positives, "left"))


def separation(scores: Array, labels: Array) -> tuple[float, float]:
    """Return `leak_auc` and `detection_error` together, for little more than the cost of the first.

    Parameters
    ----------
    scores
        (B,), higher means more likely positive.
    labels
        (B,) of 0 and 1.

    Returns
    -------
    tuple[float, float]
        The AUC and the detection error; both NaN where a class is missing.

    Raises
    ------
    ArgumentError
        As `leak_auc` does.

    Examples
    --------
    >>> separation([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
    (0.75, 0.25)
    """
    values, positive = binary(scores, labels)
    ordered, positives = _sorted(values, positive, 0)
    negatives = ordered.size - positives.size
    if not (positives.size and negatives):
        return math.nan, math.nan
    below = ordered.searchsorted(positives, "left")
    # The best threshold is the score of a positive: between two of them only false alarms change.
    missed = positives.searchsorted(positives, "left")
    false_alarms = negatives - (below - missed)
    error = (missed / positives.size + false_alarms / negatives).min() / 2
    return _area(ordered, positives, below), float(error)


def _sorted(values: NDArray[Any], positive: NDArray[np.bool_], unsorted: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return all values in order, and those of the positives: in order where there are more than `unsorted`."""
    ordered = np.sort(values)
    if ordered.size and ordered[-1] != ordered[-1]:  # a NaN comes last
        refuse_nan(values, "scores")
    positives = values[np.flatnonzero(positive)]
    if positives.size > unsorted:
        positives.sort()
    return ordered, positives


def _area(ordered: NDArray[Any], positives: NDArray[Any], below: NDArray[np.int64]) -> float:
    """Return the AUC; `below` is the number of values below each positive."""
    negatives = ordered.size - positives.size
    if not (positives.size and negatives):
        return math.nan
    below_twice = below.sum() + ordered.searchsorted(positives, "right").sum()
    # The sum has the square of the number of positives too much, from comparisons of positives with each other.
    return int(below_twice - positives.size**2) / (2 * positives.size * negatives)


def detection_error(scores: Array, labels: Array) -> float:
    r"""Return the error of the best threshold on the scores, with equal weights for both kinds of mistake.

    .. math:: \min_t \tfrac12 (FNR(t) + FPR(t))

    Examples are called positive from the threshold upwards. 0.5 means that no threshold helps, 0 that one separates
    the classes.

    Parameters
    ----------
    scores
        (B,), higher means more likely positive.
    labels
        (B,) of 0 and 1.

    Returns
    -------
    float
        In [0, 0.5]; NaN where a class is missing.

    Raises
    ------
    ArgumentError
        For two vectors that do not fit, labels other than 0 and 1, or a NaN among the scores.

    References
    ----------
    Li et al., *Label Leakage and Protection in Two-party Split Learning*, 2021 workshop version, section 4.2.

    Examples
    --------
    >>> detection_error([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
    0.25
    """
    return separation(scores, labels)[1]
