"""Content of the page that compares several runs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
from markupsafe import Markup

from flower_vfl.apps.result_schema import kept_utility
from flower_vfl.auditing.entries import is_remembered, reached, sends_nothing
from flower_vfl.auditing.verdict import status_of
from flower_vfl.registry import is_number
from flower_vfl.reports import words
from flower_vfl.reports.certified import certificates
from flower_vfl.reports.choice import Candidate, choice_of
from flower_vfl.reports.figures import leak_figure, setting_figure, trade_off_figure
from flower_vfl.reports.headline import SEVERITY, headline_of
from flower_vfl.reports.leaks import largest_null, worst
from flower_vfl.reports.ranking import validation
from flower_vfl.reports.run import PAGE
from flower_vfl.reports.settings import axes_of, differences, families, measured_at, settings_of
from flower_vfl.reports.trained import of_settings, worst_answer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from flower_vfl.auditing.entries import Entry
    from flower_vfl.reports.figures.training import CurvePoints
    from flower_vfl.reports.run import Run
    from flower_vfl.reports.settings import Setting

OVERLAID = 12
"""Largest number of lines in one figure."""


def of_several(runs: Sequence[Run], folder: Path) -> dict[str, Any]:
    """Return the values of ``comparison.html.j2``; links to the runs' reports are relative to the page's folder."""
    places = measured_at(runs)
    ended = [run for run in runs if run.ended]
    settings = settings_of(ended)
    rows = [_row(index, run, places, folder) for index, run in enumerate(runs, 1)]
    null = max((row["leak"].null for row in rows if row["leak"]), default=None)
    measure = "test_auc" if any(row["last"].get("test_auc") is not None for row in rows) else "test_accuracy"
    points = [
        (row["index"], float(row["last"][measure]), row["leak"].reached, bool(row["run"].result["defenses"]))
        for row in rows
        if row["run"].ended and row["leak"] and isinstance(row["last"].get(measure), float | int)
    ]
    together: dict[Path, tuple[str, bool]] = {}
    for setting in settings:
        together |= dict.fromkeys([run.folder for run in setting.runs], _together(setting))
    undefended, against = _write_costs(rows, measure), axes_of(measure)[measure]
    price = trade_off_figure(points, null, utility=against, no_gradients=_baseline(ended, measure)) if points else None
    return {
        "title": f"{len(runs)} runs compared",
        "date": max(run.date for run in runs),
        "choice": choice_of(
            [_candidate(row, measure, together[row["run"].folder]) for row in rows if row["run"].ended], measure
        ),
        "costs": undefended > 0 and len(rows) > 1,
        "undefended": undefended,
        "missing": _missing(rows),
        "rows": rows,
        "unended": [row for row in rows if not row["run"].ended],
        "auc": measure,
        "places": places,
        "certified": any(row["bound"] is not None for row in rows),
        "datasets": sorted({str(run.result["dataset"].get("name")) for run in runs}),
        "differences": differences(runs),
        "figure": None if price is None else Markup(price),
        "leak_figures": [figure for place in places if (figure := _leak_figure(settings[:OVERLAID], *place))],
        "left_out": [setting.title for setting in settings[OVERLAID:]],
        "repeated": max((len(setting.runs) for setting in settings), default=0),
        "answered": any(row["answer"] for row in rows),
        **of_settings(settings, lines=OVERLAID),
        "trade_offs": _trade_offs(settings, places, measure) if len(settings) > 1 else [],
    }


def _row(index: int, run: Run, places: Sequence[tuple[str, str]], folder: Path) -> dict[str, Any]:
    utility, cost = run.result["utility"], run.result["cost"]
    best = value if isinstance(value := utility.get("best"), dict) else {}
    return {
        "index": index,
        "run": run,
        "href": quote(os.path.relpath(run.folder.resolve() / PAGE, folder.resolve())),
        "headline": headline_of(run.result),
        "cost": None,
        "last": kept_utility(run.result),
        "best": {} if words.nothing_chosen(run.result) else best,
        "leak": words.worst_leak(run),
        "oracle": words.worst_leak(run, oracle=True),
        "answer": worst_answer(run),
        "leaks": [_leak(run, attack, layer) for attack, layer in places],
        "bound": max((certificate.bound for certificate in certificates(run)), default=None),
        "defenses": words.defenses(run.result),
        "speed": words.ratio(cost.get("steps"), cost.get("seconds")),
    }


def _together(setting: Setting) -> tuple[str, bool]:
    """Return the status of runs that differ in their seeds only, and True if an interval of one lies above chance."""
    return status_of([run.result for run in setting.runs]), any(headline_of(run.result).open for run in setting.runs)


def _candidate(row: Mapping[str, Any], measure: str, together: tuple[str, bool]) -> Candidate:
    """Return a run as a candidate of the recommendation, named by its defenses and its folder.

    Its status is the more severe one of its own verdict and of that of all runs that differ from it in their seeds
    only (`together`): a leak that another seed shows is its own.
    """
    run, headline = row["run"], row["headline"]
    worst, proof = headline.worst, None if headline.epsilon is None else headline.epsilon.proof
    return Candidate(
        row,
        f"{'no defense' if words.undefended(run.result) else row['defenses']} (run {run.name})",
        max(headline.status, together[0], key=SEVERITY.__getitem__),
        tested=not headline.missing,
        worst=None if worst is None else worst.worst,
        validation=validation(run.result),
        utility=row["last"].get(measure),
        cost=row["cost"],
        epsilon=None if proof is None else float(proof.epsilon),
        sent=headline.sent,
        open=together[1],
        tone=headline.tone,
    )


def _write_costs(rows: Sequence[dict[str, Any]], measure: str) -> int:
    """Write the cost of its defense into each row, and return the number of runs without a defense."""
    values = [_value(row, measure) for row in rows if words.undefended(row["run"].result)]
    plain = [value for value in values if value is not None]
    for row in rows:
        value = _value(row, measure)
        row["cost"] = None if value is None or not plain else value - max(plain)
    return len(plain)


def _value(row: Mapping[str, Any], name: str) -> float | None:
    value = row["last"].get(name)
    return float(value) if row["run"].ended and is_number(value) else None


def _missing(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Return the missing attacks and readers, with reasons, each with its runs; no runs where it is all of them."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for reason in row["headline"].missing:
            found.setdefault(reason, []).append(row["run"].name)
    return [(f"{reason}.", [] if len(names) == len(rows) else names) for reason, names in found.items()]


def _leak(run: Run, attack: str, layer: str) -> float | None:
    entry = worst(run.result, layer, attack=attack)
    return None if entry is None else reached(entry)


def _leak_figure(settings: Sequence[Setting], attack: str, layer: str) -> Markup | None:
    """Draw one attack at one layer along training, the first run of each setting."""
    curves: dict[str, CurvePoints] = {}
    entries: list[Entry] = []
    for setting in settings:
        entry = worst(setting.runs[0].result, layer, attack=attack)
        if entry is None:
            continue
        metric = "remembered_auc" if is_remembered(entry) else "auc"
        metric = f"monitor_{metric}" if entry.get("source") == "monitor" else metric
        run, party = setting.runs[0], str(entry.get("party"))
        steps, epochs, values = run.curve(attack=attack, party=party, layer=layer, metric=metric)
        if is_remembered(entry):  # of several classes the log has the largest AUC, the entry those of one class
            known = np.isin(epochs, entry["epochs"])
            if np.count_nonzero(known) == len(entry["values"]):
                steps, values = steps[known], np.array(entry["values"])
        if np.isfinite(values).any():
            curves[setting.title if setting.title not in curves else f"{setting.title} · {run.name}"] = (steps, values)
            entries.append(entry)
    null = largest_null(entries)
    return Markup(leak_figure(f"{attack}, {layer} layer", curves, null, ranges=False)) if curves else None


def _trade_offs(settings: Sequence[Setting], places: Sequence[tuple[str, str]], measure: str) -> list[Markup]:
    """Draw leak against utility for each attack and layer (L22's Figure 4)."""
    figures = []
    for attack, layer in places:
        found = (worst(run.result, layer, attack=attack) for setting in settings for run in setting.runs)
        null = largest_null([entry for entry in found if entry])
        for utility, label in axes_of(measure).items():
            lines = {
                family: points
                for family, members in families(settings).items()
                if (points := [p for setting in members if (p := setting.point(attack, layer, utility))])
            }
            if lines:
                runs = [run for setting in settings for run in setting.runs]
                baseline = _baseline(runs, utility)
                figure = setting_figure(f"{attack}, {layer} layer", label, lines, null, no_gradients=baseline)
                figures.append(Markup(figure))
    return figures


def _baseline(runs: Sequence[Run], utility: str) -> float | None:
    """Return the mean utility of runs that sent no gradient; None where there are none."""
    found = [kept_utility(run.result).get(utility) for run in runs if sends_nothing(run.result)]
    values = [float(value) for value in found if isinstance(value, float | int)]
    return sum(values) / len(values) if values else None
