"""`GradientDefense`: what is sent where gradients, or those of a user's `perturb`, are not finite."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import nn

from flower_vfl.errors import UnprotectedBatchError
from flower_vfl.strategies import GradientDefense, Iso, MaxNorm, VerticalStrategy
from flower_vfl.strategies.gradients import iso, max_norm
from tests.sampling import generator


class Doubling(GradientDefense):
    """Sends gradients times two."""

    name = "doubling"

    def perturb(self, g, y):
        """Double, without a look at the values."""
        return g * 2, {"largest": 1.0}


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e38 * 3])
def test_zeros_are_sent_for_a_batch_whose_perturbed_gradients_are_not_finite(value, caplog):
    strategy = Doubling(VerticalStrategy(nn.Linear(4, 1), torch.tensor([0, 1])))
    g = torch.ones(8, 4)
    g[2, 1] = value
    for _ in range(2):
        sent, log = strategy.protect(g, torch.zeros(8))
        assert torch.equal(sent, torch.zeros_like(g))
        assert log == {"doubling.noise_power": 0.0, "doubling.fallback": 1.0}
    assert strategy.fallbacks == 2
    assert caplog.text.count("doubling: a perturbed gradient is not finite; zeros are sent instead") == 1
    sent, log = strategy.protect(torch.ones(8, 4), torch.zeros(8))
    assert torch.equal(sent, torch.full((8, 4), 2.0))
    assert log == {"doubling.fallback": 0.0, "doubling.largest": 1.0}


def test_in_a_stack_only_the_run_that_is_not_finite_gets_zeros():
    runs = [Doubling(VerticalStrategy(nn.Linear(4, 1), torch.tensor([0, 1]))) for _ in range(2)]
    g = torch.ones(2, 8, 4)
    g[1, 0, 0] = math.nan
    sent, logs = Doubling.protect_runs(runs, g, torch.zeros(2, 8), [run.base.step for run in runs])
    assert torch.equal(sent, torch.stack([torch.full((8, 4), 2.0), torch.zeros(8, 4)]))
    assert [log["doubling.fallback"] for log in logs] == [0.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("noisy", [partial(iso.perturb, t=1.0), max_norm.perturb], ids=["iso", "max_norm"])
def test_short_number_formats_come_back_as_they_are(noisy, dtype):
    g = (torch.randn(64, 5, generator=generator(1)) * 1e-3).to(dtype)
    found = noisy(g, generator=generator())
    assert found.dtype == dtype
    assert found.isfinite().all()
    assert not torch.equal(found, g)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("defense", "noisy"),
    [(Iso, partial(iso.perturb, t=1.0)), (MaxNorm, max_norm.perturb)],
    ids=["iso", "max_norm"],
)
def test_a_value_that_is_not_finite_is_refused_by_the_function_and_sent_as_zeros(defense, noisy, value, caplog):
    g = torch.randn(8, 4)
    g[2, 1] = value
    with pytest.raises(UnprotectedBatchError, match=f"{defense.name}: a gradient is not finite"):
        noisy(g, generator=generator())
    strategy = defense(VerticalStrategy(nn.Linear(4, 1), torch.tensor([0, 1])))
    for _ in range(2):
        sent, log = strategy.protect(g, torch.zeros(8))
        assert torch.equal(sent, torch.zeros_like(g))
        assert log == {f"{defense.name}.noise_power": 0.0, f"{defense.name}.fallback": 1.0}
    assert strategy.fallbacks == 2
    assert caplog.text.count("zeros are sent instead") == 1
    assert strategy.protect(torch.ones(8, 4), torch.zeros(8))[1][f"{defense.name}.fallback"] == 0.0
