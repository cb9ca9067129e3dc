"""The number of labels that are enough to rebuild the model, from curves with a known answer."""

import math

import pytest

from flower_vfl.apps import run
from flower_vfl.apps.rebuild import rebuild
from tests.toys import toy_config, toy_data


def entry(k, mean, baseline=None, *, metric="auc", party="a", layer="cut", attack="model_completion", normalise=False):
    return {
        "attack": attack,
        "known": k,
        "phase": "inference",
        "party": party,
        "layer": layer,
        "params": {"k": k, "draws": 5, "normalise": normalise},
        "measures": {metric: {"mean": mean, "baseline": baseline, "interval95": None}},
    }


CURVE = [entry(4, 0.80, 0.6), entry(1, 0.62, 0.55), entry(16, 0.86, 0.81), entry(2, 0.79, 0.55)]


@pytest.mark.parametrize(
    ("share", "k", "alone"),
    [(0.1, 1, 1), (0.2, 1, 4), (0.725, 2, 16), (0.75, 4, 16), (0.85, 16, None), (1, None, None)],
)
def test_the_fewest_labels_that_reach_the_target_with_the_model_and_from_scratch(share, k, alone):
    (found,) = rebuild(CURVE, {"test_auc": 0.9}, classes=2, share=share)
    assert found["target"] == pytest.approx(0.5 + share * 0.4)
    assert (found["k"], found["alone_k"]) == (k, alone)
    assert (found["labels"], found["alone_labels"]) == (k and 2 * k, alone and 2 * alone)
    assert (found["federation"], found["chance"], found["metric"], found["tried"]) == (0.9, 0.5, "auc", 16)
    assert [(point["k"], point["labels"], point["mean"]) for point in found["curve"]] == [
        (1, 2, 0.62),
        (2, 4, 0.79),
        (4, 8, 0.80),
        (16, 32, 0.86),
    ]


def test_a_lucky_draw_of_few_labels_is_no_answer():
    lucky = [entry(1, 0.85, 0.9), entry(4, 0.80, 0.9), entry(16, 0.86, 0.7)]
    (found,) = rebuild(lucky, {"test_auc": 0.9}, classes=2, share=0.8)
    assert (found["k"], found["alone_k"]) == (16, None)


def test_more_than_two_classes_are_measured_by_balanced_accuracy_from_chance_on():
    entries = [entry(k, mean, metric="balanced_accuracy") for k, mean in ((1, 0.5), (8, 0.7))]
    (found,) = rebuild(entries, {"test_balanced_accuracy": 0.9, "test_accuracy": 0.1}, classes=4, share=0.5)
    assert (found["metric"], found["chance"], found["target"]) == ("balanced_accuracy", 0.25, pytest.approx(0.575))
    assert (found["k"], found["labels"]) == (8, 32)


@pytest.mark.parametrize("utility", [{}, {"test_auc": 0.5}, {"test_auc": 0.4}, {"test_auc": math.nan}])
def test_a_model_that_is_no_better_than_chance_cannot_be_rebuilt(utility):
    (found,) = rebuild(CURVE, utility, classes=2, share=0.8)
    assert (found["target"], found["federation"], found["k"], found["alone_k"]) == (None, None, None, None)


def test_parties_layers_attacks_and_views_are_kept_apart_and_other_attacks_are_left_out():
    entries = [*CURVE, entry(1, 0.9, party="b"), entry(1, 0.9, layer="first"), entry(1, None, normalise=True)]
    entries += [{**entry(1, 0.9, attack="clustering"), "known": 0}, {**entry(1, 0.9), "phase": "train"}]
    entries += [entry(4, 0.9, attack="embedding_reader"), entry(1, 0.6, attack="embedding_reader")]
    answers = rebuild(entries, {"test_auc": 0.9}, classes=2, share=0.8)
    assert {(e["party"], e["layer"], e["attack"], e["params"]["normalise"]): e["k"] for e in answers} == {
        ("a", "cut", "model_completion", False): 16,
        ("b", "cut", "model_completion", False): 1,
        ("a", "first", "model_completion", False): 1,
        ("a", "cut", "model_completion", True): None,
        ("a", "cut", "embedding_reader", False): 4,
    }
    assert len(answers) == 5


def test_the_number_of_labels_of_a_custom_attack_is_read_from_any_parameter():
    own = [{**entry(k, mean), "attack": "mine", "params": {"labelled": k}} for k, mean in ((8, 0.9), (2, 0.9))]
    assert [(e["params"], e["k"]) for e in rebuild(own, {"test_auc": 0.9}, classes=2, share=0.8)] == [
        ({"labelled": 8}, 8),
        ({"labelled": 2}, 2),
    ]
    assert rebuild([], {"test_auc": 0.9}, classes=2, share=0.8) == []


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 4])
def test_a_run_takes_the_number_from_its_own_attacks(classes):
    data = toy_data(rows=200, test_rows=60, classes=classes)
    attacks = {
        "model_completion": "model_completion(k={},draws=2)",
        "embedding_reader": "embedding_reader(k={},draws=2)",
    }
    names = [name.format(k) for name in attacks.values() for k in (1, 4)]
    config = toy_config(attack={"names": names, "rebuilt": 0.1})
    summary = run(config, data=lambda _: data).summary
    metric = "auc" if classes == 2 else "balanced_accuracy"
    places = {(e["party"], e["layer"], e["attack"]) for e in summary["rebuild"]}
    assert places == {(party, layer, attack) for party in "ab" for layer in ("cut", "first") for attack in attacks}
    for found in summary["rebuild"]:
        assert found["metric"] == metric
        assert found["share"] == 0.1
        assert found["federation"] == summary["utility"]["last"][f"test_{metric}"]
        means = {
            e["params"]["k"]: e["measures"][metric]["mean"]
            for e in summary["leakage"]
            if (e["party"], e["layer"], e["attack"]) == (found["party"], found["layer"], found["attack"])
        }
        assert {point["k"]: point["mean"] for point in found["curve"]} == means
        enough = [k for k in (1, 4) if min(means[more] for more in (1, 4) if more >= k) >= found["target"]]
        assert found["k"] == (enough[0] if enough else None)
