"""Runs whose gradients carry nothing about their rows are called leaking no oftener than the stated rate."""

import numpy as np
import pytest
import torch

from flower_vfl.attacks import make_attacks
from flower_vfl.auditing.audit_labels import AuditLabels
from flower_vfl.auditing.halves import Split
from flower_vfl.auditing.monitor import LeakageMonitor
from flower_vfl.auditing.recorder import NoRecorder
from flower_vfl.auditing.verdict import LEAKS, verdict_of
from flower_vfl.config.schema import DEFAULT_ATTACKS
from flower_vfl.protocol.schedule import Schedule

ROWS, BATCH, WIDTH, EPOCHS = 1010, 50, 6, 2
"""The last batch of an epoch has ten rows, with two positives as a rule."""


def verdict(seed, *, shuffled):
    """Return the verdict on a synthetic training without a defense, with gradients of other rows if shuffled."""
    rng = np.random.default_rng(seed)
    y = (rng.random(ROWS) < 0.2).astype(np.int64)
    z = (rng.normal(size=(ROWS, WIDTH)) + 0.8 * y[:, None]).astype(np.float32)
    p = 1 / (1 + np.exp(-z[:, :2].sum(axis=1) + 2))
    schedule = Schedule(seed, ROWS, 0, BATCH, BATCH, EPOCHS, validation=0.0)
    labels = AuditLabels.of(y)
    monitor = LeakageMonitor(
        ["a"],
        make_attacks([{"name": name} for name in DEFAULT_ATTACKS]),
        labels,
        schedule,
        defended=False,
        recorder=NoRecorder(),
        every=1,
        informed=ROWS * EPOCHS,
        split=Split(seed),
    )
    slope = rng.normal(size=WIDTH)
    for step in range(schedule.steps):
        rows = schedule.train_batch(step)
        g = (p - y)[rows, None] * (slope + 0.3 * rng.normal(size=(len(rows), WIDTH)))
        g = rng.permutation(g) if shuffled else g
        sent = {"a": torch.from_numpy(g.astype(np.float32))}
        monitor.observe(step, schedule.epoch_of(step), rows, {"a": torch.from_numpy(z[rows])}, sent)
    monitor.finish_audit()
    result = {"leakage": monitor.entries(), "defenses": [], "parties": {"features": ["a"]}}
    return verdict_of(result)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("runs", "most"), [(40, 6), pytest.param(200, 18, marks=pytest.mark.release)])
def test_shuffled_gradients_are_called_a_leak_no_oftener_than_in_5_of_100_runs(runs, most):
    """At a rate of 5 % more than 6 of 40 have probability 0.003, more than 18 of 200 have 0.006."""
    found = [verdict(seed, shuffled=True) for seed in range(runs)]
    assert sum(one["status"] == LEAKS for one in found) <= most
    assert all(one["parties"][0]["not_run"] == [] for one in found)


def test_the_same_gradients_at_their_own_rows_are_a_leak():
    found = verdict(0, shuffled=False)
    assert found["status"] == LEAKS
    assert found["parties"][0]["leak"]["value"] > 0.99
