"""The audit of epsilon: its false alarms with correct mechanisms, and its power against wrong ones."""

import numpy as np
import pytest
from scipy.special import expit

from flower_vfl.accounting import Guarantee
from flower_vfl.apps import run
from flower_vfl.auditing import monitor
from flower_vfl.auditing.canaries import Canaries
from flower_vfl.auditing.epsilon import ESTIMATED, WITH_CANARIES, Evidence, audit_epsilon
from flower_vfl.auditing.halves import CANARY, CHOOSE, FIT, SCORE, Split
from flower_vfl.auditing.panel import Membership
from flower_vfl.auditing.proof import Measurement, Proof
from flower_vfl.auditing.selection import SPAN_EPOCHS, FittedReader, Sample
from flower_vfl.errors import ConfigError
from flower_vfl.metrics import audit_power
from flower_vfl.rng import Secret
from flower_vfl.strategies import LocalHead
from tests.cases import parametrize
from tests.toys import toy_config, toy_data


class HalfNoise(LocalHead):
    """A mechanism that claims one epsilon and flips labels with another."""

    name = "half_noise"

    def __init__(self, strategy, epsilon=1.0, true=2.0):
        super().__init__(strategy, true)
        self.epsilon, self.true = epsilon, true

    @property
    def params(self):
        return {**super().params, "true": self.true}


def candidate(scores, labels, parts, name="trees"):
    """Return a reader with these scores (n,) of rows."""
    sample = Sample(np.zeros((len(labels), 1)), labels.astype(np.int64), parts)
    return FittedReader(name, SPAN_EPOCHS, 1, 0.8, scores[parts != FIT], sample)


def coins(generator, epsilon, count=600, classes=2):
    """Return evidence on canaries behind randomised response; scores depend on columns too."""
    labels = generator.integers(classes, size=count)
    wrong = generator.random(count) < (classes - 1) / (np.exp(epsilon) + classes - 1)
    sent = np.where(wrong, (labels + generator.integers(1, classes, count)) % classes, labels)
    columns, parts = generator.normal(size=count), np.full(count, CANARY, dtype=np.int8)
    readers = [candidate(3.0 * columns + 2.0 * (sent == 1), labels, parts), candidate(columns, labels, parts, "linear")]
    return Evidence("a", np.arange(count), np.zeros((count, 0)), readers, [candidate(columns, labels, parts)])


def rows(generator, epsilon, count=4000, *, coarse=0.0):
    """Return evidence on labels with odds of their own, and a model of these odds, with `coarse` noise."""
    odds = generator.normal(-1.5, 1.0, count)
    labels = generator.random(count) < expit(odds)
    sent = labels ^ (generator.random(count) < expit(-epsilon))
    parts = generator.choice(np.array([FIT, CHOOSE, SCORE], dtype=np.int8), count, p=[0.35, 0.15, 0.5])
    readers = [candidate(odds + 2.0 * sent, labels, parts)]
    known = [candidate(odds + coarse * generator.normal(size=count), labels, parts)]
    return Evidence("a", np.arange(count), np.zeros((count, 0)), readers, [candidate(odds, labels, parts)]), known


def audited(evidence, background=(), *, classes=2, canaries=0, delta=0.0):
    return audit_epsilon([evidence], [background], classes=classes, canaries=canaries, delta=delta)


@parametrize(
    ("classes", "delta", "runs", "most"),  # at 5 % exceeded with probability 0.02 or less
    [(2, 0.0, 120, 11), (2, 1e-6, 30, 4), pytest.param(4, 0.0, 120, 11, marks=pytest.mark.slow)],
    quick=1,
)
def test_a_correct_mechanism_is_seldom_refuted(classes, delta, runs, most):
    generator = np.random.default_rng(classes)
    found = [
        audited(coins(generator, 1.0, classes=classes), classes=classes, canaries=600, delta=delta)["lower"]
        for _ in range(runs)
    ]
    assert sum(lower > 1.0 for lower in found) <= most
    assert np.mean(found) > 0.4


def test_half_of_the_noise_is_caught_with_the_stated_power():
    generator = np.random.default_rng(1)
    found = [audited(coins(generator, 2.0), canaries=600)["lower"] for _ in range(25)]
    stated = audit_power(2.0, 1.0, 400, beta=0.05 / 3)  # two thirds of the coins are guessed, in three tests
    assert stated > 0.999
    assert all(lower > 1.0 for lower in found)


@pytest.mark.slow
def test_without_canaries_the_bound_follows_the_odds():
    generator = np.random.default_rng(2)
    found = {epsilon: [] for epsilon in (0.0, 1.0, 2.0)}
    for epsilon, bounds in found.items():
        for _ in range(10):
            evidence, known = rows(generator, epsilon)
            bounds.append(audited(evidence, known)["lower"])
    assert all(sum(lower > epsilon for lower in bounds) <= 2 for epsilon, bounds in found.items())
    assert np.mean(found[1.0]) > 0.45
    assert np.mean(found[2.0]) > 1.3


def test_the_gain_of_readers_without_gradients_over_the_odds_is_subtracted():
    evidence, known = rows(np.random.default_rng(3), 0.0, coarse=1.5)
    found = audited(evidence, known)
    assert found["kind"] == ESTIMATED
    assert found["parties"][0]["eta"] > 0.2
    assert found["lower"] < 0.1
    assert found["parties"][0]["expected"] > 0


def test_more_parties_share_the_confidence():
    evidence = coins(np.random.default_rng(4), 1.0)
    alone = audited(evidence, canaries=600)
    both = audit_epsilon([evidence, evidence], [(), ()], classes=2, canaries=600)
    assert both["lower"] < alone["lower"]
    assert alone["kind"] == WITH_CANARIES
    assert alone["parties"][0]["reader"] == "trees"
    assert [one["guesses"] for one in alone["parties"][0]["tried"]] == [400, 100, 25]


