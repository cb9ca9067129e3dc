"""Summaries of one attack at one layer: of all steps of a run and, where classes take turns, of each class."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from flower_vfl.attacks.base import Attack
from flower_vfl.auditing.summary_state import restore_summary, summary_state
from flower_vfl.auditing.trained_model_metrics import ACCURACY, AUC
from flower_vfl.metrics.summary import LeakSummary
from flower_vfl.registry import from_elsewhere

_SHOWN = ("q95", "q95_null", "q95_turned", "q95_p_value", "mean", "max", "steps", "one_class_steps")


class StepLeaks:
    """A collector of an attack's results in each step.

    Parameters
    ----------
    attack : Attack
        The attack; scores are measured by their AUC, groups by the accuracy of their best assignment to classes.
    party, layer, source, defended
        As for `LeakSummary`.
    """

    def __init__(self, attack: Attack, party: str, layer: str, *, source: str, defended: bool) -> None:
        self.attack, self.layer = attack, layer
        metric = AUC if attack.reads == "scores" else ACCURACY
        self._make = partial(
            LeakSummary, attack.name, party, layer, attack.params, metric=metric, source=source, defended=defended
        )
        self.whole = self._make()
        self._by_class: dict[int, LeakSummary] = {}

    def add(
        self,
        positive: int,
        value: float,
        negatives: int,
        positives: int,
        detection_error: float = math.nan,
        null: float = math.nan,
    ) -> None:
        """Add the values of one step, in which one class was detected, see `LeakSummary.add`."""
        for summary in (self.whole, self._by_class.setdefault(positive, self._make())):
            summary.add(value, negatives, positives, detection_error, null)

    def result(self, class_counts: Sequence[int] = ()) -> dict[str, Any]:
        """Return the entry for `result.json`; of the whole training table, `class_counts` are the rows of each class.

        Where several classes were detected, ``by_class`` has the values of each, ``worst_class`` those of the class
        with the largest q95, and ``macro_q95`` is the mean of their q95. The numbers beside them are over all steps.
        """
        total = sum(class_counts)
        rows = {one: (total - class_counts[one], class_counts[one]) for one in self._by_class if total}
        rarest = min(rows.values(), key=min, default=None)
        entry = {
            **self.whole.result(population=rarest),
            "label": self.attack.label,
            **from_elsewhere(type(self.attack)),
        }
        if len(self._by_class) < 2 or self.whole.metric != AUC:
            return entry
        each = []
        for positive, summary in sorted(self._by_class.items()):
            found = summary.result(population=rows.get(positive))
            each.append({"class": positive, **{key: found[key] for key in _SHOWN}})
        read = [one for one in each if one["q95"] is not None]
        return {
            **entry,
            "by_class": each,
            "worst_class": max(read, key=lambda one: float(one["q95"]), default=None),
            "macro_q95": float(np.mean([one["q95"] for one in read])) if read else None,
        }

    def state(self) -> dict[str, Any]:
        """Return the collected values as tensors; one for each step is too much for JSON."""
        by_class = {str(positive): summary_state(summary) for positive, summary in self._by_class.items()}
        return {**summary_state(self.whole), "by_class": by_class}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`."""
        restore_summary(self.whole, state)
        self._by_class = {int(positive): self._make() for positive in state["by_class"]}
        for positive, summary in self._by_class.items():
            restore_summary(summary, state["by_class"][str(positive)])


@dataclass(frozen=True, slots=True)
class StepResults:
    """The results of one attack at one layer, step by step, measured outside of a scorer.

    Attributes
    ----------
    epochs, positives_in
        (T,) epoch of each step, and the class that was detected in it.
    values, errors
        (T,) leak AUC and detection error; NaN where a batch had none.
    negatives, positives
        (T,) numbers of compared rows of each kind.
    attack
        The attack's state after the last step.
    """

    epochs: NDArray[Any]
    positives_in: NDArray[Any]
    values: NDArray[Any]
    errors: NDArray[Any]
    negatives: NDArray[Any]
    positives: NDArray[Any]
    attack: Mapping[str, Any] = field(default_factory=dict)

    def state(self) -> dict[str, Any]:
        """Return the `state` of a `StepLeaks` with these results."""
        classes = np.unique(self.positives_in).tolist()
        by_class = {str(number): self._state(self.positives_in == number) for number in classes}
        return {**self._state(np.ones(len(self.values), dtype=bool)), "by_class": by_class}

    def _state(self, chosen: NDArray[np.bool_]) -> dict[str, Any]:
        known = chosen & ~np.isnan(self.values)
        return {
            "values": torch.from_numpy(self.values[known]),
            "errors": torch.from_numpy(self.errors[chosen & ~np.isnan(self.errors)]),
            "nulls": torch.zeros(0, dtype=torch.float64),
            "one_class_steps": int(np.count_nonzero(chosen & ~known)),
            "negatives": torch.from_numpy(self.negatives[known].astype(np.int64)),
            "positives": torch.from_numpy(self.positives[known].astype(np.int64)),
        }
