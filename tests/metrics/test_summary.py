"""A run's leak as one entry of the result."""

import json
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from flower_vfl.metrics import ArgumentError, LeakSummary, nearest_rank, null_quantile, quantile_p_value, step_p_values

CONTRACT = {
    *("attack", "params", "metric", "phase", "source", "defended", "layer", "party", "q95", "q95_null", "mean", "max"),
    *("steps", "one_class_steps", "baseline", "advantage"),
}
MORE = {"detection_error_mean", "detection_error_q05", "q95_turned", "q95_p_value"}
SINGLE_STEPS = ["max_p_value", "steps_read", "steps_read_max"]


def filled(values, **facts):
    leak = LeakSummary(attack="norm", party="a", **facts)
    for value in values:
        leak.add(value, 90, 10)
    return leak


def test_the_entry_has_the_keys_of_the_contract_and_the_detection_error():
    assert set(filled([0.5]).result()) == CONTRACT | MORE | set(SINGLE_STEPS)


def test_what_was_measured_goes_into_the_entry():
    entry = filled([0.5], layer="first", source="monitor", defended=True, params={"k": 3}, phase="inference").result()
    assert entry["attack"] == "norm"
    assert entry["party"] == "a"
    assert (entry["layer"], entry["source"], entry["defended"]) == ("first", "monitor", True)
    assert (entry["params"], entry["phase"], entry["metric"]) == ({"k": 3}, "inference", "auc")


def test_quantile_mean_and_maximum_are_those_of_the_steps():
    values = np.random.default_rng(0).random(1234)
    entry = filled(values).result()
    assert entry["q95"] == np.quantile(values, 0.95, method="inverted_cdf")
    assert entry["mean"] == pytest.approx(values.mean())
    assert entry["max"] == values.max()
    assert (entry["steps"], entry["one_class_steps"]) == (1234, 0)


def test_the_scores_turned_around_have_a_quantile_of_their_own():
    entry = filled([0.9, 0.9, 0.9, 0.9, 0.1]).result()
    assert (entry["q95"], entry["q95_turned"]) == (0.9, 0.9)


def test_the_null_is_that_of_the_very_batches():
    leak = LeakSummary(attack="norm", party="a")
    leak.add(0.6, 90, 10)
    leak.add(0.7, 95, 5)
    leak.add(math.nan, 100, 0)
    assert leak.result()["q95_null"] == null_quantile([(90, 10), (95, 5)])


def test_the_p_value_of_single_steps_is_two_sided():
    counts = [(90, 10)] * 30 + [(20, 2)]
    for value in (0.7, 0.3):
        leak = LeakSummary(attack="norm", party="a")
        for pair in counts:
            leak.add(value, *pair)
        assert leak.result()["q95_p_value"] == pytest.approx(2 * quantile_p_value(counts, 0.7))
    assert filled([0.5] * 30).result()["q95_p_value"] == 1.0
    assert filled([0.9] * 3, phase="remembered").result()["q95_p_value"] is None
    assert filled([0.9] * 3, metric="accuracy").result()["q95_p_value"] is None


def test_few_steps_that_are_read_show_in_the_p_value_of_the_maximum():
    entry = filled([0.5] * 113 + [0.99, 0.98, 0.05]).result()
    alone = step_p_values([(90, 10)], [0.99]).item()
    assert entry["q95_p_value"] == 1.0
    assert entry["max_p_value"] == pytest.approx(2 * 116 * alone)
    assert (entry["steps_read"], entry["steps_read_max"]) == (3, 0.99)


def test_small_batches_that_chance_reads_do_not_hide_a_large_one_that_is_read():
    leak = filled([0.5] * 38)
    leak.add(1.0, 1, 1)
    assert leak.result()["max_p_value"] == 1.0
    leak.add(0.9, 90, 10)
    entry = leak.result()
    assert entry["max"] == 1.0
    assert (entry["steps_read"], entry["steps_read_max"]) == (1, 0.9)
    assert entry["max_p_value"] < 1e-2


def test_only_aucs_of_single_steps_have_numbers_of_single_steps():
    for leak in (filled([0.9] * 3, phase="remembered"), filled([0.9] * 3, metric="accuracy"), filled([math.nan])):
        assert [leak.result()[key] for key in SINGLE_STEPS] == [None] * 3


