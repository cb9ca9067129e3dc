"""Randomised response: rates, uniform replacement, one draw for a whole training, and its privacy.

Statistics are compared with exact distributions; each comparison fails on correct code with probability ALARM.
"""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
import torch
from scipy.stats import binom, chi2
from torch import nn

from flower_vfl.errors import ConfigError
from flower_vfl.rng import Secret
from flower_vfl.strategies import Iso, LabelDP, VerticalStrategy
from flower_vfl.strategies.labels.label_dp import epsilon_of, flip, rate_of
from tests.sampling import ALARM, generator, keystream, within
from tests.strategies.test_vertical import Spy, Values, federation, strategy_for
from tests.toys import toy_config, toy_data

N = 200_000


def strategy(classes=2, **more):
    config = toy_config(attack={"names": []})
    return VerticalStrategy(nn.Linear(4, classes), torch.arange(classes), config=config, **more)


@pytest.mark.parametrize(("classes", "rate"), [(2, 0.02), (2, 0.16), (2, 0.499), (3, 0.6), (10, 0.01), (10, 0.89)])
def test_labels_are_flipped_at_the_rate_and_equally_often_to_each_other_class(classes, rate):
    y = torch.arange(N) % classes
    flipped = flip(y, classes=classes, rate=rate, draws=keystream())
    changed = flipped != y
    assert within(int(changed.sum()), binom(N, rate))
    assert flipped.min() >= 0
    assert flipped.max() < classes
    steps = torch.bincount((flipped - y)[changed] % classes, minlength=classes)[1:].double()
    expected = steps.sum() / len(steps)
    if classes > 2:
        assert float(((steps - expected) ** 2 / expected).sum()) < chi2.isf(ALARM, classes - 2)


def test_the_flip_depends_neither_on_the_label_nor_on_other_rows():
    y = torch.randint(2, (N,), generator=generator(1))
    changed = flip(y, classes=2, rate=0.2, draws=keystream()) != y
    for part in (y == 0, y == 1):
        assert within(int(changed[part].sum()), binom(int(part.sum()), 0.2))
    pairs = changed[:-1:2] & changed[1::2]
    assert within(int(pairs.sum()), binom(len(pairs), 0.04))


def test_a_rate_of_zero_keeps_every_label_and_the_key_decides_all():
    y = torch.arange(1000) % 3
    assert torch.equal(flip(y, classes=3, rate=0.0, draws=keystream()), y)
    first, second, third = (flip(y, classes=3, rate=0.5, draws=keystream(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)
    assert torch.equal(y, torch.arange(1000) % 3)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_labels_keep_their_number_format(dtype):
    flipped = flip((torch.arange(100) % 2).to(dtype), classes=2, rate=0.3, draws=keystream())
    assert flipped.dtype == dtype
    assert flip(torch.zeros(0, dtype=dtype), classes=2, rate=0.3, draws=keystream()).shape == (0,)


@pytest.mark.parametrize("classes", [2, 3, 10, 1000])
@pytest.mark.parametrize("rate", [0.01, 0.04, 0.16, 0.4999])
def test_epsilon_and_the_rate_are_each_others_inverse_and_those_of_randomised_response(classes, rate):
    epsilon = epsilon_of(rate, classes)
    # The greatest ratio of the probabilities of one outcome under two true labels: kept, or one of the others.
    assert math.exp(epsilon) == pytest.approx((1 - rate) / (rate / (classes - 1)))
    assert rate_of(epsilon, classes) == pytest.approx(rate, rel=1e-12)


def test_extreme_privacy_parameters_have_rates():
    assert 0.0 <= rate_of(1e4, 2) < 1e-300
    assert 0.4999 < rate_of(1e-4, 2) < 0.5
    assert epsilon_of(0.0, 2) == math.inf


@pytest.mark.parametrize("rate", [-0.1, 0.5, 1.0, math.nan, math.inf, True, "0.1"])
def test_a_rate_that_hides_nothing_or_everything_is_refused(rate):
    with pytest.raises(ConfigError, match=r"flip must be at least 0 and below 0\.5 for 2 classes"):
        LabelDP(strategy(), flip=rate)
    with pytest.raises(ConfigError, match="flip must"):
        flip(torch.zeros(4, dtype=torch.int64), classes=2, rate=rate, draws=keystream())


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, True, "1"])
def test_an_epsilon_that_is_no_finite_number_above_zero_is_refused(epsilon):
    with pytest.raises(ConfigError, match="epsilon must be a finite number above 0"):
        LabelDP(strategy(), epsilon=epsilon)


