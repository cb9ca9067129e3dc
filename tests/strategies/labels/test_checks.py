"""Checks before training: labels without information, before or after they are randomised, are refused."""

import numpy as np
import pytest

from flower_vfl.apps import run
from flower_vfl.data.store.dataset import Labels
from flower_vfl.data.store.memory import MemoryData
from flower_vfl.errors import ConfigError, InputError
from flower_vfl.strategies.labels.mechanisms import LABEL_MECHANISMS
from flower_vfl.training.factories import schedule_of
from flower_vfl.transport.inproc import InprocLink
from tests.toys import toy_config, toy_data

ROWS, TEST_ROWS = 200, 60
DEFENSES = [
    {"name": "label_dp", "epsilon": 1.0},
    *({"name": "local_head", "mechanism": name} for name in LABEL_MECHANISMS),
]
NEEDS_PRIOR = ("alibi", "posterior", "prior")


def config(defense, **training):
    training = {"epochs": 2, "patience": 0, **training}
    return toy_config(training=training, defenses=[defense], attack={"names": []})


def train(defense, labels, **training):
    toy = toy_data(rows=ROWS, test_rows=TEST_ROWS, parties=1)
    data = MemoryData("toy", {"a": toy.party("a")}, "label", labels)
    return run(config(defense, **training), data=lambda _: data)


def labels_of(train, classes=2):
    return Labels(train, np.arange(TEST_ROWS) % classes, classes)


@pytest.fixture
def no_messages(monkeypatch):
    """Fail the test if a party receives a message."""
    monkeypatch.setattr(InprocLink, "send", lambda link, frame: pytest.fail(f"{frame} was sent"))


@pytest.mark.usefixtures("no_messages")
@pytest.mark.parametrize("defense", DEFENSES, ids=str)
def test_labels_of_one_class_are_refused_before_any_message(defense):
    with pytest.raises(ConfigError, match=rf"{defense['name']}: nothing can be learned: all 200 .* of class 1; bring"):
        train(defense, labels_of(np.ones(ROWS, dtype=np.int64)))


def last_class_in_validation_alone(classes=2):
    """Return labels whose last class has rows only among those that are kept for validation."""
    settings = config(DEFENSES[0])
    y = np.arange(ROWS) % (classes - 1)
    y[schedule_of(settings, ROWS, TEST_ROWS).held_out[:5]] = classes - 1
    return labels_of(y, classes)


@pytest.mark.usefixtures("no_messages")
@pytest.mark.parametrize("defense", DEFENSES, ids=str)
def test_a_second_class_in_the_validation_part_alone_is_refused_with_another_cure(defense):
    with pytest.raises(ConfigError, match=r"all 180 rows .* are among the 20 kept .* training\.validation = 0"):
        train(defense, last_class_in_validation_alone())


def test_with_the_rows_of_validation_in_training_the_same_labels_train():
    assert train(DEFENSES[1], last_class_in_validation_alone(), validation=0.0).status == "finished"


@pytest.mark.parametrize("defense", DEFENSES, ids=str)
def test_a_class_that_never_occurs_is_refused_where_it_needs_a_prior(defense):
    never = labels_of(np.arange(ROWS) % 2, classes=3)
    if defense.get("mechanism") in NEEDS_PRIOR:
        with pytest.raises(ConfigError, match=r"class 2 of 3 has no training row, so there is no prior"):
            train(defense, never)
    else:
        assert train(defense, never).status == "finished"


@pytest.mark.parametrize("mechanism", NEEDS_PRIOR)
def test_a_class_in_the_validation_part_alone_has_a_prior(mechanism):
    assert (
        train({"name": "local_head", "mechanism": mechanism}, last_class_in_validation_alone(classes=3)).status
        == "finished"
    )


@pytest.mark.usefixtures("no_messages")
@pytest.mark.parametrize("defense", DEFENSES, ids=str)
def test_an_epsilon_that_leaves_less_than_one_bit_of_all_labels_is_refused(defense):
    even = labels_of(np.arange(ROWS) % 2)
    with pytest.raises(ConfigError, match=r"epsilon 1e-09 cannot be met .* all 180 rows .* at most 1.3e-16 bits"):
        train({**defense, "epsilon": 1e-9}, even)
    with pytest.raises(InputError, match=r"epsilon 10000 cannot be proven: above 20 the probability"):
        train({**defense, "epsilon": 1e4}, even)


def test_the_smallest_epsilon_is_one_bit_over_all_rows_that_are_trained_on():
    """180 rows: epsilon tanh(epsilon / 2) = ln 2 / 180 at 0.08778."""
    even = labels_of(np.arange(ROWS) % 2)
    assert train({"name": "local_head", "epsilon": 0.0878}, even).status == "finished"
    with pytest.raises(ConfigError, match=r"at most 1 bits"):
        train({"name": "local_head", "epsilon": 0.0877}, even)


def test_a_flip_rate_near_half_is_refused_and_a_rate_of_zero_is_not():
    even = labels_of(np.arange(ROWS) % 2)
    with pytest.raises(ConfigError, match=r"label_dp: epsilon 0.0004 cannot be met"):
        train({"name": "label_dp", "flip": 0.4999}, even)
    assert train({"name": "label_dp", "flip": 0.0}, even).status == "finished"
