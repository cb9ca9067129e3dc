"""The clustering attack: the trained embeddings form groups, and the groups correspond to the classes."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import permutations
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from flower_vfl.attacks.base import Reads, truth
from flower_vfl.attacks.embedding.inference import InferenceAttack, TrainedView
from flower_vfl.attacks.rows import as_rows, normalised, raw_features
from flower_vfl.errors import ArgumentError
from flower_vfl.metrics.arrays import as_numpy

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from flower_vfl.metrics.arrays import Array

RESTARTS, ROUNDS = 10, 100
"""Number of starts of k-means, and of rounds of each: as in the paper."""

TABLES = 500
"""Number of random tables of groups and classes from which the chance level follows."""

FEW_CLASSES = 5
"""Number of classes up to which all assignments of groups to classes are tried."""


def assign(z: Tensor, *, classes: int, seed: int) -> Tensor:
    """Put embeddings into as many groups as there are classes, by k-means.

    Parameters
    ----------
    z
        (N, D) embeddings, one row an example; further dimensions are flattened.
    classes
        Number of classes C, at least 2, which the attacker knows.
    seed
        Seed of the restarts of k-means; nothing else is random.

    Returns
    -------
    Tensor
        (N,) group number of each row; the groups are not matched to classes. One group where all rows are equal.

    Raises
    ------
    ArgumentError
        When ``z`` is no floating point tensor with a row for each example, is not finite, or has fewer rows than there
        are classes, and for fewer than two classes.

    References
    ----------
    Zheng et al., *Protecting Split Learning by Potential Energy Loss* (10 restarts, 100 rounds).
    """
    rows = as_rows(z)
    if classes < 2:
        raise ArgumentError(f"There are {classes} classes: give at least 2.")
    if len(rows) < classes:
        raise ArgumentError(f"{len(rows)} rows cannot be put into {classes} groups: give at least as many rows.")
    if not bool(torch.isfinite(rows).all()):
        raise ArgumentError("Some embeddings are not finite: find where they come from.")
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    if bool((rows == rows[0]).all()):
        return torch.zeros(len(rows), dtype=torch.int64)
    wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
    x = as_numpy(wide / wide.abs().amax())  # k-means squares them
    # One thread: several add up the centres in whatever order they finish, which changes the last bits.
    with threadpool_limits(limits=1, user_api="openmp"):
        found = KMeans(classes, n_init=RESTARTS, max_iter=ROUNDS, random_state=seed % 2**32).fit_predict(x)
    return torch.from_numpy(found.astype(np.int64))


def matched(clusters: Array, labels: Array, *, classes: int) -> tuple[float, float]:
    r"""Return accuracy and balanced accuracy, the mean recall, each under its best assignment of groups to classes.

    .. math:: \max_\pi \frac{1}{N} \sum_i [\pi(c_i) = y_i], \quad
        \max_\pi \frac{1}{C} \sum_c \frac{|\{i : \pi(c_i) = y_i = c\}|}{|\{i : y_i = c\}|}

    over the one-to-one assignments; the best one is found exactly, by the Hungarian method. The two may differ: with
    rare classes it is better for recall to detect some of their examples than to assign all groups to the frequent one.

    Parameters
    ----------
    clusters
        (N,) group numbers 0 ... C - 1.
    labels
        (N,) class numbers 0 ... C - 1.
    classes
        Number of classes C.

    Returns
    -------
    tuple[float, float]
        At least 1 / C; recalls of classes that do not occur are left out. NaN where there is no example.

    Raises
    ------
    ArgumentError
        For two vectors that do not fit, and for numbers that are no group or class.

    Examples
    --------
    >>> matched([0, 0, 1, 1, 2], [2, 2, 0, 1, 1], classes=3)[0]
    0.8
    >>> matched([0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 1], classes=2)[1]
    0.8
    """
    table = _table(clusters, labels, classes)
    sizes = table.sum(axis=0)
    if not sizes.any():
        return math.nan, math.nan
    return _best(table) / float(sizes.sum()), _best(table / np.maximum(sizes, 1)) / int(np.count_nonzero(sizes))


def matched_by_chance(clusters: Array, labels: Array, *, classes: int) -> tuple[float, float]:
    """Return what groups that are independent of the classes reach under their best assignment.

    Parameters
    ----------
    clusters, labels
        (N,) group numbers and class numbers, which determine the sizes of groups and classes.
    classes
        Number of classes C.

    Returns
    -------
    tuple[float, float]
        The means of both accuracies over `TABLES` random tables of these sizes, drawn with a fixed seed; at least what
        a single group of all examples reaches. NaN where there is no example.

    Raises
    ------
    ArgumentError
        As `matched` does.

    Examples
    --------
    >>> [round(value, 2) for value in matched_by_chance([0, 1] * 8, [0, 1] * 8, classes=2)]
    [0.6, 0.6]
    """
    table = _table(clusters, labels, classes)
    return _chance(tuple(table.sum(axis=1).tolist()), tuple(table.sum(axis=0).tolist()))


@lru_cache(maxsize=64)  # all attacks of a run read the same classes
def _chance(groups: tuple[int, ...], classes: tuple[int, ...]) -> tuple[float, float]:
    """Return `matched_by_chance` for groups and classes of these sizes."""
    from scipy.stats import random_table

    sizes = np.array(classes)
    if not sizes.any():
        return math.nan, math.nan
    tables = random_table.rvs(np.array(groups), sizes, size=TABLES, random_state=0)
    accuracies = _best_of_each(tables) / float(sizes.sum())
    recalls = _best_of_each(tables / np.maximum(sizes, 1)) / int(np.count_nonzero(sizes))
    accuracy, balanced = np.mean(np.column_stack([accuracies, recalls]), axis=0)
    return max(float(accuracy), float(sizes.max() / sizes.sum())), max(
        float(balanced), 1.0 / int(np.count_nonzero(sizes))
    )


def _best(weights: NDArray[Any]) -> float:
    """Return the largest sum of weights over the one-to-one assignments of groups to classes."""
    from scipy.optimize import linear_sum_assignment

    return float(weights[linear_sum_assignment(weights, maximize=True)].sum())


def _best_of_each(tables: NDArray[Any]) -> NDArray[np.float64]:
    """Return `_best` of each table (T, C, C), to the last bit."""
    classes = tables.shape[1]
    if classes > FEW_CLASSES:
        return np.array([_best(one) for one in tables])
    orders = np.array(list(permutations(range(classes))))
    sums = np.zeros((len(tables), len(orders)))
    for group in range(classes):
        sums += tables[:, group, orders[:, group]]
    best: NDArray[np.float64] = sums.max(axis=1)
    # Of assignments that are equally good but for rounding, `_best` need not find the one with the largest sum.
    unclear = ((sums != best[:, None]) & (sums > best[:, None] - 1e-9)).any(axis=1)
    best[unclear] = [_best(one) for one in tables[unclear]]
    return best


def _table(clusters: Array, labels: Array, classes: int) -> NDArray[np.int64]:
    """Return the number of examples by group (rows) and class (columns), (C, C)."""
    groups, y = as_numpy(clusters), as_numpy(labels)
    if groups.ndim != 1 or groups.shape != y.shape:
        raise ArgumentError(f"Groups {groups.shape} and labels {y.shape}: give two vectors of one length (N,).")
    for name, numbers in (("group", groups), ("label", y)):
        if not np.isin(numbers, np.arange(classes)).all():
            raise ArgumentError(f"Some {name} is no whole number from 0 to {classes - 1}, of {classes} classes.")
    pairs = groups.astype(np.int64) * classes + y.astype(np.int64)
    return np.bincount(pairs, minlength=classes**2).reshape(classes, classes)


def accuracy(z: Tensor, y: Array, *, classes: int, seed: int) -> float:
    """Return the accuracy of k-means on the embeddings under the best assignment of its groups to classes.

    Parameters
    ----------
    z
        (N, D) embeddings, one row an example; further dimensions are flattened.
    y
        (N,) true class numbers, which only the measurement sees.
    classes
        Number of classes C.
    seed
        Seed of the restarts of k-means.

    Returns
    -------
    float
        Between 1 / C and 1.

    Raises
    ------
    ArgumentError
        As `assign` and `matched` do.

    References
    ----------
    Zheng et al., *Protecting Split Learning by Potential Energy Loss*.

    Examples
    --------
    >>> z = torch.tensor([[0.0, 1.0], [0.1, 1.0], [5.0, 0.0], [5.1, 0.0], [5.0, 0.1]])
    >>> accuracy(z, [1, 1, 0, 0, 1], classes=2, seed=0)
    0.8
    """
    return matched(assign(z, classes=classes, seed=seed), y, classes=classes)[0]


class ClusteringAttack(InferenceAttack):
    """An attack that puts the attacked rows into as many groups as there are classes, by k-means on their embeddings.

    It is measured by the accuracy under the best assignment of groups to classes. Its baseline is k-means on the raw
    inputs.

    Parameters
    ----------
    normalise
        True if it uses the layer-normalised embeddings, as the top model does behind a defense that normalises.
    """

    name: ClassVar[str] = "clustering"
    reads: ClassVar[Reads] = "clusters"

    def __init__(self, normalise: bool = False) -> None:
        self.normalise = truth(self.name, "normalise", normalise)

    def infer(self, view: TrainedView) -> Tensor:
        """Return the group of each attacked row, (N,)."""
        z = normalised(view.embeddings) if self.normalise else view.embeddings
        return assign(z, classes=view.classes, seed=view.seed)

    def baseline(self, view: TrainedView) -> Tensor | None:
        """Return the groups of the raw inputs, (N,)."""
        return assign(raw_features(view.inputs), classes=view.classes, seed=view.seed) if view.inputs else None
