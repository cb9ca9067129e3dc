"""Marvell with full covariances: both classes get one covariance, at the configured power, whatever their shape.

Statistics are compared with exact distributions; each comparison fails on correct code with probability ALARM.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import norm
from sklearn.covariance import EmpiricalCovariance
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.metrics import roc_auc_score
from torch import nn

from flower_vfl import build_config, run
from flower_vfl.errors import ConfigError, UnprotectedBatchError
from flower_vfl.parties.label import LabelParty
from flower_vfl.strategies import VerticalStrategy
from flower_vfl.strategies.gradients.marvell import full as marvell_full
from flower_vfl.strategies.gradients.marvell import isotropic
from flower_vfl.strategies.gradients.marvell.full import (
    MarvellFull,
    Pair,
    estimate,
    least_noise,
    optimal_noise,
    perturb,
)
from flower_vfl.strategies.gradients.noise import Noise
from tests.cases import parametrize
from tests.sampling import ALARM, generator
from tests.toys import toy_config, toy_data


def defense(**more):
    strategy = VerticalStrategy(nn.Linear(4, 1), torch.tensor([0, 1]))
    return MarvellFull(strategy, **more)


def batch(rows=1000, width=12, rank=3, seed=0, dtype=torch.float64):
    """Return gradients near a few directions, long ones of positives and short ones of negatives, and labels."""
    random = generator(seed)
    y = (torch.arange(rows) < rows // 8).long()
    axes = torch.randn(rank, width, generator=random, dtype=dtype)
    inside = torch.randn(rows, rank, generator=random, dtype=dtype) @ axes
    rest = 1e-2 * torch.randn(rows, width, generator=random, dtype=dtype)
    means = torch.where(y == 1, 4.0, -0.2).to(dtype)[:, None] * torch.randn(width, generator=random, dtype=dtype)
    return means + (inside + rest) * torch.where(y == 1, 1.0, 0.1).to(dtype)[:, None], y


def dense(pair, noise):
    """Return the classes' covariances with their noise, (2, D, D), by the formulas of the documentation."""
    width = len(noise.line)
    basis = torch.eye(width, dtype=torch.float64) if pair.basis is None else pair.basis.double()
    common = noise.everywhere * torch.eye(width, dtype=torch.float64)
    common = common + noise.along * torch.outer(noise.line, noise.line).double()
    directions = noise.directions.double()
    return [
        (basis @ pair.covariances[c] @ basis.T + common + directions @ torch.diag(noise.levels[c]) @ directions.T)
        for c in (0, 1)
    ]


def divergence(one, other, means):
    """Return the sum of both Kullback-Leibler divergences of two normal distributions, by their textbook form."""
    one, other, means = (np.asarray(value, dtype=np.longdouble).astype(np.float64) for value in (one, other, means))

    def directed(a, b):
        inverse = np.linalg.inv(b)
        logs = np.linalg.slogdet(b)[1] - np.linalg.slogdet(a)[1]
        return 0.5 * (np.trace(inverse @ a) - len(a) + means @ inverse @ means + logs)

    return directed(one, other) + directed(other, one)


@pytest.mark.parametrize(("rows", "width"), [(1000, 12), (60, 40), (30, 200)])
def test_means_and_covariances_are_those_of_scikit_learn(rows, width):
    g, y = batch(rows, width)
    pair = estimate(g, y)
    assert pair.p == pytest.approx(float(y.double().mean()))
    basis = torch.eye(width, dtype=torch.float64) if pair.basis is None else pair.basis
    for label in (0, 1):
        known = EmpiricalCovariance().fit(g[y == label].numpy()).covariance_ / pair.unit**2
        ours = basis @ pair.covariances[label] @ basis.T
        assert np.allclose(ours.numpy(), known, atol=1e-10 * np.abs(known).max() + 1e-14)
    assert torch.allclose(pair.means * pair.unit, g[y == 1].mean(0) - g[y == 0].mean(0))


