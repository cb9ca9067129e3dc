"""How right an attack on the trained model is: what it says of the attacked rows against their true labels."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flower_vfl.attacks.base import Reads
from flower_vfl.attacks.embedding.clustering import matched_accuracy, matched_balanced_accuracy
from flower_vfl.attacks.embedding.inference import classes_of
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

AUC, ACCURACY, BALANCED = "auc", "accuracy", "balanced_accuracy"

Labels = NDArray[np.int64]


def measured(reads: Reads, said: Tensor, labels: Labels, classes: int) -> dict[str, float]:
    """Return what was said of rows in every measure that it has, the one that stands for it first.

    Parameters
    ----------
    reads : str
        What kind of thing was said, as `InferenceAttack.reads` declares.
    said : Tensor
        (N,), logits of more than two classes (N, C).
    labels : NDArray
        (N,) true class numbers.
    classes : int
        Number of classes C.

    Returns
    -------
    dict[str, float]
        "auc" of scores; "accuracy" and "balanced_accuracy" of classes, of clusters under their best names; of logits
        all three, the AUC of more than two classes being the mean over classes. NaN where a class that it takes is
        missing.

    Raises
    ------
    ArgumentError
        Where something is not said of each row, or of classes that there are not.
    """
    shape = (len(labels), classes) if reads == "logits" and classes > 2 else (len(labels),)
    if not isinstance(said, Tensor):
        raise ArgumentError(f"It says a {type(said).__name__} of {len(labels)} rows: a tensor {shape} is needed.")
    if tuple(said.shape) != shape:
        raise ArgumentError(f"It says {tuple(said.shape)} of {len(labels)} rows: {shape} is needed.")
    if reads == "scores":
        return {AUC: leak_auc(said, labels)}
    if reads == "clusters":
        return {
            ACCURACY: matched_accuracy(said, labels, classes=classes),
            BALANCED: matched_balanced_accuracy(said, labels, classes=classes),
        }
    if reads == "classes" and not bool(torch.isin(said, torch.arange(classes, device=said.device)).all()):
        raise ArgumentError(f"Some class is no whole number from 0 to {classes - 1}, of {classes} classes.")
    named = as_numpy(classes_of(said) if reads == "logits" else said)
    values = {ACCURACY: float((named == labels).mean()), BALANCED: balanced_accuracy(named, labels)}
    if reads == "logits":
        values[AUC] = leak_auc(said, labels) if classes == 2 else macro_auc(said, labels)
    return values


def sample_interval(
    measure: str, value: float, reads: Reads, said: Tensor, labels: Labels, classes: int
) -> Interval | None:
    """Return the 95 % interval of a value for the attacked rows being a sample; None where there is none.

    The balanced accuracy of clusters has none: under which names a class's recall counts was chosen for it.
    """
    if measure == ACCURACY:
        return share_interval(value, len(labels))
    if measure == BALANCED:
        named = classes_of(said) if reads == "logits" else said
        return None if reads == "clusters" else mean_share_interval(*recalls(named, labels))
    return auc_interval(said, labels) if classes == 2 else None


def chance(measure: str, labels: Labels, classes: int) -> float:
    """Return what always saying the same reaches: the most frequent class for accuracy."""
    if measure == ACCURACY:
        return float(np.bincount(labels, minlength=classes).max() / max(1, len(labels)))
    return 1 / classes if measure == BALANCED else 0.5
