"""Marvell's privacy accountant: the divergence of all releases of a row together."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from flower_vfl.apps import run
from flower_vfl.metrics import EpochRelease, auc_bound, leak_auc, together
from flower_vfl.rng import Secret
from flower_vfl.strategies import Marvell, MarvellFull, VerticalStrategy
from flower_vfl.strategies.gradients.marvell import accountant as accountant_module
from flower_vfl.strategies.gradients.marvell.accountant import IsotropicAccountant
from flower_vfl.strategies.gradients.marvell.estimates import estimate
from flower_vfl.strategies.gradients.marvell.solver import optimal_noise
from flower_vfl.testing.subject import strategy
from flower_vfl.tracking import read_steps
from tests.toys import toy_config, toy_data

ROWS, WIDTH = 512, 6
LABELS = torch.arange(ROWS) % 4 == 0


def gradients(recurring, seed=0):
    """Return gradients of two classes; `recurring` are all rows' deviations (ROWS, WIDTH), by default fresh ones."""
    generator = torch.Generator().manual_seed(seed)
    fresh = torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64)
    means = torch.zeros(ROWS, WIDTH, dtype=torch.float64)
    means[:, 0] = LABELS.double() * 2.0
    return means + (recurring if recurring is not None else fresh)


def add_batch(accountant, g, rows):
    """Add a batch to an accountant; return the estimates of the batch and its noise."""
    y = LABELS[rows].long()
    classes = estimate(g, y)
    spectrum = optimal_noise(classes.u, classes.v, classes.d, classes.g, classes.p, 4.0 * classes.g)
    accountant.add(classes, spectrum, g, y, rows)
    return classes, spectrum


def released(classes, noise):
    """Return the release of a batch by its estimates and its noise; any unit will do."""
    pairs = ((classes.u, classes.v), (noise.lam1_neg, noise.lam1_pos), (noise.lam2_neg, noise.lam2_pos))
    return EpochRelease(classes.direction.numpy(), math.sqrt(classes.g), *pairs)


def epochs(count, recurring=None, rho=0.0, step=128):
    """Account for epochs, batch by batch; return the log of each epoch and the divergence of each batch."""
    accountant, logs, divergences = IsotropicAccountant(LABELS.numpy()), [], []
    for epoch in range(count):
        g = gradients(recurring, seed=epoch)
        order = np.random.default_rng(epoch).permutation(ROWS)
        for low in range(0, ROWS, step):
            rows = order[low : low + step]
            divergences.append(add_batch(accountant, g[rows], rows)[1].sum_kl)
        logs.append(accountant.end_epoch(rho))
    return logs, np.array(divergences)


def test_with_fresh_noise_the_divergences_of_the_epochs_add_up():
    logs, divergences = epochs(5)
    single = divergences.mean()
    for count, found in enumerate(logs, start=1):
        assert found["kept"] == pytest.approx(0.0, abs=0.1)
        assert found["sum_kl"] == pytest.approx(count * single, rel=0.2)


def test_batches_may_have_any_scale():
    """Each is in units of its own rows; so small gradients late in training count the same."""
    logs = []
    for scales in ((1.0,), (1.0, 1e-5, 300.0)):
        accountant, made = IsotropicAccountant(LABELS.numpy()), []
        for epoch in range(3):
            order = np.random.default_rng(epoch).permutation(ROWS).reshape(4, -1)
            for number, rows in enumerate(order):
                add_batch(accountant, scales[number % len(scales)] * gradients(None, seed=epoch)[rows], rows)
            made.append(accountant.end_epoch(0.3))
        logs.append([value for log in made for value in log.values()])
    assert logs[1] == pytest.approx(logs[0], rel=1e-6)


