"""Metrics with equal weight for every class, however rare it is: macro AUC and balanced accuracy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from flower_vfl.errors import ArgumentError
from flower_vfl.metrics.arrays import as_numpy
from flower_vfl.metrics.leakage import leak_auc

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from flower_vfl.metrics.arrays import Array


def macro_auc(scores: Array, labels: Array) -> float:
    r"""Return the mean over the classes of the AUC of a class's scores against all others.

    .. math:: \frac{1}{C} \sum_{c=1}^{C} AUC(s_{\cdot c}, [y = c])

    Parameters
    ----------
    scores
        (N, C), one column a class: probabilities, or anything that can be compared within a column.
    labels
        (N,) class numbers 0 ... C - 1.

    Returns
    -------
    float
        Equal to ``roc_auc_score(labels, scores, multi_class="ovr", average="macro")`` of scikit-learn; classes that
        do not occur are left out, and it is NaN where fewer than two occur.

    Raises
    ------
    ArgumentError
        For shapes that do not fit, unknown classes, or a NaN among the scores.

    Examples
    --------
    >>> macro_auc([[0.8, 0.1, 0.1], [0.3, 0.4, 0.3], [0.1, 0.2, 0.7], [0.4, 0.2, 0.4]], [0, 1, 2, 2])
    1.0
    """
    values, y = as_numpy(scores), as_numpy(labels)
    if values.ndim != 2 or y.shape != values.shape[:1]:
        raise ArgumentError(f"Scores {values.shape} and labels {y.shape}: give (N, C) and (N,).")
    if not np.isin(y, np.arange(values.shape[1])).all():
        raise ArgumentError(f"Some labels are no class number: give whole numbers from 0 to {values.shape[1] - 1}.")
    aucs = [leak_auc(values[:, c], y == c) for c in np.unique(y).astype(np.int64)]
    return float(np.mean(aucs)) if aucs else math.nan


def balanced_accuracy(predicted: Array, labels: Array) -> float:
    r"""Return the mean over the classes of the recall, the share of a class that is recognised.

    .. math:: \frac{1}{C} \sum_{c=1}^{C} \frac{|\{i : \hat y_i = y_i = c\}|}{|\{i : y_i = c\}|}

    A constant answer gives 1 / C, also where 94 of 100 belong to one class. With equally many examples
    of each class it is the accuracy.

    Parameters
    ----------
    predicted
        (N,) predicted class numbers.
    labels
        (N,) true class numbers.

    Returns
    -------
    float
        Equal to ``sklearn.metrics.balanced_accuracy_score``; classes that do not occur are left out, and it is NaN
        where there is no example.

    Raises
    ------
    ArgumentError
        For two vectors that do not fit.

    Examples
    --------
    >>> balanced_accuracy([0, 0, 0, 0, 1], [0, 0, 0, 1, 1])
    0.75
    """
    shares, _ = recalls(predicted, labels)
    return float(shares.mean()) if shares.size else math.nan


def recalls(predicted: Array, labels: Array) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the recall and the size of each class that occurs.

    Raises
    ------
    ArgumentError
        For two vectors that do not fit.
    """
    values, y = as_numpy(predicted), as_numpy(labels)
    if values.ndim != 1 or values.shape != y.shape:
        raise ArgumentError(f"Classes {values.shape} and labels {y.shape}: give two vectors of one length (N,).")
    _, which, counts = np.unique(y, return_inverse=True, return_counts=True)
    return np.bincount(which, values == y, minlength=counts.size) / counts, counts
