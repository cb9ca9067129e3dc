"""Worker processes: each does one task after another and reports its progress."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, Self

from flower_vfl.errors import InputError
from flower_vfl.protocol.printable import reason_of

_TICK_SECONDS = 0.5
_REPORT_SECONDS = 0.2
_MOST_TRACED = 10_000

Report = Callable[[float], None]
"""Function that receives the share of a task that is done."""

Work = Callable[[Any, Report], Any]
"""Function that does the task that an argument describes; a worker process imports it by its name."""


@dataclass(frozen=True)
class Started:
    """A worker has begun a task."""

    name: str


@dataclass(frozen=True)
class Progressed:
    """A share of a task is done."""

    name: str
    share: float


@dataclass(frozen=True)
class Ended:
    """A task is done."""

    name: str
    value: Any


@dataclass(frozen=True)
class Failed:
    """A task has failed.

    Attributes
    ----------
    name
        Name of the task.
    reason
        The reason, in one sentence.
    by_input
        True if something that the user gave is wrong.
    trace
        The traceback of an error that is not this package's own.
    """

    name: str
    reason: str
    by_input: bool = False
    trace: str = ""


@dataclass(frozen=True)
class Tick:
    """Some time has passed, and nothing has happened."""


Event = Started | Progressed | Ended | Failed | Tick


@dataclass(eq=False)
class _Worker:
    process: SpawnProcess
    connection: Connection
    task: str | None = None


@dataclass
class WorkerPool:
    """Processes that do tasks in the order of their submission.

    A worker that dies fails its task alone: another process takes its place. At the end of the block the workers end
    too, those that are at work by SIGTERM, which raises KeyboardInterrupt in the task. Ctrl-C at the terminal reaches
    this process only, so that it alone decides when they end.

    Parameters
    ----------
    work : Callable
        Function that does a task; workers must be able to import it.
    places : int
        Largest number of tasks that run at once.
    environment : Mapping, optional
        Variables of the workers' environment, set before they import anything large.
    grace : float
        Seconds that a task has to end after SIGTERM; then its process is killed.
    """

    work: Work
    places: int
    environment: Mapping[str, str] = field(default_factory=dict)
    grace: float = 60.0
    _waiting: deque[tuple[str, Callable[[], Any]]] = field(default_factory=deque)
    _workers: list[_Worker] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            if worker.task is not None:
                worker.process.terminate()
            worker.connection.close()
        deadline = time.monotonic() + self.grace
        try:
            for worker in self._workers:
                worker.process.join(max(0.0, deadline - time.monotonic()))
        finally:  # a second Ctrl-C ends the wait
            for worker in self._workers:
                worker.process.kill()
                worker.process.join()
            self._workers.clear()

    def submit(self, name: str, make: Callable[[], Any]) -> None:
        """Append a task to those that wait; also while `events` is being read.

        Parameters
        ----------
        name : str
            Name of the task in events.
        make : Callable
            Function that returns the description of the task, called when the task begins.
        """
        self._waiting.append((name, make))

    @property
    def waiting(self) -> int:
        """The number of tasks that have not begun."""
        return len(self._waiting)

    def names(self) -> set[str]:
        """Return the names of the tasks that have not ended."""
        at_work = {worker.task for worker in self._workers if worker.task is not None}
        return at_work | {name for name, _ in self._waiting}

    def events(self) -> Iterator[Event]:
        """Do the tasks, and yield their events until none is left."""
        while self._waiting or any(worker.task is not None for worker in self._workers):
            yield from self._assign()
            ready = connection.wait([worker.connection for worker in self._workers], _TICK_SECONDS)
            for worker in [worker for worker in self._workers if worker.connection in ready]:
                event = self._read(worker)
                if event is not None:
                    yield event
            if not ready:
                yield Tick()

    def _assign(self) -> Iterator[Started]:
        while self._waiting:
            worker = next((worker for worker in self._workers if worker.task is None), None)
            if worker is None and len(self._workers) < self.places:
                worker = self._start()
            if worker is None:
                return
            name, make = self._waiting.popleft()
            worker.task = name
            with suppress(OSError):  # it has died meanwhile: reading from it shows that
                worker.connection.send(make())
            yield Started(name)

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(there, self.work, dict(self.environment)), daemon=True)
        with _without_interrupts():
            process.start()
        there.close()
        worker = _Worker(process, here)
        self._workers.append(worker)
        return worker

    def _read(self, worker: _Worker) -> Event | None:
        """Return the event that a worker sent, or the failure of a worker that died."""
        try:
            message = worker.connection.recv()
        except (EOFError, OSError):
            return self._lost(worker)
        name = worker.task or ""
        if isinstance(message, float):
            return Progressed(name, message)
        worker.task = None
        return Failed(name, **message) if isinstance(message, dict) else Ended(name, message[0])

    def _lost(self, worker: _Worker) -> Failed | None:
        self._workers.remove(worker)
        worker.connection.close()
        worker.process.join(self.grace)
        return None if worker.task is None else Failed(worker.task, _ending(worker.process.exitcode))


def _ending(code: int | None) -> str:
    """Return a text on the unexpected end of a process.

    Examples
    --------
    >>> _ending(-9)
    'its process was killed (SIGKILL); the system does that when memory runs out'
    >>> _ending(3)
    'its process ended by itself, with exit code 3'
    """
    if code is None or code >= 0:
        return f"its process ended by itself, with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"its process was killed ({name})" + (
        "; the system does that when memory runs out" if -code == signal.SIGKILL else ""
    )


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Start processes that SIGINT does not reach: they inherit that it is blocked. Here it is delivered afterwards."""
    resource_tracker.ensure_running()  # its own start would unblock SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(tasks: Connection, work: Work, environment: Mapping[str, str]) -> None:
    """Do the received tasks in a worker process, until the connection is closed or SIGTERM arrives."""

    def terminate(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    try:
        signal.signal(signal.SIGTERM, terminate)
        os.environ.update(environment)
        while True:
            tasks.send(_outcome(work, tasks.recv(), _Reporter(tasks)))
    except (EOFError, OSError, KeyboardInterrupt):
        return


def _outcome(work: Work, argument: Any, report: Report) -> tuple[Any] | dict[str, Any]:
    """Return what a task returned, in a tuple, or the fields of `Failed`."""
    try:
        return (work(argument, report),)
    except MemoryError:
        return {"reason": "out of memory"}
    except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
        known = type(error).__module__.startswith("flower_vfl.")
        trace = "" if known else "".join(traceback.format_exception(error))[-_MOST_TRACED:]
        return {"reason": reason_of(error), "by_input": isinstance(error, InputError), "trace": trace}


class _Reporter:
    """An observer that sends the finished share, a few times a second."""

    def __init__(self, tasks: Connection) -> None:
        self._tasks, self._due = tasks, 0.0

    def __call__(self, share: float) -> None:
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _REPORT_SECONDS
        try:
            self._tasks.send(float(share))
        except OSError:  # the connection is closed: end as by Ctrl-C, which writes what was measured
            raise KeyboardInterrupt from None