@pytest.mark.parametrize("share", [0.5, 0.2, 0.1])
def test_batches_of_small_gradients_do_not_hide_what_others_release(share):
    """With noise of one power, a batch of small gradients has far more of it in units of its rows."""
    accountant, divergences = IsotropicAccountant(LABELS.numpy()), []
    for epoch in range(6):
        order = np.random.default_rng(epoch).permutation(ROWS).reshape(-1, 32)
        for number, rows in enumerate(order):
            small = number < share * len(order)
            g, y = gradients(None, seed=epoch)[rows] * (0.05 if small else 1.0), LABELS[rows].long()
            classes = estimate(g, y)
            power = 40.0 / classes.unit**2
            spectrum = optimal_noise(classes.u, classes.v, classes.d, classes.g, classes.p, power)
            accountant.add(classes, spectrum, g, y, rows)
            divergences.append(spectrum.sum_kl)
        found = accountant.end_epoch(0.0)["sum_kl"]
        assert found >= 0.95 * (epoch + 1) * np.mean(divergences)


def test_batches_of_zeros_are_not_counted_and_another_width_has_no_recurring_share():
    accountant, other = IsotropicAccountant(LABELS.numpy()), IsotropicAccountant(LABELS.numpy())
    rows = np.arange(ROWS)
    for one in (accountant, other):
        classes, spectrum = add_batch(one, gradients(None), rows)
    zeros = replace(classes, g=0.0, u=0.0, v=0.0, rms=0.0)
    assert not accountant.count(zeros, spectrum, rows)
    assert accountant.end_epoch(0.0) == other.end_epoch(0.0)
    wider = torch.cat([gradients(None, seed=1)] * 2, dim=1)
    add_batch(accountant, gradients(None), rows)
    for one in (accountant, IsotropicAccountant(LABELS.numpy())):
        add_batch(one, wider, rows)
        assert one.end_epoch(0.0)["kept"] == 0.0


def test_class_means_that_coincide_have_some_direction():
    accountant = IsotropicAccountant(LABELS.numpy())
    classes = replace(estimate(gradients(None), LABELS.long()), g=0.0)
    spectrum = optimal_noise(classes.u, classes.v, classes.d, 1.0, classes.p, 1.0)
    accountant.add(classes, spectrum, gradients(None), LABELS.long(), np.arange(ROWS))
    assert math.isfinite(accountant.end_epoch(0.0)["sum_kl"])


def test_the_recurring_share_of_each_class_counts_for_that_class():
    """Negatives have the same wide deviations in each epoch; positives have fresh and narrow ones."""
    accountant, rows = IsotropicAccountant(LABELS.numpy()), np.arange(ROWS)
    recurring = 2.0 * torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    releases = []
    for seed in range(2):
        fresh = 0.5 * (gradients(None, seed=seed) - gradients(torch.zeros(ROWS, WIDTH)))
        batch = add_batch(accountant, gradients(torch.where(LABELS[:, None], fresh, recurring)), rows)
        releases.append(released(*batch))
        log = accountant.end_epoch(0.0)
    assert log["kept"] == pytest.approx(0.5, abs=0.05)
    shares = np.stack([np.ones((2, 2)), np.eye(2)])
    found, swapped = (together(releases, rho=0.0, kept=kept).sum_kl() for kept in (shares, shares[::-1]))
    assert log["sum_kl"] == pytest.approx(found, rel=0.02)
    assert log["sum_kl"] != pytest.approx(swapped, rel=0.2)


def test_rows_that_never_recur_have_the_release_of_their_own_epoch_alone():
    accountant = IsotropicAccountant(LABELS.numpy(), repeats=False)
    for seed in range(3):
        _, spectrum = add_batch(accountant, gradients(None, seed=seed), np.arange(ROWS))
        log = accountant.end_epoch(1.0)
        assert log == {"sum_kl": pytest.approx(spectrum.sum_kl), "kept": 0.0}
    assert not accountant._recurrence.state()["now"].numel()  # recurring deviations are not searched


def test_without_the_rows_of_a_batch_there_is_no_bound_over_epochs():
    accountant = IsotropicAccountant(LABELS.numpy())
    classes, spectrum = add_batch(accountant, gradients(None), np.arange(ROWS))
    assert accountant.end_epoch(0.0)
    accountant.add(classes, spectrum, gradients(None), LABELS.long(), None)
    log = accountant.end_epoch(0.0)
    assert log == {}
    assert accountant.largest == math.inf


