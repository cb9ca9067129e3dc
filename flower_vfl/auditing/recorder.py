"""Where measured values go."""

from __future__ import annotations

from typing import Protocol


class Recorder(Protocol):
    """Where measured values go, one at a time."""

    def add(self, *, step: int, epoch: int, party: str, layer: str, attack: str, metric: str, value: float) -> None:
        """Take one value."""

    def flush(self) -> None:
        """Make sure that what was taken is not lost."""


class NoRecorder:
    """Forgets everything."""

    def add(self, *, step: int, epoch: int, party: str, layer: str, attack: str, metric: str, value: float) -> None:
        """Take one value and forget it."""

    def flush(self) -> None:
        """Do nothing: there is nothing to lose."""
