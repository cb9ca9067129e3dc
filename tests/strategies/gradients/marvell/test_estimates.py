"""Marvell's fallback: a batch without an estimate gets the noise of running estimates of earlier batches."""

from __future__ import annotations

import logging
import math

import pytest
import torch
from scipy.stats import chi2
from torch import nn

from flower_vfl.apps.client_app import make_client_app
from flower_vfl.apps.local_grid import LocalGrid
from flower_vfl.checkpoint import load_state, save_state
from flower_vfl.strategies import Iso, VerticalStrategy
from flower_vfl.strategies.gradients.marvell.estimates import RunningEstimates, estimate
from flower_vfl.strategies.gradients.marvell.isotropic import Marvell, optimal_noise
from tests.sampling import within
from tests.strategies.gradients.marvell.marvell_batches import D, batch, defense, estimates
from tests.strategies.test_vertical import Values
from tests.toys import toy_config, toy_data


def one_class(label=0, rows=200):
    g, y = batch(rows=rows * 10, seed=9)
    return g[y == label][:rows], torch.full((min(rows, int((y == label).sum())),), label)


@pytest.mark.parametrize("longer", [1.0, 5.0])
@pytest.mark.parametrize("label", [0, 1])
def test_a_batch_of_one_class_gets_the_noise_of_the_running_estimates(label, longer, caplog):
    strategy = defense(s=4.0)
    earlier, y = batch(rows=2000)
    strategy.protect(earlier, y)
    u, v, gap, p, direction = estimates(earlier, y)
    spectrum = optimal_noise(u, v, D, gap, p, 4 * gap)
    g, labels = one_class(label, rows=300)
    g = g * longer
    sent, log = strategy.protect(g, labels)
    # Estimates are relative to the length of rows: that of earlier batches, or of these rows if they are longer.
    growth = max(1.0, (g.square().sum(dim=1).mean() / earlier.square().sum(dim=1).mean()).item())
    lam1, lam2 = ((spectrum.lam1_neg, spectrum.lam2_neg), (spectrum.lam1_pos, spectrum.lam2_pos))[label]
    along = (sent - g) @ direction
    across = sent - g - along[:, None] * direction
    assert within(along.square().sum().item() / (lam1 * growth), chi2(300))
    if lam2 > 0.0:
        assert within(across.square().sum().item() / (lam2 * growth), chi2(300 * (D - 1)))
    assert log["marvell.noise_power"] == pytest.approx(growth * (lam1 + (D - 1) * lam2), rel=1e-6)
    assert log["marvell.sum_kl_after"] == pytest.approx(spectrum.sum_kl, rel=1e-6)
    assert (log["marvell.fallback"], log["marvell.withheld"], strategy.fallbacks) == (1.0, 0.0, 1)
    strategy._accountant("").largest = 0.0
    strategy.protect(g, labels)
    assert strategy._accountant("").largest == log["marvell.sum_kl_after"]
    assert "of one class" in caplog.text


def test_rows_of_one_class_that_are_longer_than_earlier_ones_get_noise_in_proportion():
    g, y = batch(rows=2000)
    strategy = defense(s=4.0)
    strategy.protect(g, y)
    rows, labels = one_class(rows=500)
    powers = []
    for scale in (1e-6, 1.0, 1e6):
        _, log = strategy.protect(rows * scale, labels)
        powers.append(log["marvell.noise_power"])
    assert powers[0] == powers[1]
    assert 1e11 < powers[2] / powers[1] < 1e12


def test_running_estimates_do_not_depend_on_the_scale():
    g, y = batch(rows=500)
    rows, labels = one_class(rows=50)
    powers = []
    for scale in (1e-30, 1.0, 1e30):
        strategy = defense()
        strategy.protect(g * scale, y)
        sent, log = strategy.protect(rows * scale, labels)
        powers.append(log["marvell.noise_power"] / scale / scale)
        assert (sent != rows * scale).any(dim=1).all()
    assert powers == pytest.approx([powers[1]] * 3, rel=1e-9)


def test_an_earlier_batch_weighs_nine_tenths_of_the_next_one():
    running, known = (
        RunningEstimates(),
        [estimate(*batch(rows=rows, gap=gap)) for rows, gap in ((200, 4.0), (250, 1.0))],
    )
    for classes in known:
        running.add(classes)
    found = running.recall(torch.ones(3, D, dtype=torch.float64))
    for name in ("u", "v", "g"):
        first, second = (getattr(classes, name) / classes.rms**2 for classes in known)
        assert getattr(found, name) == pytest.approx((0.9 * first + second) / 1.9)
    away = [math.sqrt(classes.g) / classes.rms * classes.direction for classes in known]
    expected = 0.9 * away[0] + away[1]
    torch.testing.assert_close(found.direction, expected / expected.norm())


def test_running_estimates_follow_the_latest_batches():
    rows, labels = one_class(rows=50)
    strategy = defense()
    for gap in [20.0] * 3 + [2.0] * 150:
        strategy.protect(*batch(rows=500, gap=gap))
    fresh = defense()
    fresh.protect(*batch(rows=500, gap=2.0))
    old, new = (x.protect(rows, labels)[1]["marvell.noise_power"] for x in (strategy, fresh))
    assert old == pytest.approx(new, rel=1e-4)


