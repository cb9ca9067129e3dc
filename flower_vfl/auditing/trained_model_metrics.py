"""Metrics of attacks on the trained model: their answers on the attacked rows against the true labels."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flower_vfl.attacks.base import Reads
from flower_vfl.attacks.embedding.clustering import (
    matched,
    matched_by_chance,
)
from flower_vfl.metrics import (
    ArgumentError,
    auc_interval,
    balanced_accuracy,
    leak_auc,
    macro_auc,
    mean_share_interval,
    recalls,
    share_interval,
)
from flower_vfl.metrics.arrays import as_numpy
from flower_vfl.metrics.interval import Interval
from flower_vfl.metrics.utility import predicted_classes

AUC, ACCURACY, BALANCED = "auc", "accuracy", "balanced_accuracy"

ClassNumbers = NDArray[np.int64]


def measured(reads: Reads, answer: Tensor, labels: ClassNumbers, classes: int) -> dict[str, float]:
    """Return the values of an answer in all its measures, the main one first.

    Parameters
    ----------
    reads : str
        The kind of the answer, as `InferenceAttack.reads` declares.
    answer : Tensor
        (N,), logits of more than two classes (N, C).
    labels : NDArray
        (N,) true class numbers.
    classes : int
        Number of classes C.

    Returns
    -------
    dict[str, float]
        "auc" of scores; "accuracy" and "balanced_accuracy" of classes, of clusters under their best names; of logits
        all three, the AUC of more than two classes being the mean over classes. NaN where a needed class is missing.

    Raises
    ------
    ArgumentError
        When the answer does not have the needed shape, or names classes that do not exist.
    """
    shape = (len(labels), classes) if reads == "logits" and classes > 2 else (len(labels),)
    if not isinstance(answer, Tensor):
        raise ArgumentError(
            f"It returned a {type(answer).__name__} for {len(labels)} rows: a tensor {shape} is needed."
        )
    if tuple(answer.shape) != shape:
        raise ArgumentError(f"It returned {tuple(answer.shape)} for {len(labels)} rows: {shape} is needed.")
    if reads == "scores":
        return {AUC: leak_auc(answer, labels)}
    if reads == "clusters":
        return dict(zip((ACCURACY, BALANCED), matched(answer, labels, classes=classes), strict=True))
    if reads == "classes" and not bool(torch.isin(answer, torch.arange(classes, device=answer.device)).all()):
        raise ArgumentError(f"Some class is no whole number from 0 to {classes - 1}, of {classes} classes.")
    named = as_numpy(predicted_classes(answer) if reads == "logits" else answer)
    values = {ACCURACY: float((named == labels).mean()), BALANCED: balanced_accuracy(named, labels)}
    if reads == "logits":
        values[AUC] = leak_auc(answer, labels) if classes == 2 else macro_auc(answer, labels)
    return values


def sample_interval(
    measure: str, value: float, reads: Reads, answer: Tensor, labels: ClassNumbers, classes: int
) -> Interval | None:
    """Return the 95 % interval of a value, with the attacked rows as a sample; None where there is none.

    The balanced accuracy of clusters has none: the names of the clusters were chosen to maximise it.
    """
    if measure == ACCURACY:
        return share_interval(value, len(labels))
    if measure == BALANCED:
        named = predicted_classes(answer) if reads == "logits" else answer
        return None if reads == "clusters" else mean_share_interval(*recalls(named, labels))
    return auc_interval(answer, labels) if classes == 2 else None


def chance(measure: str, reads: Reads, answer: Tensor | None, labels: ClassNumbers, classes: int) -> float:
    """Return what a constant answer reaches, of clusters what groups of their sizes reach by chance.

    The accuracy of a constant answer is the share of the most frequent class. Without an answer of clusters it is
    that of a constant answer, too.
    """
    if measure == AUC:
        return 0.5
    if reads == "clusters" and answer is not None:
        return matched_by_chance(answer, labels, classes=classes)[measure == BALANCED]
    counts = np.bincount(labels, minlength=classes)
    if measure == ACCURACY:
        return float(counts.max() / max(1, len(labels)))
    return 1.0 / max(1, int(np.count_nonzero(counts)))