def test_what_is_no_auc_has_the_null_of_its_steps_where_one_is_known_and_is_not_turned_around():
    leak = LeakSummary(attack="clustering", party="a", metric="accuracy")
    for value, null in ((0.6, 0.5), (0.7, 0.4), (0.9, math.nan)):
        leak.add(value, 90, 10, null=null)
    entry = leak.result()
    assert (entry["q95"], entry["q95_null"], entry["q95_turned"]) == (0.9, 0.5, None)
    assert filled([0.6], metric="accuracy").result()["q95_null"] is None


def test_steps_of_one_class_are_counted_and_do_not_touch_the_values():
    leak = filled([0.7, 0.9])
    leak.add(math.nan, 100, 0)
    entry = leak.result()
    assert (entry["steps"], entry["one_class_steps"]) == (3, 1)
    assert (entry["mean"], entry["max"]) == (pytest.approx(0.8), 0.9)


def test_an_auc_of_zero_is_a_value():
    entry = filled([0.0, 0.0]).result()
    assert (entry["q95"], entry["mean"], entry["max"], entry["one_class_steps"]) == (0.0, 0.0, 0.0, 0)


def test_nothing_measured_is_null_and_the_entry_is_json():
    entry = filled([math.nan]).result()
    assert [entry[key] for key in ("q95", "q95_null", "mean", "max", "baseline", "advantage")] == [None] * 6
    assert json.loads(json.dumps(entry, allow_nan=False)) == entry


def test_the_detection_error_is_summed_up_by_its_lower_tail():
    errors = np.random.default_rng(1).random(777) / 2
    leak = LeakSummary(attack="norm", party="a")
    for error in errors:
        leak.add(0.5, 90, 10, error)
    leak.add(math.nan, 100, 0)
    entry = leak.result()
    assert entry["detection_error_q05"] == np.quantile(errors, 0.05, method="inverted_cdf")
    assert entry["detection_error_mean"] == pytest.approx(errors.mean())


def test_a_baseline_goes_into_the_entry():
    entry = filled([0.5]).result(baseline=0.25, advantage=0.0)
    assert (entry["baseline"], entry["advantage"]) == (0.25, 0.0)


def test_a_summary_survives_a_checkpoint():
    leak = filled([0.1, 0.9])
    copy = pickle.loads(pickle.dumps(leak))
    copy.add(0.5, 90, 10)
    assert (copy.result()["steps"], leak.result()["steps"]) == (3, 2)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.95, 1.0]))
def test_nearest_rank_is_the_smallest_value_that_enough_do_not_exceed(values, q):
    found = nearest_rank(values, q)
    assert found in values
    assert sum(v <= found for v in values) >= q * len(values) - 1e-9
    assert sum(v < found for v in values) < q * len(values)


def test_nearest_rank_of_twenty_is_the_nineteenth():
    assert nearest_rank(range(1, 21)) == 19


def test_nearest_rank_of_nothing_is_nan_and_a_wrong_quantile_is_refused():
    assert math.isnan(nearest_rank([]))
    with pytest.raises(ArgumentError, match="quantile"):
        nearest_rank([1.0], 0.0)


def test_the_p_value_over_epochs_follows_from_the_rows_of_each():
    leak = LeakSummary(attack="remembered_norm", party="a", phase="remembered")
    leak.add(1.0, negatives=1, positives=1)
    leak.add(0.0, negatives=8, positives=2)  # turned around it reads both positives: one of 45 orders
    leak.add(0.5, negatives=8, positives=2)
    assert leak.result()["p_value"] == pytest.approx(2 * 3 / 45)
    assert "p_value" not in LeakSummary(attack="norm", party="a").result()


@pytest.mark.parametrize("carries", [False, True])
def test_the_accuracy_of_groups_is_tested_against_the_same_groups_in_random_order(carries):
    """Rows keep their groups in all epochs; more than 14 of 120 alarms have a probability of 0.1 % at 5 %."""
    alarms = 0
    for seed in range(120):
        rng = np.random.default_rng(seed)
        labels, groups = rng.integers(0, 2, 400), rng.integers(0, 2, 400)
        groups = np.where(rng.random(400) < 0.4, labels, groups) if carries else groups
        leak = LeakSummary(attack="gradient_clustering", party="a", metric="accuracy")
        for _ in range(20):
            for rows in rng.permutation(400).reshape(-1, 20):
                value, null = (
                    max(np.mean(some == labels[rows]), np.mean(some != labels[rows]))
                    for some in (groups[rows], rng.permutation(groups[rows]))
                )
                leak.add(value, 10, 10, null=null)
        alarms += leak.result(population=(200, 200))["p_value"] <= 0.05
    assert alarms >= 100 if carries else alarms <= binom.isf(0.001, 120, 0.05)
