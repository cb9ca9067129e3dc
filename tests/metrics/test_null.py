"""Quantiles and p-values of leak AUCs under chance, against scipy's exact distribution and simulation."""

import math
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, mannwhitneyu

from flower_vfl.metrics import ArgumentError, leak_auc, nearest_rank, null_quantile, quantile_p_value, step_p_values
from flower_vfl.metrics import null as module
from tests.cases import parametrize


def simulated(counts, draws, seed=0):
    """Return AUCs of random scores, `draws` for each batch."""
    rng = np.random.default_rng(seed)
    aucs = [leak_auc(rng.random(n + p), np.arange(n + p) < p) for n, p in counts for _ in range(draws)]
    return np.array(aucs)


@given(st.integers(1, 12), st.integers(1, 12))
@settings(max_examples=30)
def test_the_exact_distribution_is_the_mann_whitney_distribution(m, n):
    cdf = module._mann_whitney_cdf(m, n)
    for u in range(0, m * n + 1, 3):
        assert cdf[u] == pytest.approx(_mann_whitney_by_scipy(u, m, n), abs=1e-12)


def _mann_whitney_by_scipy(u, m, n):
    """Return P(U <= u) from a sample that has exactly this U."""
    above, rest = divmod(u, n)  # `above` positives over all negatives, one over `rest` of them, the others under all
    positives = [n + 1.0 + i for i in range(above)]
    if len(positives) < m:
        positives.append(rest + 0.5)
    positives += [-1.0 - i for i in range(m - len(positives))]
    result = mannwhitneyu(positives, np.arange(1.0, n + 1), alternative="less", method="exact")
    assert result.statistic == u
    return result.pvalue


def test_one_negative_and_one_positive_is_a_coin():
    assert null_quantile([(1, 1)], q=0.4) == pytest.approx(0, abs=1e-9)
    assert null_quantile([(1, 1)], q=0.95) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize(
    ("batch", "share", "expected"), [(1024, 0.256, 0.53), (1024, 0.083, 0.55), (128, 0.10, 0.64)], ids=str
)
def test_the_null_quantiles_are_the_published_ones(batch, share, expected):
    positives = np.random.default_rng(0).binomial(batch, share, 500)
    assert null_quantile([(batch - p, p) for p in positives]) == pytest.approx(expected, abs=0.006)


@pytest.mark.parametrize(("batch", "share"), [(1024, 0.083), (128, 0.10), (32, 0.2)], ids=str)
def test_a_random_score_exceeds_the_quantile_in_one_step_of_twenty(batch, share):
    positives = np.random.default_rng(1).binomial(batch, share, 200)
    counts = [(batch - p, p) for p in positives if 0 < p < batch]
    aucs = simulated(counts, 25)
    exceeding = int((aucs > null_quantile(counts) + 1e-9).sum())
    # A binomial of 5,000 draws at 5 %: outside these limits in 1 of 10,000 correct programs; ties of small batches
    # lower the rate a little, never raise it.
    assert exceeding <= binom.ppf(0.99995, aucs.size, 0.05)
    assert exceeding >= binom.ppf(0.00005, aucs.size, 0.045)


def test_a_mixture_of_very_different_batches_is_not_an_average_of_quantiles():
    counts = [(1000, 1000)] * 9 + [(3, 1)]
    aucs = simulated(counts, 500)
    assert null_quantile(counts, q=0.9) == pytest.approx(np.quantile(aucs, 0.9), abs=0.003)
    assert null_quantile(counts, q=0.99) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("pair", [(36, 36), (115, 20), (300, 13), (1300, 6)])
def test_normal_and_exact_distribution_agree_where_they_meet(pair, monkeypatch):
    assert 0.9 < math.prod(pair) * min(pair) / module.EXACT_WORK < 1.02
    monkeypatch.setattr(module, "EXACT_WORK", 0)
    normal = null_quantile([pair])
    monkeypatch.setattr(module, "EXACT_WORK", 1_000_000)
    assert normal == pytest.approx(null_quantile([pair]), abs=2e-3)


