"""Bounds by the noise of a defense beside the leaks that attacks reach."""

from dataclasses import replace

import numpy as np
import pytest

from flower_vfl.metrics import Exceedances, auc_bound, null_quantile
from flower_vfl.reports.certified import certificates
from flower_vfl.reports.run import Run
from flower_vfl.tracking import StepLog, read_steps

STEPS = 40


def entry(attack="norm", party="a", **facts):
    where = {"attack": attack, "party": party, "layer": "cut", "source": "attacker", "metric": "auc", "defended": True}
    return {**where, "label": attack, "q95": 0.7, "q95_null": 0.55, **facts}


def run_with(folder, series, *leakage, params=None, defenses=None, counts=True):
    """Return a run with these values of each step, by (party, attack, metric)."""
    label = {("label", "", "batch_rows"): 100, ("label", "", "batch_positives"): 10} if counts else {}
    with StepLog(folder) as log:
        for (party, attack, metric), values in {**label, **series}.items():
            by_step = values if isinstance(values, dict) else dict(enumerate(np.broadcast_to(values, STEPS)))
            for step, value in by_step.items():
                facts = {"party": party, "layer": "cut" if attack else "", "attack": attack, "metric": metric}
                log.add(step=step, epoch=1, value=value, **facts)
    defenses = defenses or [{"name": "marvell", "params": params or {"s": 4.0, "scope": "joint"}}]
    return Run(folder, "", {"defenses": defenses, "leakage": list(leakage), "utility": {}}, read_steps(folder))


def logged(sum_kl, suffix="", name="marvell", **more):
    bound = np.vectorize(auc_bound)(sum_kl)
    values = {"auc_bound": bound, "sum_kl_after": sum_kl, "fallback": 0.0, "withheld": 0.0, **more}
    return {("label", "", f"{name}.{metric}{suffix}"): value for metric, value in values.items()}


def test_a_bound_stands_beside_the_attack_and_the_first_steps_that_exceed_it(tmp_path):
    allowed = auc_bound(0.04) + null_quantile([(90, 10)]) - 0.5
    aucs = np.full(STEPS, 0.55)
    aucs[[3, 7, 8, 20, 21, 30, 31]] = allowed + 1e-6
    aucs[[4, 5]] = allowed - 1e-6
    (found,) = certificates(run_with(tmp_path, {**logged(0.04), ("a", "norm", "auc"): aucs}, entry()))
    (row,) = found.measured
    assert (found.bound, found.bound_last, found.steps) == (pytest.approx(0.595), pytest.approx(0.595), STEPS)
    assert (row.found.exceeded, row.found.beyond_chance.size, row.found.expected) == (9, 7, pytest.approx(2.0))
    assert row.first == [3, 7, 8, 20, 21]
    assert row.too_often
    assert (row.null, row.q95) == (0.55, pytest.approx(allowed + 1e-6))


def test_scores_that_are_nearly_always_wrong_stand_beside_the_bound_turned_around(tmp_path):
    aucs = np.full(STEPS, 0.05)
    aucs[:3] = 0.99
    wrong = entry(q95=0.94, mean=0.12, q95_turned=0.95, detection_error_mean=0.49, detection_error_q05=0.4)
    broad = entry("cosine", q95=0.99, mean=0.3, q95_turned=0.9)
    series = {**logged(0.04), ("a", "norm", "auc"): aucs, ("a", "cosine", "auc"): 0.99}
    (found,) = certificates(run_with(tmp_path, series, wrong, broad))
    rows = {row.attack: row for row in found.measured}
    assert (rows["norm"].turned, rows["cosine"].turned) == (True, False)
    assert (rows["norm"].q95, rows["norm"].error, rows["norm"].error_q05) == (pytest.approx(0.95), None, None)
    assert (rows["norm"].found.beyond_chance.size, rows["norm"].first) == (STEPS - 3, [3, 4, 5, 6, 7])
    assert rows["norm"].found.worst == pytest.approx(0.95 - found.bound)
    assert rows["norm"].too_often
    assert (rows["cosine"].q95, rows["cosine"].found.exceeded) == (pytest.approx(0.99), STEPS)


def test_positives_that_an_attack_knows_do_not_count_as_chance(tmp_path):
    level = auc_bound(0.04) + null_quantile([(90, 10)]) - 0.5 + 1e-3
    assert level < auc_bound(0.04) + null_quantile([(90, 5)]) - 0.5
    series = {**logged(0.04), ("a", "norm", "auc"): level, ("a", "hint", "auc"): level}
    run = run_with(tmp_path, series, entry(), entry("hint", params={"k": 5}))
    rows = {row.attack: row for row in certificates(run)[0].measured}
    assert rows["norm"].found.beyond_chance.size == STEPS
    assert rows["hint"].found.beyond_chance.size == 0


