"""Max-norm noise: equal mean squared norms, unbiased, along each row; zeros replace batches it cannot protect.

Statistics are compared with exact distributions; each comparison fails on correct code with probability ALARM.
"""

from __future__ import annotations

import logging
import math

import pytest
import torch
from scipy.stats import chi2, kstest, norm
from torch import nn

from flower_vfl.errors import ConfigError
from flower_vfl.strategies import VerticalStrategy
from flower_vfl.strategies.gradients.max_norm import MaxNorm, perturb
from tests.sampling import ALARM, generator, within


def defense(**more):
    return MaxNorm(VerticalStrategy(nn.Linear(4, 1), torch.tensor([0, 1])), **more)


ROWS = torch.tensor([[3.0, 0.0, 4.0], [0.6, -0.8, 0.0], [0.0, 0.0, 2.0], [1e-3, 1e-3, -1e-3]], dtype=torch.float64)
REPEATS = 50_000


@pytest.fixture(scope="module")
def noisy():
    """Perturbed rows, (rows, repeats, D)."""
    g = ROWS.repeat_interleave(REPEATS, dim=0)
    return perturb(g, generator=generator()).view(len(ROWS), REPEATS, 3)


@pytest.mark.parametrize("row", [1, 2, 3])
def test_every_row_has_the_expected_squared_norm_of_the_longest(noisy, row):
    # ||g + s e g/|g| ||^2 / s^2 is noncentral chi-square; the mean of many is normal to far better than ALARM needs.
    length, spread = ROWS[row].norm().item(), 25.0 - ROWS[row].norm().item() ** 2
    squares = noisy[row].square().sum(dim=1)
    deviation = math.sqrt((2 * spread**2 + 4 * spread * length**2) / REPEATS)
    assert within((squares.mean().item() - 25.0) / deviation, norm())


@pytest.mark.parametrize("row", [1, 2, 3])
def test_noise_is_normal_unbiased_and_along_the_row(noisy, row):
    unit = ROWS[row] / ROWS[row].norm()
    noise = noisy[row] - ROWS[row]
    along = noise @ unit
    assert torch.allclose(noise, along[:, None] * unit, atol=1e-12)
    deviation = math.sqrt(25.0 - ROWS[row].norm().item() ** 2)
    assert within(along.mean().item() / deviation * math.sqrt(REPEATS), norm())
    assert kstest((along / deviation).numpy(), "norm").pvalue > ALARM


def test_rows_and_steps_are_independent(noisy):
    one = (noisy[1] - ROWS[1])[:, 0] / (0.6 * math.sqrt(24.0))
    other = (noisy[2] - ROWS[2])[:, 2] / math.sqrt(21.0)
    source = generator(5)
    g = ROWS.repeat_interleave(REPEATS, dim=0)
    steps = [(perturb(g, generator=source) - g)[REPEATS : 2 * REPEATS, 0] / (0.6 * math.sqrt(24.0)) for _ in range(2)]
    for a, b in ((one, other), (one[1:], one[:-1]), steps):
        assert within((a * b).sum().item() / math.sqrt(len(a)), norm())


def test_the_longest_row_is_sent_as_it_is(noisy):
    assert torch.equal(noisy[0], ROWS[0].expand(REPEATS, 3))


def test_a_row_of_zeros_gets_isotropic_noise_as_long_as_the_longest():
    g = torch.zeros(20_001, 8)
    g[0, 3] = -2e-20
    noise = perturb(g, generator=generator())[1:].double() / 2e-20
    assert within(noise.square().sum().item() * 8, chi2(noise.numel()))
    covariance = noise.T @ noise / len(noise) * 8
    off = covariance[~torch.eye(8, dtype=torch.bool)] * math.sqrt(len(noise))
    assert off.abs().max() < norm.isf(ALARM / 2 / 56)
    assert (noise.mean(dim=0) * math.sqrt(len(noise) * 8)).abs().max() < norm.isf(ALARM / 2 / 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e30])
def test_the_scale_of_gradients_changes_nothing(dtype, scale):
    g = torch.randn(64, 5, dtype=dtype, generator=generator(1))
    g[3] = 0.0
    plain, scaled = perturb(g, generator=generator()), perturb(g * scale, generator=generator())
    assert torch.allclose(scaled / scale, plain, rtol=1e-4, atol=1e-5)


def test_rows_whose_squares_vanish_beside_the_longest_are_stretched_all_the_same():
    g = torch.tensor([[1.0, 0.0, 0.0], [1e-30, 0.0, 1e-30], [0.0, 1e-42, 0.0]])
    noisy = torch.stack([perturb(g, generator=generator(seed)) for seed in range(400)])
    assert (noisy[:, 1, 1] == 0.0).all()
    assert torch.allclose(noisy[:, 1, 0], noisy[:, 1, 2])
    assert (noisy[:, 2, 0] == 0.0).all()
    for row in (1, 2):
        assert within(noisy[:, row].double().square().sum().item(), chi2(400))


def test_rows_of_very_different_lengths_all_become_as_long_as_the_longest():
    g = torch.ones(61, 4) * torch.logspace(-30, 30, 61)[:, None]
    lengths = torch.stack([perturb(g, generator=generator(seed)) for seed in range(400)]).double().norm(dim=2) / 2e30
    assert all(within(squares.sum().item(), chi2(400)) for squares in lengths[:, :40].square().T)


def test_the_generator_decides_all_and_the_input_is_not_changed():
    g = torch.randn(32, 4, generator=generator(1))
    g[5] = 0.0
    before = g.clone()
    assert torch.equal(perturb(g, generator=generator(2)), perturb(g, generator=generator(2)))
    assert not torch.equal(perturb(g, generator=generator(2)), perturb(g, generator=generator(3)))
    assert torch.equal(g, before)


def test_batches_of_zeros_and_empty_batches_stay_as_they_are():
    assert torch.equal(perturb(torch.zeros(4, 3), generator=generator()), torch.zeros(4, 3))
    assert perturb(torch.zeros(0, 3), generator=generator()).shape == (0, 3)


def test_one_row_alone_is_never_sent_as_it_is(caplog):
    strategy = defense()
    with caplog.at_level(logging.WARNING):
        sent, log = strategy.protect(torch.ones(1, 4), torch.ones(1))
    assert torch.equal(sent, torch.zeros(1, 4))
    assert log["max_norm.fallback"] == 1.0
    assert "one row" in caplog.text


def test_the_power_that_is_logged_is_the_mean_power_of_the_noise():
    strategy = defense()
    g = torch.cat([ROWS, torch.zeros(1, 3)]).float()
    _, log = strategy.protect(g, torch.zeros(5))
    missing = [25.0 - row.norm().item() ** 2 for row in g]
    assert log["max_norm.noise_power"] == pytest.approx(sum(missing) / 5, rel=1e-5)
    assert log["max_norm.fallback"] == 0.0


def test_it_shows_its_parameters_and_keeps_its_count():
    strategy = defense(scope="per-party")
    assert strategy.params == {"rho": 0.0, "scope": "per-party"}
    assert repr(strategy) == "MaxNorm(rho=0.0, scope='per-party')"
    strategy.protect(torch.ones(1, 4), torch.ones(1))
    again = defense()
    again.restore(strategy.state())
    assert again.fallbacks == 1
    with pytest.raises(ConfigError, match="scope"):
        defense(scope="both")
