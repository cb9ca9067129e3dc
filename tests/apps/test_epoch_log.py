import logging

import pytest

from flower_vfl.apps.journal import EpochLog


@pytest.mark.parametrize(
    ("metrics", "line"),
    [
        (
            {"validation_auc": 0.9, "validation_accuracy": 0.8, "test_auc": 0.7},
            "validation_auc 0.9000, test_auc 0.7000",
        ),
        (
            {"validation_macro_auc": 0.9, "validation_accuracy": 0.8, "test_accuracy": 0.6},
            "validation_macro_auc 0.9000, validation_accuracy 0.8000, test_accuracy 0.6000",
        ),
    ],
)
def test_the_line_of_an_epoch_has_the_validation_of_two_classes_and_of_more(caplog, metrics, line):
    with caplog.at_level(logging.INFO):
        EpochLog().on_epoch(1, 1, metrics)
    assert caplog.messages == [f"epoch 1: {line}"]
