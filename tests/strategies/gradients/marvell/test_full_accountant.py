"""Privacy accountant of Marvell with full covariances: against whole matrices and against readers.

Statistics are compared with their exact spread: a comparison within five standard errors fails on correct code with
probability 6e-7.
"""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from torch import nn

from flower_vfl.apps import run
from flower_vfl.metrics import auc_bound, leak_auc, together_shaped
from flower_vfl.rng import Secret
from flower_vfl.strategies import MarvellFull, VerticalStrategy
from flower_vfl.strategies.gradients.marvell import full_accountant
from flower_vfl.strategies.gradients.marvell.full import draw_noise, estimate, optimal_noise
from flower_vfl.strategies.gradients.marvell.full_accountant import (
    FullAccountant,
    PartNoise,
    accounted_epochs,
    release,
)
from flower_vfl.strategies.gradients.noise import Noise
from flower_vfl.tracking import read_steps
from tests.metrics.likelihood_ratio import best_auc
from tests.toys import toy_config, toy_data

ROWS, WIDTH, BATCH = 2400, 5, 200
LABELS = (np.arange(ROWS) % 4 == 1).astype(np.int64)
AXES = np.random.default_rng(5).standard_normal((2, WIDTH, WIDTH)) * np.array([0.5, 0.3, 0.1, 0.03, 0.01])
"""Axes of the deviations of each class, (2, WIDTH, WIDTH)."""


def deviations(seed):
    z = np.random.default_rng(seed).standard_normal((ROWS, WIDTH))
    return np.einsum("rij,rj->ri", AXES[LABELS], z)


def epoch(seed, kept):
    """Yield gradients, labels and rows of each batch; a share `kept` of each row's deviation recurs in all epochs."""
    g = math.sqrt(kept) * deviations(10_000) + math.sqrt(1.0 - kept) * deviations(seed)
    g[:, 0] += np.where(LABELS == 1, 1.5, -0.5)
    order = np.random.default_rng(seed).permutation(ROWS)
    for low in range(0, ROWS, BATCH):
        rows = order[low : low + BATCH]
        yield torch.tensor(g[rows]), torch.tensor(LABELS[rows]), rows


def strategy():
    base = VerticalStrategy(nn.Linear(WIDTH, 1), torch.tensor(LABELS), secret=Secret.for_simulation(0, "label"))
    base.build({"a": (WIDTH,)}, None)
    return base


def trained(epochs, *, kept, rho=0.0, s=4.0):
    """Return a trained defense, its log of each epoch, the divergence of each step and what was sent, (T, N, D)."""
    defense = MarvellFull(strategy(), s=s, rho=rho)
    logs, divergences, sent = [], [], np.zeros((epochs, ROWS, WIDTH))
    for number in range(epochs):
        for g, y, rows in epoch(number, kept):
            defense.base.begin_batch(rows)
            noisy, log = defense.protect(g, y)
            sent[number, rows] = noisy.numpy()
            divergences.append(log["marvell_full.sum_kl_after"])
        logs.append({key.removeprefix("marvell_full."): value for key, value in defense.end_epoch().items()})
    return defense, logs, np.array(divergences), sent


def batches(width=4, seed=0, rows=120):
    generator = torch.Generator().manual_seed(seed)
    y = (torch.arange(rows) % 3 == 0).long()
    g = torch.randn(rows, width, generator=generator, dtype=torch.float64) * torch.linspace(0.1, 2.0, width)
    return g * (1.0 + y[:, None] * torch.rand(width, generator=generator)) + y[:, None] * 0.8, y


@pytest.mark.parametrize(("rows", "width"), [(120, 4), (9, 20)])
def test_a_release_has_the_covariances_of_the_classes_and_of_their_noise(rows, width):
    g, y = batches(width, rows=rows)
    pair = estimate(g, y)
    noise = optimal_noise(pair, 3.0)
    found = release(pair, [PartNoise(noise)])
    unit = float(g.abs().max())
    for c in (0, 1):
        of_class = g[y == c].numpy()
        assert found.own[c] @ found.own[c].T * unit**2 == pytest.approx(np.cov(of_class.T, bias=True), abs=1e-6)
        directions, levels = noise.directions.double(), noise.levels[c]
        expected = directions @ torch.diag(levels) @ directions.T + noise.everywhere * torch.eye(
            width, dtype=torch.float64
        )
        expected += noise.along * torch.outer(noise.line, noise.line)
        assert found.noise[c] @ found.noise[c].T == pytest.approx(expected.numpy(), abs=1e-9)
        assert found.noise[c][:, :width] == pytest.approx(found.noise[c][:, :width].T)
    if width < rows:
        assert together_shaped([found], rho=0.3, kept=0.3).sum_kl() == pytest.approx(noise.sum_kl, rel=1e-6)