def test_before_its_first_batch_an_accountant_has_no_divergence():
    accountant = IsotropicAccountant(LABELS.numpy())
    assert accountant.largest == 0.0
    accountant.note(replace(optimal_noise(1.0, 1.0, 6, 1.0, 0.3, 1.0), sum_kl=0.01))
    assert accountant.largest == 0.01


def test_after_one_batch_the_divergence_is_that_of_its_noise_and_the_largest_is_kept():
    """The classes have different spreads, so that each gets noise of its own."""
    y = LABELS.long()
    accountant, divergences = IsotropicAccountant(LABELS.numpy()), []
    for scale in (3.0, 1.0):
        g = gradients(None) * torch.where(LABELS, scale, 0.5)[:, None]
        classes = estimate(g, y)
        spectrum = optimal_noise(classes.u, classes.v, classes.d, classes.g, classes.p, classes.g)
        accountant.add(classes, spectrum, g, y, np.arange(ROWS))
        divergences.append(spectrum.sum_kl)
        assert accountant.largest == max(divergences)
        found = accountant.end_epoch(0.0)["sum_kl"]
        if scale == 3.0:
            assert found == pytest.approx(spectrum.sum_kl, rel=1e-9)
        divergences.append(found)
        assert accountant.largest == max(divergences)
    accountant.note(spectrum)
    assert accountant.largest == max(divergences)
    assert divergences[-1] > divergences[0]


def test_the_recurring_share_of_a_rows_deviation_is_measured():
    recurring = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    assert epochs(3, recurring)[0][-1]["kept"] == pytest.approx(1.0, abs=0.05)
    half = epochs(3, recurring)[0]
    assert half[0]["kept"] == 0.0  # one epoch gives no correlation


def test_persistent_noise_leaves_a_smaller_divergence_over_epochs_than_fresh_noise():
    fresh, persistent = (epochs(5, rho=rho)[0][-1]["sum_kl"] for rho in (0.0, 0.5))
    assert persistent < 0.7 * fresh


def test_more_epochs_never_have_a_smaller_divergence():
    divergences = [found["sum_kl"] for found in epochs(6, rho=0.3)[0]]
    assert all(later >= earlier * 0.99 for earlier, later in pairwise(divergences))


def test_an_accountant_goes_on_as_if_it_had_not_been_interrupted():
    g, rows = gradients(None), np.arange(ROWS)
    classes = estimate(g, LABELS.long())
    spectrum = optimal_noise(classes.u, classes.v, classes.d, classes.g, classes.p, classes.g)
    accountant, other = (IsotropicAccountant(LABELS.numpy()) for _ in range(2))
    accountant.add(classes, spectrum, g, LABELS.long(), rows)
    accountant.end_epoch(0.5)
    accountant.add(classes, spectrum, 1.1 * g, LABELS.long(), rows)
    other.restore(accountant.state())
    assert other.end_epoch(0.5) == accountant.end_epoch(0.5)
    accountant.add(classes, spectrum, g, LABELS.long(), rows)
    other.restore(accountant.state())
    assert other.end_epoch(0.5) == accountant.end_epoch(0.5)


def test_the_largest_divergence_from_before_an_interruption_counts_after_it():
    accountant, restored = (IsotropicAccountant(LABELS.numpy()) for _ in range(2))
    accountant.largest = 1.25
    restored.restore(accountant.state())
    assert restored.largest == 1.25


def test_before_the_first_batch_the_bound_is_one():
    assert Marvell(strategy()).bound() == 1.0


