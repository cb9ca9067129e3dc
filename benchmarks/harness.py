"""Shared code of the benchmarks: lanes that take turns, paired ratios, and the one JSON line at the end.

A lane is a process of its own that does one kind of step over and over. Lanes take turns: one does a block of steps
while the others wait, then the next one does, in the order A B, B A, A B ... Each block is timed inside its lane, its
first step is not counted (caches have gone cold while others worked), and the reported number is the median over the
pairs of the ratio within a pair. Other load of the machine then affects both sides of a pair equally.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; lanes inherit it
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

import argparse
import contextlib
import json
import math
import multiprocessing
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PROCESSES: Any = multiprocessing.get_context("forkserver" if "--quick" in sys.argv else "spawn")
"""The start method of processes. A measurement spawns each one, because the position of its memory affects its
times. A smoke run forks them from one process that has imported everything: `methods.py` takes 36 s then, not 98."""
if "--quick" in sys.argv:
    PROCESSES.set_forkserver_preload(["flower_vfl.apps.local", "flower_vfl.simulations.running", "torch", "sklearn"])
    if multiprocessing.parent_process() is not None:
        # Python would start another such process for this one, which was forked from the first: 7 s of a core.
        forkserver._forkserver.ensure_running = lambda: None  # type: ignore[method-assign]

_TURN_SECONDS = 600.0
_END_SECONDS = 120.0

Clock = tuple[float, float]
"""Wall-clock seconds, and CPU seconds of a process."""


class Enough(Exception):  # noqa: N818 - no error: the benchmark has seen enough
    """Raised in a lane to end its work."""


class Gate:
    """The turns of one lane: `tick`, called after every step, waits while it is not this lane's turn.

    Parameters
    ----------
    connection : Connection
        Connection to the benchmark.

    Attributes
    ----------
    settle : int
        Number of steps at the beginning of a block that are not timed: they were under way during the turns of others.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.settle = 0
        self._unsettled = 0
        self._left = 0
        self._steps = 0
        self._started: Clock | None = None
        self.values: list[float] = []
        """One value a step, such as its loss: proof that two lanes did the same work."""
        self.memory: dict[str, int] = {}
        """Resident memory at the last step."""

    def tick(self, value: float = math.nan) -> None:
        """Count one step; raises `Enough` when the benchmark is over."""
        now = (time.perf_counter(), time.process_time())
        self.values.append(value)
        if self._steps:
            if self._unsettled:
                self._unsettled -= 1
                return
            if self._started is None:
                self._started, self._left = now, self._steps
                return
            self._left -= 1
            if self._left:
                return
            self._connection.send(
                ((now[0] - self._started[0]) / self._steps, (now[1] - self._started[1]) / self._steps)
            )
        try:
            self._steps, self._started = self._connection.recv(), None
            self._unsettled = self.settle
        except (EOFError, ConnectionError):  # the benchmark itself has died
            self._steps = 0
        if not self._steps:
            self.memory = resident()  # before anything is released
            raise Enough

    def interrupt(self) -> None:
        """Begin the block again after an interruption that is no step, such as an evaluation."""
        self._started = None


def _run_lane(connection: Connection, work: Callable[..., Any], arguments: Sequence[Any]) -> None:
    gate = Gate(connection)
    more = None
    with contextlib.suppress(Enough):
        more = work(gate, *arguments)
    with contextlib.suppress(OSError):
        connection.send({"values": gate.values, **gate.memory, "more": more})


class Lane:
    """A process that does one kind of step, a block at a time.

    Parameters
    ----------
    name : str
        Name for error messages.
    work : callable
        Function that the process calls with a `Gate` and `arguments`; it calls `gate.tick()` after each step.
    *arguments : Any
        Arguments of `work`; they are pickled.
    """

    def __init__(self, name: str, work: Callable[..., Any], *arguments: Any) -> None:
        self.name = name
        self._connection, theirs = PROCESSES.Pipe()
        self._process = PROCESSES.Process(target=_run_lane, args=(theirs, work, arguments))
        self._process.start()
        theirs.close()
        self.result: dict[str, Any] = {}

    def block(self, steps: int) -> Clock:
        """Run a block of steps and return their mean time."""
        self._connection.send(steps)
        answer = self._receive(_TURN_SECONDS)
        if not isinstance(answer, tuple):
            raise SystemExit(f"lane {self.name!r} ended before the benchmark did: give it more epochs")
        return answer

    def finish(self, timeout: float = _END_SECONDS) -> dict[str, Any]:
        """End the lane and return its result."""
        if not self.result:
            self._connection.send(0)
            self.result = self._receive(timeout)
        return self.result

    def _receive(self, timeout: float) -> Any:
        try:
            if self._connection.poll(timeout):
                return self._connection.recv()
        except (EOFError, ConnectionError):
            raise SystemExit(f"lane {self.name!r} died; its words are above") from None
        raise SystemExit(f"lane {self.name!r} did not answer within {timeout:g} s")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
        self._process.join(_END_SECONDS if kind is None else 1.0)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()