@pytest.mark.parametrize("power", [1e-3, 0.3, 100.0])
@pytest.mark.parametrize(("rows", "width"), [(1000, 12), (30, 80)])
def test_the_divergence_is_that_of_the_gaussians_with_these_covariances(rows, width, power):
    pair = estimate(*batch(rows, width))
    noise = optimal_noise(pair, power)
    assert noise.sum_kl == pytest.approx(divergence(*dense(pair, noise), pair.means), rel=1e-6)


def test_with_power_enough_both_classes_have_one_covariance_and_differ_in_their_means_alone():
    pair = estimate(*batch())
    noise = optimal_noise(pair, 4.0 * float(pair.means.square().sum()))
    negative, positive = dense(pair, noise)
    assert torch.allclose(negative, positive, rtol=0, atol=1e-12 * float(positive.abs().max()))
    assert noise.sum_kl == pytest.approx(float(pair.means @ torch.linalg.solve(positive, pair.means)), rel=1e-9)


@pytest.mark.parametrize(("rows", "width", "rank", "seed"), [(1000, 12, 3, 0), (40, 6, 6, 1), (30, 200, 3, 2)])
@pytest.mark.parametrize("target", [1e-3, 0.25, 3.0, 50.0])
def test_no_noise_of_less_power_reaches_the_target(rows, width, rank, seed, target):
    """Try powers from a millionth to 98.9 % of the power that was found."""
    pair = estimate(*batch(rows, width, rank, seed))
    found = least_noise(pair, target)
    assert found.sum_kl == optimal_noise(pair, found.power).sum_kl <= target
    powers = np.geomspace(1e-6 * found.power, 0.989 * found.power, 60)
    assert min(optimal_noise(pair, float(power)).sum_kl for power in powers) > target


def test_where_covariances_are_equal_the_least_power_has_a_closed_form():
    """With v I for both classes and most power along the line, sumKL = g / (v + along + everywhere)."""
    v, g, width, target, spread = 0.3, 2.0, 5, 0.1, 0.1
    pair = Pair(
        1.0,
        0.4,
        1.0,
        g,
        torch.stack([torch.zeros(width), torch.eye(width)[0]]).double() * math.sqrt(g),
        None,
        torch.stack([v * torch.eye(width).double()] * 2),
    )
    share = 1.0 - spread + spread / width
    assert least_noise(pair, target, spread).power == pytest.approx((g / target - v) / share, rel=0.01)


@pytest.mark.parametrize(("more", "target"), [({"sum_kl": 0.2}, 0.2), ({"detection_error": 0.35}, 0.36)])
def test_a_target_is_kept_in_every_batch_and_hardly_undershot(more, target):
    guarded = defense(**more)
    for seed in range(5):
        _, log = guarded.perturb(*batch(seed=seed))
        assert 0.97 * target < log["sum_kl_after"] <= target
    assert guarded.params.items() >= more.items()


def near_classes():
    """Return overlapping classes with spread in all directions: their divergence without noise is about 1.6."""
    y = (torch.arange(512) % 4 == 0).long()
    g = torch.randn(512, 8, generator=generator(), dtype=torch.float64)
    g[y == 1, 0] += 1.0
    return g, y


def test_a_target_above_the_divergence_of_the_gradients_needs_no_noise():
    """The divergence without noise is that of the classes' own covariances, by the textbook formula."""
    g, y = near_classes()
    pair = estimate(g, y)
    found = least_noise(pair, 4.0)
    assert (found.power, found.along, found.everywhere, float(found.levels.sum())) == (0.0, 0.0, 0.0, 0.0)
    assert found.sum_kl == pytest.approx(divergence(*_clean(pair, 8), pair.means), rel=1e-9)
    assert 1.0 < found.sum_kl < 4.0
    assert least_noise(pair, 0.99 * found.sum_kl).power > 0.0
    noisy, log = defense(sum_kl=4.0).protect(g, y)
    assert torch.equal(noisy, g)
    assert (log["marvell_full.noise_power"], log["marvell_full.fallback"]) == (0.0, 0.0)
    assert log["marvell_full.sum_kl_after"] == found.sum_kl


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_direction_with_hardly_any_spread_gets_noise(dtype):
    """A column that is always 0, or varies by rounding only, gets noise, though very little."""
    g, y = near_classes()
    precision = torch.finfo(dtype).eps
    for rest in (torch.zeros(len(y)), 0.1 * math.sqrt(precision) * torch.where(y == 1, 1.0, -1.0)):
        pair = estimate(torch.cat([g, rest[:, None].double()], dim=1).to(dtype), y)
        assert optimal_noise(pair, 0.0).sum_kl == math.inf
        found = least_noise(pair, 4.0)
        assert found.sum_kl <= 4.0
        assert 0.0 < found.power < 1e5 * precision * pair.square
        assert found.everywhere > precision * float(pair.covariances.amax())


