"""Lines that the command line prints of presets, and of a sweep that has ended."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flower_vfl.config import load_config, preset_names, preset_text, sweep_names
from flower_vfl.simulations.sweep.board import best_of, point_of
from flower_vfl.simulations.sweep.definition import load_definition
from flower_vfl.simulations.sweep.trials import trials_of


def print_presets() -> None:
    """Print the presets with their data and the first sentence of each."""
    runs = Table(title="Presets: flower-vfl run NAME")
    for column in ("name", "data", "what it is"):
        runs.add_column(column, no_wrap=column == "name", overflow="fold")
    for name in preset_names():
        runs.add_row(name, load_config(name).data.name, Text(_sentence(name)))
    sweeps = Table(title="Sweeps: flower-vfl sweep NAME")
    for column in ("name", "data", "trials", "what it is"):
        sweeps.add_column(column, no_wrap=column == "name", overflow="fold")
    for name in sweep_names():
        trials = trials_of(load_definition(name))
        data = dict.fromkeys(trial.config.data.name for trial in trials)
        sweeps.add_row(name, ", ".join(data), str(len(trials)), Text(_sentence(name)))
    for table in (runs, sweeps):
        Console().print(table)


def print_sweep(summaries: Sequence[Mapping[str, Any]]) -> None:
    """Print which runs of a sweep no other beats by validation, or why nothing is ranked."""
    Console().print(best_of({str(summary["run"]): point_of(summary) for summary in summaries}))


def _sentence(name: str) -> str:
    """Return the first sentence of the comment that a preset begins with."""
    lines = []
    for line in preset_text(name).splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return re.split(r"(?<!al)\. ", " ".join(lines))[0].removesuffix(".")