@pytest.mark.parametrize("strength", [{"s": 4.0}, {"P": 1.0}, {"sum_kl": 0.1}, {"detection_error": 0.4}])
@pytest.mark.parametrize("rows", [1, 64])
def test_before_the_first_estimate_zeros_are_sent(strength, rows, caplog):
    strategy = defense(**strength)
    sent, log = strategy.protect(torch.ones(rows, D), torch.ones(rows))
    assert torch.equal(sent, torch.zeros(rows, D))
    assert (log["marvell.fallback"], log["marvell.withheld"], log["marvell.noise_power"]) == (1.0, 1.0, 0.0)
    assert (log["marvell.sum_kl_after"], log["marvell.auc_bound"]) == (0.0, 0.5)
    assert log["marvell.sum_kl_before"] == math.inf
    assert "zeros are sent" in caplog.text


@pytest.mark.parametrize("known", [False, True])
def test_values_that_are_not_finite_are_replaced_by_zeros(known):
    g, y = batch(rows=20)
    strategy = defense()
    if known:
        strategy.protect(g, y)
    broken = g.clone()
    broken[0, 0] = math.nan
    sent, log = strategy.protect(broken, y)
    assert torch.equal(sent, torch.zeros_like(g))
    assert log["marvell.withheld"] == 1.0
    # That batch changed no estimate.
    sent, log = strategy.protect(g, y)
    assert sent.isfinite().all()
    assert log["marvell.fallback"] == 0.0


def test_a_batch_whose_means_coincide_gets_noise_from_earlier_batches():
    strategy = defense()
    strategy.protect(*batch(rows=100))
    g = torch.zeros(4, D)
    g[2], g[3] = 1.0, -1.0
    sent, log = strategy.protect(g.double(), torch.tensor([0, 0, 1, 1]))
    assert log["marvell.fallback"] == 1.0
    assert (sent[:2].norm(dim=1) > 0).all()


def test_an_empty_batch_stays_empty():
    sent, log = defense().protect(torch.zeros(0, D), torch.zeros(0))
    assert sent.shape == (0, D)
    assert log["marvell.fallback"] == 0.0


def test_a_warning_is_given_once(caplog):
    strategy = defense()
    for _ in range(3):
        strategy.protect(torch.ones(2, D), torch.ones(2))
    assert strategy.fallbacks == 3
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1


def test_parties_that_are_defended_apart_have_estimates_of_their_own():
    g, y = batch(rows=400)
    both = torch.cat([g, 1e3 * g], dim=1)
    rows, labels = one_class(rows=40)
    strategy = defense(scope="per-party")
    strategy.base.build({"a": (D,), "b": (D,)}, None)
    strategy.protect(both, y)
    _, log = strategy.protect(torch.cat([rows, 1e3 * rows], dim=1), labels)
    assert log["marvell.noise_power.b"] == pytest.approx(1e6 * log["marvell.noise_power.a"], rel=1e-9)
    assert set(strategy.state()["estimates"]) == {"a", "b"}


def test_another_width_starts_new_estimates():
    strategy = defense()
    strategy.protect(*batch(rows=50, width=4))
    assert strategy.protect(torch.ones(3, D, dtype=torch.float64), torch.ones(3))[1]["marvell.withheld"] == 1.0
    strategy.protect(*batch(rows=50))
    assert strategy.protect(torch.ones(3, D, dtype=torch.float64), torch.ones(3))[1]["marvell.withheld"] == 0.0


def test_the_state_goes_through_a_file_and_back(tmp_path):
    strategy = defense()
    strategy.protect(torch.ones(2, D), torch.ones(2))
    strategy.protect(*batch(rows=50))
    save_state(tmp_path / "state", strategy.state())
    again = defense()
    again.restore(load_state(tmp_path / "state"))
    assert again.fallbacks == 1
    rows, labels = one_class(rows=5)
    logs = [x.protect(rows, labels)[1] for x in (strategy, again)]
    assert logs[0] == logs[1]
    assert logs[0]["marvell.withheld"] == 0.0


def test_it_nests_with_other_defenses():
    g, y = batch(rows=300)
    inner = VerticalStrategy(nn.Linear(D, 1), torch.tensor([0, 1]))
    sent, log = Marvell(Iso(inner, t=1.0), s=1.0).protect(g, y)
    assert {"iso.noise_power", "marvell.noise_power"} <= set(log)
    assert sent.shape == g.shape


def test_training_goes_on_through_batches_of_one_class():
    data = toy_data(rows=400)
    data.target.train[:] = 0
    data.target.train[::50] = 1
    config = toy_config(training={"epochs": 3, "batch_size": 16, "validation": 0.0}, attack={"names": []})
    values = Values()
    strategy = Marvell(
        VerticalStrategy(
            lambda shape: nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 1)),
            data.labels(),
            parties=data.parties,
            config=config,
            observer=values,
        )
    )
    strategy.start(LocalGrid(make_client_app(data=lambda _: data, config=config), len(data.parties), {}))
    fallbacks = values.values["marvell.fallback"]
    assert len(fallbacks) == 75
    assert 30 < sum(fallbacks) == strategy.fallbacks
    assert sum(values.values["marvell.withheld"]) < sum(fallbacks)
