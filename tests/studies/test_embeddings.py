"""The study on embeddings, studies/embeddings/study.py: its verdicts on known results, its runs and its page."""

import json

import pytest

from flower_vfl.attacks import make_attacks
from flower_vfl.config import build_config
from flower_vfl.strategies import DEFENSE_METHODS
from tests.studies.conftest import PAGES

pytestmark = pytest.mark.usefixtures("beside_the_studies")

FLAT = {"same": [1.55] * 2, "different": [1.58] * 2, "same_near": [0.9] * 2, "different_near": [0.8] * 2}
SPLIT = {"same": [0.4] * 2, "different": [1.6] * 2, "same_near": [0.0] * 2, "different_near": [0.5] * 2}


def attack(values, baseline=0.5, measure="accuracy"):
    return {measure: {"mean": list(values), "baseline": [baseline] * len(values)}}


def summary(classes=10, angles=None, **settings):
    """Return a study with (utility, clustering) of each seed for each setting; completion equals clustering."""
    measure = "balanced_accuracy" if classes == 2 else "accuracy"
    return {
        "dataset": {"classes": classes},
        "settings": {
            name.replace("_of_", "-"): {
                "seeds": list(range(len(values))),
                "test_accuracy": [utility for utility, _ in values],
                "test_auc": [utility for utility, _ in values],
                "test_loss": [0.1] * len(values),
                "angles": (angles or {}).get(name, SPLIT if name == "none" else FLAT),
                "attacks": {
                    f"{label} cut": attack([reached for _, reached in values], measure=measure)
                    for label in ("clustering", "completion 1", "completion 40")
                },
            }
            for name, values in settings.items()
        },
    }


def verdict(study, given, start):
    from studies.embeddings import claims as embeddings_claims

    return next(found for found in embeddings_claims.verdicts(study, given) if found["claim"].startswith(start))


BETTER = {"pe_of_1": [(0.92, 0.4)] * 2, "pe_of_4": [(0.88, 0.3)] * 2}
WORSE = {"dcor_of_1": [(0.92, 0.8)] * 2, "dcor_of_8": [(0.88, 0.7)] * 2, "label_dp_of_0.1": [(0.88, 0.7)] * 2}
NONE = {"none": [(0.95, 0.9)] * 2}


def test_potential_energy_is_better_where_attacks_reach_less_at_equal_accuracy():
    assert verdict("mnist", summary(**NONE, **BETTER, **WORSE), "PELoss lowers attack accuracy more than dcor")["holds"]
    swapped = {f"{'pe' if name[0] == 'd' else 'dcor'}_of_{name[-1]}": v for name, v in {**BETTER, **WORSE}.items()}
    found = verdict("mnist", summary(**NONE, **swapped), "PELoss lowers attack accuracy more than dcor")
    assert found["holds"] is False
    alone = verdict("mnist", summary(none=[(0.95, 0.9)], pe_of_1=[(0.9, 0.3)], dcor_of_1=[(0.9, 0.7)]), "PELoss lowers")
    assert alone["holds"] is None


@pytest.mark.parametrize(("reached", "holds"), [([0.5, 0.4], True), ([0.55, 0.4], None), ([0.6, 0.6], False)])
def test_protection_is_perfect_where_every_seed_gains_nothing(reached, holds):
    given = summary(**NONE, pe_of_4=[(0.9, value) for value in reached], pe_of_32=[(0.1, 0.1)] * 2)
    assert verdict("mnist", given, "PELoss reaches perfect protection")["holds"] is holds


def test_settings_with_useless_utility_take_no_part_in_a_comparison():
    given = summary(**NONE, **BETTER, **WORSE, pe_of_32=[(0.1, 0.99)] * 2)
    assert verdict("mnist", given, "PELoss lowers attack accuracy more than dcor")["holds"]
    dead = summary(**NONE, pe_of_32=[(0.1, 0.1)] * 2, dcor_of_1=[(0.9, 0.7)] * 2)
    found = verdict("mnist", dead, "PELoss lowers attack accuracy more than dcor")
    assert (found["holds"], found["numbers"]) == (None, "no usable setting of pe")


def test_angles_differ_by_class_without_a_defense_and_concentrate_with_one():
    given = summary(**NONE, **BETTER)
    assert verdict("mnist", given, "Without a defense, mean angles")["holds"]
    assert verdict("mnist", given, "With PELoss, angles concentrate")["holds"]
    turned = summary(**NONE, **BETTER, angles={"none": FLAT, "pe_of_4": SPLIT})
    assert not verdict("mnist", turned, "Without a defense, mean angles")["holds"]
    assert not verdict("mnist", turned, "With PELoss, angles concentrate")["holds"]
    dead = summary(**NONE, pe_of_4=[(0.1, 0.1)] * 2)
    assert verdict("mnist", dead, "With PELoss, angles concentrate")["holds"] is None


def test_an_attack_survives_where_it_keeps_nine_tenths_of_its_advantage():
    kept = {"iso_of_5": [(0.9, 0.88)] * 2, "max_norm": [(0.9, 0.9)] * 2, "label_dp_of_0.1": [(0.9, 0.87)] * 2}
    assert verdict("census", summary(2, **NONE, **kept), "Noise on gradients")["holds"]
    lost = {**kept, "marvell_of_4": [(0.9, 0.85)] * 2}
    assert not verdict("census", summary(2, **NONE, **lost), "Noise on gradients")["holds"]
    assert verdict("census", summary(2, **NONE, **lost), "Label DP")["holds"]
    nothing = summary(2, none=[(0.95, 0.4)] * 2, **kept)
    assert verdict("census", nothing, "Noise on gradients")["holds"] is None


