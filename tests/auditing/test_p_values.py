"""The p-values of attacks on gradients, against tails in closed form and runs that carry nothing."""

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from flower_vfl.attacks import make_attack
from flower_vfl.auditing.p_values import practical_p_value
from flower_vfl.auditing.summaries import StepLeaks
from flower_vfl.metrics import leak_auc
from tests.auditing.test_verdict import FEW, remembered, step
from tests.cases import parametrize


@pytest.mark.parametrize(("steps", "value"), [(20, 0.57), (200, 0.56), (187, 0.556), (1000, 0.553)])
def test_the_p_value_of_a_q95_is_the_tail_of_an_order_statistic(steps, value):
    chance = norm.sf((value - 0.5) / (0.05 / norm.ppf(0.95)))
    exact = 2 * binom.sf(steps - math.ceil(0.95 * steps), steps, chance)
    assert practical_p_value(step("norm", value, steps=steps)) == pytest.approx(exact, rel=1e-6)


def test_without_a_p_value_that_over_epochs_is_a_normal_tail_times_epochs_and_sides():
    exact = 2 * 2 * norm.sf(0.03 / 0.0105)
    assert practical_p_value({**remembered(values=(0.53, 0.51)), "p_value": 0.02}) == 0.02
    assert practical_p_value(remembered(values=(0.53, 0.51))) == pytest.approx(exact, rel=1e-3)
    of_interval = remembered(values=(0.5, 0.53), interval95=[0.53 - 1.96 * 0.0105, 0.53 + 1.96 * 0.0105])
    assert practical_p_value({**of_interval, "q95_null": None}) == pytest.approx(exact, rel=1e-3)


def test_the_p_value_counts_the_classes_that_were_tried():
    each = [{"class": n, "q95": q, "q95_null": 0.55, "mean": 0.5, "steps": 100} for n, q in enumerate((0.55, 0.58))]
    alone = practical_p_value(step("norm", 0.58, steps=100, q95_turned=0.5))
    assert practical_p_value(step("norm", by_class=each)) == pytest.approx(3 * alone)


def test_the_p_value_counts_the_quantile_and_the_maximum():
    assert practical_p_value(step("norm", q95_p_value=0.3, **{**FEW, "max_p_value": 0.1})) == pytest.approx(0.2)
    assert practical_p_value(step("norm", q95_p_value=0.01, **{**FEW, "max_p_value": 0.1})) == pytest.approx(0.02)


def chance_of_classes(seed, classes, batch, last, steps, epochs):
    """Return the p-value of a random attack on a run whose classes take turns, with a short last batch an epoch."""
    rng, leaks = (
        np.random.default_rng(seed),
        StepLeaks(make_attack("norm"), "a", "cut", source="monitor", defended=True),
    )
    for place in range(steps * epochs):
        rows = last if place % steps == steps - 1 else batch
        labels = rng.integers(classes, size=rows) == place % classes
        value = leak_auc(rng.random(rows), labels) if 0 < labels.sum() < rows else math.nan
        leaks.add(place % classes, value, int(rows - labels.sum()), int(labels.sum()))
    return practical_p_value(leaks.result())


@parametrize("shape", [(3, 64, 6, 16, 10), (3, 32, 4, 11, 20), (10, 64, 20, 16, 20)], quick=1)
def test_where_classes_take_turns_short_batches_raise_no_false_alarm(shape):
    """More than 14 of 120 have a probability of 0.1 % at a rate of 5 %."""
    assert sum(chance_of_classes(seed, *shape) <= 0.05 for seed in range(120)) <= binom.isf(0.001, 120, 0.05)
