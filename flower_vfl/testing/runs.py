"""Checks of a defense in runs: a resumed run must end with the weights of a whole one, and predictions must agree."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from flower_vfl.apps import predict, run
from flower_vfl.config import Config, build_config
from flower_vfl.data.store.dataset import Labels
from flower_vfl.data.store.memory import MemoryData, array_table
from flower_vfl.errors import ConfigError
from flower_vfl.strategies import DEFENSE_METHODS
from flower_vfl.testing.subject import Subject
from flower_vfl.training.observer import Observer

_ROWS, _TEST_ROWS, _WIDTH = 96, 40, 4
_STOP = 4
"""The step, of six, in which one run is interrupted; the last state before it is that of step 2."""


def runs(subject: Subject) -> Iterator[str]:
    """Check training, resuming and prediction with the defense; nothing where no run can import the class by name."""
    name = f"{subject.defense_class.__module__}:{getattr(subject.defense_class, '__qualname__', '')}"
    try:
        found = DEFENSE_METHODS.find(name)
    except ConfigError:
        return
    if found is subject.defense_class:
        with tempfile.TemporaryDirectory() as folder:
            yield from _compare(_config(name, subject), Path(folder))


def _compare(config: Config, folder: Path) -> Iterator[str]:
    data = _data()
    whole, broken = folder / "whole", folder / "broken"
    expected = run(config, out=whole, data=lambda _: data).summary
    with suppress(KeyboardInterrupt):
        run(config, out=broken, data=lambda _: data, observers=(_Interrupt(),))
    again = run(config, out=broken, resume=True, data=lambda _: data).summary
    if again["weights"] != expected["weights"]:
        yield (
            "a run that is interrupted and resumed ends with other weights: what changes while training belongs into "
            "`modules`, or into `state` and `restore`"
        )
    predict(whole, folder / "scores.csv", data=lambda _: data)
    found, reached = _auc(folder / "scores.csv", data.labels().test), expected["utility"]["last"]["test_auc"]
    if abs(found - reached) > 1e-9:
        yield f"predictions of the test rows have an AUC of {found:.4f}, the run reached {reached:.4f}"


def _config(name: str, subject: Subject) -> Config:
    return build_config(
        {
            "training": {"epochs": 2, "batch_size": 32, "validation": 0.0, "patience": 0},
            "model": {"cut": 8, "bottom": [8], "top": [8], "numeric_embedding": "none"},
            "attack": {"names": [], "informed": 0, "monitor": False},
            "checkpoint": {"every": 2},
            "defenses": [{"name": name, **subject.params}],
        }
    )


def _data() -> MemoryData:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(_ROWS + _TEST_ROWS, 2, _WIDTH)).astype(np.float32)
    y = (x[:, :, 0].sum(axis=1) + 0.5 * rng.normal(size=len(x)) > 0).astype(np.int64)
    tables = {name: array_table(name, x[:_ROWS, at], x[_ROWS:, at]) for at, name in enumerate("ab")}
    return MemoryData("check_defense", tables, "label", Labels(y[:_ROWS], y[_ROWS:], 2))


def _auc(path: Path, labels: NDArray[Any]) -> float:
    with path.open(encoding="utf8", newline="") as file:
        _, *rows = csv.reader(file)
    return float(roc_auc_score(labels, [float(row[-1]) for row in rows]))


class _Interrupt(Observer):
    """An observer that interrupts a run as Ctrl-C does."""

    def on_step(self, step: int, epoch: int, loss: float, leak: float) -> None:
        if step == _STOP:
            raise KeyboardInterrupt