@dataclass(frozen=True)
class Sample:
    """Measurements of one quantity, one a pair.

    Parameters
    ----------
    values : list of float
        The measured values.
    """

    values: list[float]

    @property
    def median(self) -> float:
        """The median."""
        return statistics.median(self.values)

    def describe(self, digits: int = 4) -> dict[str, Any]:
        """Return the median, its 95 % interval (order statistics), and the quartiles."""
        ordered, count = sorted(self.values), len(self.values)
        reach = 0.98 * math.sqrt(count)
        low, high = math.floor((count - 1) / 2 - reach), math.ceil((count - 1) / 2 + reach)
        interval = [ordered[max(0, low)], ordered[min(count - 1, high)]]
        quartiles = [ordered[(count - 1) // 4], ordered[-1 - (count - 1) // 4]]
        return {
            "median": round(self.median, digits),
            "interval95": [round(value, digits) for value in interval],
            "quartiles": [round(value, digits) for value in quartiles],
            "pairs": count,
        }


class Times:
    """Times of the blocks of one lane, in their order.

    Parameters
    ----------
    blocks : Sequence[Clock]
        Mean time of the steps of each block.
    """

    def __init__(self, blocks: Sequence[Clock]) -> None:
        self.wall = [wall for wall, _ in blocks]
        self.cpu = [cpu for _, cpu in blocks]

    @property
    def milliseconds(self) -> float:
        """Median wall-clock time of a step, in milliseconds."""
        return round(1000.0 * statistics.median(self.wall), 4)

    def over(self, other: Times) -> Sample:
        """Return the ratio within each pair, by wall-clock time."""
        return Sample([mine / theirs for mine, theirs in zip(self.wall, other.wall, strict=True)])

    def cpu_over(self, other: Times) -> Sample:
        """Return the ratio within each pair, by CPU time, which excludes waiting and other load of the machine."""
        return Sample([mine / theirs for mine, theirs in zip(self.cpu, other.cpu, strict=True)])


@dataclass(frozen=True)
class Measured:
    """Measurements of lanes over several fresh starts.

    Parameters
    ----------
    times : list of Times
        Times of each lane, all starts one after the other.
    results : list of list of dict
        Result of each lane, one list a start.
    """

    times: list[Times]
    results: list[list[dict[str, Any]]]

    def equal_values(self, first: int, second: int) -> int:
        """Return the number of steps over which two lanes had the same values in every start, or -1."""
        return min(same_prefix(start[first]["values"], start[second]["values"]) for start in self.results)

    def memory(self, lane: int, kind: str) -> int:
        """Return the largest memory of a lane over all starts, in bytes, `rss` or `rss_anon`."""
        found = [start[lane].get(kind) for start in self.results]
        if None in found:
            raise SystemExit(f"this system does not say how much memory is resident ({kind}); Linux does")
        return max(found)


def compare(
    lanes: Sequence[tuple[Any, ...]], *, starts: int, blocks: int, steps: int, seconds: float = math.inf
) -> Measured:
    """Measure lanes, each a name, its work and arguments, that take turns, over several fresh starts.

    Two processes that do the same differ by a few per cent for as long as they live, by the position of their memory.
    Fresh starts average over that; more blocks do not. After `seconds` of a start, no further blocks begin.
    """
    clocks: list[list[Clock]] = [[] for _ in lanes]
    results = []
    for _ in range(starts):
        with contextlib.ExitStack() as stack:
            running = [stack.enter_context(Lane(*lane)) for lane in lanes]
            for index, times in enumerate(take_turns(running, blocks=blocks, steps=steps, seconds=seconds)):
                clocks[index] += times
            results.append([lane.finish() for lane in running])
    return Measured([Times(seen) for seen in clocks], results)


def take_turns(lanes: Sequence[Lane], *, blocks: int, steps: int, seconds: float) -> list[list[Clock]]:
    """Return the times of blocks that lanes do in turn, at least two each; pairs are at equal positions.

    Two blocks of each lane before them are not measured.
    """
    for _ in range(2):
        for lane in lanes:
            lane.block(steps)
    measured: list[list[Clock]] = [[] for _ in lanes]
    end = time.monotonic() + seconds
    for block in range(blocks):
        if block >= 2 and time.monotonic() > end:
            break
        order = range(len(lanes)) if block % 2 == 0 else range(len(lanes) - 1, -1, -1)
        for index in order:
            measured[index].append(lanes[index].block(steps))
    return measured


def same_prefix(first: Sequence[float], second: Sequence[float]) -> int:
    """Return the number of values that two lanes have in common, or -1 where they differ before one of them ended."""
    count = min(len(first), len(second))
    return count if list(first[:count]) == list(second[:count]) else -1


def resident() -> dict[str, int]:
    """Return the resident memory of this process in bytes: `rss_anon` without and `rss` with pages of mapped files.

    Kinds that the system does not report are left out; Linux reports both.
    """
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf8", errors="replace").splitlines() if status.exists() else []
    fields = dict(line.split(":", 1) for line in lines)
    kinds = {"rss_anon": "RssAnon", "rss": "VmRSS"}
    return {name: int(fields[key].split()[0]) * 1024 for name, key in kinds.items() if key in fields}


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the option `--quick`, to which a benchmark may add others."""
    options = argparse.ArgumentParser(description=(description or "").split("\n", 1)[0])
    options.add_argument("--quick", action="store_true", help="a smoke run: small, and its numbers say nothing")
    return options


def arguments(description: str | None) -> argparse.Namespace:
    """Return the command line's options of a benchmark that adds none."""
    return parser(description).parse_args()


def report(name: str, *, target: str, met: bool | dict[str, bool], quick: bool, **measured: Any) -> None:
    """Print the results as one line of JSON."""
    import torch

    line = {
        "benchmark": name,
        "target": target,
        "met": met,
        "quick": quick,
        **measured,
        "machine": {"cpu": _cpu(), "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 2)},
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    print(json.dumps(line), flush=True)


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf8") as info:
            return next(line.split(":", 1)[1].strip() for line in info if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
