"""The numbers of the study on attackers who remember, docs/results/beyond.py, on results whose answers are known."""

import pytest

pytestmark = pytest.mark.usefixtures("beside_the_studies")


def setting(leaks, auc, seeds=(0, 1, 2)):
    """A setting of which a reader reads these AUCs after each epoch, at both layers, with each seed."""
    names = [
        f"{attack} {layer}" for attack in ("remembered_direction", "norm", "residual") for layer in ("cut", "first")
    ]
    return {"seeds": list(seeds), "test_auc": auc, "leak": dict.fromkeys(names, leaks)}


def study(grown, auc):
    return {
        "settings": {
            "full-rho-0": setting([[0.6, 0.7, 0.8]] * 3, [0.93, 0.92, 0.91]),
            "full-rho-0.9": setting(grown, auc),
        }
    }


def of_share(given):
    import beyond_numbers

    return next(one for one in beyond_numbers.verdicts(given) if one["claim"].startswith("full-rho-0.9"))


def test_a_share_holds_that_keeps_the_remembered_leak_and_the_utility():
    found = of_share(study([[0.6, 0.61, 0.615]] * 3, [0.93, 0.92, 0.91]))
    assert found["holds"] is True
    assert "+0.015" in found["numbers"]


def test_a_share_fails_that_costs_too_much_or_reads_more_with_time():
    assert of_share(study([[0.6, 0.61, 0.61]] * 3, [0.92, 0.91, 0.90]))["holds"] is False
    assert of_share(study([[0.6, 0.65, 0.7]] * 3, [0.93, 0.92, 0.91]))["holds"] is False


def test_a_reader_that_is_wrong_reads_as_much_turned_around():
    assert of_share(study([[0.6, 0.5, 0.3]] * 3, [0.93, 0.92, 0.91]))["holds"] is False


def test_what_seeds_disagree_on_is_undecided():
    assert of_share(study([[0.6, 0.6, 0.6], [0.6, 0.6, 0.62], [0.6, 0.6, 0.66]], [0.93, 0.92, 0.91]))["holds"] is None


def test_loss_is_against_fresh_noise_of_the_same_defense_and_seed():
    import beyond_numbers

    given = study([[0.6, 0.6, 0.6]] * 2, [0.9, 0.95])
    given["settings"]["full-rho-0.9"]["seeds"] = [2, 0]
    assert sorted(beyond_numbers.loss(given, "full-rho-0.9")) == pytest.approx([0.93 - 0.95, 0.91 - 0.9])
