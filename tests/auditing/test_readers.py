"""Informed readers against scikit-learn and the best rules of known distributions."""

import signal
import warnings
import weakref

import numpy as np
import pytest
from scipy.stats import cauchy, laplace, norm
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from flower_vfl.auditing.halves import CHOOSE, FIT
from flower_vfl.auditing.readers import (
    DISCRIMINANTS,
    SCREENED,
    SCREENED_OF_TWO,
    WIDEST_READER,
    boosted_trees,
    bounded_discriminant,
    energy_discriminant,
    linear_discriminant,
    network,
    product_discriminant,
    quadratic_discriminant,
    repeated_values,
    score_of,
    shared_values,
    thinned,
)
from flower_vfl.auditing.selection import FittedReader, Sample, best
from tests.cases import parametrize

ALL = [linear_discriminant, quadratic_discriminant, boosted_trees, network]


def gaussians(rows, *, shift=1.0, spread=1.0, width=8, seed=0, share=0.25):
    """Two classes: one at 0 with variance 1, one at `shift` along the first axis with variance `spread`^2."""
    rng = np.random.default_rng(seed)
    y = (rng.random(rows) < share).astype(np.int64)
    x = rng.normal(size=(rows, width)) * np.where(y, spread, 1.0)[:, None]
    x[:, 0] += shift * y
    return x.astype(np.float32), y


def held_out_auc(fit, x, y, more_x, more_y):
    return roc_auc_score(more_y, score_of(fit(x, y, 2)(more_x), 1))


@pytest.mark.parametrize("fit", ALL)
def test_a_shift_of_means_is_read_as_well_as_the_best_rule_does(fit):
    x, y = gaussians(6000)
    auc = held_out_auc(fit, x, y, *gaussians(20_000, seed=1))
    best = norm.cdf(1 / np.sqrt(2))  # of two normal distributions one standard deviation apart
    assert best - 0.03 < auc < best + 0.012  # the upper end: three standard errors


@pytest.mark.parametrize("fit", [quadratic_discriminant, boosted_trees, network])
def test_noise_that_one_class_has_more_of_is_read_where_means_are_equal(fit):
    x, y = gaussians(6000, shift=0.0, spread=1.5)
    more_x, more_y = gaussians(20_000, shift=0.0, spread=1.5, seed=1)
    best = roc_auc_score(more_y, np.square(more_x).sum(axis=1))  # the likelihood ratio is monotone in the length
    assert held_out_auc(fit, x, y, more_x, more_y) > best - 0.05


@parametrize("width", [16, WIDEST_READER], quick=1)
def test_the_bounded_reader_is_near_the_likelihood_ratio_under_heavy_tails(width):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 24_000)
    shift = 2 / np.sqrt(width)
    x = (rng.standard_cauchy((len(y), width)) + shift * y[:, None]).astype(np.float32)
    known, more = slice(12_000), slice(12_000, None)
    best = roc_auc_score(y[more], cauchy.logpdf(x[more], shift).sum(axis=1) - cauchy.logpdf(x[more]).sum(axis=1))
    assert held_out_auc(bounded_discriminant, x[known], y[known], x[more], y[more]) > best - 0.04
    assert held_out_auc(linear_discriminant, x[known], y[known], x[more], y[more]) < best - 0.2


def test_tails_of_one_class_are_read_where_means_and_variances_are_equal():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 12_000)
    x = np.where(y[:, None], rng.laplace(scale=np.sqrt(0.5), size=(len(y), 64)), rng.normal(size=(len(y), 64)))
    x *= np.logspace(0, 2, 64)  # lengths and shares of entries are those of a few columns
    known, more = slice(6000), slice(6000, None)
    auc = held_out_auc(bounded_discriminant, x[known], y[known], x[more], y[more])
    u = x[more] / np.logspace(0, 2, 64)
    ratio = laplace.logpdf(u, scale=np.sqrt(0.5)).sum(axis=1) - norm.logpdf(u).sum(axis=1)
    assert auc > roc_auc_score(y[more], ratio) - 0.05


def test_bounded_columns_without_a_median_distance_or_without_any_are_finite():
    x, y = gaussians(400)
    x[:300, 1], x[:, 2] = 0.0, 3.0
    assert np.isfinite(bounded_discriminant(x, y, 2)(x)).all()


@pytest.mark.parametrize("small", [1e-25, 1e-37])
def test_bounded_columns_hold_values_whose_distance_or_its_square_overflows(small):
    x = np.random.default_rng(0).normal(scale=small, size=(60, 2)).astype(np.float32)
    x[0] = 100.0
    y = np.arange(60) % 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isfinite(bounded_discriminant(x, y, 2)(x)).all()


