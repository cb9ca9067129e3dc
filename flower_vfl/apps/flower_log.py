"""The log of this package in the processes that Flower starts."""

from __future__ import annotations

import logging


def log_as_flower_does() -> None:
    """Show this package's log where Flower shows its own, unless logging is set up already."""
    ours, flower = logging.getLogger("flower_vfl"), logging.getLogger("flwr")
    if not ours.hasHandlers():
        ours.handlers = list(flower.handlers)
        ours.setLevel(logging.INFO)
        ours.propagate = False