@settings(max_examples=60)
@given(
    rows=st.integers(2, 40),
    width=st.integers(1, 9),
    rank=st.integers(0, 9),
    seed=st.integers(0, 2**16),
    target=st.floats(1e-3, 1e4),
    short=st.booleans(),
)
def test_any_target_is_found_and_kept(rows, width, rank, seed, target, short):
    random = generator(seed)
    y = torch.arange(rows) % 2
    g = torch.randn(rows, rank, generator=random) @ torch.randn(rank, width, generator=random) + 0.1 * y[:, None]
    pair = estimate(g if short else g.double(), y)
    found = least_noise(pair, target)
    assert found.sum_kl <= target
    assert found.sum_kl == optimal_noise(pair, found.power).sum_kl


def test_equal_classes_need_no_power_and_a_target_below_rounding_is_refused():
    g = torch.tensor([[1.0, 0.0], [1.0, 2.0]], dtype=torch.float64).repeat(4, 1)
    y = torch.tensor([0, 0, 1, 1]).repeat(2)
    noisy, log = defense(sum_kl=0.1).perturb(g, y)
    assert (log["noise_power"], log["sum_kl_after"]) == (0.0, 0.0)
    assert torch.equal(noisy, g)
    with pytest.raises(UnprotectedBatchError, match="no power was found"):
        least_noise(estimate(*batch()), 1e-320)


def test_the_share_of_the_power_that_makes_covariances_equal_is_that_of_their_difference():
    g, y = batch()
    rows = g.numpy()
    difference = np.cov(rows[y == 1].T, bias=True) - np.cov(rows[y == 0].T, bias=True)
    values, p = np.linalg.eigvalsh(difference), float(y.double().mean())
    needed = (1 - p) * values.clip(min=0).sum() + p * (-values).clip(min=0).sum()
    gap = float((g[y == 1].mean(0) - g[y == 0].mean(0)).square().sum())
    for s in (1e-3, 0.1, 4.0):
        log = defense(s=s).protect(g, y)[1]
        assert log["marvell_full.matched"] == pytest.approx(min(0.5, needed / (s * gap)), rel=1e-6)
    assert defense(P=needed).protect(g, y)[1]["marvell_full.matched"] == pytest.approx(0.5)
    assert defense(s=0.0).protect(g, y)[1]["marvell_full.matched"] == 0.0


def test_matching_covariances_takes_at_most_half_of_the_power_and_is_near_the_best_share():
    pair = estimate(*batch())
    lacks = torch.linalg.eigvalsh(pair.covariances[1] - pair.covariances[0]).clamp(min=0).sum() * (1 - pair.p)
    for relative in (0.2, 0.5, 1.0, 2.0, 5.0, 50.0):
        power = relative * float(lacks)
        ours = optimal_noise(pair, power).sum_kl

        def at(theta, power=power):
            values, vectors = torch.linalg.eigh(pair.covariances[1] - pair.covariances[0])
            rest = power - theta * float(lacks)
            both = torch.stack([values.clamp(min=0), (-values).clamp(min=0)])
            levels = theta * both + 0.05 * rest * values.abs() / values.abs().sum()
            line = pair.means / pair.means.norm()
            common = 0.05 * rest / len(line) * torch.eye(len(line)) + 0.9 * rest * torch.outer(line, line)
            noisy = [pair.covariances[c] + vectors @ torch.diag(levels[c]) @ vectors.T + common for c in (0, 1)]
            return divergence(*noisy, pair.means)

        best = minimize_scalar(
            at, bounds=(0.0, min(1.0, 0.999 * relative)), method="bounded", options={"xatol": 1e-6}
        ).fun
        assert ours <= 1.35 * best  # relative to the best, in the family; 1.0 where power is not scarce
        if relative >= 5.0:
            assert ours == pytest.approx(best, rel=0.01)


