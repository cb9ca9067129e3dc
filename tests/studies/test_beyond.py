"""The numbers of the study on attacks over many epochs, studies/beyond/study.py, on known results."""

import json

import pytest

pytestmark = pytest.mark.usefixtures("beside_the_studies")


def setting(leaks, auc, seeds=(0, 1, 2)):
    """Return a setting in which every attack has these AUCs after each epoch, at both layers, for each seed."""
    names = [
        f"{attack} {layer}"
        for attack in ("remembered_direction", "remembered_fit(k=256)", "norm", "residual")
        for layer in ("cut", "first")
    ]
    return {"seeds": list(seeds), "test_auc": auc, "leak": dict.fromkeys(names, leaks)}


def study(grown, auc, columns=()):
    return {
        "columns": list(columns),
        "settings": {
            "full-rho-0": setting([[0.6, 0.7, 0.8]] * 3, [0.93, 0.92, 0.91]),
            "full-rho-0.9": setting(grown, auc),
        },
    }


def claim_of_share(given, about):
    from studies.beyond import numbers as beyond_numbers

    start = f"full-rho-0.9{about}"
    return next(one for one in beyond_numbers.verdicts(given) if one["claim"].startswith(start))


def test_the_claim_of_a_share_holds_where_the_leak_does_not_grow_and_the_utility_stays():
    given = study([[0.6, 0.61, 0.615]] * 3, [0.93, 0.92, 0.91])
    for layer in ("cut", "first"):
        found = claim_of_share(given, f", {layer}: no attack")
        assert found["holds"] is True
        assert "+0.015" in found["numbers"]
    assert claim_of_share(given, ": the persistent share")["holds"] is True


def test_the_claim_of_a_share_fails_where_utility_is_lost_or_the_leak_grows():
    assert (
        claim_of_share(study([[0.6, 0.61, 0.61]] * 3, [0.92, 0.91, 0.90]), ": the persistent share")["holds"] is False
    )
    assert claim_of_share(study([[0.6, 0.65, 0.7]] * 3, [0.93, 0.92, 0.91]), ", cut: no attack")["holds"] is False


def test_an_auc_below_half_counts_as_its_reverse():
    assert claim_of_share(study([[0.6, 0.5, 0.3]] * 3, [0.93, 0.92, 0.91]), ", cut: no attack")["holds"] is False


def test_what_seeds_disagree_on_is_undecided():
    given = study([[0.6, 0.6, 0.6], [0.6, 0.6, 0.62], [0.6, 0.6, 0.66]], [0.93, 0.92, 0.91])
    assert claim_of_share(given, ", cut: no attack")["holds"] is None


def test_the_strongest_attack_of_all_epochs_is_compared_with_the_strongest_of_one_epoch():
    given = study([[0.6, 0.61, 0.615]] * 3, [0.93, 0.92, 0.91])
    leaks = given["settings"]["full-rho-0.9"]["leak"]
    leaks["remembered_direction cut"] = [[0.5, 0.6, 0.61]] * 3  # it starts low and only catches up
    assert claim_of_share(given, ", cut: no attack")["holds"] is False
    assert claim_of_share(given, ", cut: the highest")["holds"] is True
    leaks["remembered_direction cut"] = [[0.5, 0.6, 0.65]] * 3
    assert claim_of_share(given, ", cut: the highest")["holds"] is False


def test_attacks_with_known_labels_are_compared_with_a_model_of_the_partys_columns():
    given = [[0.6, 0.7]] * 3, [0.93, 0.92, 0.91]
    claim = ", first: attacks with known labels"
    assert claim_of_share(study(*given, columns=[0.75, 0.76, 0.77]), claim)["holds"] is True
    assert claim_of_share(study(*given, columns=[0.60, 0.61, 0.60]), claim)["holds"] is False
    assert claim_of_share(study(*given, columns=[0.50, 0.61, 0.80]), claim)["holds"] is None
    with pytest.raises(StopIteration):
        claim_of_share(study(*given), claim)


def test_the_control_is_the_auc_of_model_completion_from_scratch(tmp_path):
    from studies.beyond import numbers as beyond_numbers

    for seed, auc in enumerate((0.7, 0.8)):
        run = tmp_path / "columns" / f"seed-{seed}"
        run.mkdir(parents=True)
        curve = [{"k": 256, "mean": 0.9, "baseline": auc}]
        (run / "result.json").write_text(json.dumps({"rebuild": [{"layer": "cut", "curve": curve}]}))
    found = beyond_numbers.collect(tmp_path, ["none", "columns"], "columns")
    assert found == {"dataset": {}, "settings": {}, "columns": [0.7, 0.8]}


def test_loss_is_against_fresh_noise_of_the_same_defense_and_seed():
    from studies.beyond import numbers as beyond_numbers

    given = study([[0.6, 0.6, 0.6]] * 2, [0.9, 0.95])
    given["settings"]["full-rho-0.9"]["seeds"] = [2, 0]
    assert sorted(beyond_numbers.loss(given, "full-rho-0.9")) == pytest.approx([0.93 - 0.95, 0.91 - 0.9])


def test_settings_are_compared_seed_by_seed(monkeypatch):
    from studies.beyond import numbers as beyond_numbers

    monkeypatch.setattr(beyond_numbers, "PAIRS", [("full-rho-0.9", "full-rho-0"), ("missing", "full-rho-0")])
    given = study([[0.6, 0.61, 0.3], [0.6, 0.61, 0.75]], [0.9, 0.95])
    given["settings"]["full-rho-0.9"]["seeds"] = [2, 0]
    (row,) = beyond_numbers.pairs_table(given).splitlines()[2:]
    leak, auc = (0.7 + 0.75) / 2 - 0.8, (0.9 + 0.95) / 2 - (0.91 + 0.93) / 2
    assert row.startswith(f"| full-rho-0.9 | full-rho-0 | 2 | {leak:+.4f} ± ")
    assert f"| {auc:+.4f} ± " in row


def test_a_study_without_a_layer_has_no_claim_about_it():
    from studies.beyond import numbers as beyond_numbers

    given = study([[0.6, 0.61, 0.615]] * 3, [0.93, 0.92, 0.91])
    for values in given["settings"].values():
        values["leak"] = {name: leaks for name, leaks in values["leak"].items() if name.endswith(" cut")}
    assert beyond_numbers.layers(given) == ["cut"]
    assert {one["claim"].split(":")[0] for one in beyond_numbers.verdicts(given)} == {
        "full-rho-0.9, cut",
        "full-rho-0.9",
    }
    assert len(beyond_numbers.leak_table(given).splitlines()) == 4  # two heads, two settings


def test_attacks_that_read_epochs_separately_have_a_table_of_the_seeds_that_ran_them():
    from studies.beyond import numbers as beyond_numbers

    given = study([[0.6, 0.61, 0.615]] * 3, [0.93, 0.92, 0.91])
    leaks = given["settings"]["full-rho-0.9"]["leak"]
    leaks |= {f"{attack} cut": [[0.4, 0.55, 0.7]] for attack in beyond_numbers.APART}
    (row,) = beyond_numbers.apart_table(given).splitlines()[2:]
    assert [cell.strip() for cell in row.strip("|").split("|")] == ["full-rho-0.9", "1", *["0.600 → 0.700"] * 2]