def test_after_more_epochs_than_can_be_accounted_there_is_no_bound(monkeypatch):
    monkeypatch.setattr(accountant_module, "LARGEST_DIRECTIONS", 4)
    assert [bool(found) for found in epochs(4)[0]] == [True, True, False, False]
    y, accountant = LABELS.long(), IsotropicAccountant(LABELS.numpy())
    known = []
    for _ in range(3):
        classes = estimate(gradients(None), y)
        spectrum = optimal_noise(classes.u, classes.v, classes.d, classes.g, classes.p, classes.g)
        accountant.add(classes, spectrum, gradients(None), y, np.arange(ROWS))
        accountant.end_epoch(0.0)
        known.append(math.isfinite(accountant.largest))
    assert known == [True, True, False]


def train_with_few_positives(defense, count, width):
    """Train on batches of which few have one of six positives; each row's gradient is the same in all epochs.

    Return the log and the bound after each epoch, and the leak AUC of the summed gradients of each row.
    """
    rows, batch = 1000, 50
    y = torch.zeros(rows, dtype=torch.int64)
    y[torch.from_numpy(np.random.default_rng(0).permutation(rows)[:6])] = 1
    g = torch.randn(rows, width, generator=torch.Generator().manual_seed(0)) * torch.where(y == 1, 0.05, 1.0)[:, None]
    g[y == 1, 0] += 1.0
    base = VerticalStrategy(nn.Linear(width, 1), y, secret=Secret.for_simulation(0, "label"))
    base.build({"a": (width,)}, None)
    strategy_with_noise, bounds, total = defense(base, s=4.0), [], torch.zeros(rows, width)
    for epoch in range(count):
        for batch_rows in np.random.default_rng(epoch).permutation(rows).reshape(-1, batch):
            strategy_with_noise.base.begin_batch(batch_rows)
            total[batch_rows] += strategy_with_noise.protect(g[batch_rows], y[batch_rows])[0]
        bounds.append((strategy_with_noise.end_epoch(), strategy_with_noise.bound()))
    return bounds, leak_auc(-total.norm(dim=1), y)


@pytest.mark.parametrize("defense", [Marvell, MarvellFull])
def test_where_few_batches_have_both_classes_there_is_no_bound_over_epochs(defense):
    bounds, leak = train_with_few_positives(defense, 4, 128)
    assert leak > 0.95
    assert bounds[1:] == [({}, 1.0)] * 3


def test_an_epoch_without_both_classes_has_no_bound():
    accountant = IsotropicAccountant(LABELS.numpy())
    assert accountant.end_epoch(0.0) == {}
    assert accountant.largest == math.inf
    base = Marvell(strategy())
    base.begin_batch(np.arange(4))
    base.protect(torch.ones(4, 8), torch.zeros(4, dtype=torch.int64))
    assert base.end_epoch() == {}


@pytest.mark.parametrize("scope", ["joint", "per-party"])
def test_a_run_logs_the_bound_after_each_epoch_beside_that_of_its_steps(tmp_path, scope):
    config = toy_config(
        training={"epochs": 3}, defenses=[{"name": "marvell", "s": 4.0, "scope": scope}], attack={"names": ["norm"]}
    )
    run(config, out=tmp_path / "run", data=lambda _: toy_data())
    steps = read_steps(tmp_path / "run").to_pylist()
    found = [row for row in steps if row["metric"].startswith("marvell.auc_bound_remembered")]
    assert {row["metric"].replace("_remembered", "") for row in found} <= {row["metric"] for row in steps}
    assert {row["epoch"] for row in found} == {1, 2, 3}
    kls = [row["value"] for row in steps if row["metric"].startswith("marvell.sum_kl_remembered")]
    assert all(math.isclose(row["value"], auc_bound(kl)) for row, kl in zip(found, kls, strict=True))


def test_more_classes_than_two_have_no_bound_over_epochs(tmp_path):
    config = toy_config(training={"epochs": 1}, defenses=[{"name": "marvell"}], attack={"names": []})
    run(config, out=tmp_path / "run", data=lambda _: toy_data(classes=3))
    assert not [m for m in read_steps(tmp_path / "run")["metric"].to_pylist() if "remembered" in m]
