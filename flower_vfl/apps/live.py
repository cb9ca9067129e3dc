"""Files in a run's folder by which other processes of the host follow a training: its state and its log.

Both stay with the label party, because losses depend on the labels.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
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
"""Number of seconds between two writes of the state."""

_MOST_BYTES = 2**20


class LiveState(Observer):
    """An observer that writes the progress and the speed of a training, and the state of its sessions.

    A thread writes them every two seconds, also while no step ends: a state that is older is that of a process that is
    gone.

    Parameters
    ----------
    clock : Callable
        Monotonic clock in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._folder: Path | None = None
        self._links: Mapping[str, Link] = {}
        self._state: dict[str, Any] = {}
        self._measured: tuple[float, int] | None = None
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._writer = threading.Thread(target=self._keep_writing, name="live-state", daemon=True)

    def open(self, folder: Path) -> None:
        """Set the run's folder, write the first state, and go on to write."""
        self._folder = folder
        self._state = {"began": time.time()}
        self.write()
        self._writer.start()

    def close(self) -> None:
        """Remove the file and drop the links: the training has ended."""
        self._closed.set()
        if self._folder is not None:
            self._writer.join()
            with suppress(OSError):
                (self._folder / LIVE).unlink(missing_ok=True)
        self._folder, self._links = None, {}

    def on_links(self, links: Mapping[str, Link]) -> None:
        """Set the links, which know bytes, reconnects, queued frames and broken streams of the parties."""
        self._links = {} if self._folder is None else links
        self.write()

    def on_start(self, steps: int, epochs: int, parties: tuple[str, ...]) -> None:
        """Set the number of steps."""
        self._state |= {"steps": steps, "epochs": epochs}
        self.write()

    def on_step(self, step: int, epoch: int, loss: float, leak: float) -> None:
        """Update the state with a step."""
        self._state |= {"step": step + 1, "epoch": epoch, "stepped": time.time()}
        self._measured = self._measured or (self._clock(), step + 1)

    def _keep_writing(self) -> None:
        while not self._closed.wait(WRITE_SECONDS):
            self.write()

    def write(self) -> None:
        """Replace the file; errors are ignored, and the disk is not waited for: the training matters more."""
        if self._folder is None:
            return
        with self._lock:
            self._measure_speed()
            parties = {
                party: {
                    "bytes_up": link.bytes_up,
                    "bytes_down": link.bytes_down,
                    "reconnects": link.reconnects,
                    "queued": link.queued,
                    "away": link.away,
                }
                for party, link in list(self._links.items())
            }
            temporary = self._folder / f".{LIVE}.tmp"
            with suppress(OSError):
                with open(
                    os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf8"
                ) as file:
                    json.dump({**self._state, "written": time.time(), "parties": parties}, file)
                os.replace(temporary, self._folder / LIVE)

    def _measure_speed(self) -> None:
        """Set the speed to that since the last write, if there was a step."""
        if self._measured is None:
            return
        (since, first), now, step = self._measured, self._clock(), self._state["step"]
        if step > first and now > since:
            self._state["speed"] = (step - first) / (now - since)
            self._measured = (now, step)


def read_live(folder: Path) -> dict[str, Any] | None:
    """Return the state of the training that is under way in a folder; None where there is none.

    Values that should be finite numbers and are none are left out: another process wrote the file.
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
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    }


class _FileHandler(logging.StreamHandler[IO[str]]):
    """A log handler that skips records that it cannot write, so that a full disk ends no training."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name that logging calls
        """Ignore the error."""


@contextmanager
def followed(folder: Path | None) -> Iterator[LiveState]:
    """Write the state and the log of a training into its folder as long as the block lasts; yield the state.

    Without a folder nothing is written. At the end the state is removed; the log stays.
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
    """Write this package's log into a file of a folder as well."""
    try:
        stream = append_private(folder / LOG)
    except OSError:  # a full disk is reported by the journal
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
        with suppress(OSError):  # closing writes the rest, which fails on a full disk
            stream.close()
