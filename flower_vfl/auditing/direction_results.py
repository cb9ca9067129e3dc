"""The results of the direction of the class means, which needs no label, on the panel of an informed audit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_vfl.auditing.summary_state import restore_summary, summary_state
from flower_vfl.metrics import LeakSummary, auc_interval, leak_auc

DIRECTION = "remembered_direction"
"""Name of this longitudinal attack."""


@dataclass(slots=True)
class DirectionResults:
    """The results of `DIRECTION` for one class against the rest, epoch by epoch."""

    summary: LeakSummary
    epochs: list[int] = field(default_factory=list)
    interval: list[float] | None = None

    def add(self, epoch: int, scores: NDArray[Any], labels: NDArray[np.bool_], *, either_side: bool) -> float:
        """Add the AUC of scores (N,) of labels (N,) and return it; with ``either_side``, the larger one of both."""
        sided = -scores if either_side and leak_auc(scores, labels) < 0.5 else scores
        value, interval, positives = leak_auc(sided, labels), auc_interval(sided, labels), int(labels.sum())
        self.epochs.append(epoch)
        self.interval = None if interval is None else list(interval)
        self.summary.add(value, len(labels) - positives, positives)
        return value

    def entry(self) -> dict[str, Any]:
        """Return the entry of ``result.json``."""
        (negatives, positives), _ = self.summary.class_counts.most_common(1)[0]
        entry = {**self.summary.result(), "label": DIRECTION, "epochs": self.epochs, "interval95": self.interval}
        return {**entry, "values": list(self.summary.values), "rows": negatives + positives, "positives": positives}

    def state(self) -> dict[str, Any]:
        """Return the state that a resumed run needs."""
        return {"epochs": list(self.epochs), "interval": self.interval, "summary": summary_state(self.summary)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`."""
        self.epochs, self.interval = list(state["epochs"]), state["interval"]
        restore_summary(self.summary, state["summary"])


def direction_entries(results: Mapping[int, DirectionResults]) -> list[dict[str, Any]]:
    """Return the entry of `DIRECTION`, of several classes that of the one read most clearly; empty without any.

    Of several classes, chance level and p-value count all that were read, and both sides.
    """
    from scipy.special import ndtri

    entries = {positive: found.entry() for positive, found in results.items() if found.epochs}
    if not entries:
        return []
    positive = min(entries, key=lambda one: (entries[one]["p_value"], -entries[one]["max"]))
    entry, classes = entries[positive], len(entries)
    if len(results) == 1:
        return [entry]
    wider = float(ndtri(1.0 - 0.05 / (2 * classes)) / ndtri(0.95))
    return [
        {
            **entry,
            "class": positive,
            "classes": classes,
            "q95_null": 0.5 + wider * (entry["q95_null"] - 0.5),
            "p_value": min(1.0, classes * entry["p_value"]),
        }
    ]