def test_the_noise_that_is_drawn_for_a_row_in_two_epochs_has_the_covariance_of_the_model():
    """Two batches of one row under many keys; each entry of the covariance within five standard errors."""
    rho, count, width, c = 0.6, 1_200, 3, 1
    pairs = [estimate(*batches(width, seed)) for seed in (1, 2)]
    noises = [optimal_noise(pair, 4.0) for pair in pairs]
    parts = [release(pair, [PartNoise(noise)]) for pair, noise in zip(pairs, noises, strict=True)]
    samples, rows = np.zeros((count, 2 * width)), np.array([7])
    for key in range(count):
        for number, noise in enumerate(noises):
            generator = torch.Generator().manual_seed(2 * key + number)
            source = Noise(generator, rho=rho, key=key.to_bytes(16, "big"), rows=rows)
            drawn = draw_noise(torch.zeros(1, width, dtype=torch.float64), torch.tensor([c]), noise, 1.0, source)
            samples[key, number * width : (number + 1) * width] = drawn[0].numpy()
    blocks = [[(1.0 if s is t else rho) * s.noise[c] @ t.noise[c].T for t in parts] for s in parts]
    expected = np.block(blocks)
    spread = np.sqrt((np.outer(np.diag(expected), np.diag(expected)) + expected**2) / count)
    assert (np.abs(samples.T @ samples / count - expected) < 5 * spread).all()


