"""Longitudinal attacks that need no label, on the panel of an informed audit: scores of its rows, and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from flower_vfl.attacks.longitudinal.direction import score as direction_score
from flower_vfl.auditing.panel import RowPanel
from flower_vfl.auditing.summary_state import restore_summary, summary_state
from flower_vfl.metrics import LeakSummary, auc_interval, leak_auc

DIRECTION, BATCH_SCALES = "remembered_direction", "remembered_scales"
"""Names of these longitudinal attacks."""


def results_of(name: str, party: str, positives: Sequence[int], *, defended: bool) -> dict[int, PanelResults]:
    """Return empty results of an attack for each class."""
    summary = partial(LeakSummary, name, party, phase="remembered", source="monitor", defended=defended)
    return {positive: PanelResults(summary()) for positive in positives}


def scores_of(name: str, panel: RowPanel, rows: Tensor) -> NDArray[Any]:
    """Return the scores (n,) of rows of the panel, given as a mask, by the attack of that name."""
    if name == BATCH_SCALES:
        return panel.mean_scale[rows].numpy()
    mean = panel.mean[rows]
    return direction_score(lambda: [mean]).numpy()


@dataclass(slots=True)
class PanelResults:
    """The results of such an attack for one class against the rest, epoch by epoch."""

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
        entry = {
            **self.summary.result(),
            "label": self.summary.attack,
            "epochs": self.epochs,
            "interval95": self.interval,
        }
        return {**entry, "values": list(self.summary.values), "rows": negatives + positives, "positives": positives}

    def state(self) -> dict[str, Any]:
        """Return the state that a resumed run needs."""
        return {"epochs": list(self.epochs), "interval": self.interval, "summary": summary_state(self.summary)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`."""
        self.epochs, self.interval = list(state["epochs"]), state["interval"]
        restore_summary(self.summary, state["summary"])


def panel_entries(results: Mapping[int, PanelResults]) -> list[dict[str, Any]]:
    """Return the entry of an attack from its results for each class; empty without any.

    Of several classes it is that of the one read most clearly; chance level and p-value count all that were read, and
    both sides.
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