def test_labels_that_are_no_classes_are_refused():
    for labels in (torch.tensor([0, 1, 2]), torch.tensor([-1, 0, 1])):
        with pytest.raises(ConfigError, match="labels of 2 classes are 0 to 1, given"):
            flip(labels, classes=2, rate=0.1, draws=keystream())
    with pytest.raises(ConfigError, match="whole numbers"):
        flip(torch.tensor([0.0, 1.0]), classes=2, rate=0.1, draws=keystream())
    with pytest.raises(ConfigError, match="two classes at least"):
        flip(torch.tensor([0]), classes=1, rate=0.0, draws=keystream())


def test_the_strength_is_given_once_as_rate_or_as_epsilon():
    assert LabelDP(strategy()).params == {"flip": 0.02}
    assert LabelDP(strategy(10), flip=0.8).params == {"flip": 0.8}
    defense = LabelDP(strategy(), epsilon=1.0)
    assert defense.params == {"epsilon": 1.0}
    assert defense.flip == pytest.approx(1 / (1 + math.e))
    with pytest.raises(ConfigError, match=r"flip or epsilon, not both; given flip=0\.1, epsilon=1\.0"):
        LabelDP(strategy(), flip=0.1, epsilon=1.0)


def test_the_summary_shows_rate_and_epsilon(caplog):
    with caplog.at_level(logging.INFO):
        LabelDP(strategy(), flip=0.02).summary()
    assert "LabelDP(flip=0.02, epsilon=3.89182)" in caplog.text


def test_a_second_flip_is_refused_wherever_it_stands():
    with pytest.raises(ConfigError, match=r"label_dp is given twice.*give that rate"):
        LabelDP(Iso(LabelDP(strategy())))


def test_the_draw_is_that_of_the_secret_the_rate_and_the_labels_and_never_another():
    y = torch.arange(5000) % 2

    def drawn(value, wrap=lambda inner: inner, *, y=y, people="", **more):
        inner = strategy(secret=Secret(value, "file"), alignment=people)
        return LabelDP(wrap(inner), **more).prepare_labels(y)[0]

    first = drawn(b"x" * 32, flip=0.1)
    assert torch.equal(first, drawn(b"x" * 32, flip=0.1))
    assert torch.equal(first, drawn(b"x" * 32, Iso, flip=0.1))  # another defense within changes no draw
    assert torch.equal(first, drawn(b"x" * 32, flip=0.1, y=y.to(torch.uint8)).long())
    one_label_more = torch.cat([y[:-1], 1 - y[-1:]])
    for other in (
        drawn(b"y" * 32, flip=0.1),
        drawn(b"x" * 32, flip=0.1000001),
        drawn(b"x" * 32, flip=0.1, people="others"),
        drawn(b"x" * 32, flip=0.1, y=one_label_more),
    ):
        both = (first != y) & (other != y)
        # Independent, not nested: a difference would reveal the true label.
        assert within(int(both.sum()), binom(5000, 0.01))


def test_the_inner_strategy_prepares_flipped_labels():
    seen = Spy(strategy())
    seen.strategy.prepare_labels = lambda labels: (seen.calls.append(labels), (labels, {"inner": 1.0}))[1]
    y = torch.arange(1000) % 2
    prepared, log = LabelDP(seen, flip=0.3).prepare_labels(y)
    assert torch.equal(seen.calls[-1], prepared)
    share = float((prepared != y).float().mean())
    assert log == {
        "inner": 1.0,
        "label_dp.flip": 0.3,
        "label_dp.epsilon": pytest.approx(math.log(7 / 3)),
        "label_dp.flipped": pytest.approx(share),
    }


def test_one_draw_serves_the_whole_training_and_is_logged_before_it():
    class Recording(Spy):
        def loss(self, logits, labels, z):
            self.calls.append(labels.clone())
            return super().loss(logits, labels, z)

    data = toy_data(rows=200)
    config = toy_config(training={"epochs": 3, "batch_size": 200, "validation": 0.0})
    values = Values()
    outer = LabelDP(Recording(strategy_for(data, config, observer=values)), flip=0.2)
    outer.start(federation(data, config))
    batches = [call for call in outer.strategy.calls if isinstance(call, torch.Tensor)]
    assert len(batches) == 3
    expected = np.sort(outer.prepare_labels(torch.from_numpy(data.target.train))[0].numpy())
    assert all(np.array_equal(np.sort(batch.numpy()), expected) for batch in batches)
    assert values.values["label_dp.epsilon"] == [pytest.approx(math.log(4))]
    assert within(round(values.values["label_dp.flipped"][0] * 200), binom(200, 0.2))
