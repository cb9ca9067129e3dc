"""Marvell: noise of the promised covariance and power, four strengths, and batches that cannot be estimated from.

Statistics are compared with exact distributions; each comparison fails on correct code with probability ALARM.
"""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import chi2, norm

from flower_vfl.errors import ConfigError, UnprotectedBatchError
from flower_vfl.metrics import auc_bound, detection_error, leak_auc
from flower_vfl.strategies.gradients.marvell.isotropic import optimal_noise, perturb
from tests.sampling import ALARM, generator, within
from tests.strategies.gradients.marvell.marvell_batches import B, D, batch, defense, estimates


@pytest.fixture(scope="module", params=[(0.5, 0.8), (0.8, 0.5)], ids=["u < v", "u > v"])
def noisy(request):
    """Gradients, labels, noise, and the spectrum."""
    g, y = batch(u=request.param[0], v=request.param[1])
    sent, spectrum = perturb(g, y, s=1.5, generator=generator())
    return g, y, sent - g, spectrum


def test_the_spectrum_is_the_optimum_of_the_estimates(noisy):
    g, y, _, spectrum = noisy
    u, v, gap, p, _ = estimates(g, y)
    expected = optimal_noise(u, v, D, gap, p, 1.5 * gap)
    for name in ("lam1_neg", "lam2_neg", "lam1_pos", "lam2_pos", "sum_kl"):
        assert getattr(spectrum, name) == pytest.approx(getattr(expected, name), rel=1e-9, abs=1e-12)
    assert spectrum.power(D, p) == pytest.approx(1.5 * gap, rel=1e-9)
    assert max(spectrum.lam2_neg, spectrum.lam2_pos) > 0.1  # else the test of covariances would check nothing


@pytest.mark.parametrize("label", [0, 1])
def test_each_class_has_the_covariance_of_its_spectrum(noisy, label):
    g, y, noise, spectrum = noisy
    lam1, lam2 = ((spectrum.lam1_neg, spectrum.lam2_neg), (spectrum.lam1_pos, spectrum.lam2_pos))[label]
    direction = estimates(g, y)[4]
    rows = noise[y == label]
    along = rows @ direction
    across = rows - along[:, None] * direction
    assert within(along.square().sum().item() / lam1, chi2(len(rows)))
    if lam2 == 0.0:
        assert across.abs().max() < 1e-9
        return
    assert within(across.square().sum().item() / lam2, chi2(len(rows) * (D - 1)))
    # Whitened along the direction and across it, the coordinates do not correlate.
    white = (across / math.sqrt(lam2)) + (along / math.sqrt(lam1))[:, None] * direction
    covariance = white.T @ white / math.sqrt(len(rows))
    pairs = covariance[torch.triu(torch.ones(D, D, dtype=torch.bool), 1)]
    assert pairs.abs().max() < norm.isf(ALARM / 2 / len(pairs))


def test_noise_has_the_promised_mean_power(noisy):
    g, y, noise, spectrum = noisy
    gap = estimates(g, y)[2]
    variances = ((spectrum.lam1_neg, spectrum.lam2_neg), (spectrum.lam1_pos, spectrum.lam2_pos))
    counts = [int((y == label).sum()) for label in (0, 1)]
    spread = sum(2 * n * (one**2 + (D - 1) * two**2) for n, (one, two) in zip(counts, variances, strict=True))
    total = noise.square().sum().item()
    assert within((total - B * 1.5 * gap) / math.sqrt(spread), norm())


def test_noise_is_unbiased_in_each_class(noisy):
    g, y, noise, spectrum = noisy
    direction = estimates(g, y)[4]
    for label, lam1 in ((0, spectrum.lam1_neg), (1, spectrum.lam1_pos)):
        along = noise[y == label] @ direction
        assert within(along.mean().item() * math.sqrt(len(along) / lam1), norm())
    lam2, label = max((spectrum.lam2_neg, 0), (spectrum.lam2_pos, 1))
    rows = noise[y == label]
    across = rows.mean(dim=0) - (rows.mean(dim=0) @ direction) * direction
    assert within(across.square().sum().item() * len(rows) / lam2, chi2(D - 1))


