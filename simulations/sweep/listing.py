"""Lines that the command line prints of a sweep that has ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from flower_vfl.simulations.sweep.board import best_of, point_of


def print_sweep(summaries: Sequence[Mapping[str, Any]]) -> None:
    """Print the runs of a sweep that no other beats by validation, or the reason why nothing is ranked."""
    Console().print(best_of({str(summary["run"]): point_of(summary) for summary in summaries}))