def test_settings_without_a_run_have_no_claim_and_a_seed_is_compared_with_the_same_seed():
    from studies.embeddings import claims as embeddings_claims

    flipped = summary(**NONE, label_dp_of_4=[(0.9, 0.9)])
    claims = [found["claim"] for found in embeddings_claims.verdicts("fashion", flipped)]
    assert any(claim.startswith("Label DP") for claim in claims)
    assert not any(claim.startswith("Noise") for claim in claims)
    uneven = summary(none=[(0.95, 0.7), (0.95, 0.7), (0.95, 1.0)], label_dp_of_4=[(0.9, 0.7)] * 2)
    assert verdict("fashion", uneven, "Label DP")["holds"]  # the mean over all undefended runs would be 0.8


def test_one_seed_decides_no_claim():
    one = summary(none=[(0.95, 0.9)], pe_of_4=[(0.9, 0.3)], label_dp_of_4=[(0.9, 0.9)])
    for start in ("PELoss reaches perfect", "Label DP leaves"):
        found = verdict("fashion", one, start)
        assert (found["holds"], found["numbers"][:9]) == (None, "one seed:")


def test_the_widest_cut_is_compared_with_the_narrowest_seed_by_seed():
    wide = {"pe_of_128": [(0.99, 0.8), (0.99, 0.71), (0.99, 0.92)]}
    narrow = {"pe_of_4": [(0.99, 0.7), (0.99, 0.6), (0.99, 0.8)]}
    given = summary(2, **narrow, **wide)
    assert verdict("width", given, "A wider cut raises the attack's accuracy at alpha = 1: clustering")["holds"] is True
    assert (
        verdict("width", given, "A wider cut lowers the attack's accuracy at alpha = 1: completion 40")["holds"]
        is False
    )
    noisy = summary(2, **narrow, pe_of_128=[(0.99, 0.8), (0.99, 0.5), (0.99, 0.9)])
    assert verdict("width", noisy, "A wider cut raises the attack's accuracy at alpha = 1: clustering")["holds"] is None


def test_an_attacker_reaches_the_better_of_both_kinds_of_rows_and_of_both_directions():
    from studies.embeddings import numbers as n

    attacks = {
        "clustering cut": attack([0.6, 0.9]),
        "clustering normalised cut": attack([0.7, 0.8]),
        "spectral cut": attack([0.1, 0.7], 0.45, "auc"),
    }
    given = {"dataset": {"classes": 10}, "settings": {"none": {"attacks": attacks}}}
    assert n.reached(given, "none", "clustering").tolist() == [0.7, 0.9]
    assert n.reached(given, "none", "spectral").tolist() == pytest.approx([0.9, 0.7])
    assert n.advantage(given, "none", "spectral").tolist() == pytest.approx([0.35, 0.15])


def jobs(tmp_path, *arguments, monkeypatch):
    """Return the jobs that the command line would run."""
    from studies import common as studies
    from studies.embeddings import study as embeddings

    found = []
    monkeypatch.setattr(studies, "do_all", lambda given, work, processes: found.extend(given))
    monkeypatch.setattr("sys.argv", ["embeddings.py", "run", "--runs", str(tmp_path), *arguments])
    embeddings.main()
    return found


@pytest.mark.parametrize("size", ["night", pytest.param("paper", marks=pytest.mark.slow)])
def test_every_run_of_either_size_is_a_valid_configuration(size, tmp_path, monkeypatch):
    from studies.embeddings import study as embeddings

    for job in jobs(tmp_path, "--size", size, monkeypatch=monkeypatch):
        config = build_config(dict(embeddings.config_of(job)))
        assert make_attacks(config.attack.calls)
        assert all(DEFENSE_METHODS.find(entry["name"]) for entry in config.defenses)
        assert config.seed == job.seed
        assert job.study == "census" or not any(entry["name"] == "marvell" for entry in config.defenses)


def test_seeds_come_before_studies_and_a_setting_comes_once(tmp_path, monkeypatch):
    found = jobs(tmp_path, monkeypatch=monkeypatch)
    assert [job.seed for job in found] == sorted(job.seed for job in found)
    assert len({job.folder for job in found}) == len(found)
    assert {job.study for job in found if job.seed == 2} == {"mnist", "width", "census"}
    first = [job.setting for job in found if (job.study, job.seed) == ("mnist", 1)]
    assert first[:4] == ["none", "pe-4", "dcor-8", "label_dp-0.04"]
    assert first[9:11] == ["pe-0.5", "pe-1"]


def test_the_numbers_of_the_page_are_those_of_the_committed_runs():
    from studies import common as studies
    from studies.embeddings import claims as embeddings_claims
    from studies.embeddings import numbers as embeddings_numbers

    page = (PAGES / "embeddings.md").read_text(encoding="utf8")
    for study, found in json.loads((PAGES / "embeddings.json").read_text(encoding="utf8")).items():
        assert embeddings_claims.verdicts(study, found) == found["claims"]
        for kind, block in (
            ("claims", studies.claim_table(found["claims"])),
            ("attacks", embeddings_numbers.attack_table(found)),
            ("utility", embeddings_numbers.utility_table(found)),
        ):
            assert f"<!-- begin {study} {kind} -->\n{block}\n<!-- end {study} {kind} -->" in page