def test_the_normal_approximation_is_continuity_corrected(monkeypatch):
    monkeypatch.setattr(module, "EXACT_WORK", 0)
    normal = null_quantile([(36, 36)])
    monkeypatch.setattr(module, "EXACT_WORK", 1_000_000)
    assert normal == pytest.approx(null_quantile([(36, 36)]), abs=1e-6)  # the same point of the lattice


def test_few_positives_among_very_many_negatives_stay_exact():
    # The larger of two ranks matters: U / (2 N) is nearly the mean of two uniform numbers, so P(AUC > x) = 2 (1 - x)^2.
    assert null_quantile([(10_000, 2)]) == pytest.approx(1 - math.sqrt(0.05 / 2), abs=5e-4)


def test_a_score_on_the_quantile_does_not_exceed_it():
    assert null_quantile([(20, 4)]) >= round(null_quantile([(20, 4)]) * 80) / 80


def test_batches_of_one_class_are_left_out():
    assert null_quantile([(90, 10), (100, 0), (0, 100)]) == null_quantile([(90, 10)])
    assert math.isnan(null_quantile([(100, 0), (0, 3)]))
    assert math.isnan(null_quantile([]))


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), min_size=1, max_size=5))
@settings(max_examples=40)
def test_the_quantile_does_not_depend_on_which_class_is_called_positive(counts):
    turned = [(p, n) for n, p in counts]
    assert null_quantile(counts) == pytest.approx(null_quantile(turned), nan_ok=True, abs=1e-9)


def test_counts_may_be_an_iterator_of_numpy_integers():
    pairs = zip(np.array([90, 91]), np.array([10, 9]), strict=True)
    assert 0.6 < null_quantile(pairs) < 0.7


@pytest.mark.parametrize(
    ("counts", "q", "words"),
    [*((1, q, "quantile") for q in (0.0, 1.0, -0.1, math.nan)), (-1, 0.95, "negative number")],
)
def test_a_quantile_outside_zero_and_one_and_a_negative_count_are_refused(counts, q, words):
    with pytest.raises(ArgumentError, match=words):
        null_quantile([(counts, 3)], q=q)
    with pytest.raises(ArgumentError, match=words):
        quantile_p_value([(counts, 3)], 0.7, q=q)


def every_auc(negatives, positives):
    """Return the AUC of each order of the rows of a batch; by chance all orders are equally likely."""
    scores = np.arange(negatives + positives)
    return [leak_auc(scores, np.isin(scores, above)) for above in combinations(scores, positives)]


@pytest.mark.parametrize("q", [0.5, 0.7, 0.95])
def test_the_p_value_of_a_quantile_is_the_share_of_all_orders_that_reach_it(q):
    counts = [(3, 1), (2, 2), (4, 1), (1, 3), (3, 0)]
    quantiles = [nearest_rank(aucs, q) for aucs in product(*(every_auc(*pair) for pair in counts[:4]))]
    for value in (0.0, 1 / 3, 0.5, 0.6, 0.75, 1.0):
        expected = np.mean([found >= value - 1e-12 for found in quantiles])
        assert quantile_p_value(counts, value, q) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("pairs", [20, 100, 120])
def test_of_equal_batches_it_is_binomial(pairs):
    one = _mann_whitney_by_scipy(pairs, 10, 30)  # P(AUC <= pairs / 300), which is P(AUC >= 1 - pairs / 300)
    found = quantile_p_value([(30, 10)] * 100, 1 - pairs / 300)
    assert found == pytest.approx(binom.sf(5, 100, one), abs=1e-13)


