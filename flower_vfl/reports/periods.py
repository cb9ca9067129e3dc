"""The part of a report on training in time order: figures of leak and utility by day (L21's Figure 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc
from markupsafe import Markup

from flower_vfl.reports.figures import period_figure

if TYPE_CHECKING:
    import pyarrow as pa

    from flower_vfl.reports.figures.training import CurvePoints
    from flower_vfl.reports.run import Run

_UTILITY = {"auc": "AUC", "accuracy": "Accuracy", "loss": "Loss"}


def period_figures(run: Run) -> list[Markup]:
    """Return the figures by day: the leak at each party, then AUC (accuracy, where there is none) and loss."""
    table = run.periods
    if not table.num_rows:
        return []
    names = dict(zip(table["period"].to_pylist(), table["name"].to_pylist(), strict=True))
    figures = []
    null = _largest(table, metric="null_q95")  # attacks that know positives have a larger one of their own
    for party, curves in _leaks(run).items():
        title = f"Leak by day, party {party}"
        figures.append(period_figure(title, "leak AUC (q95 of a day)", curves, names, null if null[0].size else None))
    found = {metric: _curve(table, attack="", metric=metric) for metric in _UTILITY}
    for metric in ("auc" if found["auc"][0].size else "accuracy", "loss"):
        if found[metric][0].size:
            title = f"{_UTILITY[metric]} by day, before training on it"
            figures.append(period_figure(title, _UTILITY[metric], {"scored": found[metric]}, names))
    return [Markup(figure) for figure in figures]


def _leaks(run: Run) -> dict[str, dict[str, CurvePoints]]:
    """Return the curves of each party, one per attack and layer."""
    found: dict[str, dict[str, CurvePoints]] = {}
    for attack, party, layer, metric in run.leak_series():
        curve = _curve(run.periods, attack=attack, party=party, layer=layer, metric=f"{metric}_q95")
        if curve[0].size:
            label = f"{attack}, {layer} layer" + (" (monitor)" if metric == "monitor_auc" else "")
            found.setdefault(party, {})[label] = curve
    return found


def _largest(table: pa.Table, metric: str) -> CurvePoints:
    """Return the largest value of each period over all attacks."""
    at, values = _curve(table, metric=metric)
    periods = np.unique(at)
    return periods, np.array([values[at == period].max() for period in periods])


def _curve(table: pa.Table, **keys: str) -> CurvePoints:
    for column, key in keys.items():
        table = table.filter(pc.equal(table[column], key))
    at, values = table["period"].to_numpy(), table["value"].to_numpy()
    known = np.isfinite(values)
    return at[known], values[known]
