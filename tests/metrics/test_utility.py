"""The utility of a run against scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, log_loss, roc_auc_score

from flower_vfl.metrics import adaptive_calibration_error
from flower_vfl.metrics.utility import utility


def rare(classes, rows=400):
    """Return informative logits (rows, classes) and labels; the last classes are rare."""
    rng = np.random.default_rng(classes)
    y = rng.choice(classes, rows, p=np.arange(classes, 0, -1) / (classes * (classes + 1) / 2))
    return torch.from_numpy(rng.normal(size=(rows, classes)) + 1.5 * np.eye(classes)[y]).float(), y


@pytest.mark.parametrize("classes", [3, 5])
def test_the_utility_of_more_than_two_classes_is_scikit_learns(classes):
    logits, y = rare(classes)
    p, predicted = torch.softmax(logits.double(), dim=1).numpy(), logits.numpy().argmax(axis=1)
    assert utility(logits, y, classes) == pytest.approx(
        {
            "macro_auc": roc_auc_score(y, p, multi_class="ovr", average="macro"),
            "loss": log_loss(y, p),
            "accuracy": accuracy_score(y, predicted),
            "balanced_accuracy": balanced_accuracy_score(y, predicted),
            "ace": adaptive_calibration_error(p, y),
        }
    )


def test_the_utility_of_two_classes_is_scikit_learns_and_a_logit_of_0_is_negative():
    logits, y = rare(2)
    scores = logits[:, 1] - logits[:, 0]
    scores[:5] = 0.0
    p, predicted = torch.sigmoid(scores.double()).numpy(), (scores > 0).numpy().astype(int)
    assert utility(scores, y, 2) == pytest.approx(
        {
            "auc": roc_auc_score(y, scores),
            "loss": log_loss(y, p),
            "accuracy": accuracy_score(y, predicted),
            "balanced_accuracy": balanced_accuracy_score(y, predicted),
            "ace": adaptive_calibration_error(p, y),
        }
    )