@parametrize(("rows", "width"), [(40, 5), (16, 40)], quick=1)
def test_noise_has_the_covariance_and_the_power_that_it_claims(rows, width):
    g, y = batch(rows, width)
    pair = estimate(g, y)
    noise = optimal_noise(pair, 4.0 * float(pair.means.square().sum()))
    source, count = Noise(generator(1)), 4000
    draws = torch.stack([marvell_full.draw_noise(g, y, noise, pair.unit, source) - g for _ in range(count)]) / pair.unit
    directions = torch.randn(20, width, generator=generator(2), dtype=torch.float64)
    without = [c - pair_c for c, pair_c in zip(dense(pair, noise), _clean(pair, width), strict=True)]
    for label in (0, 1):
        along = draws[:, y == label] @ directions.T
        expected = torch.einsum("kd,de,ke->k", directions, without[label], directions)
        numbers = along.shape[0] * along.shape[1]
        found = along.square().mean(dim=(0, 1))
        # The mean square of n normal numbers has the relative standard deviation sqrt(2 / n).
        worst = float(((found / expected - 1.0) / math.sqrt(2.0 / numbers)).abs().max())
        assert worst < norm.isf(ALARM / 2 / len(directions))
        assert float((along.mean(dim=(0, 1)) / (expected / numbers).sqrt()).abs().max()) < norm.isf(ALARM / 40)
    shares = torch.tensor([1 - pair.p, pair.p], dtype=torch.float64)
    assert float(shares @ torch.stack([one.trace() for one in without])) == pytest.approx(noise.power, rel=1e-9)


def _clean(pair, width):
    basis = torch.eye(width, dtype=torch.float64) if pair.basis is None else pair.basis.double()
    return [basis @ covariance @ basis.T for covariance in pair.covariances]


def test_it_hides_what_published_marvell_leaves_outside_the_first_directions():
    residual, quadratic = {}, {}
    for name, perturb_by in (("published", isotropic.perturb), ("full", perturb)):
        batches = [(*batch(1000, 24, seed=seed),) for seed in range(8)]
        noisy = [(perturb_by(g, y, s=4.0, generator=generator(seed))[0], y) for seed, (g, y) in enumerate(batches)]
        residual[name] = np.median([_leak_auc(y, _residual(x.numpy())) for x, y in noisy])
        g, y = batch(8000, 24)
        x, fitted_rows = perturb_by(g, y, s=4.0, generator=generator())[0], torch.arange(8000) % 2 == 0
        fitted = QuadraticDiscriminantAnalysis(reg_param=1e-4).fit(x[fitted_rows], y[fitted_rows])
        quadratic[name] = roc_auc_score(y[~fitted_rows], fitted.decision_function(x[~fitted_rows]))
    assert residual["published"] > 0.99
    assert residual["full"] < 0.56  # the 97.5 % quantile for 125 and 875 rows of one distribution is 0.554
    assert quadratic["published"] > 0.99
    assert quadratic["full"] < 0.73  # the bound at this divergence, 0.28


def _residual(x):
    pca = PCA(4).fit(x)
    return np.linalg.norm(x - pca.inverse_transform(pca.transform(x)), axis=1)


def _leak_auc(y, score):
    found = roc_auc_score(y, score)
    return max(found, 1 - found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e15])
