"""The study on several trainings, docs/results/trainings.md, on known histories."""

import json
import math

import numpy as np
import pytest
import torch
from scipy import stats

from flower_vfl.errors import ConfigError
from flower_vfl.metrics import leak_auc
from flower_vfl.rng import Secret
from flower_vfl.strategies import Iso, VerticalStrategy
from flower_vfl.testing.subject import labels_of
from tests.studies.conftest import PAGES

pytestmark = pytest.mark.usefixtures("beside_the_studies")

PEOPLE, WIDTH = 4000, 16
LABELS = (np.arange(PEOPLE) % 10 == 0).astype(np.int64)


def trainings(count, noise, *, part=1.0):
    """Return the mean gradients of the people of each training: class means 2 apart in a random direction, and noise.

    `noise` takes a generator and returns the noise (P, D) of one training.
    """
    from studies.trainings.attack import Kept

    rng, found = np.random.default_rng(0), []
    for _ in range(count):
        axis = rng.normal(size=WIDTH)
        means = np.outer(LABELS, axis / np.linalg.norm(axis)) * 2.0 + noise(rng)
        people = np.sort(rng.permutation(PEOPLE)[: round(PEOPLE * part)])
        found.append(Kept(people, torch.from_numpy(means[people]).float()))
    return found


def isotropic_noise(scale):
    """Return a function that draws fresh noise of this standard deviation in all directions."""
    return lambda rng: rng.normal(size=(PEOPLE, WIDTH)) * scale


def auc_of(scores):
    known = ~scores.isnan().numpy()
    return leak_auc(scores.numpy()[known], LABELS[known])


def test_the_distance_of_added_independent_scores_grows_as_the_square_root_of_their_number():
    """The AUC of n scores of distance d is Phi(d sqrt(n / 2)), within five standard errors of an AUC of 400 rows."""
    from studies.trainings.attack import added

    rng, distance = np.random.default_rng(1), 0.5
    scores = [
        (np.arange(PEOPLE), torch.from_numpy(distance * LABELS + rng.normal(size=PEOPLE)) * float(scale))
        for scale in (1, 100, 1e-3, 7, 1)
    ]
    for count in (1, 3, 5):
        assert auc_of(added(scores[:count], PEOPLE)) == pytest.approx(
            stats.norm.cdf(distance * math.sqrt(count / 2)), abs=5 * 0.014
        )


def test_reversed_scores_are_reversed_back_and_the_smaller_group_is_the_positive_one():
    from studies.trainings.attack import added

    rng = np.random.default_rng(2)
    scores = [torch.from_numpy(4.0 * LABELS + rng.normal(size=PEOPLE)) for _ in range(4)]
    right = added([(np.arange(PEOPLE), one) for one in scores], PEOPLE)
    turned = added([(np.arange(PEOPLE), -one if at % 2 else one) for at, one in enumerate(scores)], PEOPLE)
    torch.testing.assert_close(turned, right)
    assert auc_of(right) > 0.99


def test_people_without_a_training_have_no_score_and_people_of_one_training_have_that_score():
    from studies.trainings.attack import added

    total = added(
        [(np.array([0, 1, 2]), torch.tensor([0.0, 0.0, 3.0])), (np.array([2, 3]), torch.tensor([1.0, -1.0]))], 5
    )
    assert total.isnan().tolist() == [False, False, False, False, True]
    assert float(total[2]) == float(total[:4].max())


def test_fresh_noise_averages_out_over_trainings_and_equal_scores_do_not_improve():
    from studies.trainings.attack import by_itself, direction

    fresh = trainings(8, isotropic_noise(1.0))
    assert auc_of(by_itself(fresh, direction, PEOPLE)) > auc_of(by_itself(fresh[:1], direction, PEOPLE)) + 0.05
    kept = torch.from_numpy(np.random.default_rng(3).normal(size=PEOPLE) * 2.0 + 2.0 * LABELS)

    def same(means):
        return kept[: len(means)]

    one, all_ = (auc_of(by_itself(fresh[:count], same, PEOPLE)) for count in (1, 8))
    assert all_ == pytest.approx(one, abs=1e-9)


