"""The utility of one run: the quality of its predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flower_vfl.metrics.calibration import adaptive_calibration_error
from flower_vfl.metrics.leakage import leak_auc
from flower_vfl.metrics.multiclass import balanced_accuracy, macro_auc


def utility(logits: Tensor, labels: NDArray[Any], classes: int) -> dict[str, float]:
    """Return AUC (of more than two classes: macro AUC), loss, accuracy, balanced accuracy and calibration error.

    Parameters
    ----------
    logits : Tensor
        (N,) for two classes, else (N, C).
    labels : NDArray
        (N,) true labels.
    classes : int
        Number of classes C.
    """
    target, predicted = torch.from_numpy(labels.astype(np.int64)), predicted_classes(logits)
    if classes == 2:
        scores = logits.double()
        probabilities = torch.sigmoid(scores)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, target.double())
        metrics = {"auc": leak_auc(scores.numpy(), labels)}
    else:
        probabilities = torch.softmax(logits.double(), dim=1)
        loss = torch.nn.functional.cross_entropy(logits.double(), target)
        metrics = {"macro_auc": macro_auc(probabilities.numpy(), labels)}
    return {
        **metrics,
        "loss": float(loss),
        "accuracy": float((predicted == target).double().mean()),
        "balanced_accuracy": balanced_accuracy(predicted, labels),
        "ace": adaptive_calibration_error(probabilities.numpy(), labels),
    }


def predicted_classes(logits: Tensor) -> Tensor:
    """Return the predicted class numbers (N,) of logits, (N,) for two classes or (N, C) for more."""
    return (logits.double() > 0).long() if logits.dim() == 1 else logits.argmax(dim=1)