def test_rows_and_steps_are_independent():
    g, y = batch()
    source = generator(3)
    first, second = (perturb(g, y, s=1.5, generator=source)[0] - g for _ in range(2))
    for a, b in ((first[1:], first[:-1]), (first, second)):
        spread = (a.square() * b.square()).sum(dim=0).sqrt()
        assert ((a * b).sum(dim=0) / spread).abs().max() < norm.isf(ALARM / 2 / D)


def test_the_divergence_is_that_of_the_perturbed_classes_and_bounds_attacks():
    g, y = batch(rows=60_000, width=4, u=0.05, v=0.05)
    sent, spectrum = perturb(g, y, s=1.0, generator=generator())
    direction = estimates(g, y)[4]
    score = sent @ direction
    assert leak_auc(g @ direction, y) > 0.99
    assert 0.6 < leak_auc(score, y) <= auc_bound(spectrum.sum_kl)
    moments = [(score[y == label].mean().item(), score[y == label].var().item()) for label in (0, 1)]
    (m0, v0), (m1, v1) = moments
    # Equal variances across the direction: only the components along it differ between the classes.
    along = 0.5 * ((v0 / v1 + v1 / v0 - 2) + (m1 - m0) ** 2 * (1 / v0 + 1 / v1))
    assert along == pytest.approx(spectrum.sum_kl, rel=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e30])
def test_the_scale_of_gradients_changes_nothing(dtype, scale):
    g, y = batch(rows=200, dtype=dtype)
    plain, spectrum = perturb(g, y, s=2.0, generator=generator())
    scaled, other = perturb(g * scale, y, s=2.0, generator=generator())
    assert torch.allclose(scaled / scale, plain, rtol=1e-3, atol=1e-3)
    assert other.sum_kl == pytest.approx(spectrum.sum_kl, rel=1e-3)
    assert other.lam1_neg / scale / scale == pytest.approx(spectrum.lam1_neg, rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_short_number_formats_come_back_as_they_are(dtype):
    g, y = batch(rows=64, scale=1e-3, dtype=dtype)
    sent, _ = perturb(g, y.bool(), s=2.0, generator=generator())
    assert sent.dtype == dtype
    assert sent.isfinite().all()
    assert not torch.equal(sent, g)


def test_the_generator_decides_all_and_the_input_is_not_changed():
    g, y = batch(rows=100)
    before = g.clone()
    first, again, other = (perturb(g, y, s=1.0, generator=generator(seed))[0] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(g, before)


def test_one_coordinate_is_enough():
    g, y = batch(rows=2000, width=1, gap=3.0)
    sent, spectrum = perturb(g, y, s=4.0, generator=generator())
    assert (spectrum.lam2_neg, spectrum.lam2_pos) == (0.0, 0.0)
    assert (sent - g).square().mean().item() == pytest.approx(4.0 * estimates(g, y)[2], rel=0.25)


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("rows", [0, 1, 8])
def test_a_batch_of_one_class_is_refused(label, rows):
    with pytest.raises(UnprotectedBatchError, match=r"marvell: (all|the batch is empty)"):
        perturb(torch.ones(rows, 3), torch.full((rows,), label), s=4.0, generator=generator())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_refused(value):
    g, y = batch(rows=20)
    g[3, 2] = value
    with pytest.raises(UnprotectedBatchError, match="not finite"):
        perturb(g, y, s=4.0, generator=generator())


def test_classes_that_differ_around_the_same_mean_are_not_sent_without_noise():
    g = torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    y = torch.tensor([0, 0, 1, 1])
    with pytest.raises(UnprotectedBatchError, match="means coincide"):
        perturb(g, y, s=4.0, generator=generator())
    assert torch.equal(perturb(g, y, s=0.0, generator=generator())[0], g)


def test_zeros_of_both_classes_need_no_noise():
    sent, spectrum = perturb(torch.zeros(4, 3), torch.tensor([0, 1, 0, 1]), s=4.0, generator=generator())
    assert torch.equal(sent, torch.zeros(4, 3))
    assert spectrum.sum_kl == 0.0


def test_negatives_of_zeros_get_noise():
    g, y = batch(rows=400)
    g[y == 0] = 0.0
    sent, spectrum = perturb(g, y, s=4.0, generator=generator())
    assert (sent[y == 0].norm(dim=1) > 0).all()
    assert math.isfinite(spectrum.sum_kl)


@pytest.mark.parametrize("s", [-1.0, math.nan, math.inf])
def test_the_function_refuses_impossible_strengths(s):
    with pytest.raises(ConfigError, match="s must be"):
        perturb(*batch(rows=10), s=s, generator=generator())


def test_labels_and_shapes_that_do_not_fit_are_refused():
    g, y = batch(rows=10)
    with pytest.raises(ConfigError, match="neither 0 nor 1"):
        perturb(g, y + 1, s=1.0, generator=generator())
    with pytest.raises(ConfigError, match=r"give \(B, D\) and \(B,\)"):
        perturb(g, y[:5], s=1.0, generator=generator())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"s": 4.0}),
        ({"s": 0}, {"s": 0.0}),
        ({"P": 2}, {"P": 2.0}),
        ({"sum_kl": 0.1}, {"sum_kl": 0.1}),
        ({"detection_error": 0.3}, {"detection_error": 0.3}),
    ],
)
def test_a_strength_is_given_in_one_of_four_ways(given, expected):
    assert defense(**given).params == {**expected, "rho": 0.0, "scope": "joint"}
    ((name, value),) = expected.items()
    assert repr(defense(**given)) == f"Marvell({name}={value}, rho=0.0, scope='joint')"


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, "1", True])
@pytest.mark.parametrize("name", ["s", "P", "sum_kl", "detection_error"])
def test_impossible_strengths_are_refused_by_name(name, value):
    with pytest.raises(ConfigError, match=rf"marvell: {name} must be .*given {value!r}"):
        defense(**{name: value})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"sum_kl": 0}, "no noise of finite power reaches 0"),
        ({"detection_error": 0.5}, "0.5 is guessing"),
        ({"detection_error": 0}, "above 0 and below 0.5"),
        ({"s": 1.0, "P": 1.0}, "give one strength.*given s=1.0, P=1.0"),
        ({"sum_kl": 1.0, "detection_error": 0.2}, "give one strength"),
    ],
)
def test_targets_out_of_reach_and_two_strengths_are_refused(given, words):
    with pytest.raises(ConfigError, match=words):
        defense(**given)


