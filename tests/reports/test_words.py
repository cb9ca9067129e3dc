"""Numbers and verdicts in words."""

import math
from pathlib import Path

import pytest

from flower_vfl.reports import words
from flower_vfl.reports.run import Run
from flower_vfl.tracking import SCHEMA


def leak(q95, null=0.55, mean=None, **facts):
    entry = {"attack": "norm", "party": "a", "layer": "cut", "metric": "auc", "phase": "train", "source": "attacker"}
    return {**entry, "defended": False, "q95": q95, "q95_null": null, "mean": q95 if mean is None else mean, **facts}


def run_with(*leakage, defenses=(), parties=("a",), classes=2, config=""):
    result = {"leakage": list(leakage), "defenses": list(defenses), "parties": {"features": list(parties)}}
    return Run(Path("run"), config, {**result, "dataset": {"classes": classes}}, SCHEMA.empty_table())


@pytest.mark.parametrize(
    ("q95", "null", "expected"),
    [
        (0.55, 0.55, "no better"),
        (0.5, 0.55, "no better"),
        (0.60, 0.55, "slightly better"),
        (0.70, 0.55, "clearly better"),
        (0.8, 0.55, "well"),
        (0.85, 0.55, "well"),
        (0.95, 0.55, "almost completely"),
        (0.65, 0.64, "slightly better"),
        (0.64, 0.64, "no better"),
        (1.0, 0.5, "almost completely"),
        (1.0, 1.0, "no better"),
    ],
)
def test_a_leak_is_graded_by_how_far_it_is_above_guessing(q95, null, expected):
    assert words.graded(leak(q95, null)).words.startswith(expected)


def test_scores_that_are_nearly_always_wrong_are_a_leak_too():
    graded = words.graded(leak(0.2, 0.55, mean=0.1))
    assert graded.turned
    assert graded.reached == pytest.approx(0.9)
    assert graded.words == "well"
    assert not words.graded(leak(0.52, 0.55, mean=0.49)).turned
    assert not words.graded(leak(0.49, 0.55, phase="remembered", values=[0.49], epochs=[1])).turned


def test_a_mean_far_below_a_high_quantile_does_not_lower_the_grade():
    assert words.graded(leak(0.95, 0.55, mean=0.6)).level == 4


def test_a_leak_without_a_value_has_no_grade():
    assert words.graded(leak(None, None, mean=None)) is None


def test_the_worst_leak_is_the_worst_of_what_was_really_received():
    raw, cut, first = leak(0.99, defended=False), leak(0.6, defended=True), leak(0.7, layer="first", defended=True)
    assert words.worst_leak(run_with(raw, cut, first, defenses=[{"name": "iso"}])).entry is first
    assert words.worst_leak(run_with(raw)).entry is raw
    assert words.worst_leak(run_with()) is None
    assert words.worst_leak(run_with(leak(0.9, metric="accuracy"))) is None


def test_oracles_are_graded_apart_from_attacks_that_somebody_could_run():
    norm, cosine = leak(0.6), leak(1.0, attack="cosine")
    assert words.worst_leak(run_with(norm, cosine)).entry is norm
    assert words.worst_leak(run_with(norm, cosine), oracle=True).entry is cosine
    assert words.worst_leak(run_with(norm), oracle=True) is None


def test_the_worst_leak_is_the_one_that_is_farthest_above_its_own_guessing():
    few_positives, many = leak(0.74, null=0.72), leak(0.7, null=0.55, layer="first")
    assert words.worst_leak(run_with(few_positives, many)).entry is many


def not_tested(*leakage, **facts):
    return " ".join(words.not_tested(run_with(*leakage, **facts)))


def test_a_run_that_was_only_monitored_says_that_the_first_layer_was_not_tested():
    assert "first layer" in not_tested(leak(0.6, source="monitor"))
    assert "first layer" in not_tested(leak(0.6))
    assert "first layer" not in not_tested(leak(0.6), leak(0.6, layer="first"))


def test_an_attack_on_embeddings_of_the_first_layer_does_not_test_its_gradients():
    first = leak(0.6, layer="first", attack="spectral")
    assert "first layer" in not_tested(leak(0.6), {**first, "phase": "inference"})
    run = run_with(leak(0.6), first)
    run.result["attacks"] = [{"label": "spectral", "sees": "embeddings", "needs": [], "hints": 0}]
    assert "first layer" in " ".join(words.not_tested(run))


@pytest.mark.parametrize("measure", ["auc", "macro_auc", "loss", "accuracy", "balanced_accuracy"])
def test_measures_of_the_validation_part_are_called_as_those_of_the_test_rows(measure):
    assert words.METRICS[f"validation_{measure}"] == words.METRICS[f"test_{measure}"].replace("Test", "Validation")


@pytest.mark.parametrize("measure", ["validation_auc", "validation_macro_auc"])
def test_a_validation_part_whose_measure_is_unknown_has_chosen_nothing(measure):
    assert "no epoch was chosen" in words.nothing_chosen({"utility": {"last": {measure: None}}})
    assert words.nothing_chosen({"utility": {"last": {measure: 0.6}}}) == ""


