"""One console for the log and the live display, so that neither overwrites the other on the terminal."""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Iterable
from functools import cache

from rich.console import Console
from rich.logging import RichHandler
from rich.text import Text


@cache
def console() -> Console:
    """Return the console on standard error."""
    return Console(stderr=True)


def show_log(*, verbose: bool) -> None:
    """Show this package's warnings, and with `verbose` every stage; with the time of day where there is no terminal."""
    handler: logging.Handler = RichHandler(console=console(), show_path=False, show_time=False, markup=False)
    if not console().is_terminal:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    handler.setLevel(logging.INFO if verbose else logging.WARNING)
    logger = logging.getLogger("flower_vfl")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)  # also where it is not shown: a run's log file has every stage
    logger.propagate = False


def print_names(title: str, rows: Iterable[tuple[str, ...]], out: Console | None = None) -> None:
    """Print names and their descriptions: a truncated line each on a terminal; elsewhere whole, on wrapped lines."""
    out, rows = out or Console(), list(rows)
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:-1]]
    out.print(Text(title, "bold"))
    for row in rows:
        start = "".join(f"{cell:<{width}}  " for cell, width in zip(row, widths, strict=False))
        if out.is_terminal:
            line = Text(f"{start}{row[-1]}")
            line.truncate(out.width, overflow="ellipsis")
        else:
            line = Text(wrapped(row[-1], out.width, start))
        out.print(line, soft_wrap=True)


def wrapped(text: str, width: int, start: str) -> str:
    """Return a text behind `start`, wrapped to aligned lines of `width` characters; no word is broken."""
    indent = " " * len(start)
    filled = textwrap.fill(
        text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return start + filled[len(start) :]
