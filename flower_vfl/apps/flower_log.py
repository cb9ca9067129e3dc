"""The log of this package: shown in the processes that Flower starts, and suppressed within a block."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


def log_as_flower_does() -> None:
    """Show this package's log where Flower shows its own, unless logging is set up already."""
    ours, flower = logging.getLogger("flower_vfl"), logging.getLogger("flwr")
    if not ours.hasHandlers():
        ours.handlers = list(flower.handlers)
        ours.setLevel(logging.INFO)
        ours.propagate = False


@contextmanager
def without_log(name: str) -> Iterator[None]:
    """Suppress the records of a logger within a block.

    Examples
    --------
    >>> with without_log("one"):
    ...     logging.getLogger("one").warning("not shown")
    """
    logger = logging.getLogger(name)

    def refuse(_record: logging.LogRecord) -> bool:
        return False

    logger.addFilter(refuse)
    try:
        yield
    finally:
        logger.removeFilter(refuse)
