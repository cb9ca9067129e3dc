"""Joint attacks against true labels: comparisons with baselines, false alarms, and missing numbers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from flower_vfl.attacks.joint import JointAttack, JointReaderAttack, JointScores, JointView, OwnRows
from flower_vfl.attacks.longitudinal.base import NO_KNOWN_ROWS, KnownRows
from flower_vfl.auditing.joint import (
    BYTES,
    TRAINING_ROWS,
    WITHOUT_OWN,
    JointEvaluator,
    JointLabels,
    check_joint_attacks,
    most_rows,
    sample_rows,
)
from flower_vfl.errors import ConfigError
from flower_vfl.metrics.paired import auc_fields
from tests.cases import parametrize

SCORER = JointEvaluator(party="a", defended=True)
RUNS, ALARMS = 60, 7
"""Number of runs, and of false alarms at 5 % that is exceeded with a probability of 1 %."""


def draw(seed, *, rows=400, test_rows=200, depends=True, k=8):
    """Return a view with gradients of noise, and labels that follow the first of two columns or nothing."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows + test_rows, 2)).astype(np.float32)
    y = rng.random(rows + test_rows) < (1 / (1 + np.exp(1 - 1.5 * x[:, 0])) if depends else 0.3)
    z = np.stack([x[:, 0] + x[:, 1], x[:, 1]], axis=1)
    own = [
        OwnRows((torch.from_numpy(x[part]),), torch.from_numpy(z[part])) for part in (slice(rows), slice(rows, None))
    ]
    known = np.sort(np.concatenate([np.flatnonzero(y[:rows] == label)[:k] for label in (False, True)]))
    view = JointView(torch.from_numpy(rng.normal(size=(rows, 4))).float(), *own)
    view = replace(view, known=KnownRows(known, y[:rows][known].astype(np.int64)))
    return view, JointLabels(y[:rows], y[rows:])


class Fixed(JointAttack):
    """Returns the scores that it was made with."""

    name = "fixed"

    def __init__(self, scores, **baselines):
        self.scores, self.others = scores, baselines

    def read(self, view):
        """Return the scores."""
        return self.scores

    def baselines(self, view):
        """Return the others."""
        return self.others


def scores_of(labels, weights, seed):
    rng = np.random.default_rng(seed)
    parts = [
        torch.from_numpy(w * y + rng.normal(size=len(y)))
        for w, y in zip(weights, (labels.train, labels.test), strict=True)
    ]
    return JointScores(*parts)


@pytest.mark.parametrize("side", [1, -1])
def test_scores_on_the_wrong_side_are_turned_around_by_the_training_rows(side):
    view, labels = draw(0)
    right, baseline = scores_of(labels, (2, 2), 0), scores_of(labels, (1, 1), 1)
    given = JointScores(side * right.train, side * right.test)
    for entry, expected in zip(
        SCORER.entries(Fixed(given, other=baseline), view, labels),
        SCORER.entries(Fixed(right, other=baseline), view, labels),
        strict=True,
    ):
        assert (entry["mean"], entry["advantage"]) == (expected["mean"], expected["advantage"])
        assert entry.get("turned", False) == (side < 0)
        assert entry["p_value"] == expected["p_value"]
    # It is that of two sides, twice that of one side: otherwise 7.5 % of random scores have one of 5 %.
    (lone, _) = SCORER.entries(Fixed(scores_of(labels, (0.1, 0.1), 0)), view, labels)
    known = np.ones(len(labels.train), dtype=bool)
    known[view.known.rows] = False
    one_sided = auc_fields(scores_of(labels, (0.1, 0.1), 0).train.numpy()[known], labels.train[known])["p_value"]
    assert lone["p_value"] == pytest.approx(min(1.0, 2 * one_sided))
    assert "turned" not in lone


