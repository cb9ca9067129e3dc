"""A run's folder with plausible numbers, without training anything."""

import json

import numpy as np
import pytest

from flower_vfl.metrics import LeakSummary, auc_bound, snapshot
from flower_vfl.tracking import StepLog, add_snapshot, merge_steps

CONFIG = """\
seed = %d
[data]
name = "census-income"
[parties]
features = ["a", "b"]
[training]
epochs = 6
batch_size = 1024
"""


def write_run(
    folder,
    *,
    defenses=(),
    leak=0.97,
    steps=600,
    epochs=6,
    parties=("a", "b"),
    utility=0.9321,
    seed=0,
    attacks=(("norm", 0.0),),
    sum_kl=None,
    snapshots=(),
):
    """Write the folder of a run whose attacks reach about the AUC `leak`, each less by its own number.

    With `sum_kl` the first defense logs this divergence and its bound in each step.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for step in snapshots:
        add_snapshot(folder, step, taken(step))
    rng = np.random.default_rng(seed)
    summaries = {
        (party, layer, attack, less): LeakSummary(attack=attack, party=party, layer=layer, defended=bool(defenses))
        for party in parties
        for layer in ("cut", "first")
        for attack, less in attacks
    }
    with StepLog(folder) as log:
        for step in range(steps):
            epoch = 1 + step * epochs // steps
            row = {"step": step, "epoch": epoch}
            positives = rng.binomial(1024, 0.083)
            counts = {"batch_rows": 1024, "batch_positives": positives}
            if sum_kl is not None:
                bounds = {"sum_kl_after": sum_kl, "auc_bound": auc_bound(sum_kl), "fallback": step % 10 == 0}
                bounds["withheld"] = step % 20 == 0
                counts |= {f"{defenses[0]['name']}.{metric}": value for metric, value in bounds.items()}
            for metric, value in counts.items():
                log.add(**row, party="label", layer="", attack="", metric=metric, value=value)
            for (party, layer, attack, less), summary in summaries.items():
                level = 0.5 + (leak - less - 0.5) * (1 - np.exp(-step / 60)) - 0.03 * (layer == "first")
                value = float(np.clip(rng.normal(level, 0.035 * (1.2 - level)), 0, 1))
                summary.add(value, 1024 - positives, positives)
                log.add(**row, party=party, layer=layer, attack=attack, metric="auc", value=value)
                if layer == "cut":
                    log.add(**row, party=party, layer=layer, attack=attack, metric="monitor_auc", value=value)
            loss = 0.12 + 0.25 * np.exp(-step / 80) + rng.normal(0, 0.01)
            log.add(**row, party="label", layer="", attack="", metric="train_loss", value=loss)
            if step == steps - 1 or (step + 1) * epochs // steps >= epoch:
                done = np.exp(-(epoch - 1) / 1.5)
                values = {"test_loss": 0.125 + 0.05 * done, "validation_loss": 0.123 + 0.05 * done}
                values |= {"test_auc": utility - 0.04 * done, "validation_auc": utility + 0.002 - 0.04 * done}
                for metric, value in values.items():
                    log.add(**row, party="label", layer="", attack="", metric=metric, value=value)
    merge_steps(folder)
    result = make_result(
        utility, [summary.result() for summary in summaries.values()], list(defenses), steps, epochs, parties
    )
    (folder / "config.toml").write_text(CONFIG % seed)
    (folder / "result.json").write_text(json.dumps(result))
    return folder


def taken(step, rows=80):
    """Return a snapshot in which gradients of the two classes point apart."""
    rng = np.random.default_rng(step)
    y, slopes = (np.arange(rows) % 5 == 0).astype(int), np.abs(rng.normal(1, 0.3, (rows, 4)))
    logits = rng.normal(-1, 1, rows)
    gradients = (1 / (1 + np.exp(-logits)) - y)[:, None] * slopes
    return snapshot(y, logits, slopes, gradients, generator=rng)


def make_result(utility, leakage, defenses, steps, epochs, parties):
    """Return a result of schema 1."""
    values = {"test_loss": 0.127, "test_ace": 0.0081, "test_accuracy": 0.9534, "train_loss": 0.1183}
    values |= {"validation_auc": utility + 0.002}
    return {
        "schema": 1,
        "status": "finished",
        "error": "",
        "parties": {"features": list(parties), "label_features": False},
        "dataset": {"name": "census-income", "rows": 149_271, "test_rows": 75_034, "positives": 0.0829, "classes": 2},
        "defenses": defenses,
        "utility": {
            "last": {"test_auc": utility, **values, "epoch": epochs},
            "best": {"test_auc": utility + 0.0004, **values, "epoch": epochs - 1},
        },
        "alone": {"a": 0.8791, "label": 0.9222},
        "leakage": leakage,
        "cost": {
            **{"steps": steps, "seconds": 11.62, "bytes_up": 103_321_600, "bytes_down": 103_321_600},
            **{"seconds_compute": 9.8, "seconds_wait": 1.8},
        },
        "weights": {"label": "9f" * 32, "a": "3c" * 32, "b": "77" * 32},
        "environment": {
            **{"flower_vfl": "0.1.0", "flwr": "1.42.0", "torch": "2.13.0+cpu", "python": "3.11.7", "seed": 0},
            **{"transport": "inproc", "device": "cpu"},
        },
    }


@pytest.fixture
def run_folder(tmp_path):
    """Return a function that writes a run into the folder of a name."""
    return lambda name="run", **facts: write_run(tmp_path / name, **facts)


@pytest.fixture
def _nothing_is_drawn(monkeypatch):
    from flower_vfl.reports.figures import embeddings, snapshots, trade_off, training

    for module in (embeddings, snapshots, trade_off, training):
        monkeypatch.setattr(module, "draw", lambda *_, **__: "<svg></svg>")
