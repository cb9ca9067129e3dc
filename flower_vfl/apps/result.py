"""The result of a run: the content of `result.json`, and a value with it and the folder."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flower_vfl.accounting import Guarantee
from flower_vfl.apps.periods import describe_periods
from flower_vfl.apps.rebuild import rebuild
from flower_vfl.apps.result_schema import kept_utility
from flower_vfl.attacks.base import HINTS, REFERENCE, Attack, AttackMethod
from flower_vfl.attacks.longitudinal.base import MemoryAttack
from flower_vfl.auditing.conditional import CONDITIONAL_NEEDS
from flower_vfl.auditing.entries import CONDITIONAL, NAMED_PHASES, NO_GRADIENTS, phase_of
from flower_vfl.auditing.verdict import verdict_of
from flower_vfl.config import Config
from flower_vfl.data.store.dataset import Labels
from flower_vfl.data.store.memory import VerticalData
from flower_vfl.registry import from_elsewhere
from flower_vfl.strategies.base import HookedStrategy
from flower_vfl.training.outcome import LIMITS, Epoch, Outcome
from flower_vfl.version import software

_UTILITY = ("test_auc", "test_loss", "test_ace", "test_accuracy", "train_loss", "epoch")
_COSTS = ("steps", "in_flight", "seconds", "bytes_up", "bytes_down", "seconds_compute", "seconds_wait", "together")
_MORE_UTILITY = ("test_macro_auc", "test_balanced_accuracy")

LARGEST_MATRIX = 100
"""Largest number of classes with a confusion matrix in `result.json`."""


@dataclass(frozen=True)
class RunResult:
    """The result of one run.

    Attributes
    ----------
    status : str
        "finished", "early stopping", "leak limit", "bound limit", "interrupted" or "failed".
    summary : dict[str, Any]
        The content of `result.json`.
    outcome : Outcome
        Metrics of each epoch and all other measurements.
    folder : Path or None
        Folder of its files; None where none were written.
    """

    status: str
    summary: dict[str, Any]
    outcome: Outcome
    folder: Path | None = None

    @property
    def test_auc(self) -> float:
        """Test AUC of the model that is kept; NaN where there is none, as with more than two classes."""
        return self._kept_metric("test_auc")

    @property
    def test_macro_auc(self) -> float:
        """Test AUC of the model that is kept, mean over more than two classes; NaN where there is none."""
        return self._kept_metric("test_macro_auc")

    def _kept_metric(self, name: str) -> float:
        value = kept_utility(self.summary).get(name)
        return math.nan if value is None else float(value)

    def leak(self, *, layer: str = "cut", source: str = "attacker", attack: str = "norm") -> float:
        """Return the largest q95 leak AUC of the gradients of training, over parties; NaN where not measured."""
        values = [
            entry["q95"]
            for entry in self.summary["leakage"]
            if (entry["layer"], entry["source"], entry["attack"]) == (layer, source, attack)
            and phase_of(entry) in NAMED_PHASES
            and entry["defended"] == bool(self.summary["defenses"])
            and entry["q95"] is not None
        ]
        return max(values, default=math.nan)


ResultCallback = Callable[[RunResult], None]
"""Function that receives the result of a run, also of an interrupted one."""


def _utility(epoch: Epoch) -> dict[str, Any]:
    values: dict[str, Any] = {name: _number(epoch.get(name)) for name in _UTILITY}
    more = (name for name in epoch if name.startswith("validation_") or name in _MORE_UTILITY)
    values |= {name: _number(epoch[name]) for name in more}
    return {**values, "epoch": int(epoch["epoch"]) if epoch else None}


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _budget(outcome: Outcome, config: Config) -> dict[str, Any]:
    """Return the `budget` entry, where there are limits: each limit with the value reached after each epoch."""
    limits = {key: limit for key in LIMITS if (limit := getattr(config.attack, f"max_{key}")) < 1.0}
    entry = {
        key: {"limit": limit, "reached": [_number(epoch.get(key)) for epoch in outcome.epochs]}
        for key, limit in limits.items()
    }
    return {"budget": entry} if entry else {}


def describe_data(dataset: VerticalData, labels: Labels, *, validation_rows: int) -> dict[str, Any]:
    """Return the `dataset` entry; `rows` are those of training, `validation_rows` of them for validation alone."""
    positives = np.count_nonzero(labels.train) / max(1, len(labels.train)) if labels.classes == 2 else None
    return {
        "name": dataset.name,
        "rows": dataset.alignment.rows,
        "validation_rows": validation_rows,
        "test_rows": dataset.alignment.test_rows,
        "positives": positives,
        "classes": labels.classes,
        "class_rows": np.bincount(labels.train, minlength=labels.classes).tolist(),
    }


def describe_classes(names: Sequence[str], confusion: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return the `classes` entry: how well the kept model predicts each class of the test rows.

    Parameters
    ----------
    names : Sequence of str
        (C,) names of the classes.
    confusion : Sequence
        (C, C) counts of test rows, a row a true class, a column a predicted one; empty where no model was evaluated.

    Examples
    --------
    >>> found = describe_classes(["no", "yes"], [[3, 1], [0, 0]])
    >>> found["rows"], found["recall"], found["precision"], found["confusion"]
    ([4, 0], [0.75, None], [1.0, 0.0], [[3, 1], [0, 0]])
    """
    if not confusion:
        return {"names": list(names)}
    counts = np.asarray(confusion)
    rows, predicted, right = counts.sum(axis=1).tolist(), counts.sum(axis=0).tolist(), counts.diagonal().tolist()
    return {
        "names": list(names),
        "rows": rows,
        "recall": [one / all_ if all_ else None for one, all_ in zip(right, rows, strict=True)],
        "precision": [one / all_ if all_ else None for one, all_ in zip(right, predicted, strict=True)],
        **({"confusion": counts.tolist()} if len(names) <= LARGEST_MATRIX else {}),
    }