def test_the_scale_of_gradients_changes_nothing(dtype, scale):
    g, y = batch(64, 6, dtype=dtype)
    plain, scaled = (perturb(x, y, s=4.0, generator=generator())[0] for x in (g, g * scale))
    assert torch.allclose(scaled / scale, plain, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_short_number_formats_come_back_as_they_are(dtype):
    g, y = batch(64, 6, dtype=torch.float32)
    noisy, _ = perturb(g.to(dtype) * 1e-2, y, s=4.0, generator=generator())
    assert noisy.dtype == dtype
    assert noisy.isfinite().all()


@settings(max_examples=60)
@given(
    rows=st.integers(2, 12),
    width=st.integers(1, 9),
    rank=st.integers(0, 3),
    seed=st.integers(0, 2**16),
    s=st.floats(1e-3, 1e3),
)
def test_any_batch_with_both_classes_is_sent_with_the_power_that_was_asked_for(rows, width, rank, seed, s):
    random = generator(seed)
    g = torch.randn(rows, rank, generator=random) @ torch.randn(rank, width, generator=random)
    y = torch.arange(rows) % 2
    g = g + y[:, None]
    noisy, noise = perturb(g, y, s=s, generator=random)
    pair = estimate(g, y)
    assert noisy.isfinite().all()
    assert noise.power == pytest.approx(s * float(pair.means.double().square().sum()))
    assert noise.sum_kl >= 0.0
    assert (noise.levels >= 0.0).all()
    shares = torch.tensor([1 - pair.p, pair.p], dtype=torch.float64)
    power = float((shares @ noise.levels).sum()) + noise.along + noise.everywhere * width
    assert power == pytest.approx(noise.power, rel=1e-5)


def test_a_batch_of_one_class_gets_the_noise_of_the_latest_one_with_both_for_rows_as_long():
    one = defense(s=4.0)
    g, y = batch(400, 6, dtype=torch.float32)
    log = one.protect(g, y)[1]
    assert log["marvell_full.fallback"] == 0.0
    power = log["marvell_full.noise_power"]
    for scale, expected in ((1.0, 1.0), (1e-3, 1.0)):  # shorter rows get the noise of the longer ones
        noisy, log = one.protect(g * scale, torch.zeros(400))
        assert log["marvell_full.fallback"] == 1.0
        assert log["marvell_full.sum_kl_after"] == math.inf
        assert log["marvell_full.noise_power"] == pytest.approx(expected * power, rel=1e-5)
    noisy, log = one.protect(g * 10.0, torch.zeros(400))
    assert log["marvell_full.noise_power"] == pytest.approx(100.0 * power, rel=1e-4)
    assert (noisy - g * 10.0).square().sum(dim=1).mean() > 10.0 * power  # noise is added, that of negatives


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_zeros_are_sent_before_the_first_estimate_and_where_a_value_is_not_finite(value):
    one = defense()
    g, y = batch(40, 6, dtype=torch.float32)
    assert not one.protect(g, torch.ones(40))[0].any()
    one.protect(g, y)
    g[3, 2] = value
    assert not one.protect(g, y)[0].any()
    assert one.fallbacks == 2


def test_where_means_coincide_and_classes_differ_a_relative_power_is_refused_and_an_absolute_one_used():
    g = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0], [0.0, -2.0]])
    y = torch.tensor([0, 0, 1, 1])
    with pytest.raises(UnprotectedBatchError, match="means coincide"):
        perturb(g, y, s=4.0, generator=generator())
    noisy, log = defense(P=1.0).protect(g, y)
    assert log["marvell_full.noise_power"] == pytest.approx(1.0)
    assert not torch.equal(noisy, g)


def test_rows_that_are_all_equal_need_no_noise():
    noisy, noise = perturb(torch.ones(6, 3), torch.arange(6) % 2, s=4.0, generator=generator())
    assert torch.equal(noisy, torch.ones(6, 3))
    assert (noise.power, noise.sum_kl) == (0.0, 0.0)


def test_persistent_noise_of_a_row_is_the_same_wherever_the_row_stands_in_the_batch():
    one = defense(s=4.0, rho=1.0)
    g, y = batch(64, 6, dtype=torch.float32)
    order = torch.randperm(64, generator=generator(3))
    one.base.begin_batch(np.arange(64))
    first = one.protect(g, y)[0] - g
    one.base.begin_batch(order.numpy())
    second = one.protect(g[order], y[order])[0] - g[order]
    assert torch.allclose(second, first[order], atol=1e-3 * float(first.abs().max()))