@pytest.mark.parametrize("test", [2, 0], ids=["few test rows", "no test row of a class"])
def test_a_weaker_baseline_that_few_test_rows_choose_makes_no_gain(test):
    view, labels = draw(3, rows=4_000)
    labels = replace(labels, test=labels.test & (np.cumsum(labels.test) <= test))
    strong, weak = scores_of(labels, (1, 1), 0), scores_of(labels, (0.5, 5), 1)
    mine = JointScores(strong.train + 0.1 * torch.randn(4_000, dtype=torch.float64), strong.test)
    train = SCORER.entries(Fixed(mine, weak=weak, strong=strong), view, labels)[0]
    assert train["baseline_reader"] == ("weak" if test else "strong")
    assert train["advantage_p_value"] > 0.05


def test_an_entry_has_the_auc_of_scikit_learn_on_the_rows_that_the_attack_does_not_know():
    view, labels = draw(0)
    mine, weak, strong = (scores_of(labels, weights, seed) for seed, weights in enumerate([(2, 2), (1, 0.1), (0.5, 1)]))
    train, test = SCORER.entries(Fixed(mine, weak=weak, strong=strong), view, labels)
    others = np.ones(len(labels.train), dtype=bool)
    others[view.known.rows] = False
    assert train["mean"] == pytest.approx(roc_auc_score(labels.train[others], mine.train[others]))
    assert test["mean"] == pytest.approx(roc_auc_score(labels.test, mine.test))
    # "weak" reads more of the training rows; which baseline counts there is chosen on the test rows.
    assert (train["baseline_reader"], test["baseline_reader"]) == ("strong", "weak")
    assert train["baseline"] == pytest.approx(roc_auc_score(labels.train[others], strong.train[others]))
    assert train["advantage"] == pytest.approx(train["mean"] - train["baseline"])
    assert train["interval95"][0] < train["mean"] < train["interval95"][1]
    assert train["advantage_interval95"][0] < train["advantage"] < train["advantage_interval95"][1]
    assert (train["rows"], test["rows"], train["phase"], test["rows_of"]) == (others.sum(), 200, "joint", "test")
    assert train["advantage_p_value"] < 0.01
    assert test["advantage_p_value"] is None


def test_without_a_baseline_an_attack_is_compared_with_guessing():
    view, labels = draw(1)
    (train, _) = SCORER.entries(Fixed(scores_of(labels, (1, 1), 0)), view, labels)
    assert train["baseline"] == 0.5
    assert train["advantage"] == pytest.approx(train["mean"] - 0.5)


def test_a_gain_over_a_weak_baseline_that_is_no_own_gradient_has_no_advantage():
    view, labels = draw(2)
    mine = scores_of(labels, (2, 2), 0)
    guess = JointScores(torch.zeros(400), torch.zeros(200))
    (train, _) = SCORER.entries(Fixed(replace(mine, without_own=mine.train.clone()), guess=guess), view, labels)
    assert (train["baseline_reader"], train["advantage"]) == (WITHOUT_OWN, 0.0)
    assert train["advantage_p_value"] == 1.0


def test_of_fewer_than_20_positives_a_gain_has_no_p_value():
    view, labels = draw(0)
    few = labels.train & (np.cumsum(labels.train) <= 8 + 19)  # eight of them are known
    labels = replace(labels, train=few)
    train, _ = SCORER.entries(Fixed(scores_of(labels, (2, 2), 0)), view, labels)
    assert (train["positives"], train["advantage_p_value"]) == (19, None)
    assert train["advantage"] > 0.1


@parametrize("depends", [False, True], ids=["labels follow nothing", "labels follow the columns"], quick=1)
def test_gradients_that_carry_nothing_raise_few_false_alarms(depends):
    alarms = covered = 0
    for seed in range(RUNS):
        view, labels = draw(seed, depends=depends)
        train, test = SCORER.entries(JointReaderAttack(8), view, labels)
        alarms += train["advantage_p_value"] < 0.05
        low, high = test["advantage_interval95"]
        covered += low <= 0 <= high
    assert alarms <= ALARMS
    if not depends:
        assert covered >= RUNS - ALARMS


