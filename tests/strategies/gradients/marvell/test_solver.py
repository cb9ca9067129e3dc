"""Marvell's optimal noise: against sixty digits and other optimizers, and where arguments are zero."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from flower_vfl.errors import InputError
from flower_vfl.strategies.gradients.marvell import optimum, optimum_batched
from flower_vfl.strategies.gradients.marvell.isotropic import NoiseSpectrum, least_power, optimal_noise
from tests.card import needs_card
from tests.cases import parametrize
from tests.strategies.gradients.marvell.marvell_reference import divergence, divergence_of, reference

WIDTHS = (1, 2, 3, 10, 128, 1600, 10**6)
FIELDS = ("lam1_neg", "lam2_neg", "lam1_pos", "lam2_pos")


def sizes(low, high):
    """Generate positive numbers over a range of powers of ten."""
    return st.floats(low, high).map(lambda x: 10.0**x)


def fractions():
    return st.one_of(st.floats(0.01, 0.99), sizes(-9, -2), sizes(-9, -2).map(lambda x: 1 - x))


@st.composite
def problems(draw, reach=6, *, zeros=True):
    """Draw u, v, d, g, p, P; P is often about the power that makes the variances equal, where the optimum changes."""
    value = st.one_of(sizes(-reach, reach), st.just(0.0)) if zeros else sizes(-reach, reach)
    u, v, g, d, p = draw(value), draw(value), draw(value), draw(st.sampled_from(WIDTHS)), draw(fractions())
    power = draw(value)
    if draw(st.booleans()):
        share = 1 - p if u <= v else p
        power = share * d * abs(v - u) * (1 + draw(st.sampled_from((-1, 1))) * draw(sizes(-12, 0)))
    return u, v, d, g, p, power


def random_problem(rng):
    """Return a problem like those of `problems` for the slow reference; only u may be zero."""
    u, v, g = (10 ** rng.uniform(-4, 4) for _ in range(3))
    d, p = rng.choice(WIDTHS), rng.choice([0.5, rng.random(), 10 ** rng.uniform(-6, -1), 1 - 10 ** rng.uniform(-6, -1)])
    if rng.random() < 0.15:
        u = 0.0
    power = 10 ** rng.uniform(-5, 5)
    if rng.random() < 0.5:
        share = 1 - p if u <= v else p
        power = share * d * abs(v - u) * (1 + rng.choice((-1, 1)) * 10 ** rng.uniform(-10, 0))
    if rng.random() < 0.3:
        scale = 10 ** rng.uniform(-20, 20)
        u, v, g, power = u * scale, v * scale, g * scale, power * scale
    return u, v, d, g, p, power


def value_at(u, v, d, g, lam):
    """Return the divergence at noise `lam`, in the order of `FIELDS`, without cancellation that matters here."""
    a, s, b, t = lam[0] + u, lam[1] + u, lam[2] + v, lam[3] + v
    return divergence(d, g, a, b, s, t)


def noise_of(spectrum):
    return [getattr(spectrum, name) for name in FIELDS]


@parametrize("seed", range(60), quick=15)
def test_the_divergence_is_the_least_to_sixty_digits(seed):
    u, v, d, g, p, power = random_problem(random.Random(seed))
    noise = optimal_noise(u, v, d, g, p, power)
    found, bound = reference(u, v, d, g, p, power)
    assert float(abs(found - bound) / found) < 1e-11
    assert noise.sum_kl == pytest.approx(float(found), rel=1e-11)
    assert float(divergence_of(u, v, d, g, noise) / found) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.timeout(900)  # 100 s on an idle core
def test_the_divergence_is_the_least_to_sixty_digits_on_a_thousand_problems():
    rng = random.Random(1)
    for _ in range(1000):
        problem = random_problem(rng)
        found, _ = reference(*problem)
        assert optimal_noise(*problem).sum_kl == pytest.approx(float(found), rel=1e-11), problem


@pytest.mark.parametrize("extreme", [1e-30, 1e30])
@parametrize("place", range(4), quick=1)
def test_one_number_may_be_sixty_orders_of_magnitude_away_from_the_others(place, extreme):
    values = [1.0, 2.0, 3.0, 0.7]
    values[place] = extreme
    u, v, g, power = values
    for d in (1, 128, 10**6):
        found, _ = reference(u, v, d, g, 0.3, power, digits=250)
        assert optimal_noise(u, v, d, g, 0.3, power).sum_kl == pytest.approx(float(found), rel=1e-11)


def test_a_steep_and_narrow_minimum_is_found():
    problem = (3.2755e-6, 2.7902e-4, 1600, 8.6197, 0.75, 11.8678)
    noise = optimal_noise(*problem)
    assert noise.sum_kl == pytest.approx(0.72076, abs=5e-6)
    assert noise.lam2_neg == pytest.approx(2.7574e-4, rel=1e-4)
    assert value_at(*problem[:4], [noise.lam1_neg, 0.0, noise.lam1_pos, 0.0]) > 60_000


@settings(max_examples=150)
@given(problems(zeros=False), st.integers(0, 2**32 - 1))
def test_no_random_feasible_noise_does_better(problem, seed):
    u, v, d, g, p, power = problem
    assume(power > 0.0)
    noise = optimal_noise(*problem)
    rng = np.random.default_rng(seed)
    # Shares of the power: random, or near the optimum; lam1 is lam2 plus its own share.
    best = np.array(noise_of(noise))
    weights = np.array([1 - p, (1 - p) * d, p, p * d])
    own = np.array([best[0] - best[1], best[1], best[2] - best[3], best[3]]) * weights / power
    shares = np.concatenate(
        [rng.dirichlet([0.3] * 4, 200), np.maximum(own * np.exp(rng.normal(0, 0.05, (200, 4))), 1e-18)]
    )
    spent = shares / shares.sum(axis=1, keepdims=True) * power / weights
    lam = [spent[:, 0] + spent[:, 1], spent[:, 1], spent[:, 2] + spent[:, 3], spent[:, 3]]
    assert noise.sum_kl <= value_at(u, v, d, g, lam).min() * (1 + 1e-9)


@settings(max_examples=60)
@given(problems(reach=3, zeros=False), st.integers(0, 2**32 - 1))
def test_no_general_purpose_optimizer_does_better(problem, seed):
    u, v, d, g, p, power = problem
    assume(power > 0.0)
    noise = optimal_noise(*problem)
    weights = np.array([1 - p, (1 - p) * d, p, p * d])

    def spend(x):
        shares = np.exp(x - x.max())
        spent = shares / shares.sum() * power / weights
        return spent[0] + spent[1], spent[1], spent[2] + spent[3], spent[3]

    rng = np.random.default_rng(seed)
    for start in rng.normal(0, 3, (3, 4)):
        try:
            found = minimize(lambda x: math.log(value_at(u, v, d, g, spend(x))), start, method="SLSQP")
        except (ValueError, FloatingPointError):
            continue
        assert noise.sum_kl <= value_at(u, v, d, g, spend(found.x)) * (1 + 1e-9)


@settings(max_examples=200)
@given(problems())
def test_the_noise_is_feasible_and_reaches_the_divergence_that_is_reported(problem):
    u, v, d, g, p, power = problem
    noise = optimal_noise(*problem)
    assert noise.lam1_neg >= noise.lam2_neg >= 0.0
    assert noise.lam1_pos >= noise.lam2_pos >= 0.0
    assert noise.power(d, p) <= power * (1 + 1e-14)
    if math.isfinite(noise.sum_kl) and noise.sum_kl > 0.0:
        # Noise is rounded to doubles; where the divergence is tiny that alone moves it by this much.
        rounding = 1e-15 * math.sqrt(d * noise.sum_kl) + 1e-31 * d
        assert float(divergence_of(u, v, d, g, noise)) == pytest.approx(noise.sum_kl, rel=1e-10, abs=rounding)


@settings(max_examples=200)
@given(problems())
def test_all_the_power_is_spent_where_the_means_differ(problem):
    _, _, d, g, p, power = problem
    assume(g > 0.0)
    assert optimal_noise(*problem).power(d, p) == pytest.approx(power, rel=1e-14)


@settings(max_examples=150)
@given(problems(), st.integers(-850, 850))
@example((0.0, 0.0, 1, 1.0, 0.5, 0.0), -675)
@example((0.0, 0.0, 3, 1.0, 0.5, 2.0), -675)
def test_a_change_of_scale_changes_nothing_but_the_scale(problem, exponent):
    u, v, d, g, p, power = problem
    noise, scale = optimal_noise(*problem), 2.0**exponent
    scaled = optimal_noise(u * scale, v * scale, d, g * scale, p, power * scale)
    assert scaled == noise.scaled(scale)


@settings(max_examples=150)
@given(problems())
def test_the_classes_may_change_places(problem):
    u, v, d, g, p, power = problem
    assume(1 - (1 - p) == p)
    assume(u != v)
    noise, other = optimal_noise(*problem), optimal_noise(v, u, d, g, 1 - p, power)
    assert (other.lam1_pos, other.lam2_pos, other.lam1_neg, other.lam2_neg) == tuple(noise_of(noise))
    assert other.sum_kl == noise.sum_kl


@settings(max_examples=150)
@given(problems(), st.floats(1e-6, 10.0))
def test_more_power_never_leaves_a_greater_divergence(problem, more):
    u, v, d, g, p, power = problem
    less = optimal_noise(*problem).sum_kl
    assert optimal_noise(u, v, d, g, p, power * (1 + more)).sum_kl <= less * (1 + 1e-13)


def grid():
    """Return all combinations of ordinary numbers, zeros and extremes, and many random problems."""
    values = (0.0, 1e-30, 1e-3, 1.0, 1.0 + 2**-52, 1e30)
    rows = [
        (u, v, float(d), g, p, power)
        for u in values
        for v in values
        for d in (1, 2, 10**6)
        for g in (0.0, 1e-30, 1.0, 1e30)
        for p in (0.0, 1e-15, 0.3, 0.5, 1.0)
        for power in (0.0, 1e-30, 0.5, 1e30)
    ]
    rng = random.Random(0)
    return rows + [random_problem(rng) for _ in range(3000)]


def test_one_problem_and_many_have_the_same_answers():
    rows = grid()
    alone = torch.tensor([[*noise_of(x), x.sum_kl] for x in (optimal_noise(*row) for row in rows)], dtype=torch.float64)
    columns = torch.tensor(rows, dtype=torch.float64).T
    many = optimal_noise(*columns)
    together = torch.stack([getattr(many, name) for name in FIELDS])
    assert together.isfinite().all()
    assert (together >= 0).all()
    assert torch.allclose(many.sum_kl, alone[:, 4], rtol=1e-13, atol=0.0)
    # Noise may differ where the divergence does not depend on it; its power may not.
    power = many.power(columns[2], columns[4])
    assert (power <= columns[5] * (1 + 1e-14)).all()
    spent = NoiseSpectrum(*alone.T).power(columns[2], columns[4])
    assert torch.allclose(power, spent, rtol=1e-14, atol=0.0)


def test_a_value_below_the_chunk_and_above_it_is_the_same(monkeypatch):
    columns = torch.tensor(grid()[-500:], dtype=torch.float64).T
    whole = optimal_noise(*columns)
    monkeypatch.setattr(optimum_batched, "_CHUNK", 7)
    assert torch.equal(optimal_noise(*columns).sum_kl, whole.sum_kl)


@pytest.mark.slow
def test_three_steps_fewer_of_newtons_method_give_the_same(monkeypatch):
    rng = np.random.default_rng(0)
    n = 200_000
    u, v, g, power = 10 ** (rng.uniform(-1, 1, (4, n)) * rng.choice([2, 6, 15, 30], (4, n)))
    d, p = (
        rng.choice([2.0, 10, 1600, 10**6], n),
        np.where(rng.random(n) < 0.5, rng.random(n), 10 ** rng.uniform(-12, 0, n)),
    )
    near = (1 - p) * d * np.abs(v - u) * (1 + rng.choice([-1, 1], n) * 10 ** rng.uniform(-16, 0, n))
    power = np.where(rng.random(n) < 0.5, power, near)
    columns = [torch.from_numpy(x) for x in (u, v, d, g, p, np.abs(power))]
    full = optimal_noise(*columns)
    for module in (optimum_batched, optimum):
        monkeypatch.setattr(module, "NEWTON_STEPS", optimum.NEWTON_STEPS - 3)
    assert torch.allclose(optimal_noise(*columns).sum_kl, full.sum_kl, rtol=1e-13, atol=0.0)


@pytest.mark.parametrize(("u", "v"), [(0.0, 1.0), (1.0, 0.0)])
@pytest.mark.parametrize("d", [1, 2, 10**6])
def test_without_power_a_class_without_variance_cannot_be_hidden(u, v, d):
    noise = optimal_noise(u, v, d, 0.5, 0.3, 0.0)
    assert noise == NoiseSpectrum(0.0, 0.0, 0.0, 0.0, math.inf)


def test_two_different_points_without_power_are_told_apart_and_the_same_point_is_not():
    assert optimal_noise(0.0, 0.0, 4, 1.0, 0.5, 0.0).sum_kl == math.inf
    assert optimal_noise(0.0, 0.0, 4, 0.0, 0.5, 0.0).sum_kl == 0.0
    assert optimal_noise(0.0, 0.0, 4, 0.0, 0.5, 1.0) == NoiseSpectrum(0.0, 0.0, 0.0, 0.0, 0.0)


def test_without_power_there_is_no_noise():
    noise = optimal_noise(1.0, 2.0, 3, 4.0, 0.25, 0.0)
    assert noise_of(noise) == [0.0] * 4
    assert noise.sum_kl == pytest.approx(0.5 * (3 * 1 / 2 + 4 * 3 / 2), rel=1e-15)


@pytest.mark.parametrize("d", [1, 2, 1600])
def test_points_need_noise_along_their_difference_only(d):
    noise = optimal_noise(0.0, 0.0, d, 2.0, 0.5, 3.0)
    assert (noise.lam2_neg, noise.lam2_pos) == (0.0, 0.0)
    # Balanced classes: both get P, and sumKL = g / P.
    assert (noise.lam1_neg, noise.lam1_pos) == (3.0, 3.0)
    assert noise.sum_kl == pytest.approx(2.0 / 3.0, rel=1e-15)


def test_with_one_coordinate_there_is_no_other_direction():
    noise = optimal_noise(1.0, 5.0, 1, 2.0, 0.5, 6.0)
    assert (noise.lam2_neg, noise.lam2_pos) == (0.0, 0.0)
    assert (noise.lam1_neg + 1.0, noise.lam1_pos + 5.0) == (9.0, 9.0)


def test_where_the_means_agree_the_least_power_that_makes_the_classes_equal_is_spent():
    noise = optimal_noise(1.0, 3.0, 10, 0.0, 0.25, 1e6)
    assert noise == NoiseSpectrum(2.0, 2.0, 0.0, 0.0, 0.0)
    assert optimal_noise(3.0, 1.0, 10, 0.0, 0.25, 1e6) == NoiseSpectrum(0.0, 0.0, 2.0, 2.0, 0.0)
    just_short = optimal_noise(1.0, 3.0, 10, 0.0, 0.25, 15.0 * (1 - 1e-9))
    assert just_short.lam1_neg == just_short.lam2_neg == pytest.approx(2.0, rel=1e-8)
    assert 0.0 < just_short.sum_kl < 1e-16


@pytest.mark.parametrize("seed", range(20))
def test_power_just_below_that_of_equal_variances_leaves_the_exact_divergence(seed):
    rng = random.Random(seed)
    u, v, d, p = rng.random(), 1 + rng.random(), rng.choice([3, 1600, 10**6]), rng.random()
    power = (1 - p) * d * (v - u) * (1 - 10 ** rng.uniform(-14, -10))
    # With g = 0 all noise of the smaller class is isotropic; fractions are exact.
    exact = [Fraction(x) for x in (u, v, p, power)]
    s = exact[0] + exact[3] / (1 - exact[2]) / d
    expected = float(d * (exact[1] - s) ** 2 / (s * exact[1]) / 2)
    assert optimal_noise(u, v, d, 0.0, p, power).sum_kl == pytest.approx(expected, rel=1e-11, abs=0.0)
    many = optimal_noise(torch.tensor(u, dtype=torch.float64), v, d, 0.0, p, power)
    assert many.sum_kl.item() == pytest.approx(expected, rel=1e-11, abs=0.0)


def test_equal_variances_need_noise_along_the_difference_only():
    noise = optimal_noise(2.0, 2.0, 128, 1.0, 0.5, 4.0)
    assert noise == NoiseSpectrum(4.0, 0.0, 4.0, 0.0, pytest.approx(1.0 / 6.0, rel=1e-14))


@pytest.mark.parametrize("d", [1, 2, 10**6])
@pytest.mark.parametrize(("u", "v"), [(1.0, 2.0), (2.0, 1.0), (0.0, 1.0), (1.0, 1.0), (0.0, 0.0)])
def test_a_class_that_is_missing_is_the_limit_of_one_that_is_rare(u, v, d):
    for p, rare in ((0.0, 1e-13), (1.0, 1 - 2.0**-43)):
        limit, near = optimal_noise(u, v, d, 0.5, p, 3.0), optimal_noise(u, v, d, 0.5, rare, 3.0)
        assert limit.sum_kl == pytest.approx(near.sum_kl, rel=1e-5)
        assert all(map(math.isfinite, noise_of(limit)))


def test_floats_give_floats_and_tensors_give_tensors_of_the_broadcast_shape():
    assert all(isinstance(x, float) for x in noise_of(optimal_noise(1, 2, 3, 4, 0.5, 6)))
    noise = optimal_noise(torch.ones(3, 1), torch.tensor([1.0, 2.0]), torch.tensor(4), 0.5, 0.5, 1)
    assert noise.sum_kl.shape == (3, 2)
    assert noise.sum_kl.dtype == torch.float64
    assert noise.lam1_neg[0, 1].item() == pytest.approx(optimal_noise(1.0, 2.0, 4, 0.5, 0.5, 1.0).lam1_neg)
    assert optimal_noise(torch.tensor(1.0), 2.0, 4, 0.5, 0.5, 1.0).sum_kl.shape == ()
    assert optimal_noise(torch.zeros(0), 2.0, 4, 0.5, 0.5, 1.0).sum_kl.shape == (0,)


@needs_card
def test_the_gpu_gives_the_same():
    columns = torch.tensor(grid(), dtype=torch.float64).T
    there = optimal_noise(*columns.to("cuda"))
    assert there.sum_kl.device.type == "cuda"
    assert torch.allclose(there.sum_kl.cpu(), optimal_noise(*columns).sum_kl, rtol=1e-11, atol=0.0)


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name in "uvgP" for value in (-1.0, math.nan, math.inf)]
    + [("d", 0), ("d", math.nan), ("d", math.inf), ("p", -0.1), ("p", 1.1), ("p", math.nan)],
)
def test_impossible_arguments_are_refused_by_name(name, value, tensors):
    arguments = {"u": 1.0, "v": 1.0, "d": 2, "g": 1.0, "p": 0.5, "P": 1.0, name: value}
    if tensors:
        arguments[name] = torch.tensor([arguments["u"], value])
    with pytest.raises(InputError, match=rf"{name}=.*must be finite"):
        optimal_noise(**arguments)


@settings(max_examples=150)
@given(problems(), sizes(-4, 2))
def test_the_least_power_reaches_its_target_and_hardly_less_does_not(problem, target):
    u, v, d, g, p, _ = problem
    power, noise = least_power(u, v, d, g, p, target)
    assert noise == optimal_noise(u, v, d, g, p, power)
    assert noise.sum_kl <= target
    if power > 0.0:
        assert optimal_noise(u, v, d, g, p, power * (1 - 1e-9)).sum_kl > target * (1 - 1e-13)


def test_no_power_is_needed_where_the_divergence_is_below_the_target():
    assert least_power(1.0, 1.0, 8, 0.5, 0.5, 0.5) == (0.0, optimal_noise(1.0, 1.0, 8, 0.5, 0.5, 0.0))


def test_the_least_power_of_two_points_is_known():
    power, noise = least_power(0.0, 0.0, 32, 3.0, 0.5, 0.25)
    assert power == pytest.approx(12.0, rel=1e-10)
    assert noise.lam1_neg == pytest.approx(12.0, rel=1e-10)


@pytest.mark.parametrize("target", [0.0, -1.0, math.nan, math.inf])
def test_no_power_reaches_an_impossible_target(target):
    with pytest.raises(InputError, match="above 0"):
        least_power(1.0, 1.0, 2, 1.0, 0.5, target)
