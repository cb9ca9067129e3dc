"""The demo: its runs side by side in worker processes, the first comparison early, one report at the end."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from flower_vfl import reports
from flower_vfl.apps.alone import EACH_ALONE
from flower_vfl.apps.folder import has_ended, read_result
from flower_vfl.apps.progress import time_words
from flower_vfl.config import Config
from flower_vfl.errors import InputError, TrainingError
from flower_vfl.files import append_private, write_json_atomic, writing_to
from flower_vfl.machine import cores, free_memory
from flower_vfl.protocol.printable import shortened
from flower_vfl.simulations.demo.countdown import Countdown
from flower_vfl.simulations.demo.display import Display
from flower_vfl.simulations.demo.folder import ERRORS, REPORT, SUMMARY, demo_folder
from flower_vfl.simulations.demo.plan import FIRST_RUNS
from flower_vfl.simulations.demo.pool import Ended, Failed, WorkerPool
from flower_vfl.simulations.demo.table import print_demo
from flower_vfl.simulations.demo.worker import AloneTask, RunTask, work
from flower_vfl.terminal import console

_WORKER_BYTES = 2**30
"""Main memory that a worker needs; benchmarks/demo.py measures it."""

_MOST_SHOWN = 500
_ALONE = "alone: "
"""Prefix of the name of a task that trains on one party's columns; no run's name has a colon."""


def run_demo(
    out: Path, configs: Mapping[str, Config], *, full: bool = False, resume: bool = False
) -> list[dict[str, Any]]:
    """Train without a defense and with each, while one party attacks; compare and report.

    Parameters
    ----------
    out : Path
        Folder of the results.
    configs : Mapping
        The configuration of each run, as `demo_configs` returns them.
    full : bool
        True if the runs are as long as the preset's, with longitudinal curves, labels to rebuild and parties alone.
    resume : bool
        True if a demo that was interrupted in that folder goes on.

    Returns
    -------
    list of dict
        The results of the runs, which are also in `summary.json`.

    Raises
    ------
    InputError
        When something is wrong with the input; a new folder is then removed.
    TrainingError
        When runs failed; the others have left their results.
    """
    out = out.expanduser().absolute()
    with demo_folder(out, configs, resume=resume):
        demo = _Demo(out, configs, full=full)
        try:
            demo.run()
        finally:  # even after an error, finished runs are compared
            summaries = demo.finish()
    if demo.failures:
        name, reason = next(iter(demo.failures.items()))
        raise TrainingError(
            f"{len(demo.failures)} of {len(configs)} runs failed, {name} for instance: "
            f"{shortened(reason, _MOST_SHOWN)}. The others have left their results in {out}; --resume tries the "
            "failed ones again"
        )
    return summaries


@dataclass
class _Demo:
    """The runs of one demo and their state.

    Attributes
    ----------
    out
        Folder of the results.
    configs
        Configuration of each run, by its name.
    full
        True if each party's columns are also trained on alone.
    failures
        Reason of each failure, by the name of the run.
    """

    out: Path
    configs: Mapping[str, Config]
    full: bool
    failures: dict[str, str] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)
    _finished: set[str] = field(default_factory=set)
    _alone: dict[str, float] = field(default_factory=dict)
    _parties: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Do the runs and trainings that are not done yet."""
        self._finished = {name for name in self.configs if has_ended(self.out / name)}
        if self.full:
            from flower_vfl.apps.factories import open_data
            from flower_vfl.simulations.running import alone_parties  # with torch, which only workers need otherwise

            self._parties = alone_parties(self.configs[FIRST_RUNS[0]], open_data(self.configs[FIRST_RUNS[0]]))
            self._alone = self._measured_alone()
        waiting = [name for name in self.configs if not self._is_done(name)]
        if not waiting:
            return
        places = _places(self.configs[FIRST_RUNS[0]], len(waiting) + len(self._parties))
        countdown = Countdown(places)
        threads = str(max(1, cores() // places))
        environment = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": threads}
        with (
            Display(len(self.configs), countdown, console()) as display,
            WorkerPool(work, places, environment) as pool,
        ):
            self._submit(pool, waiting)
            try:
                self._follow(pool, display, countdown)
            except KeyboardInterrupt:
                console().print("the runs under way write what was measured; Ctrl-C again ends them at once")
                raise

    def _follow(self, pool: WorkerPool, display: Display, countdown: Countdown) -> None:
        """Show the progress of the runs until none is left."""
        for event in pool.events():
            countdown.take(event)
            match event:
                case Failed():
                    self._failed(event)
                    news = f"{event.name} failed: {shortened(event.reason, _MOST_SHOWN)}"
                    display.line(len(self._finished), pool.waiting, news)
                case Ended():
                    self._ended(event, pool, display)
                case _:
                    display.refresh(len(self._finished), pool.waiting)

    def finish(self) -> list[dict[str, Any]]:
        """Write the summary and the comparison of the runs that have finished, and return their results."""
        summaries = self._write_summary()
        if summaries:
            reports.render([self.out / summary["run"] for summary in summaries], self.out / REPORT)
        return summaries

    def _submit(self, pool: WorkerPool, waiting: list[str]) -> None:
        """Submit the runs of the first comparison, then the parties alone, then the other runs."""
        first = [name for name in waiting if name in FIRST_RUNS]
        for name in first:
            self._submit_run(pool, name)
        plain = self.configs[FIRST_RUNS[0]].model_dump()
        for party in self._parties:
            if party not in self._alone:
                pool.submit(_ALONE + party, partial(AloneTask, plain, party))
        for name in waiting:
            if name not in first:
                self._submit_run(pool, name)

    def _submit_run(self, pool: WorkerPool, name: str) -> None:
        pool.submit(name, partial(self._task, name))

    def _task(self, name: str) -> RunTask:
        alone = self._alone if self._parties and self._has_alone() else None
        return RunTask(self.configs[name].model_dump(), self.out / name, alone)

    def _ended(self, event: Ended, pool: WorkerPool, display: Display) -> None:
        if event.name.startswith(_ALONE):
            self._alone[event.name.removeprefix(_ALONE)] = event.value
        elif event.name not in self._finished:
            self._finished.add(event.name)
            display.line(len(self._finished), pool.waiting, event.name)
            if event.name in FIRST_RUNS and self._finished.issuperset(FIRST_RUNS):
                with display.paused():
                    self._compare_first()
        self._write_summary()
        if self._has_alone():  # it is added to runs that ended before
            under_way = pool.names()
            for name in self.configs:
                if name in self._finished and name not in under_way and not self._is_done(name):
                    self._submit_run(pool, name)

    def _failed(self, event: Failed) -> None:
        if event.by_input:
            raise InputError(event.reason)
        self.failures[event.name] = event.reason
        with writing_to(self.out / ERRORS), append_private(self.out / ERRORS) as log:
            log.write(f"{event.name}: {event.reason}\n{event.trace}\n")

    def _compare_first(self) -> None:
        summaries = [summary for summary in self._summaries() if summary["run"] in FIRST_RUNS]
        seconds = time_words(time.monotonic() - self._began)
        print_demo(summaries, title=f"The first comparison, after {seconds}")

    def _write_summary(self) -> list[dict[str, Any]]:
        summaries = self._summaries()
        if summaries:
            write_json_atomic(self.out / SUMMARY, summaries)
        return summaries

    def _summaries(self) -> list[dict[str, Any]]:
        return [{"run": name, **read_result(self.out / name)} for name in self.configs if has_ended(self.out / name)]

    def _is_done(self, name: str) -> bool:
        return name in self._finished and not (self._parties and EACH_ALONE not in read_result(self.out / name))

    def _has_alone(self) -> bool:
        return set(self._parties) == self._alone.keys()

    def _measured_alone(self) -> dict[str, float]:
        """Return the AUC of each party alone from the result of a finished run; empty if none has it."""
        results = (read_result(self.out / name) for name in self._finished)
        return next((dict(result[EACH_ALONE]) for result in results if EACH_ALONE in result), {})


def _places(config: Config, tasks: int) -> int:
    """Return the number of tasks that run at once, as processors and free memory allow."""
    processors = cores() // (config.threads or cores())
    free = free_memory()
    return max(1, min(tasks, processors, free // _WORKER_BYTES if free else tasks))