@pytest.mark.parametrize(
    ("evidence", "options", "words"),
    [
        (coins(np.random.default_rng(0), 1.0, 60), {"canaries": 60}, "60 canaries were seen, at least 100"),
        (
            coins(np.random.default_rng(0), 1.0, classes=4),
            {"canaries": 600, "classes": 4, "delta": 1e-5},
            "two classes",
        ),
        (rows(np.random.default_rng(0), 1.0)[0], {}, "no model gives the odds"),
    ],
)
def test_where_there_is_no_bound_the_entry_says_why(evidence, options, words):
    found = audited(evidence, **options)
    assert found["lower"] is None
    assert words in found["parties"][0]["unavailable"]


def test_canaries_are_coins_in_a_part_of_their_own_and_all_are_followed():
    trained = np.arange(20_000)[np.arange(20_000) % 10 > 0]
    drawn = Canaries.draw(trained, 1500, 3, Secret.for_simulation(0, "label"))
    again = Canaries.draw(trained, 1500, 3, Secret.for_simulation(0, "label"))
    assert np.array_equal(drawn.rows, again.rows)
    assert np.array_equal(drawn.coins, again.coins)
    assert np.isin(drawn.rows, trained).all()
    assert len(np.unique(drawn.rows)) == 1500
    assert np.bincount(drawn.coins).min() > 430
    labels = np.zeros(20_000, dtype=np.int64)
    planted = drawn.into(labels)
    assert np.array_equal(np.flatnonzero(planted), drawn.rows[drawn.coins > 0])
    assert not labels.any()
    split = Split(3, drawn.rows)
    parts = split.parts(np.arange(20_000))
    assert np.array_equal(np.flatnonzero(parts == CANARY), drawn.rows)
    others = np.setdiff1d(np.arange(20_000), drawn.rows)
    assert np.array_equal(parts[others], Split(3).parts(others))
    assert np.isin(drawn.rows, Membership(split, labels, 3, 200).all()).all()


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (99, "must be 0 .off. or 100 to 180 for 1800 training rows"),
        (181, "must be 0 .off. or 100 to 180 for 1800 training rows"),
    ],
)
def test_too_few_and_too_many_canaries_are_refused(count, words):
    with pytest.raises(ConfigError, match=words):
        Canaries.draw(np.arange(1800), count, 2, Secret.for_simulation(0, "label"))


def test_canaries_that_nobody_reads_are_refused():
    with pytest.raises(ConfigError, match="nobody would read them"):
        toy_config(attack={"canaries": 200, "informed": 0})


@pytest.mark.slow
def test_a_run_measures_its_epsilon_and_refutes_a_wrong_claim():
    data = toy_data(rows=6000, test_rows=100, parties=1)
    verdicts = {}
    for name, true in (("local_head", None), (f"{__name__}:HalfNoise", 4.0)):
        defense = {"name": name, "epsilon": 1.0, **({} if true is None else {"true": true})}
        given = toy_config(
            training={"epochs": 3, "patience": 0, "batch_size": 256},
            attack={"names": [], "informed": 8192, "canaries": 500},
            defenses=[defense],
        )
        summary = run(given, data=lambda _: data).summary
        verdicts[name] = summary["verdict"]
        assert summary["epsilon"]["canaries"] == 500
    right, wrong = verdicts.values()
    assert (right["status"], right["refuted"]) == ("proven", False)
    assert (wrong["status"], wrong["refuted"]) == ("leaks", True)
    assert summary["epsilon"]["lower"] > 1.5


class WithDelta(HalfNoise):
    """The same claim, with a delta."""

    name = "with_delta"

    def __init__(self, strategy, epsilon=1.0, true=2.0, delta=1e-5):
        super().__init__(strategy, epsilon, true)
        self.delta = delta

    @property
    def params(self):
        return {"epsilon": self.epsilon, "true": self.true, "delta": self.delta}

    def guarantee(self):
        return Guarantee(self.epsilon, self.delta)


@pytest.mark.slow
def test_a_run_audits_its_claim_at_the_delta_of_the_claim(monkeypatch):
    lower, genuine = {}, monitor.audit_epsilon

    def without_delta(*given, **named):
        lower[0.0] = genuine(*given, **{**named, "delta": 0.0})["lower"]
        return genuine(*given, **named)

    monkeypatch.setattr(monitor, "audit_epsilon", without_delta)
    given = toy_config(
        training={"epochs": 2, "patience": 0, "batch_size": 256},
        attack={"names": [], "informed": 8192, "canaries": 250},
        defenses=[{"name": f"{__name__}:WithDelta", "true": 5.0}],
    )
    summary = run(given, data=lambda _: toy_data(rows=3000, test_rows=100, parties=1)).summary
    assert summary["epsilon"]["delta"] == summary["defenses"][0]["proven"]["delta"] == 1e-5
    assert 1.0 < summary["epsilon"]["lower"] < lower[0.0]  # a delta makes it smaller, and this claim is wrong anyway
    assert summary["verdict"]["refuted"]


@pytest.mark.parametrize(
    ("claimed", "measured", "refuted"),
    [(0.0, 0.0, True), (1e-6, 0.0, False), (1e-6, 1e-6, True), (1e-9, 1e-6, True), (1e-6, 1e-9, False)],
)
def test_a_claim_is_refuted_by_a_bound_at_its_delta_or_a_larger_one(claimed, measured, refuted):
    found = Measurement(lower=1.2, party="a", proven=True, confidence=0.95, delta=measured)
    assert Proof(1.0, 0.73, "own", claimed).refuted_by(found) is refuted