def test_each_step_is_compared_with_its_own_bound_and_attacks_may_skip_steps(tmp_path):
    sum_kl = np.where(np.arange(STEPS) % 2, 0.0001, 9.0)
    series = {**logged(sum_kl), ("a", "norm", "auc"): np.where(np.arange(STEPS) < 10, 0.9, np.nan)}
    (found,) = certificates(run_with(tmp_path, series, entry()))
    assert found.measured[0].found.steps == 5
    assert found.measured[0].first == [1, 3, 5, 7, 9]
    assert found.silent == 0.5


def test_steps_are_matched_by_their_number_where_a_log_has_gaps(tmp_path):
    every_third = dict.fromkeys(range(0, STEPS, 3), 0.9)
    bounds = {("label", "", "marvell.auc_bound"): dict.fromkeys(range(20, STEPS), 0.51)}
    (found,) = certificates(run_with(tmp_path, {**bounds, ("a", "norm", "auc"): every_third}, entry()))
    assert found.measured[0].found.steps == len(range(21, STEPS, 3))
    assert found.measured[0].first == [21, 24, 27, 30, 33]


def test_the_detection_error_is_the_target_that_was_set_or_follows_from_the_divergence(tmp_path):
    asked = run_with(tmp_path / "asked", logged(0.16), params={"detection_error": 0.4, "scope": "joint"})
    other = run_with(tmp_path / "other", logged(0.36), entry(detection_error_mean=0.41, detection_error_q05=0.33))
    (first,), (second,) = certificates(asked), certificates(other)
    assert (first.asked, first.error) == (True, 0.4)
    assert (second.asked, second.error) == (False, pytest.approx(0.35))


def test_the_target_of_each_party_is_no_target_of_colluding_parties(tmp_path):
    series = {**logged(0.16, ".a"), **logged(0.16, ".b"), **logged(0.32, ".a+b")}
    params = {"detection_error": 0.4, "scope": "per-party"}
    found = {c.party: (c.asked, c.error) for c in certificates(run_with(tmp_path, series, params=params))}
    assert found == {"a": (True, 0.4), "b": (True, 0.4), "a+b": (False, pytest.approx(0.5 - 0.32**0.5 / 4))}


def test_measured_detection_errors_are_shown_where_there_are_some(tmp_path):
    measured = entry(detection_error_mean=0.41, detection_error_q05=0.33)
    (found,) = certificates(run_with(tmp_path, {**logged(0.36), ("a", "norm", "auc"): 0.6}, measured))
    assert (found.measured[0].error, found.measured[0].error_q05) == (0.41, 0.33)


def test_the_bound_of_each_party_is_separate_and_does_not_cover_colluding_parties(tmp_path):
    aucs = {(party, "norm", "auc"): 0.6 for party in ("a", "b", "a+b")}
    run = run_with(tmp_path, {**logged(0.01, ".a"), **logged(0.04, ".b"), **aucs})
    found = {c.party: (c.bound, [row.party for row in c.measured]) for c in certificates(run)}
    assert found == {"a": (pytest.approx(0.54875), ["a"]), "b": (pytest.approx(0.595), ["b"])}


def test_the_bound_of_colluding_parties_stands_beside_their_joint_leak(tmp_path):
    aucs = {(party, "norm", "auc"): 0.6 for party in ("a", "b", "a+b")}
    run = run_with(tmp_path, {**logged(0.01, ".a"), **logged(0.04, ".b"), **logged(0.05, ".a+b"), **aucs})
    found = {c.party: (c.together, c.bound, [row.party for row in c.measured]) for c in certificates(run)}
    assert found["a+b"] == (["a", "b"], pytest.approx(auc_bound(0.05)), ["a+b"])
    assert found["a"] == ([], pytest.approx(auc_bound(0.01)), ["a"])


def test_a_bound_of_all_parties_holds_for_colluding_parties(tmp_path):
    aucs = {(party, "norm", "auc"): 0.6 for party in ("a", "a+b")}
    (found,) = certificates(run_with(tmp_path, {**logged(0.01), **aucs}))
    assert [row.party for row in found.measured] == ["a", "a+b"]


def test_shares_of_steps_with_noise_of_earlier_batches_and_with_zeros(tmp_path):
    series = logged(0.04, fallback=np.arange(STEPS) < 10, withheld=np.arange(STEPS) < 4)
    (found,) = certificates(run_with(tmp_path, series))
    assert (found.fallback, found.withheld) == (0.25, 0.1)


