"""What the command line shows as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table

from flower_vfl.config import build_config
from flower_vfl.data.catalog import available, prepare

_console = Console()


def _number(value: Any, digits: int = 4) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _leak(summary: Mapping[str, Any], layer: str) -> str:
    entries = [entry for entry in summary["leakage"] if entry["layer"] == layer and entry["source"] == "attacker"]
    if not entries:
        return "–"
    worst = max(entries, key=lambda entry: entry["q95"] or 0.0)
    return f"{_number(worst['q95'], 3)} (chance {_number(worst['q95_null'], 3)})"


def results_table(summaries: Sequence[Mapping[str, Any]]) -> Table:
    """Return one row a run: utility beside leakage."""
    table = Table(title="What the model learned, and what the attacker read (leak AUC: 0.5 nothing, 1 every label)")
    for column in ("run", "defense", "test AUC", "test loss", "leak at the cut", "leak at the first layer", "steps/s"):
        table.add_column(column, justify="left" if column in ("run", "defense") else "right")
    for summary in summaries:
        last, cost = summary["utility"]["last"], summary["cost"]
        defenses = ", ".join(
            f"{defense['name']}({', '.join(f'{key}={value}' for key, value in defense['params'].items())})"
            for defense in summary["defenses"]
        )
        speed = cost["steps"] / cost["seconds"] if cost["seconds"] else 0.0
        table.add_row(
            str(summary.get("run", summary["dataset"]["name"])),
            defenses or "none",
            _number(last["test_auc"]) if last["test_auc"] is not None else f"acc. {_number(last['test_accuracy'])}",
            _number(last["test_loss"]),
            _leak(summary, "cut"),
            _leak(summary, "first"),
            f"{speed:.0f}",
        )
    return table


def print_results(summaries: Sequence[Mapping[str, Any]]) -> None:
    """Print the table of runs and what each party reaches alone."""
    _console.print(results_table(summaries))
    alone = next((summary["alone"] for summary in summaries if summary.get("alone")), None)
    if alone:
        reached = ", ".join(f"party {party} {_number(auc)}" for party, auc in alone.items())
        _console.print(f"Alone, with the same architecture, test AUC: {reached}", highlight=False)


def print_data_sets() -> None:
    """Print the data sets and whether they are usable here."""
    table = Table(title="Data sets")
    for column in ("name", "rows", "usable here", "what it is", "licence"):
        table.add_column(column)
    for entry in available():
        rows = f"{entry.rows:,}" if entry.rows else "any"
        table.add_row(entry.name, rows, "yes" if entry.usable else entry.advice, entry.description, entry.licence)
    _console.print(table)


def prepare_data(name: str, source: Path | None, out: Path, settings: Mapping[str, str]) -> None:
    """Prepare a data set with a progress bar."""
    options = build_config({}, {f"data.options.{key}": value for key, value in settings.items()}).data.options
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"preparing {name}", total=1.0)
        dataset = prepare(
            name,
            source=source,
            out=out,
            options=options,
            progress=lambda done: progress.update(task, completed=done),
        )
    rows = dataset.alignment
    _console.print(f"{name}: {rows.rows:,} + {rows.test_rows:,} rows, parties {', '.join(dataset.parties)} -> {out}")
    _console.print(f'use it with: --set "data.path={out}"', highlight=False)
