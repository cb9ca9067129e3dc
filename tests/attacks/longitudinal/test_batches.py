"""The attacks on the batches' own means and scales: against closed forms, and where they have nothing to read."""

import numpy as np
import pytest
import torch
from scipy.stats import hypergeom, norm

from flower_vfl.apps import run
from flower_vfl.attacks import (
    MemoryAttack,
    RememberedBatchesAttack,
    RememberedDirectionAttack,
    RememberedScalesAttack,
)
from flower_vfl.attacks.longitudinal.base import batch_means, batch_scales, centred_in_batch_units
from flower_vfl.auditing.row_memory import RowMemory
from flower_vfl.config import build_config
from flower_vfl.data.store.dataset import Labels
from flower_vfl.data.store.memory import MemoryData
from flower_vfl.errors import CheckError, ConfigError
from flower_vfl.metrics import leak_auc
from flower_vfl.protocol.schedule import Schedule
from flower_vfl.testing import check_attack
from tests.cases import parametrize
from tests.toys import toy_config, toy_data


def read(attack, schedule, send):
    """Return scores and rows after a training whose steps send the gradients (B, D) of `send`."""
    memory = RowMemory(schedule, attack.keeps)
    for step in range(schedule.steps):
        rows = schedule.train_batch(step)
        memory.record(step, rows, {"cut": torch.from_numpy(send(step, rows)).float()})
    found = memory.at("cut", schedule.epochs)
    return attack.score(found).numpy(), found.order


@parametrize(("batch", "epochs", "share", "rows"), [(128, 10, 0.1, 12_800), (16, 12, 0.3, 4800)], quick=1)
def test_shuffled_gradients_are_read_as_well_as_the_numbers_of_positives_allow(batch, epochs, share, rows):
    rng = np.random.default_rng(0)
    y = rng.random(rows) < share

    def shuffled(step, chosen):
        g = np.zeros((len(chosen), 4))
        g[:, 0] = rng.permutation(np.where(y[chosen], 3.0, -1.0))
        return g

    schedule = Schedule(1, rows, 0, batch, batch, epochs, validation=0.0)
    scores, order = read(RememberedBatchesAttack(), schedule, shuffled)
    found = leak_auc(scores, y[order])
    expected = norm.cdf(np.sqrt(epochs / (2 * batch * share * (1 - share))))
    # Four standard errors of an AUC, and what few batches add: a row's own epochs have not quite independent numbers.
    assert max(found, 1 - found) == pytest.approx(expected, abs=4 * np.sqrt(1 / (12 * share * rows)) + 0.015)
    scores, order = read(RememberedDirectionAttack(), schedule, shuffled)
    centred = leak_auc(scores, y[order])
    assert max(centred, 1 - centred) < 0.55  # which is why the means are read apart


def test_noise_by_the_longest_row_reveals_rare_positives_by_the_scales_of_batches():
    """A positive's batches are all loud; a negative's all E with probability q^E, q that of another positive."""
    rng, rows, batch, epochs, positives = np.random.default_rng(0), 6400, 32, 4, 128
    y = np.zeros(rows, dtype=bool)
    y[rng.choice(rows, positives, replace=False)] = True

    def loud(step, chosen):
        g = rng.normal(size=(len(chosen), 4))
        g -= g.mean(axis=0)
        return g / np.sqrt(np.square(g).mean()) * (9.0 if y[chosen].any() else 1.0)

    schedule = Schedule(1, rows, 0, batch, batch, epochs, validation=0.0)
    scores, order = read(RememberedScalesAttack(), schedule, loud)
    others = 1 - hypergeom.pmf(0, rows - 1, positives, batch - 1)
    assert leak_auc(scores, y[order]) == pytest.approx(1 - others**epochs / 2, abs=0.01)
    scores, order = read(RememberedDirectionAttack(), schedule, loud)
    assert abs(leak_auc(scores, y[order]) - 0.5) < 0.1  # in units of the batch nothing is left


@pytest.mark.parametrize("defense", ["iso(t=300.0)", "max_norm", "marvell(s=4.0)"])
def test_the_scales_of_batches_are_read_where_a_defense_makes_noise_by_the_longest_row(defense):
    """Known to leak by scales: their audit reads them without being asked, and no other defense's does."""
    data = toy_data(rows=4000, parties=1)
    rare = data.labels()
    score = data.party("a").train.gather(np.arange(4000))[0][:, :2].sum(dim=1).numpy()
    labels = Labels((score > np.quantile(score, 0.98)).astype(np.int64), rare.test, 2)
    data = MemoryData("rare", {"a": data.party("a")}, "label", labels)
    config = build_config(
        toy_config(training={"epochs": 6, "batch_size": 64}, attack={"names": ["norm"], "informed": 8192}),
        {"defenses": defense},
    )
    result = run(config, data=lambda _: data).summary
    found = [entry for entry in result["leakage"] if entry["attack"] == "remembered_scales"]
    assert len(found) == (0 if defense.startswith("marvell") else 1)
    if defense.startswith("iso"):
        assert found[0]["values"][-1] > 0.8
        assert result["verdict"]["status"] == "leaks"


def test_the_scale_of_a_batch_of_zeros_is_finite_and_low():
    assert batch_scales(torch.zeros(3, 2)).tolist() == [[pytest.approx(np.log(1e-12))]] * 3
    assert batch_scales(torch.zeros(0, 2)).shape == (0, 1)


def test_means_and_what_is_left_without_them_are_the_whole_gradient():
    g = torch.randn(9, 5, generator=torch.Generator().manual_seed(0)).double()
    mean = g.mean(dim=0)
    unit = g.square().mean().sqrt()
    torch.testing.assert_close(batch_means(g), (mean / unit).float().expand(9, 5))
    centred = (g - mean) / (g - mean).square().mean().sqrt()
    torch.testing.assert_close(centred_in_batch_units(g), centred.float())
    assert batch_means(g[:0]).shape == (0, 5)


def test_where_each_row_comes_once_the_rows_of_a_batch_are_equal():
    schedule = Schedule(1, 40, 0, 20, 20, 2, validation=0.0, periods=(20, 20))
    rng = np.random.default_rng(0)
    scores, order = read(RememberedBatchesAttack(), schedule, lambda step, rows: rng.normal(size=(len(rows), 3)))
    for day in (order < 20, order >= 20):
        assert len(np.unique(scores[day])) == 1


class Both(MemoryAttack):
    """Declares what cannot be kept together."""

    name = "both"
    keeps = frozenset({"batches", "last"})

    def score(self, memory, known=None):
        """Return zeros."""
        return torch.zeros(memory.rows)


def test_means_of_batches_cannot_be_kept_together_with_others():
    with pytest.raises(CheckError, match="'batches' cannot be kept together with last"):
        check_attack(Both)
    with pytest.raises(ConfigError, match=r"'both' cannot be run: 'batches' cannot be kept together with last"):
        run(toy_config(attack={"names": [f"{__name__}:Both"]}), data=lambda _: toy_data(rows=300))