def test_persistent_noise_of_many_rows_has_the_covariance_of_fresh_noise():
    g, y = batch(16_000, 3)
    one = defense(s=4.0, rho=1.0)
    one.base.begin_batch(np.arange(len(g)))
    draws = one.protect(g, y)[0] - g
    pair = estimate(g, y)
    noise = optimal_noise(pair, 4.0 * float(pair.means.square().sum()))
    directions = torch.cat([torch.eye(3), noise.line + torch.eye(3), noise.line - torch.eye(3)]).double()
    for label, clean, noisy in zip((0, 1), _clean(pair, 3), dense(pair, noise), strict=True):
        along = draws[y == label] @ directions.T / pair.unit
        expected = torch.einsum("kd,de,ke->k", directions, noisy - clean, directions)
        worst = (along.square().mean(dim=0) / expected - 1.0).abs().max() / math.sqrt(2.0 / len(along))
        assert worst < norm.isf(ALARM / 2 / len(directions))


def test_after_a_restore_it_goes_on_with_the_noise_it_had():
    one, other = defense(s=4.0), defense(s=4.0)
    g, y = batch(64, 6, dtype=torch.float32)
    one.protect(g, y)
    other.restore(one.state())
    for each in (one, other):
        each.base.begin_batch(None)
    logs = [each.protect(g, torch.zeros(64))[1] for each in (one, other)]
    assert logs[0] == logs[1]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"s": -1.0}, "s must be"),
        ({"P": math.nan}, "P must be"),
        ({"s": 1.0, "P": 1.0}, "one strength"),
        ({"s": True}, "s must be"),
        *(({"spread": value}, "spread must be above 0 and below 1") for value in (0.0, 1.0, 2, -1, math.nan, "wide")),
        *(({"rho": value}, "rho must be a number from 0 to 1") for value in (1.5, -0.1, math.nan, True)),
        ({"scope": "all"}, "marvell_full: scope must be"),
    ],
)
def test_impossible_parameters_are_refused(more, words):
    with pytest.raises(ConfigError, match=words):
        defense(**more)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"defenses": "marvell_full(spread=2)"}, "spread must be above 0 and below 1, given 2"),
        ({"defenses": "marvell_full(spread=-1)"}, "spread must be above 0 and below 1, given -1"),
        ({"defenses": "marvell_full(rho=1.5)"}, "rho must be a number from 0 to 1, given 1.5"),
        (
            {"defenses": "marvell_full(s=1,P=1)"},
            "give one strength, of s, P, sum_kl or detection_error; given s=1, P=1",
        ),
        ({"defenses": "marvell_full(sum_kl=0)"}, "sum_kl must be a finite number above 0, given 0"),
        ({"defenses": "marvell_full(detection_error=0.5)"}, "detection_error must be above 0 and below 0.5, given 0.5"),
    ],
)
def test_impossible_parameters_are_refused_before_training(more, words, tmp_path, monkeypatch):
    monkeypatch.setattr(LabelParty, "train_step", None)
    with pytest.raises(ConfigError, match=words):
        run(build_config(toy_config().model_dump(), more), out=tmp_path / "out", data=lambda _: toy_data(100, 50))
    assert not (tmp_path / "out").exists()


def test_three_classes_are_refused_before_training(monkeypatch):
    monkeypatch.setattr(LabelParty, "train_step", None)
    with pytest.raises(ConfigError, match=r"hides two classes, this data has 3; .* iso, marvell, max_norm"):
        run(toy_config(defenses=[{"name": "marvell_full"}]), data=lambda _: toy_data(100, 50, classes=3))


def test_without_noise_the_bound_is_one_and_gradients_are_unchanged():
    g, y = batch(40, 6)
    noisy, noise = perturb(g, y, s=0.0, generator=generator())
    assert torch.equal(noisy, g)
    assert (noise.power, noise.sum_kl) == (0.0, math.inf)
    noisy, log = defense(s=0.0).protect(g, y)
    assert torch.equal(noisy, g)
    assert (log["marvell_full.sum_kl_after"], log["marvell_full.auc_bound"]) == (math.inf, 1.0)


@pytest.mark.parametrize("labels", [[0, 2, 1, 1], [0, 1, 1]])
def test_other_labels_and_other_shapes_are_refused(labels):
    with pytest.raises(ConfigError):
        perturb(torch.randn(4, 3), torch.tensor(labels), s=1.0, generator=generator())