def test_products_are_those_of_scikit_learn_weighed_one_by_one():
    x, y = gaussians(400, width=5)
    x[:, 1] = np.where(y == 1, 1, -1) * x[:, 2] + x[:, 3]
    z = np.clip(StandardScaler().fit_transform(x), -4, 4)
    products = PolynomialFeatures(2, include_bias=False).fit_transform(z)[:, 5:]
    apart = [(products[y == c].mean(axis=0) - products.mean(axis=0)) / products.std(axis=0) for c in (0, 1)]
    slow = [products @ (d * np.abs(d) / products.std(axis=0)) for d in apart]
    assert score_of(product_discriminant(x, y, 2)(x), 1) == pytest.approx(slow[1] - slow[0], abs=1e-4)


def test_products_of_many_columns_and_one_without_variance_are_finite():
    x, y = gaussians(3000, width=WIDEST_READER + 40)
    x[:, 1], x[:, 7] = np.where(y == 1, 1, -1) * x[:, 2] + 0.1 * x[:, 3], 3.0
    scores = product_discriminant(x, y, 2)(x)
    assert np.isfinite(scores).all()


def test_linear_discriminant_is_that_of_scikit_learn_up_to_shrinkage():
    x, y = gaussians(20_000, width=5)
    theirs = LinearDiscriminantAnalysis(solver="lsqr").fit(x, y).decision_function(x)
    ours = score_of(linear_discriminant(x, y, 2)(x), 1)
    assert np.corrcoef(ours, theirs)[0, 1] > 0.9999
    assert ours.std() == pytest.approx(theirs.std(), rel=0.02)


def test_quadratic_scores_are_the_log_likelihood_ratio_of_the_distributions():
    x, y = gaussians(60_000, width=2, spread=2.0, share=0.5)
    read = quadratic_discriminant(x, y, 2)
    rows = np.random.default_rng(5).normal(size=(50, 2))
    exact = norm.logpdf(rows[:, 0], 1, 2) + norm.logpdf(rows[:, 1], 0, 2) - norm.logpdf(rows).sum(axis=1)
    assert np.abs(score_of(read(rows), 1) - exact).max() < 0.15


@parametrize("fit", ALL, quick=1)
def test_a_leak_in_one_of_many_columns_is_found_beside_a_constant_one(fit):
    x, y = gaussians(2500, shift=4.0, width=WIDEST_READER + 20)
    more_x, more_y = gaussians(2500, shift=4.0, width=WIDEST_READER + 20, seed=1)
    for columns in (x, more_x):
        columns[:, 7] = 5.0
    assert held_out_auc(fit, x, y, more_x, more_y) > 0.9


@pytest.mark.parametrize("fit", ALL)
def test_three_classes_have_scores_of_their_own(fit):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 4000)
    x = rng.normal(size=(4000, 3)) + 2 * np.eye(3)[y]
    scores = fit(x[:2000], y[:2000], 3)(x[2000:])
    assert scores.shape == (2000, 3)
    assert np.isfinite(scores).all()
    for c in range(3):
        exact = x[2000:, c]  # nearly sufficient for one class against the rest
        assert roc_auc_score(y[2000:] == c, score_of(scores, c)) > roc_auc_score(y[2000:] == c, exact) - 0.01


@pytest.mark.parametrize("fit", ALL)
def test_equal_rows_of_one_class_and_unscaled_columns_do_not_end_a_fit(fit):
    x, y = gaussians(300)
    x[y == 1] = 2.0
    scores = fit(x * 1e-20, y, 2)(x * 1e-20)
    assert np.isfinite(scores).all()


def test_thinning_keeps_a_rare_class_whole():
    y = (np.arange(10_000) % 50 == 0).astype(np.int64)
    kept = thinned(y, 2, 1000)
    assert np.bincount(y[kept]).tolist() == [800, 200]
    assert (np.diff(kept) > 0).all()


def test_energy_in_a_few_directions_of_one_batch_is_read_better_than_by_shrunk_covariances():
    reached = {energy_discriminant: [], quadratic_discriminant: []}
    for seed in range(6):
        rng = np.random.default_rng(seed)
        y = (rng.random(1400) < 0.083).astype(int)
        x, directions = rng.normal(size=(1400, 32)), np.linalg.qr(rng.normal(size=(32, 4)))[0]
        x += y[:, None] * (x @ directions) @ directions.T
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        for fit, found in reached.items():
            scores = fit(x[:400], y[:400], 2)(x[400:])
            found.append(roc_auc_score(y[400:], scores[:, 1] - scores[:, 0]))
    assert np.mean(reached[energy_discriminant]) > np.mean(reached[quadratic_discriminant]) + 0.02


def test_values_that_never_repeat_are_not_read_and_others_by_their_counts():
    y = np.array([0, 0, 1, 1, 1, 0])
    x = np.array([[1.0, 0.1], [1.0, 0.2], [2.0, 0.3], [2.0, 0.4], [1.0, 0.5], [3.0, 0.6]])
    scores = repeated_values(x, y, 2)(np.array([[1.0, 0.1], [2.0, 0.9], [3.0, 0.2], [9.0, 0.3]]))
    exact = np.log([[2.25 / 3.5, 1.25 / 3.5], [0.25 / 3.5, 2.25 / 3.5], [1.0, 1.0], [1.0, 1.0]])
    np.testing.assert_allclose(scores, exact)