def test_without_class_counts_nothing_is_said_about_chance(tmp_path):
    series = {**logged(0.04), ("a", "norm", "auc"): 0.9}
    (found,) = certificates(run_with(tmp_path, series, entry(), counts=False))
    assert found.measured[0].found is None
    assert not found.measured[0].too_often


def test_the_outermost_defense_with_a_bound_counts(tmp_path):
    defenses = [{"name": name, "params": {}} for name in ("iso", "outer", "marvell")]
    (found,) = certificates(run_with(tmp_path, {**logged(0.04), **logged(0.01, name="outer")}, defenses=defenses))
    assert found.defense["name"] == "outer"


def test_no_bound_is_no_certificate(tmp_path):
    assert certificates(run_with(tmp_path, {("label", "", "iso.noise_power"): 1.0})) == []


def test_a_bound_of_gradients_does_not_cover_attacks_on_embeddings(tmp_path):
    series = {**logged(0.04), ("a", "norm", "auc"): 0.55, ("a", "spectral", "auc"): 0.99}
    run = run_with(tmp_path, series, entry(), entry("spectral"))
    run.result["attacks"] = [{"label": "spectral", "sees": "embeddings", "needs": [], "hints": 0}]
    assert [row.attack for row in certificates(run)[0].measured] == ["norm"]


def test_only_an_attack_that_the_bound_covers_breaks_it(tmp_path):
    """No oracle, and no layer at which the party mixes in its own columns."""
    series = {**logged(0.01), ("a", "norm", "auc"): 0.51, ("a", "cosine", "auc"): 0.99}
    run = run_with(tmp_path, series, entry(), entry("cosine"))
    (found,) = certificates(run)
    assert [(row.attack, row.too_often) for row in found.measured] == [("cosine", True), ("norm", False)]
    assert found.holds
    (broken,) = certificates(run_with(tmp_path / "broken", {**series, ("a", "norm", "auc"): 0.99}, entry()))
    assert [row.attack for row in broken.broken] == ["norm"]
    assert not broken.holds


@pytest.mark.parametrize(
    ("facts", "holds"),
    [
        ({"interval95": [0.62, 0.7]}, False),
        ({"interval95": [0.54, 0.7]}, True),
        ({"interval95": [0.62, 0.7], "span": "epochs"}, True),
        ({"interval95": [0.62, 0.7], "sees": ["gradients", "embeddings"]}, True),
        ({"interval95": None, "mean": None}, True),
    ],
)
def test_an_informed_reader_of_single_batches_breaks_the_bound_by_its_whole_interval(tmp_path, facts, holds):
    informed = {"attack": "informed", "party": "a", "phase": "audit", "sees": ["gradients"], "span": "batch"}
    run = run_with(tmp_path, logged(0.01), {**informed, "mean": 0.66, "q95": None, **facts})
    (found,) = certificates(run)
    assert (found.bound, found.holds) == (pytest.approx(0.54875), holds)


def test_of_the_informed_readers_above_the_bound_the_worst_is_shown_alone(tmp_path):
    kind = {"attack": "informed", "phase": "audit", "sees": ["gradients"], "span": "batch", "q95": None}
    readers = [
        {**kind, "party": party, "mean": mean, "interval95": [mean - 0.04, mean + 0.04]}
        for party, mean in (("a", 0.64), ("b", 0.66), ("a+b", 0.65))
    ]
    (found,) = certificates(run_with(tmp_path, logged(0.01), *readers))
    assert found.exceeded is not None
    assert (found.exceeded["party"], found.exceeded["mean"]) == ("b", 0.66)


def test_the_conditional_oracle_stands_beside_the_bound_and_never_breaks_it(tmp_path):
    series = {**logged(0.01, ".a"), **logged(0.01, ".b"), ("a", "conditional_oracle", "monitor_auc"): 0.9}
    oracle = entry("conditional_oracle", source="monitor", mean=0.9)
    found = {c.party: c for c in certificates(run_with(tmp_path, series, oracle))}
    assert [e["mean"] for e in found["a"].conditional] == [0.9]
    assert (found["a"].measured, found["a"].holds, found["b"].conditional) == ([], True, [])


def test_noise_seldom_contradicts_a_certificate(tmp_path):
    """Of 100 runs that exceed the bound in one of twenty steps at most 4: more have a probability of 0.01 %."""
    rng = np.random.default_rng(0)
    (found,) = certificates(run_with(tmp_path, {**logged(0.04), ("a", "norm", "auc"): 0.55}, entry()))
    row = found.measured[0]
    counts = rng.binomial(64, 0.05, size=100)
    runs = (Exceedances(64, int(k), np.arange(k), expected=0.05 * 64, worst=0.1) for k in counts)
    assert sum(replace(row, found=one).too_often for one in runs) <= 4
