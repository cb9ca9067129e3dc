"""The interface of recorders of measured values."""

from __future__ import annotations

from typing import Protocol


class Recorder(Protocol):
    """A recorder of measured values, one at a time."""

    def add(self, *, step: int, epoch: int, party: str, layer: str, attack: str, metric: str, value: float) -> None:
        """Record one value."""

    def flush(self) -> None:
        """Make sure that no recorded value is lost."""


class NoRecorder:
    """A recorder that drops everything."""

    def add(self, *, step: int, epoch: int, party: str, layer: str, attack: str, metric: str, value: float) -> None:
        """Drop one value."""

    def flush(self) -> None:
        """Do nothing: there is nothing to lose."""