def test_with_fresh_noise_and_rows_that_are_new_each_time_the_divergences_of_the_epochs_add_up():
    _, logs, divergences, _ = trained(4, kept=0.0)
    for count, found in enumerate(logs, start=1):
        assert found["kept"] == pytest.approx(0.0, abs=5 / math.sqrt(ROWS / 4 * WIDTH / 4))
        assert found["sum_kl_remembered"] == pytest.approx(count * divergences.mean(), rel=0.1)
        assert found["auc_bound_remembered"] == auc_bound(found["sum_kl_remembered"])
    assert logs[0]["sum_kl_remembered"] == pytest.approx(divergences[: ROWS // BATCH].mean())


@pytest.mark.parametrize(("kept", "rho"), [(0.0, 0.0), (0.9, 0.0), (0.9, 0.5)])
def test_the_best_reader_of_all_epochs_stays_below_the_bound(kept, rho):
    """The reader fits a Gaussian to each class, over all epochs side by side, and is scored on the same rows."""
    defense, logs, divergences, sent = trained(3, kept=kept, rho=rho)
    for count in (1, 2, 3):
        features = sent[:count].transpose(1, 0, 2).reshape(ROWS, -1)
        reader = QuadraticDiscriminantAnalysis(priors=[0.5, 0.5]).fit(features, LABELS)
        leak = leak_auc(reader.decision_function(features), LABELS == 1)
        assert 0.6 < leak < logs[count - 1]["auc_bound_remembered"]
    assert logs[-1]["kept"] == pytest.approx(kept, abs=0.1)
    worst = max(divergences.max(), *(found["sum_kl_remembered"] for found in logs))
    assert defense.bound() == auc_bound(worst)


def test_the_likelihood_ratio_stays_below_the_bound_and_reads_equal_covariances_as_the_formula_says():
    """Recurring deviations make the covariances differ as well; without them the best rule is linear."""
    pair = estimate(*batches())
    found = release(pair, [PartNoise(optimal_noise(pair, 4.0 * float(pair.means.square().sum())))])
    error = math.sqrt(1 / 6 / 40_000)
    for kept, rho in ((0.0, 0.0), (0.9, 0.0), (0.9, 0.9)):
        model = together_shaped([found] * 3, rho=rho, kept=kept)
        best = best_auc(model, 40_000)
        assert best < auc_bound(model.sum_kl()) + 5 * error
        if kept == rho == 0.0:
            assert best == pytest.approx(norm.cdf(math.sqrt(model.sum_kl() / 2)), abs=5 * error)


def test_recurring_deviations_behind_fresh_noise_are_counted():
    """Fresh noise that makes covariances equal in each step averages out; recurring deviations do not."""
    recurring, fresh = (trained(3, kept=kept)[1][-1]["sum_kl_remembered"] for kept in (0.95, 0.0))
    assert recurring > 1.3 * fresh


def test_persistent_noise_leaves_a_smaller_divergence_over_epochs_than_fresh_noise():
    fresh, persistent = (trained(3, kept=0.9, rho=rho)[1][-1]["sum_kl_remembered"] for rho in (0.0, 0.5))
    assert persistent < 0.7 * fresh


def test_more_epochs_never_have_a_smaller_divergence():
    divergences = [found["sum_kl_remembered"] for found in trained(5, kept=0.5, rho=0.3)[1]]
    assert all(later >= earlier * 0.98 for earlier, later in pairwise(divergences))


def test_the_largest_divergence_is_that_of_a_step_or_of_all_epochs_together():
    """It never decreases, and a restored accountant has it."""
    accountant, restored = FullAccountant(LABELS), FullAccountant(LABELS)
    assert accountant.largest == 0.0
    divergences = []
    for number in range(2):
        for step, (g, y, rows) in enumerate(epoch(number, 0.9)):
            pair = estimate(g, y)
            noise = optimal_noise(pair, 4.0 * pair.g)
            divergence = 2.0 * noise.sum_kl if step == 3 else noise.sum_kl
            accountant.add(pair, [PartNoise(noise)], divergence, g, y, rows)
            divergences.append(divergence)
            assert accountant.largest == max(divergences)
        divergences.append(accountant.end_epoch(0.0)["sum_kl"])
        assert accountant.largest == max(divergences)
    assert np.argmax(divergences) == len(divergences) - 1
    restored.restore(accountant.state())
    assert restored.largest == accountant.largest


@pytest.mark.parametrize("at", [3, 11])
def test_a_defense_goes_on_as_if_it_had_not_been_interrupted(at):
    straight, other = (MarvellFull(strategy(), s=4.0, rho=0.5) for _ in range(2))
    for number in range(3):
        for step, (g, y, rows) in enumerate(epoch(number, 0.5)):
            if number == 1 and step == at:
                other.restore(straight.state())
            for defense in (straight, other) if number == 2 or (number == 1 and step >= at) else (straight,):
                defense.base.begin_batch(rows)
                defense.protect(g, y)
        if number:
            assert straight.end_epoch() == other.end_epoch()
        else:
            straight.end_epoch()
    assert straight.bound() == other.bound()


def test_after_more_epochs_than_can_be_accounted_there_is_no_bound(monkeypatch):
    monkeypatch.setattr(full_accountant, "LARGEST_COVARIANCE", 2 * WIDTH)
    defense, logs, _, _ = trained(3, kept=0.0)
    assert [bool(found) for found in logs] == [True, True, False]
    assert defense.bound() == 1.0
    for width in (1, 7, 20, 641):
        allowed = [count for count in range(1, 700) if count == 1 or count * width <= 2 * WIDTH]
        assert accounted_epochs(width) == max(allowed)


def test_an_epoch_without_a_batch_of_both_classes_has_no_bound():
    defense = MarvellFull(strategy())
    defense.base.begin_batch(np.arange(4))
    defense.protect(torch.ones(4, WIDTH), torch.zeros(4, dtype=torch.int64))
    assert defense.end_epoch() == {}
    assert defense.bound() == 1.0
    defense = trained(1, kept=0.0)[0]
    assert defense.bound() < 1.0
    defense.end_epoch()
    assert defense.bound() == 1.0


def test_without_noise_there_is_no_bound():
    defense, logs, _, _ = trained(1, kept=0.0, s=0.0)
    assert logs == [{}]
    assert defense.bound() == 1.0


def test_a_run_logs_the_bound_after_each_epoch(tmp_path):
    config = toy_config(training={"epochs": 3}, defenses=[{"name": "marvell_full"}], attack={"names": ["norm"]})
    run(config, out=tmp_path / "run", data=lambda _: toy_data())
    steps = read_steps(tmp_path / "run").to_pylist()
    metrics = ("sum_kl_remembered", "auc_bound_remembered", "kept")
    found = {metric: [row["value"] for row in steps if row["metric"] == f"marvell_full.{metric}"] for metric in metrics}
    assert [len(values) for values in found.values()] == [3, 3, 3]
    assert found["auc_bound_remembered"] == [auc_bound(value) for value in found["sum_kl_remembered"]]