def _attacks(attacks: Sequence[AttackMethod], leakage: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the `attacks` entry: the needs of each attack, and the number of positives of a batch left out for it."""
    found = []
    for attack in attacks:
        hints = attack.hints if isinstance(attack, Attack | MemoryAttack) and HINTS in attack.needs else 0
        facts = {"needs": sorted(attack.needs), "hints": hints, "left_out": hints + (REFERENCE in attack.needs)}
        found.append({"attack": attack.name, "label": attack.label, **facts, "sees": attack.sees})
    if any(entry["attack"] == CONDITIONAL for entry in leakage):
        facts = {"needs": list(CONDITIONAL_NEEDS), "hints": 0, "left_out": 0}
        found.append({"attack": CONDITIONAL, "label": CONDITIONAL, **facts, "sees": "gradients"})
    return found


def _proven(guarantee: Guarantee | None) -> dict[str, Any]:
    """Return the `proven` entry of a defense: its guarantee for all that is sent in the run; empty without one."""
    if guarantee is None:
        return {}
    delta = {"delta": guarantee.delta} if guarantee.delta else {}
    return {"proven": {"epsilon": guarantee.epsilon, **delta, "auc": guarantee.auc}}


def _software(found: Mapping[str, str]) -> dict[str, str]:
    """Return a host's software under the keys of `result.json`."""
    return {"flower_vfl" if name == "version" else name: words for name, words in found.items()}


def summarise(
    outcome: Outcome,
    strategy: HookedStrategy,
    config: Config,
    data: dict[str, Any],
    *,
    classes: Sequence[str],
    status: str,
    error: str,
) -> dict[str, Any]:
    """Return the content of `result.json` (schema 1); `classes` are the names of the classes."""
    periods = strategy.base.periods_in_order
    last = outcome.model_epochs[-1] if outcome.model_epochs else {}
    parties = {party: report.get("weights", "") for party, report in outcome.reports.items()}
    summary: dict[str, Any] = {
        "schema": 1,
        "status": status,
        "error": error,
        "dataset": data,
        "parties": {"features": list(strategy.base.parties), "label_features": strategy.base.table is not None},
        "defenses": _defenses(strategy),
        **({} if config.training.gradients else {"baseline": NO_GRADIENTS}),
        "log": {name: _number(total / max(1, outcome.steps)) for name, total in outcome.logged.items()},
        "attacks": _attacks(strategy.base.attacks, outcome.leakage),
        "model": {
            "step": outcome.model_step,
            "epoch": outcome.model_epoch,
            **({"chosen_by": outcome.chosen_by} if outcome.chosen_by else {}),
            **({"refit": outcome.refit} if outcome.refit else {}),
        },
        **_budget(outcome, config),
        **({"account": dict(outcome.account)} if outcome.account else {}),
        "utility": {"last": _utility(last), "best": _utility(outcome.best)},
        "best_by": outcome.best_by,
        "classes": describe_classes(classes, outcome.confusion),
        **({} if periods is None else {"periods": describe_periods(outcome.epochs, periods)}),
        "leakage": outcome.leakage,
        **({"epsilon": outcome.epsilon} if outcome.epsilon else {}),
        "rebuild": rebuild(outcome.leakage, outcome.of_model, classes=data["classes"], share=config.attack.rebuilt),
        "cost": {name: getattr(outcome, name) for name in _COSTS},
        "weights": {"label": outcome.weights, **parties},
        "environment": _environment(config, outcome),
    }
    return {**summary, "verdict": verdict_of(summary)}


def _defenses(strategy: HookedStrategy) -> list[dict[str, Any]]:
    return [
        {
            "name": defense.name,
            "params": defense.params,
            "read_by": list(defense.read_by),
            **_proven(defense.guarantee()),
            **from_elsewhere(type(defense)),
        }
        for defense in strategy.chain()
    ]


def _environment(config: Config, outcome: Outcome) -> dict[str, Any]:
    return {
        **_software(software()),
        "python": platform.python_version(),
        "seed": config.seed,
        "transport": config.transport.kind,
        "device": config.device,
        "threads": config.threads,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "hosts": {party: _software(found) for party, found in outcome.hosts.items()},
    }
