"""Isotropic noise: its covariance at every scale, and no gradient is sent without it.

Statistics are compared with exact distributions; each comparison fails on correct code with probability ALARM.
"""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import chi2, kstest, norm
from torch import nn

from flower_vfl.errors import ConfigError
from flower_vfl.strategies import VerticalStrategy
from flower_vfl.strategies.gradients.iso import Iso, perturb
from tests.sampling import ALARM, generator, within

D = 6


def defense(**more):
    return Iso(VerticalStrategy(nn.Linear(4, 1), torch.tensor([0, 1])), **more)


def batch(dtype=torch.float64):
    """Return rows with norms from 0 to 5."""
    g = torch.randn(20_000, D, generator=generator(1), dtype=dtype)
    return g / g.norm(dim=1, keepdim=True) * torch.linspace(0.0, 5.0, len(g), dtype=dtype)[:, None]


@pytest.mark.parametrize("t", [0.25, 4.0])
def test_the_noise_is_isotropic_normal_and_independent_of_the_row(t):
    g = batch()
    noise = (perturb(g, t=t, generator=generator()) - g) / math.sqrt(t / D * 25.0)
    assert kstest(noise.flatten().numpy(), "norm").pvalue > ALARM
    assert within(noise.square().sum().item(), chi2(noise.numel()))
    assert within(noise[:100].square().sum().item(), chi2(100 * D))  # short rows get the same noise
    products = noise.T @ noise / math.sqrt(len(noise))
    assert products[~torch.eye(D, dtype=torch.bool)].abs().max() < norm.isf(ALARM / 2 / D**2)
    assert (noise[1:] * noise[:-1]).sum().abs() / math.sqrt(noise[1:].numel()) < norm.isf(ALARM / 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e30])
def test_the_scale_of_gradients_changes_nothing(dtype, scale):
    g = batch(dtype)[-64:]
    plain, scaled = perturb(g, t=4.0, generator=generator()), perturb(g * scale, t=4.0, generator=generator())
    assert torch.allclose(scaled / scale, plain, rtol=1e-4, atol=1e-5)


def test_the_power_that_is_logged_follows_the_scale_without_overflow():
    g = batch()[-64:]
    for scale in (1e-30, 1.0, 1e30, 1e150):
        log = defense(t=4.0).protect(g * scale, torch.zeros(64))[1]
        assert log == {"iso.noise_power": pytest.approx(4.0 * 25.0 * scale * scale, rel=1e-6), "iso.fallback": 0.0}


def test_only_the_party_whose_gradients_are_not_finite_gets_zeros():
    strategy = defense(scope="per-party")
    strategy.base.build({"a": (3,), "b": (2,)}, None)
    g = torch.ones(8, 5)
    g[0, 4] = math.nan
    sent, log = strategy.protect(g, torch.zeros(8))
    assert (sent[:, :3] != 1.0).all()
    assert torch.equal(sent[:, 3:], torch.zeros(8, 2))
    assert (log["iso.fallback.a"], log["iso.fallback.b"]) == (0.0, 1.0)


def test_an_empty_batch_stays_empty():
    assert perturb(torch.zeros(0, 3), t=1.0, generator=generator()).shape == (0, 3)


def test_noise_goes_on_from_a_restored_state_so_that_none_is_sent_twice():
    g, y = torch.ones(8, 4), torch.zeros(8)
    strategy = defense()
    first = strategy.protect(g, y)[0]
    state = strategy.state()
    second = strategy.protect(g, y)[0]
    again = Iso(strategy.strategy)
    again.restore(state)
    assert torch.equal(again.protect(g, y)[0], second)
    again.restore({"fallbacks": 3})  # the state of a training that had not begun
    assert torch.equal(again.protect(g, y)[0], first)
    assert again.fallbacks == 3


def test_a_strength_that_is_nan_is_refused():
    with pytest.raises(ConfigError, match="iso: t must"):
        perturb(torch.ones(2, 2), t=math.nan, generator=generator())
