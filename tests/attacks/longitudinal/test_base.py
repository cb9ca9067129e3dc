"""Longitudinal attacks on a row memory, against dense numpy, scikit-learn and closed forms."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.linear_model import Ridge

from flower_vfl.attacks import (
    KnownRows,
    Memory,
    RememberedDifferenceAttack,
    RememberedDirectionAttack,
    RememberedFitAttack,
    RememberedHintAttack,
    RememberedNormAttack,
    make_attack,
)
from flower_vfl.attacks.longitudinal import base
from flower_vfl.attacks.longitudinal.base import in_batch_units
from flower_vfl.attacks.readers import ridge
from flower_vfl.errors import ConfigError, InputError
from flower_vfl.metrics import leak_auc
from tests.attacks.common import auc_error, gradients

SEEN = np.arange(40) % 4 != 1


def history(epochs=4, rows=40, width=5, seed=0):
    """Return the gradients of all epochs, (T, R, D); rows that never occurred are zeros."""
    x = np.random.default_rng(seed).normal(size=(epochs, rows, width)).astype(np.float32)
    x[:, ~SEEN[:rows]] = 0.0
    return x


def memory_of(x, depth=3):
    sums = x.cumsum(axis=0, dtype=np.float64).astype(np.float32)
    return Memory(np.flatnonzero(SEEN[: x.shape[1]]), len(x), tuple(sums[::-1][:depth]))


def dense(memory, kept):
    return torch.cat(list(memory.pieces(kept))).numpy()


@pytest.mark.parametrize("piece", [1, 7, 100, 1 << 20])
def test_row_memory_gives_mean_last_and_difference_in_pieces_of_any_size(piece, monkeypatch):
    monkeypatch.setattr(base, "CACHED_NUMBERS", piece)
    x = history()
    memory = memory_of(x)
    assert (memory.rows, memory.width) == (30, 5)
    for kept, expected in (("mean", x.mean(axis=0)), ("last", x[-1]), ("difference", x[-1] - x[-2])):
        np.testing.assert_allclose(dense(memory, kept), expected[SEEN], atol=2e-6)
        np.testing.assert_allclose(memory.at(np.array([6, 3]), kept), expected[[6, 3]], atol=2e-6)


@pytest.mark.parametrize("epochs", [1, 2])
def test_before_a_row_has_occurred_twice_there_is_no_difference(epochs):
    x = history(epochs)
    memory = memory_of(x)
    np.testing.assert_allclose(dense(memory, "last"), x[-1][SEEN], atol=1e-6)
    expected = np.zeros_like(x[0]) if epochs == 1 else x[1] - x[0]
    np.testing.assert_allclose(dense(memory, "difference"), expected[SEEN], atol=1e-6)


@pytest.mark.parametrize(("kept", "depth"), [("last", 1), ("difference", 2), ("difference", 1)])
def test_a_statistic_that_is_not_kept_is_refused(kept, depth):
    with pytest.raises(InputError, match=f"does not give '{kept}'.*keeps"):
        list(memory_of(history(), depth).pieces(kept))


def test_in_batch_units_the_root_mean_square_is_one():
    g = gradients(shape=(16, 3, 2)) * 7
    expected = g.flatten(1).double() / g.double().square().mean().sqrt()
    torch.testing.assert_close(in_batch_units(g), expected.float())
    assert in_batch_units(torch.zeros(3, 2)).tolist() == [[0.0, 0.0]] * 3
    assert in_batch_units(torch.zeros(0, 2)).shape == (0, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(exponent=st.integers(-95, 95))
@settings(max_examples=25)
def test_the_scale_of_a_batch_changes_nothing(dtype, exponent):
    g = gradients(shape=(12, 4), dtype=dtype)
    torch.testing.assert_close(in_batch_units(g * 2.0**exponent), in_batch_units(g), rtol=1e-6, atol=0)


def test_half_precision_is_kept_in_float32():
    g = gradients(shape=(64, 8)).half()
    torch.testing.assert_close(in_batch_units(g), in_batch_units(g.double()), rtol=1e-5, atol=1e-6)
    assert in_batch_units(g).dtype == torch.float32


def test_the_norm_is_that_of_the_mean():
    x = history()
    expected = np.linalg.norm(x.mean(axis=0, dtype=np.float64), axis=1)[SEEN]
    np.testing.assert_allclose(RememberedNormAttack().score(memory_of(x, 1)), expected, rtol=1e-5)


@pytest.mark.parametrize("piece", [13, 1 << 20])
@pytest.mark.parametrize("common", [0.0, 1000.0])
@pytest.mark.parametrize("width", [6, 600])
def test_the_direction_is_the_first_right_singular_vector_of_the_centred_means(width, piece, common, monkeypatch):
    monkeypatch.setattr(base, "CACHED_NUMBERS", piece)
    x = history(rows=40, width=width) * np.array([1, 4, *[1] * (width - 2)], dtype=np.float32) + np.float32(common)
    x[:, :8] += 9  # a few outliers on one side: the rarer class
    mean = memory_of(x, 1)
    rows = dense(mean, "mean").astype(np.float64)
    centred = rows - rows.mean(axis=0)
    expected = centred @ np.linalg.svd(centred)[2][0]
    scores = RememberedDirectionAttack().score(mean).numpy()
    outliers = np.flatnonzero(SEEN) < 8
    assert scores[outliers].min() > scores[~outliers].max()
    sign = np.sign(expected @ scores)
    np.testing.assert_allclose(scores, sign * expected, atol=(2e-3 if common else 2e-5) * (width / 6) ** 0.5)


@pytest.mark.parametrize("width", [3, 600])
def test_equal_rows_have_equal_direction_scores(width):
    memory = memory_of(np.full((2, 40, width), 0.1, dtype=np.float32))
    assert RememberedDirectionAttack().score(memory).unique().tolist() == [0.0]


@pytest.mark.parametrize("by", ["norm", "direction"])
def test_noise_that_recurs_with_its_row_is_not_in_the_difference(by):
    """Gradients and noise use different coordinates, and batches have equal root mean squares: one unit for all."""
    rng = np.random.default_rng(1)
    noise, signal = rng.normal(size=(300, 4)), rng.normal(size=(300, 2))
    epochs = [torch.tensor(np.hstack([1000 * noise, sign * signal])) for sign in (1.0, 1.0, -1.0)]
    sums = torch.stack([in_batch_units(g) for g in epochs]).cumsum(dim=0).numpy()
    memory = Memory(np.arange(300), 3, tuple(sums[::-1]))
    unit = float(epochs[0].square().mean().sqrt())
    difference = dense(memory, "difference")
    assert np.abs(difference[:, :4]).max() < 2e-6  # rounding of sums of size 10; the noise itself is 1000 / unit
    np.testing.assert_allclose(difference[:, 4:], -2 * signal / unit, atol=2e-6)
    found = RememberedDifferenceAttack(by).score(memory).numpy()
    if by == "norm":
        np.testing.assert_allclose(found, np.linalg.norm(2 * signal / unit, axis=1), atol=1e-5)


@pytest.mark.parametrize("measure", ["inner", "cosine"])
def test_hints_are_compared_after_subtracting_the_mean_of_all_rows(measure):
    x = history()
    known = np.array([4, 10])
    found = RememberedHintAttack(2, measure).score(memory_of(x, 1), KnownRows(known, np.ones(2, dtype=np.int64)))
    mean = x.mean(axis=0, dtype=np.float64)
    towards = mean[known].mean(axis=0) - mean[SEEN].mean(axis=0)
    rows = mean[SEEN] - mean[SEEN].mean(axis=0)
    expected = rows @ towards
    if measure == "cosine":
        expected = expected / np.linalg.norm(rows, axis=1) / np.linalg.norm(towards)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(("rows", "width"), [(6, 20), (30, 4), (2, 1)])
@pytest.mark.parametrize("penalty", [0.01, 1.0, 30.0])
def test_the_fit_is_scikit_learns_ridge(rows, width, penalty):
    rng = np.random.default_rng(rows)
    x, y = rng.normal(size=(rows, width)) + 3, rng.permutation(np.arange(rows) % 2 * 2.0 - 1)
    weights, offset = ridge(torch.tensor(x), torch.tensor(y), penalty)
    centred = x - x.mean(axis=0)
    expected = Ridge(alpha=penalty * np.square(centred).sum() / rows).fit(x, y)
    np.testing.assert_allclose(weights, expected.coef_, rtol=1e-8, atol=1e-12)
    assert offset == pytest.approx(expected.intercept_, rel=1e-8)


def test_the_fitted_reader_reads_mean_last_and_difference_in_units_of_the_known_rows():
    x = history(rows=40)
    known = KnownRows(np.flatnonzero(SEEN)[:12], np.arange(12) % 2)
    found = RememberedFitAttack(6, 0.5).score(memory_of(x), known)
    blocks = [x.mean(axis=0, dtype=np.float64), x[-1].astype(float), x[-1].astype(float) - x[-2]]
    features = np.hstack([block / np.sqrt(np.square(block[known.rows]).mean()) for block in blocks])
    fitted = features[known.rows] - features[known.rows].mean(axis=0)
    reader = Ridge(alpha=0.5 * np.square(fitted).sum() / 12).fit(features[known.rows], 2.0 * known.labels - 1)
    np.testing.assert_allclose(found, reader.predict(features[SEEN]), atol=1e-5)


def test_equal_known_rows_give_equal_scores():
    memory = memory_of(np.ones((3, 40, 2), dtype=np.float32))
    known = KnownRows(np.array([0, 2]), np.array([0, 1]))
    assert RememberedFitAttack(1).score(memory, known).unique().tolist() == [0.0]


@pytest.mark.parametrize("epochs", [1, 4, 16])
def test_fresh_noise_averages_out_as_its_variance_over_the_epochs(epochs):
    r"""One coordinate, classes at -a and a, noise of variance v: the AUC of the sum is Phi(2 a sqrt(T) / sqrt(2 v)).

    The bound on the measured AUC is exceeded with a probability below 6e-7 (five standard deviations).
    """
    rng, rows, a = np.random.default_rng(3), 8000, 0.2
    y = np.arange(rows) % 5 == 0
    sums = np.zeros((rows, 1), dtype=np.float32)
    for _ in range(epochs):
        g = np.where(y, a, -a)[:, None] + rng.normal(size=(rows, 1))
        for batch in np.array_split(rng.permutation(rows), 8):
            sums[batch] += in_batch_units(torch.tensor(g[batch]) * rng.uniform(0.01, 100)).numpy()
    memory = Memory(np.arange(rows), epochs, (sums,))
    expected = stats.norm.cdf(2 * a * math.sqrt(epochs) / math.sqrt(2))
    positives = int(y.sum())
    bound = auc_error(expected, positives, rows - positives) + 0.002  # the batches' units differ by two per cent
    assert abs(leak_auc(memory.at(np.arange(rows), "mean")[:, 0], y) - expected) < bound
    if epochs == 16:  # by then the direction is clear, and the smaller class counts as positive
        assert abs(leak_auc(RememberedDirectionAttack().score(memory), y) - expected) < bound


@pytest.mark.parametrize(
    ("attack", "known"),
    [
        (RememberedHintAttack(), KnownRows(np.array([0]), np.array([0]))),
        (RememberedFitAttack(), KnownRows(np.array([0]), np.array([1]))),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_without_known_rows_of_the_classes_that_it_needs_an_attack_refuses(attack, known):
    with pytest.raises(InputError, match="No row of class"):
        attack.score(memory_of(history()), known)


@pytest.mark.parametrize(
    "make",
    [
        lambda: RememberedDifferenceAttack("length"),
        lambda: RememberedHintAttack(0),
        lambda: RememberedHintAttack(True),
        lambda: RememberedHintAttack(measure="distance"),
        lambda: RememberedFitAttack(0),
        lambda: RememberedFitAttack(penalty=0.0),
        lambda: RememberedFitAttack(penalty=math.nan),
    ],
)
def test_impossible_parameters_are_refused(make):
    with pytest.raises(ConfigError):
        make()


@pytest.mark.parametrize("value", ["1.0", [1], {"a": 1}, True])
@pytest.mark.parametrize(
    ("attack", "parameter", "words"),
    [
        ("remembered_fit", "penalty", "remembered_fit: penalty is .*; give a number above 0"),
        ("remembered_quadratic", "shrinkage", "remembered_quadratic: shrinkage is .*; give a number above 0 and up"),
        ("remembered_network", "reads", "remembered_network: there is no .* to read"),
    ],
)
def test_a_parameter_of_another_type_is_refused_in_the_words_of_the_attack(attack, parameter, words, value):
    with pytest.raises(ConfigError, match=words):
        make_attack(attack, **{parameter: value})