class Broken(Fixed):
    """Fails."""

    def read(self, view):
        """Fail."""
        raise ZeroDivisionError("no such thing")


@pytest.mark.parametrize(
    ("attack", "why"),
    [
        (Broken(None), "no such thing"),
        (Fixed(JointScores(torch.zeros(400), torch.zeros(3))), "200"),
        (Fixed(JointScores(torch.full((400,), float("nan")), torch.zeros(200))), "NaN"),
    ],
    ids=["it raises", "too few scores", "NaN"],
)
def test_what_an_attack_does_wrong_does_not_end_the_run(attack, why):
    view, labels = draw(3)
    entries = SCORER.entries(attack, view, labels)
    assert len(entries) == 2
    assert all(why in entry["unavailable"] and entry["mean"] is None for entry in entries)


def test_rows_of_one_class_have_no_number():
    view, labels = draw(4)
    labels = replace(labels, test=np.zeros(200, dtype=bool))
    train, test = SCORER.entries(Fixed(scores_of(labels, (1, 1), 0)), view, labels)
    assert train["mean"] is not None
    assert test["mean"] is None
    assert "2 of each class" in test["unavailable"]


def test_the_sample_is_bounded_and_the_same_each_time():
    rows = np.random.default_rng(0).permutation(5000)
    chosen = sample_rows(rows, 1000)
    assert len(set(chosen.tolist())) == 1000
    assert (np.diff(chosen) > 0).all()
    assert np.array_equal(chosen, sample_rows(np.arange(5000), 1000))
    assert abs(chosen.mean() - 2500) < 5 * 1443 / np.sqrt(1000)
    assert most_rows(32, columns=24) == TRAINING_ROWS
    assert most_rows(4096, columns=24) * 4096 * 4 <= BYTES
    assert most_rows(32, columns=3 * 84 * 84) == 8192


def test_of_rows_in_time_order_whole_batches_are_sampled():
    rows = np.random.default_rng(0).permutation(5000)
    chosen = sample_rows(rows, 1000, rows // 50)
    assert np.array_equal(chosen, (np.unique(chosen // 50)[:, None] * 50 + np.arange(50)).ravel())
    assert len(chosen) == 1000
    assert len(sample_rows(rows, 30, rows // 50)) == 30


def test_what_tells_the_day_of_a_row_is_neither_a_leak_nor_a_gain_in_time_order():
    rng = np.random.default_rng(7)
    days = np.repeat(np.arange(8), 250)
    y = rng.random(2000) < np.where(days % 2, 0.8, 0.2)
    view, _ = draw(7, rows=2000, test_rows=1)
    noise = [torch.from_numpy(rng.normal(size=2000)) for _ in range(2)]
    noise[0] += torch.from_numpy(9.0 * (days % 2))
    along, nothing = (JointScores(each, torch.zeros(0)) for each in noise)
    of_days, in_days = (JointLabels(y, y[:0], batches) for batches in (None, days))
    view = replace(view, known=NO_KNOWN_ROWS)
    (confused,) = SCORER.entries(Fixed(along, other=nothing), view, of_days)
    (entry,) = SCORER.entries(Fixed(along, other=nothing), view, in_days)
    assert confused["mean"] > 0.75
    assert entry["interval95"][0] < 0.5 < entry["interval95"][1]
    assert entry["advantage_interval95"][0] < 0.0 < entry["advantage_interval95"][1]


def test_what_a_joint_attack_cannot_know_is_refused_before_training():
    labels = np.arange(100) < 10
    check_joint_attacks([JointReaderAttack(9)], labels, [1])
    with pytest.raises(ConfigError, match="can know 9 at most"):
        check_joint_attacks([JointReaderAttack(10)], labels, [1])
    with pytest.raises(ConfigError, match=r"name one in attack\.positives"):
        check_joint_attacks([JointReaderAttack(2)], labels, [0, 1, 2])
