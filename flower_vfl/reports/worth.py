"""Benefit of training together, in words: the federation beside each party alone and the joined table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from flower_vfl.reports.words import METRICS, number

WORTH, JOINED = "worth", "all"
"""Key of a result, and name of the columns of all parties there."""

_ADVICE = (
    "What may help: flower-vfl tune FILE searches for settings; flower-vfl data show FILE shows how columns are read, "
    "and whole numbers that name something, such as a shop, are better read as categories."
)


class WorthRow(NamedTuple):
    """One line of the comparison: the columns' party, and the utility of each model on them, the largest first."""

    columns: str
    values: Mapping[str, float]

    @property
    def best(self) -> float:
        """Utility of the better model."""
        return max(self.values.values())


class Worth(NamedTuple):
    """The comparison of a run.

    Attributes
    ----------
    measure
        Name of the measure, in words.
    together
        Utility of the federation.
    rows
        Lines of the parties, then that of the joined table.
    models
        Names of the models.
    sentence
        Result of the comparison, in words.
    worse
        True if the federation is below the best party alone, by more than the test rows explain.
    """

    measure: str
    together: float
    rows: tuple[WorthRow, ...]
    models: tuple[str, ...]
    sentence: str
    worse: bool

    @property
    def advice(self) -> str:
        """Advice where it is worse; empty where it is not."""
        return _ADVICE if self.worse else ""


def worth_in(result: Mapping[str, Any]) -> Worth | None:
    """Return the comparison that a result holds; None where it holds none."""
    found = result.get(WORTH) or {}
    entries, together = found.get("baselines") or [], found.get("together")
    if not entries or not isinstance(together, int | float):
        return None
    values: dict[str, dict[str, float]] = {}
    for entry in entries:
        values.setdefault(str(entry["columns"]), {})[str(entry["model"])] = float(entry["value"])
    rows = tuple(WorthRow(columns, models) for columns, models in values.items())
    measure = METRICS.get(str(found.get("measure")), "test")
    margin = found.get("margin")
    worse = margin is not None and float(together) < _best_alone(rows).best - float(margin)
    sentence = _sentence(rows, float(together), margin, int(found.get("test_rows") or 0))
    return Worth(measure, float(together), rows, tuple(next(iter(values.values()))), sentence, worse)


def _best_alone(rows: tuple[WorthRow, ...]) -> WorthRow:
    return max((row for row in rows if row.columns != JOINED), key=lambda row: row.best)


def _sentence(rows: tuple[WorthRow, ...], together: float, margin: float | None, test_rows: int) -> str:
    alone = _best_alone(rows)
    gain = together - alone.best
    if margin is None or abs(gain) <= margin:
        compared = f"which {test_rows:,} test rows cannot distinguish from"
    else:
        compared = f"{number(abs(gain), 4)} {'above' if gain > 0 else 'below'}"
    words = (
        f"Together the parties reach {number(together, 4)}, {compared} the best party alone "
        f"({alone.columns}, {number(alone.best, 4)})"
    )
    joined = next((row for row in rows if row.columns == JOINED), None)
    if joined is not None:
        words += f"; scikit-learn on the joined table, without any privacy, reaches {number(joined.best, 4)}"
    if margin is None:
        return f"{words}. The test rows have too few of a class for an interval."
    return f"{words}. The 95 % interval for one training and {test_rows:,} test rows is \u00b1 {number(margin, 4)}."