def test_shared_values_are_counted_in_all_columns_together():
    y = np.array([0, 1, 1])
    x = np.array([[1.0, 3.0], [2.0, 0.1], [1.0, 2.0]])
    scores = shared_values(x, y, 2)(np.array([[2.0, 1.0], [9.0, 2.0], [3.0, 9.0]]))
    of_one = np.log([(1 + 0.5 / 3) / 2.5, (1 + 1 / 3) / 4.5])
    of_two = np.log([0.5 / 3 / 2.5, (2 + 1 / 3) / 4.5])
    np.testing.assert_allclose(scores, [of_one + of_two, of_two, [0.0, 0.0]])


@parametrize("signal", ["mean", "spread"], quick=1)
@pytest.mark.parametrize(("classes", "most"), [(10, SCREENED), (2, SCREENED_OF_TWO)])
def test_trees_find_the_one_column_of_more_than_they_read_that_leaks(signal, classes, most):
    rng = np.random.default_rng(0)
    y = rng.integers(0, classes, 6000)
    x = rng.normal(size=(6000, most + 100)).astype(np.float32)
    apart = y * (10 / classes)
    if signal == "mean":
        x[:, most + 54] += apart
    else:
        x[:, most + 54] *= 1.0 + apart
    scores = score_of(boosted_trees(x[:3000], y[:3000], classes)(x[3000:]), 0)
    expected = 0.93 if signal == "mean" else 0.8  # of ten means, the best rule reads 0.962
    assert roc_auc_score(y[3000:] == 0, scores) > expected


@parametrize(
    ("width", "rounding"), [(5, 1e-9), (WIDEST_READER + 20, 1e-5)], quick=1
)  # wide rows are brought down in float32
def test_readers_of_the_same_arrays_give_what_each_gives_alone(width, rounding):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 900)
    x = rng.normal(size=(900, width)) + np.eye(3, width)[y]
    rows, other, fits = x[600:], x[:300], [*DISCRIMINANTS.values(), network]
    together = [fit(x, y, 3) for fit in fits]
    found = [read(seen) for read in together for seen in (rows, other, rows)]
    alone = [fit(x.copy(), y.copy(), 3)(seen.copy()) for fit in fits for seen in (rows, other, rows)]
    for one, two in zip(found, alone, strict=True):
        np.testing.assert_array_equal(one, two)
    assert not np.array_equal(found[0], found[1])
    turned = linear_discriminant(x, 2 - y, 3)(rows)  # the same rows with other labels
    np.testing.assert_allclose(turned[:, ::-1], found[0], rtol=0, atol=rounding)


def test_arrays_that_readers_were_fitted_to_are_released():
    x, y = np.random.default_rng(0).normal(size=(100, 3)), np.arange(100) % 2
    seen = weakref.ref(x)
    DISCRIMINANTS["linear"](x, y, 2)
    del x
    assert seen() is None


def test_an_interrupt_ends_the_fit_of_a_network():
    """scikit-learn takes it for the end of the fit, and the run would continue."""

    def interrupt(number, frame):
        raise KeyboardInterrupt

    x, y = gaussians(200_000, width=64)
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    try:
        with pytest.raises(KeyboardInterrupt):
            network(x, y, 2, most=200_000)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_reader_of_many_rows_is_chosen_before_one_that_was_lucky_on_a_few():
    """Of fifty readers of 30 rows that know nothing, the best has an AUC of about 0.75 on the rows to choose on."""
    rng = np.random.default_rng(0)

    def reader(name, rows, shift):
        y, parts = rng.integers(2, size=rows), rng.permutation(np.arange(rows) % 3).astype(np.int8)
        sample, scores = Sample(np.zeros((rows, 0)), y, parts), rng.normal(size=rows) + shift * y
        chosen_by = roc_auc_score(y[parts == CHOOSE], scores[parts == CHOOSE])
        return FittedReader(name, "epoch", 1, chosen_by, scores[parts != FIT], sample)

    lucky = [reader(f"lucky {place}", 90, 0.0) for place in range(50)]
    assert max(one.chosen_by for one in lucky) > 0.7
    assert best([*lucky, reader("real", 3000, 0.6)]).reader == "real"


def test_the_error_of_an_auc_is_that_of_repeated_samples():
    rng, errors, aucs = np.random.default_rng(1), [], []
    y = np.arange(300) % 4 == 0
    for _ in range(300):
        scores = rng.exponential(size=300) * np.where(y, 3.0, 1.0)  # the distributions of the formula
        sample = Sample(np.zeros((300, 0)), y.astype(np.int64), np.full(300, CHOOSE, dtype=np.int8))
        aucs.append(roc_auc_score(y, scores))
        errors.append(FittedReader("one", "epoch", 1, aucs[-1], scores, sample).chosen_error)
    assert np.mean(errors) == pytest.approx(np.std(aucs), rel=0.15)
