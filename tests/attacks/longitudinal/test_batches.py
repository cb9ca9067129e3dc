"""The attack on the batches' own means: against the closed form, and where it has nothing to read."""

import numpy as np
import pytest
import torch
from scipy.stats import norm

from flower_vfl.apps import run
from flower_vfl.attacks import MemoryAttack, RememberedBatchesAttack, RememberedDirectionAttack
from flower_vfl.attacks.longitudinal.base import batch_means, centred_in_batch_units
from flower_vfl.auditing.row_memory import RowMemory
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