def test_what_never_was_tested_is_always_named():
    text = not_tested(leak(0.6), leak(0.6, layer="first"), leak(0.6, phase="inference"))
    for gap in ("norm", "Active attackers", "features", "Longitudinal attacks"):
        assert gap in text
    assert "Embeddings" not in text
    assert "Colluding" not in text


def test_behind_persistent_noise_readers_that_keep_the_epochs_apart_are_named():
    mean, epochs = (leak(0.6, phase="remembered", params={"reads": reads}) for reads in ("mean", "epochs"))
    persistent, fresh = ([{"name": "iso", "params": {"t": 1.0, "rho": rho}}] for rho in (0.5, 0.0))
    assert "keep the epochs apart" in not_tested(mean, defenses=persistent)
    assert "keep the epochs apart" not in not_tested(mean, epochs, defenses=persistent)
    assert "keep the epochs apart" not in not_tested(mean, defenses=fresh)
    assert "keep the epochs apart" not in not_tested(mean, defenses=[{"name": "label_dp", "params": {"flip": 0.1}}])


def test_colluding_parties_are_named_where_there_could_be_some():
    assert "Colluding parties" in not_tested(leak(0.6), parties=("a", "b"))
    assert "Colluding" not in not_tested(leak(0.6), leak(0.6, party="a+b"), parties=("a", "b"))


def test_a_run_without_attacks_says_so():
    assert "none ran" in not_tested()


@pytest.mark.parametrize(
    ("classes", "positives", "named"),
    [(3, [2], "class 2 alone"), (4, [3, 1], "class 1 and 3 alone"), (3, [0, 1, 2], ""), (3, [], ""), (2, [0], "")],
)
def test_classes_that_were_not_attacked_are_named(classes, positives, named):
    facts = {"classes": classes, "config": f"[attack]\npositives = {positives}"}
    text = not_tested(leak(0.6), **facts)
    assert ("The other classes." in text) is bool(named)
    assert named in text
    assert "The other classes." not in not_tested(leak(None), **facts)


def test_an_attack_that_measured_nothing_has_not_tested_anything():
    hint = leak(None, mean=0.0, attack="hint", steps=8)
    failed = leak(None, mean=0.0, attack="clustering", phase="inference", unavailable="it needs 1000 rows.", steps=1)
    unread = leak(None, mean=0.0, attack="remembered_norm", phase="remembered", steps=0)
    text = not_tested(leak(0.6), hint, failed, {**failed, "unavailable": ""}, unread)
    assert "Only norm measured anything" in text
    assert (
        "hint, which ran and measured nothing: none of its 8 steps had both classes and its side information." in text
    )
    assert "clustering, which ran and measured nothing: it needs 1000 rows." in text
    assert "remembered_norm, which ran and measured nothing: it has no value." in text
    assert "Embeddings: what a party can read" in text
    assert "Longitudinal attacks, which average noise" in text
    assert "Any attack at all: none measured anything." in not_tested(hint)


def test_an_attack_that_measured_something_somewhere_is_not_called_silent():
    assert "Only norm ran" in not_tested(leak(0.6), leak(None, mean=0.0, layer="first", unavailable="it is wide"))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (math.nan, "–"),
        (0.12345, "0.123"),
        (1234567, "1,234,567"),
        ("x", "x"),
        (True, "True"),
        (0.0, "0.000"),
    ],
)
def test_numbers(value, text):
    assert words.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 bytes"), (1023, "1,023 bytes"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (2**50, "1,024.0 TiB"), ("x", "–")],
)
def test_sizes(value, text):
    assert words.size(value) == text


@pytest.mark.parametrize(("value", "text"), [(11.62, "11.6 s"), (125, "2 min 5 s"), (7260, "2 h 1 min"), (None, "–")])
def test_durations(value, text):
    assert words.duration(value) == text


@pytest.mark.parametrize(("names", "text"), [([], ""), (["a"], "a"), (["a", "b"], "a and b")])
def test_lists(names, text):
    assert words.listed(names) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.5, "50.0 %"), (0, "0 %"), (0.004, "0.4 %"), (0.0004, "below 0.1 %"), (1.0, "100.0 %"), (None, "–")],
)
def test_shares(value, text):
    assert words.share(value) == text


@pytest.mark.parametrize(("amount", "seconds", "a_second"), [(10, 4.0, 2.5), (10, 0, None), ("x", 1, None)])
def test_ratios(amount, seconds, a_second):
    assert words.ratio(amount, seconds) == a_second


def test_parameters_with_their_usual_values_are_left_out():
    usual = {"alpha": 1.0, "reduction": "mean", "distance": "angular", "scope": "joint", "form": "dcor"}
    assert words.with_params({"name": "marvell", "params": usual}) == "marvell(alpha=1)"
    of_another_package = words.with_params({"name": "x", "params": usual})
    assert of_another_package == "x(alpha=1, reduction=mean, distance=angular, form=dcor)"
    other = {"alpha": 1.0, "reduction": "sum", "distance": "euclidean", "scope": "per-party", "form": "log"}
    text = words.with_params({"name": "marvell", "params": other})
    assert text == "marvell(alpha=1, reduction=sum, distance=euclidean, scope=per-party, form=log)"
