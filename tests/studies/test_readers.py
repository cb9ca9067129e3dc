"""The numbers of the study on readers of embeddings, studies/readers/study.py, on known results."""

import pytest

pytestmark = pytest.mark.usefixtures("beside_the_studies")

NAMES = ("model_completion", "linear", "quadratic", "network")


def setting(means, alone=0.7, *, layers=("cut",), seeds=(0, 1, 2)):
    """Return a setting in which the four attackers have these AUCs at each layer, and 0.001 more with each seed."""
    read = {name: [mean + 0.001 * seed for seed in seeds] for name, mean in zip(NAMES, means, strict=True)}
    keys = {f"{name} {layer}": values for name, values in read.items() for layer in layers}
    scratch = {f"{name} {layer} alone": [alone] * len(seeds) for name in NAMES for layer in layers}
    return {"seeds": list(seeds), "test_auc": [0.9] * len(seeds), **keys, **scratch}


def claims(settings):
    from studies.readers import study as readers

    return {one["claim"]: one["holds"] for one in readers.verdicts({"settings": settings})}


def claims_with(settings, words):
    return {claim: holds for claim, holds in claims(settings).items() if words in claim}


def test_the_numbers_of_a_run_are_the_aucs_of_each_attacker_with_the_trained_model_and_without():
    from studies.readers import study as readers

    def entry(params, mean, **more):
        measures = {"auc": {"mean": mean, "baseline": mean / 2}}
        return {"phase": "inference", "layer": "cut", "params": params, "measures": measures, **more}

    leakage = [entry({"k": 64}, 0.8), entry({"k": 64, "reader": "linear"}, 0.9), {"phase": "train", "layer": "cut"}]
    found = dict(readers.numbers({"utility": {"last": {"test_auc": 0.95}}, "leakage": leakage}))
    assert found == {
        "test_auc": 0.95,
        "model_completion cut": 0.8,
        "model_completion cut alone": 0.4,
        "linear cut": 0.9,
        "linear cut alone": 0.45,
    }


@pytest.mark.parametrize(("linear", "holds"), [(0.9, True), (0.8, None), (0.7, False)])
def test_the_best_fitted_reader_is_compared_with_the_papers_attacker_seed_by_seed(linear, holds):
    given = {"none": setting((0.8, linear, 0.6, 0.6))}
    assert claims_with(given, "the best fitted reader") == {
        "none, cut: the best fitted reader has a higher AUC than model completion": holds
    }


@pytest.mark.parametrize(("alone", "holds"), [(0.7, True), (0.95, False)])
def test_the_claim_about_raw_inputs_holds_where_the_trained_model_is_read_better(alone, holds):
    given = {"none": setting((0.8, 0.9, 0.6, 0.6), alone)}
    assert list(claims_with(given, "than with raw inputs alone").values()) == [holds]


def test_a_defense_is_judged_by_the_strongest_attacker_at_the_cut_and_at_all_layers():
    none = setting((0.9, 0.9, 0.9, 0.9), layers=("cut", "first"))
    hidden = setting((0.6, 0.6, 0.6, 0.6), layers=("cut", "first"))
    at_the_cut_alone = {**hidden, "linear first": none["linear first"]}
    found = claims_with({"none": none, "full-rho-0": at_the_cut_alone, "pe-4": hidden}, "by less than")
    assert found == {
        "full-rho-0, cut: the defense lowers the AUC of the strongest attacker by less than 0.02": False,
        "full-rho-0, cut and first: the defense lowers the AUC of the strongest attacker by less than 0.02": True,
        "pe-4, cut: the defense lowers the AUC of the strongest attacker by less than 0.02": False,
        "pe-4, cut and first: the defense lowers the AUC of the strongest attacker by less than 0.02": False,
    }


def test_a_defense_is_compared_with_the_same_seed_without_it():
    none = setting((0.9, 0.5, 0.5, 0.5), seeds=(0, 100))
    other = {**setting((0.9, 0.5, 0.5, 0.5), seeds=(100, 0))}
    found = claims_with({"none": none, "pe-4": other}, "by less than")
    assert list(found.values()) == [True]


def test_the_table_marks_the_strongest_attacker_and_has_the_aucs_of_raw_inputs():
    from studies.readers import study as readers

    row = readers.read_table({"settings": {"none": setting((0.8, 0.9, 0.6, 0.7))}}).splitlines()[2]
    assert "| 0.801 ± 0.002 (0.700) | **0.901 ± 0.002** (0.700) |" in row
    assert row.count("**") == 2


def test_every_attack_of_the_study_can_be_run():
    from flower_vfl import build_config
    from flower_vfl.attacks import make_attacks
    from studies.readers import study as readers

    named = build_config({"attack": {"names": readers.attacks()}}).attack.calls
    assert [attack.leaks for attack in make_attacks(named)] == [64] * 4