def test_a_few_small_batches_reach_by_chance_what_equal_ones_do_not():
    counts = [(234, 22)] * 63 + [(22, 2)] * 3
    rng = np.random.default_rng(0)
    aucs = np.stack([simulated([pair] * 400, 1, seed=int(rng.integers(2**32))) for pair in counts])
    for value in (0.62, 0.65):
        share = np.mean([nearest_rank(column) >= value for column in aucs.T])
        assert quantile_p_value(counts, value) == pytest.approx(share, abs=4 * (share / 400) ** 0.5)
    assert quantile_p_value(counts, 0.66) > 10 * quantile_p_value([(234, 22)] * 66, 0.66)


def quantiles_of_rows_that_recur(runs, *, keep, rows=960, batch=16, epochs=20):
    """Return the class counts and the q95 of each run over batches of random scores, of which a share `keep` stays."""
    rng, found = np.random.default_rng(5), []
    for _ in range(runs):
        y, kept = rng.permutation(rows) < 0.3 * rows, rng.normal(size=rows)
        order = np.concatenate([rng.permutation(rows) for _ in range(epochs)]).reshape(-1, batch)
        scores = np.sqrt(keep) * kept[order] + np.sqrt(1 - keep) * rng.normal(size=order.shape)
        positives = y[order].sum(axis=1)
        ranks = scores.argsort(axis=1).argsort(axis=1) + 1
        both = (positives > 0) & (positives < batch)
        sums, p = (ranks * y[order]).sum(axis=1)[both], positives[both]
        aucs = (sums - p * (p + 1) / 2) / (p * (batch - p))
        found.append(([(batch - int(one), int(one)) for one in p], nearest_rank(aucs)))
    return found


@parametrize("keep", [1.0, 0.5, 0.0], quick=1)
def test_rows_that_keep_their_scores_raise_no_more_false_alarms(keep):
    """Of 200 runs at most 20: more have a probability of 0.1 % at a rate of 5 %."""
    runs = quantiles_of_rows_that_recur(200, keep=keep)
    found = [quantile_p_value(counts, value, population=(672, 288)) for counts, value in runs]
    assert sum(p <= 0.05 for p in found) <= binom.isf(0.001, 200, 0.05)
    if keep == 1.0:  # taken to be independent they raise more
        apart = [quantile_p_value(counts, value) for counts, value in runs]
        assert sum(p <= 0.05 for p in apart) > binom.isf(0.001, 200, 0.05)


def test_in_an_endless_population_scores_are_independent():
    counts = [(30, 10)] * 100
    for value in (180.5 / 300, 195.5 / 300, 210.5 / 300):  # AUCs are multiples of 1 / 300
        endless = quantile_p_value(counts, value, population=(3 * 10**12, 10**12))
        assert endless == pytest.approx(quantile_p_value(counts, value), rel=1e-3)
    assert quantile_p_value(counts, 0.7, population=(300, 100)) > 2 * quantile_p_value(counts, 0.7)


@given(st.integers(1, 8), st.integers(1, 8))
@settings(max_examples=20)
def test_the_p_value_of_a_step_is_the_exact_one_of_mann_whitney(m, n):
    below = range(m * n + 1)
    found = step_p_values([(n, m)] * len(below), [1 - u / (m * n) for u in below])
    assert found == pytest.approx([_mann_whitney_by_scipy(u, m, n) for u in below], rel=1e-9)


@pytest.mark.parametrize("pair", [(36, 36), (100, 100), (115, 20), (470, 42), (2000, 6), (20_000, 2)])
def test_far_out_the_p_value_of_a_step_is_never_below_the_exact_one(pair, monkeypatch):
    exact = module._mann_whitney_cdf(min(pair), max(pair))
    below = np.flatnonzero((exact < 0.01) & (exact > 0))[:: max(1, math.prod(pair) // 2000)]
    monkeypatch.setattr(module, "EXACT_WORK", 0)
    normal = step_p_values([pair] * len(below), 1 - below / math.prod(pair))
    assert len(below) > 5
    assert (normal >= exact[below]).all()


def test_without_a_batch_of_both_classes_there_is_no_p_value():
    assert math.isnan(quantile_p_value([(3, 0)], 0.5))
