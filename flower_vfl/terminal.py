"""The terminal: one console for the log and the live display, so that neither draws over the other."""

from __future__ import annotations

import logging
from functools import cache

from rich.console import Console
from rich.logging import RichHandler


@cache
def console() -> Console:
    """Return the console on standard error."""
    return Console(stderr=True)


def show_log(*, verbose: bool) -> None:
    """Show this package's log: warnings beside a live display, every stage where there is none or when asked to."""
    handler: logging.Handler = RichHandler(console=console(), show_path=False, show_time=False, markup=False)
    if not console().is_terminal:
        verbose = True
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("flower_vfl")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO if verbose else logging.WARNING)
    logger.propagate = False