def test_differences_between_trainings_are_free_of_noise_that_was_the_same_in_both():
    from studies.trainings.attack import by_difference, by_itself, direction

    kept = np.random.default_rng(4).normal(size=(PEOPLE, WIDTH)) * 3.0
    history = trainings(2, lambda rng: kept + rng.normal(size=kept.shape) * 1e-3, part=0.7)
    assert auc_of(by_itself(history, direction, PEOPLE)) < 0.8
    scores = by_difference(history, direction, PEOPLE)
    assert auc_of(scores) > 0.999
    both = np.intersect1d(history[0].people, history[1].people)
    assert np.flatnonzero(~scores.isnan().numpy()).tolist() == both.tolist()


def test_side_by_side_is_the_direction_of_concatenated_trainings():
    from studies.trainings.attack import direction, side_by_side

    history = trainings(3, isotropic_noise(0.3))
    wide = torch.cat([kept.means for kept in history], dim=1)
    torch.testing.assert_close(side_by_side(history, PEOPLE), direction(wide), rtol=1e-3, atol=1e-3)


def summary_of(leaks, seeds=(0, 1, 2)):
    """Return settings with these leaks after each number of trainings, and 0.001 more with each seed."""
    return {
        "settings": {
            name: {
                "seeds": list(seeds),
                "test_auc": [0.9] * len(seeds),
                "leak": {"direction": [[value + 0.001 * seed for value in values] for seed in seeds]},
            }
            for name, values in leaks.items()
        }
    }


def test_verdicts_judge_the_growth_with_one_noise_key_and_with_new_ones():
    from studies.trainings import study as trainings

    found = {
        one["claim"]: one["holds"]
        for one in trainings.verdicts(
            summary_of(
                {
                    "full-fresh": [0.6, 0.7, 0.8, 0.9],
                    "full-one-key": [0.6, 0.6, 0.61, 0.61],
                    "full-new-keys": [0.6, 0.6, 0.6, 0.605],
                    "full-one-key-parts": [0.6, 0.5, 0.4, 0.3],
                }
            )
        )
    }
    assert found == {
        "full-fresh: seven more trainings add more than 0.02 to the leak AUC": True,
        "full-new-keys: seven more trainings add more than 0.02 to the leak AUC": False,
        "full-one-key: seven more trainings add at most 0.02 to the leak AUC": True,
        "full-one-key-parts: seven more trainings add at most 0.02 to the leak AUC": False,  # reversed AUCs
        "full-new-keys leaks more than full-one-key after eight trainings": False,
    }


def test_one_seed_decides_nothing():
    from studies.trainings import study as trainings

    given = summary_of({"full-fresh": [0.6, 0.7, 0.8, 0.9]}, seeds=(0,))
    assert [one["holds"] for one in trainings.verdicts(given)] == [None]


def test_the_page_agrees_with_its_numbers():
    from studies.trainings import study as trainings

    page, numbers = (PAGES / f"trainings.{kind}" for kind in ("md", "json"))
    summary = json.loads(numbers.read_text(encoding="utf8"))["census"]
    assert trainings.leak_table(summary) in page.read_text(encoding="utf8")
    assert summary["claims"] == trainings.verdicts(summary)


def test_a_kept_noise_key_that_iso_refuses_is_accepted_by_the_measured_variant():
    from studies.trainings.attack import Heedless

    kept = Secret(bytes(32), "test", noise_key=bytes(16))
    base = VerticalStrategy(torch.nn.Linear(8, 1), labels_of(64), secret=kept)
    with pytest.raises(ConfigError, match="a noise key that is kept"):
        Iso(base, rho=0.9).begin()
    Heedless(base, rho=0.9).begin()
    assert Heedless.name == Iso.name  # it logs under the name of `Iso`
