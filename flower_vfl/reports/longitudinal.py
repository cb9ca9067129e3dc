"""Leak by longitudinal attacks, beside the leak of single steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from flower_vfl.apps.result_schema import of_class
from flower_vfl.auditing.entries import Entry, Result, is_remembered, label_of, received
from flower_vfl.metrics import nearest_rank
from flower_vfl.reports.figures import remembered_figure
from flower_vfl.reports.leaks import ADDED_UP, largest_null, way_of, worst

if TYPE_CHECKING:
    from flower_vfl.reports.figures.training import CurvePoints
    from flower_vfl.reports.run import Run

LONGITUDINAL_BOUND = ".auc_bound_remembered"

NOTABLE = 0.02
"""Smallest increase of the leak from the first epoch to the last that the page explains."""


@dataclass(frozen=True)
class Remembered:
    """The measurement of one longitudinal attack.

    Attributes
    ----------
    entry
        The entry of ``result.json``.
    epochs, values
        Epochs after which it was measured, and the leak AUC of all rows after each of them.
    of_class
        The class that it reads most clearly among several, in words, as in ", class cat".
    """

    entry: Entry
    epochs: Sequence[int]
    values: Sequence[float]
    of_class: str = ""

    @property
    def turned(self) -> bool:
        """True if, after the last epoch, the scores with reversed sign read more."""
        return self.values[-1] < 0.5

    @property
    def leaks(self) -> Sequence[float]:
        """Leak after each of the epochs, of the scores or of those with reversed sign: an attack guesses its side."""
        return [max(value, 1.0 - value) for value in self.values]

    @property
    def first(self) -> float:
        """Leak at the first measurement."""
        return self.leaks[0]

    @property
    def last(self) -> float:
        """Leak after the last epoch."""
        return self.leaks[-1]

    @property
    def name(self) -> str:
        """The attack's label and, where several classes were compared, the one that it reads most clearly."""
        return f"{label_of(self.entry)}{self.of_class}"

    @property
    def people(self) -> str:
        """The people whose labels are read, in words: all, or the sample that the label party follows."""
        rows = self.entry.get("rows")
        return f"{rows:,} people" if isinstance(rows, int) else "all people"

    @property
    def knows(self) -> str:
        """Side information of the attacker, in words."""
        params = self.entry.get("params")
        k = params.get("k") if isinstance(params, Mapping) else None
        if k is None:
            return "nothing"
        return f"{k} positives" if self.entry.get("attack") == "remembered_hint" else f"{k} rows of each class"


def remembered_in(result: Result, entries: Sequence[Entry]) -> list[Remembered]:
    """Return the measurements of longitudinal attacks with at least one value, in the order of the entries."""
    return [
        Remembered(entry, entry["epochs"], entry["values"], of_class(result, entry))
        for entry in entries
        if is_remembered(entry) and entry["values"]
    ]


def strongest(result: Result) -> Remembered | None:
    """Return the longitudinal attack with the largest leak of the received gradients; None without any."""
    return max(remembered_in(result, received(result)), key=lambda found: max(found.leaks), default=None)


def single_steps(result: Result, party: Any, layer: Any) -> Entry | None:
    """Return the entry with the largest leak of single steps at a party's layer, without oracles; None without any."""
    here = {**result, "leakage": [e for e in result["leakage"] if e.get("party") == party]}
    return worst(here, str(layer), oracle=False, remembered=False)


def of_remembered(run: Run) -> dict[str, Any]:
    """Return the values of the page of one run about longitudinal attacks."""
    found = strongest(run.result)
    step = None if found is None else single_steps(run.result, found.entry.get("party"), found.entry.get("layer"))
    rows = remembered_in(run.result, run.result["leakage"])
    return {
        "remembered": found,
        "single_step": step,
        "each_comes_again": _repeats(run),
        "averaged_out": found is not None and _averaged_out(run, found),
        "remembered_rows": rows,
        "unread": [e for e in run.result["leakage"] if is_remembered(e) and e.get("unavailable")],
        "remembered_figures": _figures(run),
        "bounded": any(promised(run, row.entry.get("party")) for row in rows),
    }


def _repeats(run: Run) -> bool:
    """Return True if each person recurs in every epoch; in time order each occurs once."""
    return "periods" not in run.result


def _averaged_out(run: Run, found: Remembered) -> bool:
    """Return True if sums of gradients with fresh noise leak notably more at the end than at first."""
    defenses = (defense.get("params") for defense in run.result["defenses"])
    fresh = any(isinstance(params, dict) and params.get("rho", 1.0) < 1.0 for params in defenses)
    return fresh and _repeats(run) and way_of(found.entry) == ADDED_UP and found.last > found.first + NOTABLE


def _figures(run: Run) -> list[Markup]:
    """Return one figure for each party and layer; the monitor's values only where no attacker measured any."""
    places: dict[tuple[Any, Any], list[Remembered]] = {}
    for source in ("attacker", "monitor"):
        for found in remembered_in(run.result, received(run.result)):
            place = (found.entry.get("party"), found.entry.get("layer"))
            known = places.setdefault(place, [])
            if found.entry.get("source") == source and all(other.entry.get("source") == source for other in known):
                known.append(found)
    return [_figure(run, *place, found) for place, found in places.items()]


def _figure(run: Run, party: Any, layer: Any, found: Sequence[Remembered]) -> Markup:
    curves: dict[str, CurvePoints] = {f.name: (np.array(f.epochs), np.array(f.values)) for f in found}
    step = single_steps(run.result, party, layer)
    alone = None if step is None else by_epoch(run, step)
    null = largest_null(f.entry for f in found)
    name = "" if step is None else f"{label_of(step)}, single steps"
    bound = promised(run, party) if layer == "cut" else None
    title = f"Party {party}, {layer} layer"
    return Markup(remembered_figure(title, curves, null, name, alone, bound))


def promised(run: Run, party: Any) -> CurvePoints | None:
    """Return the bound on all releases up to each epoch, by the outermost defense that logs one; None without any."""
    known = {str(metric) for metric in run.steps["metric"].unique().to_pylist()}
    for defense in run.result["defenses"]:
        for metric in (
            f"{defense.get('name')}{LONGITUDINAL_BOUND}",
            f"{defense.get('name')}{LONGITUDINAL_BOUND}.{party}",
        ):
            if metric in known:
                _, epochs, values = run.curve(party="label", metric=metric)
                return epochs, values
    return None


def by_epoch(run: Run, entry: Entry) -> CurvePoints | None:
    """Return the 95 % quantile over the steps of each epoch of an attack on single steps."""
    metric = "monitor_auc" if entry.get("source") == "monitor" else "auc"
    keys = {key: str(entry.get(key)) for key in ("party", "layer")}
    _, epochs, values = run.curve(attack=label_of(entry), metric=metric, **keys)
    which = [epoch for epoch in np.unique(epochs) if np.isfinite(values[epochs == epoch]).any()]
    quantiles = [nearest_rank(v[np.isfinite(v)]) for v in (values[epochs == epoch] for epoch in which)]
    return (np.array(which), np.array(quantiles)) if which else None
