"""The best epoch of a run: its measure, and the choice among equal epochs."""

import math

import pytest

from flower_vfl.training.outcome import OF_MANY_CLASSES, Outcome


def epochs(measure, *pairs):
    """Return epochs with these values of a measure of the validation part, and these losses."""
    return [
        {"epoch": number, "validation_macro_auc": 0.5, f"validation_{measure}": value, "validation_loss": loss}
        for number, (value, loss) in enumerate(pairs, 1)
    ]


@pytest.mark.parametrize("measure", ["auc", "accuracy"])
def test_of_equal_epochs_the_one_with_the_smallest_validation_loss_is_the_best(measure):
    found = Outcome(epochs=epochs(measure, (0.9, 0.1), (1.0, 0.6), (1.0, 0.3), (1.0, 0.4)))
    assert (found.best["epoch"], found.best_by) == (3, f"validation_{measure}")


def test_balanced_weights_of_many_classes_choose_by_the_mean_of_their_aucs():
    both = [
        {**epoch, "validation_accuracy": accuracy}
        for epoch, accuracy in zip(epochs("macro_auc", (0.7, 1.0), (0.9, 1.0)), (0.8, 0.6), strict=True)
    ]
    chosen = [Outcome(epochs=both, of_many_classes=name) for name in OF_MANY_CLASSES.values()]
    assert [(found.best["epoch"], found.best_by) for found in chosen] == [
        (1, "validation_accuracy"),
        (2, "validation_macro_auc"),
    ]


def test_without_a_measure_the_last_epoch_is_the_best():
    found = Outcome(epochs=epochs("auc", (math.nan, 0.1), (math.nan, 0.2)))
    assert (found.best["epoch"], found.best_by) == (2, None)


def test_patience_does_not_count_again_from_a_tiny_fall_of_the_loss_alone():
    found = Outcome(epochs=epochs("auc", (0.9, 0.3), (1.0, 0.2), (1.0, 0.1995), (1.0, 0.1985), (1.0, 0.198)))
    assert (found.improved, found.best["epoch"]) == (4, 5)


def test_patience_counts_from_an_epoch_with_a_better_measure_whatever_its_loss():
    assert Outcome(epochs=epochs("auc", (0.9, 0.3), (0.91, 0.4), (0.905, 0.2))).improved == 2
    assert Outcome(epochs=epochs("auc", (math.nan, 0.1), (math.nan, 0.2))).improved == 2  # nothing to compare
    assert Outcome().improved == 0
