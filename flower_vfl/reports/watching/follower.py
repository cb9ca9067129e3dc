"""Reader of a run's folder while the run writes there: its journals piece by piece, its state, its log."""

from __future__ import annotations

import os
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from flower_vfl.apps.folder import CONFIG, RESULT, read_result
from flower_vfl.apps.live import LIVE, LOG, read_live
from flower_vfl.errors import InputError
from flower_vfl.protocol.printable import printable
from flower_vfl.tracking import SCHEMA, STEPS, Series, frames, read_table

MOST_VALUES = 20_000
"""Number of values to which a curve is halved at twice as many: of each two neighbours the larger one is kept."""

FOLLOWED_METRICS = ("train_loss", "auc", "monitor_auc", "batch_rows", "batch_positives")
"""Metrics of a run that are kept."""

_PIECE = 2**22
_LOG_BYTES, _LOG_LINES = 2**15, 20
_MOST_SERIES = 1000


@dataclass
class Curve:
    """The values of one series, in the order of steps.

    Examples
    --------
    >>> curve = Curve()
    >>> for step, value in ((0, 0.5), (1, 0.25), (1, 0.75)):  # a resumed run logs steps again: the last counts
    ...     curve.add(step, value)
    >>> curve.steps.tolist(), curve.values.tolist()
    ([0, 1], [0.5, 0.75])
    """

    _steps: array[int] = field(default_factory=lambda: array("q"))
    _values: array[float] = field(default_factory=lambda: array("d"))

    def add(self, step: int, value: float) -> None:
        """Append a value; drop those of the same step and of later ones."""
        if self._steps and step <= self._steps[-1]:
            kept = bisect_left(self._steps, step)
            del self._steps[kept:], self._values[kept:]
        self._steps.append(step)
        self._values.append(value)
        if len(self._steps) >= 2 * MOST_VALUES:
            pairs = np.array(self._values).reshape(-1, 2)
            self._values = array("d", np.fmax(pairs[:, 0], pairs[:, 1]).tolist())
            self._steps = self._steps[::2]

    @property
    def steps(self) -> NDArray[np.int64]:
        """The steps, (T,)."""
        return np.array(self._steps, dtype=np.int64)

    @property
    def values(self) -> NDArray[np.float64]:
        """The values, (T,)."""
        return np.array(self._values, dtype=np.float64)


@dataclass
class _Tail:
    """Position up to which a journal was read."""

    file: int
    offset: int = 0


@dataclass(frozen=True)
class Ending:
    """The end of a run.

    Attributes
    ----------
    status
        Status of the run, such as "finished", "interrupted" or "failed".
    error
        Reason of a failure; empty otherwise.
    """

    status: str
    error: str = ""


class Follower:
    """Reader of a run's folder while the run writes there.

    Parameters
    ----------
    folder : Path
        The run's folder.
    clock : Callable
        Clock in seconds since 1970.

    Raises
    ------
    InputError
        When it is not the folder of a run; in the folder of a sweep or a demo, the message names a run.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self._clock = clock
        self.curves: dict[Series, Curve] = {}
        self._tails: dict[str, _Tail] = {}
        self._merged = 0
        self.problem = ""
        _check(folder)

    def read(self) -> bool:
        """Add the data written since the last call to the curves; return True if there was any."""
        before = self._merged, [(tail.file, tail.offset) for tail in self._tails.values()]
        try:
            self._read_merged()
            for path in sorted(self.folder.glob("*.journal")):
                self._read_journal(path)
            self.problem = ""
        except (pa.ArrowException, InputError, OSError, KeyError, ValueError) as error:
            self.problem = printable(error, 300)
        return before != (self._merged, [(tail.file, tail.offset) for tail in self._tails.values()])

    @property
    def ending(self) -> Ending | None:
        """End of the run; None while it is under way, also after it was resumed."""
        result = self.folder / RESULT
        if not result.is_file() or self._begun_after(result):
            return None
        try:
            found = read_result(self.folder)
        except InputError as error:
            return Ending("unknown", printable(error, 300))
        status = printable(found.get("status", "finished"), 60)
        # The error of an interrupted run is the name of a signal, which is no reason.
        return Ending(status, printable(found.get("error") or "", 500) if status == "failed" else "")

    @property
    def quiet(self) -> float:
        """Seconds since the last step, or since a journal was written."""
        state = read_live(self.folder) or {}
        latest = max([float(state.get("stepped", state.get("began", 0.0))), *self._journal_times()], default=0.0)
        return max(0.0, self._clock() - latest)

    @property
    def silent(self) -> float:
        """Seconds since the run's process wrote its state, which it does every few seconds; 0 where there is none."""
        written = (read_live(self.folder) or {}).get("written")
        return 0.0 if written is None else max(0.0, self._clock() - written)

    def log(self) -> str:
        """Return the last lines of the run's log, with control characters escaped."""
        try:
            with (self.folder / LOG).open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
                text = file.read(_LOG_BYTES).decode("utf8", errors="replace")
        except OSError:
            return ""
        return "\n".join(printable(line, 1000) for line in text.splitlines()[-_LOG_LINES:])

    def _journal_times(self) -> list[float]:
        return [path.stat().st_mtime for path in self.folder.glob("*.journal")]

    def _begun_after(self, result: Path) -> bool:
        live = self.folder / LIVE
        return live.is_file() and live.stat().st_mtime_ns > result.stat().st_mtime_ns

    def _read_merged(self) -> None:
        """Read the file of merged journals: of a run that has ended, or of an earlier part of a resumed one."""
        path = self.folder / STEPS
        written = path.stat().st_mtime_ns if path.is_file() else 0
        if written != self._merged:
            self.curves.clear()
            self._tails.clear()
            self._add_rows(read_table(path, SCHEMA))
            self._merged = written

    def _read_journal(self, path: Path) -> None:
        try:
            file = path.open("rb")
        except FileNotFoundError:  # merged a moment ago
            return
        with file:
            facts = os.fstat(file.fileno())
            tail = self._tails.get(path.name)
            if tail is None or tail.file != facts.st_ino or tail.offset > facts.st_size:
                tail = self._tails[path.name] = _Tail(facts.st_ino)
            file.seek(tail.offset)
            rest = b""
            while piece := file.read(_PIECE):
                rest += piece
                whole = 0
                for payload, end in frames(rest):
                    self._add_rows(pa.ipc.open_stream(payload).read_all())
                    whole = end
                tail.offset, rest = tail.offset + whole, rest[whole:]

    def _add_rows(self, table: pa.Table) -> None:
        table = table.select(SCHEMA.names).cast(SCHEMA)
        table = table.filter(pc.is_in(table["metric"], pa.array(FOLLOWED_METRICS)))
        columns = [table[name].to_pylist() for name in SCHEMA.names]
        for step, _, party, layer, attack, metric, value in zip(*columns, strict=True):
            key = (str(party), str(layer), str(attack), str(metric))
            if step is None or value is None or (key not in self.curves and len(self.curves) >= _MOST_SERIES):
                continue
            self.curves.setdefault(key, Curve()).add(step, value)


def _check(folder: Path) -> None:
    """Raise `InputError` for a folder that does not belong to a run."""
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}; name the folder of a run")
    if (folder / CONFIG).is_file():
        return
    runs = sorted(path.parent for path in folder.glob(f"*/{CONFIG}"))
    live = [run for run in runs if (run / LIVE).is_file()] or runs
    if live:
        raise InputError(f"{folder} holds several runs; watch one of them, for instance {live[0]}")
    raise InputError(f"{folder} is no folder of a run: it has no {CONFIG}; name the folder that --out named")
