"""Lower bounds on epsilon from guesses: published values, scipy's distributions, and simulated audits."""

import itertools

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import expit, logit
from scipy.stats import binom, poisson_binom

from flower_vfl.metrics import (
    ArgumentError,
    audit_power,
    coin_bound,
    coin_p_value,
    guesses_needed,
    leak_auc,
    odds_bound,
    odds_p_value,
    poisson_binomial_tail,
)

AUDITS, MOST = 1000, 67
"""Number of audits, and of their 95 % bounds above the true epsilon, which is exceeded with probability below 0.01."""


@pytest.mark.parametrize(
    ("canaries", "guesses", "right", "delta", "bound"),
    [(1000, 100, 75, 1e-4, 0.673), (100_000, 1510, 1439, 1e-5, 2.676)],
)
def test_the_bound_with_a_delta_is_the_published_one(canaries, guesses, right, delta, bound):
    found = coin_bound(right, guesses, delta=delta, canaries=canaries)
    assert found == pytest.approx(bound, abs=1e-3)
    assert found < coin_bound(right, guesses)


@pytest.mark.parametrize(("delta", "canaries"), [(0.0, 0), (1e-4, 1000)])
def test_at_its_bound_an_audit_has_a_p_value_of_beta(delta, canaries):
    bound = float(coin_bound(75, 100, delta=delta, canaries=canaries, beta=0.01))
    assert coin_p_value(75, 100, bound, delta=delta, canaries=canaries) == pytest.approx(0.01, rel=1e-4)


@pytest.mark.parametrize("named", [0, 30, 100])
def test_the_p_value_of_coins_of_several_classes_is_that_of_their_odds(named):
    priors = np.repeat([1 / 4, 3 / 4], [named, 100 - named])
    for right in (0, 30, 60, 100):
        expected = poisson_binom.sf(right - 1, expit(1.0 + logit(priors)))
        assert odds_p_value(right, priors, 1.0) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("beta", [0.05, 0.01])
def test_the_bound_is_where_the_binomial_tail_reaches_beta(beta):
    right, guesses = np.array([75, 390, 40, 10]), np.array([100, 400, 40, 10])
    found = coin_bound(right, guesses, beta=beta)
    for v, r, epsilon in zip(right, guesses, found, strict=True):
        expected = brentq(lambda e, v=v, r=r: binom.sf(v - 1, r, expit(e)) - beta, -20.0, 20.0)
        assert epsilon == pytest.approx(max(expected, 0.0), abs=1e-9)
        assert odds_bound(v, np.full(r, 0.5), beta=beta) == pytest.approx(epsilon, abs=1e-6)


def test_the_least_number_of_right_guesses_that_proves_an_epsilon():
    all_right = {1: 10, 2: 24, 4: 166, 8: 8932}
    for epsilon, rows in all_right.items():
        assert coin_bound(rows, rows) >= epsilon > coin_bound(rows - 1, rows - 1)


def test_the_tail_is_that_of_all_outcomes_and_of_scipy():
    generator = np.random.default_rng(0)
    for count in (1, 2, 5, 8):
        shares = generator.random(count)
        outcomes = np.array(list(itertools.product([0, 1], repeat=count)))
        chances = np.where(outcomes == 1, shares, 1 - shares).prod(axis=1)
        for least in range(count + 2):
            expected = chances[outcomes.sum(axis=1) >= least].sum()
            assert poisson_binomial_tail(shares, least) == pytest.approx(expected, abs=1e-12)
    many = generator.random((3, 700))
    least = np.array([300, 350, 400])
    expected = [poisson_binom.sf(v - 1, row) for v, row in zip(least, many, strict=True)]
    np.testing.assert_allclose(poisson_binomial_tail(many, least), expected, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "mean"), [(0.5, 0.3), (1.0, 0.8), (2.0, 1.74)])
def test_few_of_many_audits_of_randomised_response_exceed_its_epsilon(epsilon, mean):
    generator = np.random.default_rng(int(10 * epsilon))
    priors = generator.choice([0.05, 0.2, 0.5, 0.7, 0.9], size=(AUDITS, 400))  # of label 1
    labels = generator.random(priors.shape) < priors
    sent = labels ^ (generator.random(labels.shape) < expit(-epsilon))
    right = (sent == labels).sum(axis=1)
    known = odds_bound(right, np.where(sent, priors, 1 - priors))
    coins = coin_bound((generator.random(labels.shape) < expit(epsilon)).sum(axis=1), 400)
    assert (known > epsilon).sum() <= MOST
    assert (coins > epsilon).sum() <= MOST
    assert coins.mean() == pytest.approx(mean, abs=0.05)
    assert 0.4 * epsilon < known.mean() < coins.mean()


def test_underestimated_odds_look_like_a_leak_and_eta_corrects_them():
    generator = np.random.default_rng(5)
    true, wrong = np.full((100, 400), 0.8), np.full((100, 400), expit(logit(0.8) - 0.5))
    right = (generator.random(true.shape) < true).sum(axis=1)  # the likelier label is guessed, without a message
    assert (odds_bound(right, wrong) > 0.0).mean() > 0.9
    assert (odds_bound(right, wrong, eta=0.5) > 0.0).mean() <= 0.1
    assert (odds_bound(right, true) > 0.0).mean() <= 0.1


def test_the_best_of_several_scores_needs_a_correction():
    generator = np.random.default_rng(6)
    right = generator.binomial(200, expit(1.0), size=(AUDITS, 7)).max(axis=1)
    assert (coin_bound(right, 200) > 1.0).sum() > MOST
    assert (coin_bound(right, 200, beta=0.05 / 7) > 1.0).sum() <= MOST


@pytest.mark.parametrize(("claimed", "true"), [(0.5, 1.0), (1.0, 2.0), (2.0, 4.0)])
def test_half_the_noise_is_caught_as_often_as_stated(claimed, true):
    guesses = guesses_needed(true, claimed)
    right = np.random.default_rng(7).binomial(guesses, expit([[true], [claimed]]), size=(2, 4000))
    caught, alarms = (coin_bound(right, guesses) > claimed).mean(axis=1)
    assert caught == pytest.approx(audit_power(true, claimed, guesses), abs=0.012)
    assert caught > 0.94
    assert alarms == pytest.approx(audit_power(claimed, claimed, guesses), abs=0.012)
    assert alarms < 0.06
    assert guesses_needed(claimed, claimed) is None


def test_an_audit_of_randomised_response_nearly_reaches_its_epsilon():
    generator = np.random.default_rng(8)
    labels = generator.integers(2, size=20_000)
    sent = labels ^ (generator.random(20_000) < expit(-1.0))
    bound = coin_bound((sent == labels).sum(), len(labels))
    assert 0.95 < bound < 1.0
    assert leak_auc(sent, labels) == pytest.approx(expit(1.0), abs=0.01)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: coin_bound(3, 2), "no more than guesses"),
        (lambda: coin_bound(2, 2, beta=0.0), "beta is 0.0; give 1 minus the confidence"),
        (lambda: coin_bound(2, 2, delta=1e-5), "number of canaries is needed"),
        (lambda: odds_bound(1, [1.0]), "between 0 and 1"),
        (lambda: odds_bound(1, [0.5], eta=-1.0), "eta is at least 0"),
    ],
)
def test_impossible_numbers_are_refused(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
