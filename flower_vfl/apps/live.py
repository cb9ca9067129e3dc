"""A running training as other processes of its host can follow it: its state and its log, files of the run's folder.

Both stay with the label party: losses say something of the labels.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from flower_vfl.files import append_private
from flower_vfl.training.observer import Observer
from flower_vfl.transport.base import Link

LIVE, LOG = "live.json", "run.log"
WRITE_SECONDS = 2.0
"""Least seconds between two writes of the state."""

_MOST_BYTES = 2**20


class LiveState(Observer):
    """An observer that writes how far a training is, how fast it goes, and what its sessions have carried.

    Parameters
    ----------
    clock : Callable
        Returns seconds, of a clock that does not jump.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._folder: Path | None = None
        self._links: Mapping[str, Link] = {}
        self._state: dict[str, Any] = {}
        self._since: tuple[float, int] = (0.0, 0)
        self._due = 0.0

    def open(self, folder: Path) -> None:
        """Begin: the run has a folder, and waits for its parties."""
        self._folder = folder
        self._write()

    def close(self) -> None:
        """Remove the file, and let go of the parties: the training has ended."""
        if self._folder is not None:
            with suppress(OSError):
                (self._folder / LIVE).unlink(missing_ok=True)
        self._folder, self._links = None, {}

    def on_links(self, links: Mapping[str, Link]) -> None:
        """Learn where bytes, breaks and queues of the parties are counted."""
        self._links = {} if self._folder is None else links
        self._write()

    def on_start(self, steps: int, epochs: int, parties: tuple[str, ...]) -> None:
        """Learn how many steps there are."""
        self._state |= {"steps": steps, "epochs": epochs}
        self._write()

    def on_step(self, step: int, epoch: int, loss: float, leak: float) -> None:
        """Note that a step is done; write that at most each two seconds."""
        now = self._clock()
        self._state |= {"step": step + 1, "epoch": epoch, "stepped": time.time()}
        if not self._since[0]:
            self._since = (now, step + 1)
        if now >= self._due:
            began, first = self._since
            if now > began:
                self._state["speed"] = (step + 1 - first) / (now - began)
            self._since = (now, step + 1)
            self._write()

    def _write(self) -> None:
        """Replace the file; a view of a run is not worth its failure, nor a wait for the disk."""
        if self._folder is None:
            return
        self._due = self._clock() + WRITE_SECONDS
        parties = {
            party: {
                "bytes_up": link.bytes_up,
                "bytes_down": link.bytes_down,
                "reconnects": link.reconnects,
                "queued": link.queued,
            }
            for party, link in list(self._links.items())
        }
        temporary = self._folder / f".{LIVE}.tmp"
        with suppress(OSError):
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf8") as file:
                json.dump({**self._state, "written": time.time(), "parties": parties}, file)
            os.replace(temporary, self._folder / LIVE)


def read_live(folder: Path) -> dict[str, Any] | None:
    """Return the state of the training that is under way in a folder; None where there is none.

    What is no finite number where one is expected is left out: another process wrote the file.
    """
    try:
        with (folder / LIVE).open(encoding="utf8") as file:
            found = json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    parties = found.get("parties")
    known = parties.items() if isinstance(parties, dict) else ()
    return {**_numbers(found), "parties": {name: _numbers(state) for name, state in known}}


def _numbers(state: object) -> dict[str, float]:
    values = state.items() if isinstance(state, dict) else ()
    return {
        key: value
        for key, value in values
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


class _FileHandler(logging.StreamHandler[IO[str]]):
    """A handler whose disk may be full: what it cannot write is missing in the file, and no training ends by that."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name that logging calls
        """Write nothing."""


@contextmanager
def followed(folder: Path | None) -> Iterator[LiveState]:
    """Let others follow a training by files of its folder as long as the block lasts: its state, and its log.

    Without a folder nothing is written. The log stays; the state goes.
    """
    live = LiveState()
    if folder is None:
        yield live
        return
    with _logging_to(folder):
        live.open(folder)
        try:
            yield live
        finally:
            live.close()


@contextmanager
def _logging_to(folder: Path) -> Iterator[None]:
    """Write this package's log into a file of a folder, too."""
    try:
        stream = append_private(folder / LOG)
    except OSError:  # a full disk ends the training where it matters, at the journal
        yield
        return
    handler = _FileHandler(stream)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    logger = logging.getLogger("flower_vfl")
    # Where nobody set up logging, Python shows warnings only as long as there is no handler at all.
    last = logging.lastResort if not logger.hasHandlers() else None
    handlers = [handler, *([last] if last is not None else [])]
    for one in handlers:
        logger.addHandler(one)
    try:
        yield
    finally:
        for one in handlers:
            logger.removeHandler(one)
        with suppress(OSError):  # closing writes what a full disk did not take
            stream.close()