def test_the_log_has_power_divergence_before_and_after_bound_and_fallback():
    g, y = batch(rows=500)
    u, v, gap, p, _ = estimates(g, y)
    _, log = defense(s=3.0).protect(g, y)
    after = optimal_noise(u, v, D, gap, p, 3 * gap).sum_kl
    assert log == {
        "marvell.noise_power": pytest.approx(3 * gap, rel=1e-9),
        "marvell.sum_kl_before": pytest.approx(optimal_noise(u, v, D, gap, p, 0.0).sum_kl, rel=1e-9),
        "marvell.sum_kl_after": pytest.approx(after, rel=1e-9),
        "marvell.auc_bound": pytest.approx(auc_bound(after), rel=1e-9),
        "marvell.fallback": 0.0,
        "marvell.withheld": 0.0,
    }


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e6])
def test_an_absolute_power_stays_what_it_is_at_any_scale(scale):
    g, y = batch(rows=500, scale=scale)
    sent, log = defense(P=7.0).protect(g, y)
    assert log["marvell.noise_power"] == pytest.approx(7.0, rel=1e-9)
    total = (sent - g).square().sum().item() / 7.0
    assert 250 < total < 1000  # 500 rows; the relative deviation is below 0.1


def test_a_target_divergence_is_met_with_the_least_power():
    g, y = batch(rows=500, scale=1e-9)
    _, log = defense(sum_kl=0.25).protect(g, y)
    assert 0.25 * (1 - 1e-6) < log["marvell.sum_kl_after"] <= 0.25
    s = log["marvell.noise_power"] / estimates(g, y)[2]
    assert defense(s=s * (1 - 1e-6)).protect(g, y)[1]["marvell.sum_kl_after"] > 0.25


@pytest.mark.parametrize("target", [0.1, 0.3, 0.45])
def test_a_target_detection_error_is_kept_by_the_best_threshold_on_the_best_direction(target):
    g, y = batch(rows=40_000, width=4, u=0.05, v=0.05)
    sent, log = defense(detection_error=target).protect(g, y)
    assert log["marvell.sum_kl_after"] == pytest.approx((2 - 4 * target) ** 2, rel=1e-6)
    score = sent @ estimates(g, y)[4]
    # The smaller class has 8,000 rows: an estimated rate has a standard error below 0.006, and ALARM is 5.3 of them.
    assert detection_error(score, y) > target - 0.03
