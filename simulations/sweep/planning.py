"""`flower-vfl sweep --plan`: time and memory of the trials, estimated from short measured probes."""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from flower_vfl.apps.local import run
from flower_vfl.config import Config
from flower_vfl.config.schema import PrivacyConfig
from flower_vfl.data.store.dataset import Labels, PartyTable
from flower_vfl.data.store.memory import MemoryData, VerticalData
from flower_vfl.data.store.periods import Periods
from flower_vfl.data.store.source import SomeRows
from flower_vfl.errors import SetupError
from flower_vfl.reports import render
from flower_vfl.reports.words import size
from flower_vfl.simulations.sweep.checking import OpenData, SettingProgress, plain, quiet_log
from flower_vfl.simulations.sweep.trials import Trial
from flower_vfl.strategies import Observer
from flower_vfl.training.factories import schedule_of

PROBE_STEPS, WARM_UP = 40, 8
"""Number of steps of a probe, and of the first ones among them that are not timed."""

CONTEXT = 600 * 2**20
"""Estimated bytes of a process on a GPU beside its tensors."""

MOST_TEST_ROWS = 65_536
"""Most test rows of a probe; of more, only evenly spaced ones are evaluated, and the time is scaled to all."""


@dataclass(frozen=True)
class Probe:
    """Measurement of one shape: data, model, names of defenses, attacks, sizes of batches.

    Attributes
    ----------
    opening, step, ending : float
        Seconds until the first step, of a step (the median), and from the last epoch to the report.
    row : float
        Seconds of evaluating one row.
    memory, gpu : int
        Largest resident memory of the process, and largest memory of tensors on a GPU, in bytes; 0 where not known.
    rows, test_rows : int
        Numbers of rows of the whole data.
    measured_test_rows : int
        Test rows of the probe.
    periods : Periods, optional
        The days of data in time order.
    """

    opening: float
    step: float
    ending: float
    row: float
    memory: int
    gpu: int
    rows: int
    test_rows: int
    measured_test_rows: int
    periods: Periods | None = None

    def steps(self, config: Config) -> int:
        """Return the number of steps of a trial; an upper bound where it may stop early."""
        return schedule_of(config, self.rows, self.test_rows, periods=self.periods).steps

    def seconds(self, config: Config) -> float:
        """Return the seconds of a trial by itself; an upper bound where it may stop early."""
        schedule = schedule_of(config, self.rows, self.test_rows, periods=self.periods)
        following = sum(schedule.periods[1:])  # in time order, each day is evaluated by the model of the days before
        evaluated = schedule.epochs * (schedule.validation_rows + self.test_rows) + following
        return self.opening + schedule.steps * self.step + evaluated * self.row + self.ending


@dataclass(frozen=True)
class CostGroup:
    """Trials whose steps cost the same.

    Attributes
    ----------
    trials
        Trials of this shape.
    probe
        Measurement of the first of them.
    """

    trials: Sequence[Trial]
    probe: Probe

    @property
    def title(self) -> str:
        """Data and defenses, in words."""
        config = self.trials[0].config
        names = ", ".join(str(entry["name"]) for entry in config.defenses) or "no defense"
        size = config.training.batch_size or "auto"  # of one's own tables, from their number of rows
        return f"{config.data.name}, {config.model.network}, batch {size}: {names}"

    @property
    def seconds(self) -> list[float]:
        """The seconds of each trial by itself."""
        return [self.probe.seconds(trial.config) for trial in self.trials]


def makespan(seconds: Sequence[float], places: int) -> float:
    """Return the seconds until all trials have ended, begun in their order, each at the place that is free first.

    Examples
    --------
    >>> makespan([3.0, 3.0, 3.0], 2)
    6.0
    """
    ends = [0.0] * max(1, places)
    for length in seconds:
        first = ends.index(min(ends))
        ends[first] += length
    return max(ends)


def shapes_of(trials: Sequence[Trial], progress: SettingProgress = lambda done, total: None) -> list[CostGroup]:
    """Return the distinct shapes of the trials, each measured by a short run on a part of the data.

    Raises
    ------
    SetupError
        When a trial needs more memory than the GPU has.
    """
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(_shape(trial.config), []).append(trial)
    data, shapes = OpenData(), []
    with quiet_log():
        _probe(trials[0], data)  # excludes what a process does once, such as importing
        for index, members in enumerate(groups.values()):
            progress(index, len(groups))
            shapes.append(CostGroup(members, _probe(members[0], data)))
    return shapes


def _probe(trial: Trial, data: Callable[[Config], VerticalData]) -> Probe:
    try:
        return measure(trial.config, data)
    except torch.cuda.OutOfMemoryError as error:
        words = str(error).partition("\n")[0]
        raise SetupError(f"{trial.run} by itself needs more memory than the GPU has: {words}") from None


def _shape(config: Config) -> str:
    values = plain(config).model_dump()
    values["defenses"] = [entry.get("name") for entry in config.defenses]
    return json.dumps(values, sort_keys=True)


def measure(config: Config, data: Callable[[Config], VerticalData]) -> Probe:
    """Run a configuration for a few dozen steps and return its time and memory.

    The run has a journal, a checkpoint and a report as a trial has. Without a GPU it uses the processor.
    """
    whole = data(config)
    config = config.fitted(whole.alignment.rows)
    part = part_of(whole, config)
    gpu = config.device != "cpu" and torch.cuda.is_available()
    training = config.training.model_copy(update={"epochs": 1, "patience": 0, "order": "random"})
    small = config.model_copy(
        update={
            "training": training,
            "sinks": [],
            "device": config.device if gpu else "cpu",
            "data": config.data,
            "privacy": PrivacyConfig(),  # nothing is sent to another party, so no ledger is charged
        }
    )
    stopwatch = _Stopwatch(gpu=gpu)
    reset_peak()
    with tempfile.TemporaryDirectory(prefix="fvfl-plan-") as folder:
        out = Path(folder) / "run"
        began = time.perf_counter()
        run(small, out=out, data=lambda _: part, observers=(stopwatch,))
        render([out])
        ended = time.perf_counter()
    alignment = whole.alignment
    schedule = schedule_of(small, part.alignment.rows, part.alignment.test_rows)
    evaluated = max(1, schedule.validation_rows + part.alignment.test_rows)
    return Probe(
        opening=stopwatch.started - began,
        step=stopwatch.step,
        ending=ended - stopwatch.evaluated,
        row=max(0.0, stopwatch.evaluated - stopwatch.steps[-1]) / evaluated,
        memory=peak(),
        gpu=torch.cuda.max_memory_allocated() if gpu else 0,
        rows=alignment.rows,
        test_rows=alignment.test_rows,
        measured_test_rows=part.alignment.test_rows,
        periods=alignment.periods,
    )


class _Stopwatch(Observer):
    """Observer that records the times of the start, the steps and the evaluation, synchronised with a GPU."""

    def __init__(self, *, gpu: bool) -> None:
        self.started = self.evaluated = math.nan
        self.steps: list[float] = []
        self._gpu = gpu

    def _now(self) -> float:
        if self._gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    def on_start(self, steps: int, epochs: int, parties: tuple[str, ...]) -> None:
        self.started = self._now()

    def on_step(self, step: int, epoch: int, loss: float, leak: float) -> None:
        self.steps.append(self._now())

    def on_epoch(self, step: int, epoch: int, metrics: Mapping[str, float]) -> None:
        self.evaluated = self._now()

    @property
    def step(self) -> float:
        """Median seconds of a step, without the first ones if there are more."""
        times = [self.started, *self.steps]
        lengths = [after - before for before, after in pairwise(times)]
        return statistics.median(lengths[WARM_UP:] or lengths[1:] or lengths)


def part_of(data: VerticalData, config: Config) -> MemoryData:
    """Return evenly spaced rows of a data set, for the steps and the evaluation of a probe."""
    training, alignment = config.training, data.alignment
    wanted = math.ceil(PROBE_STEPS * training.batch_size / (1.0 - training.validation)) + 1
    rows = _spread(alignment.rows, wanted)
    test = _spread(alignment.test_rows, MOST_TEST_ROWS)
    tables = {}
    for name in data.parties:
        table = data.party(name)
        tables[name] = PartyTable(
            name, table.spec, SomeRows(table.train, rows), SomeRows(table.test, test), table.columns
        )
    labels = data.labels()
    target = Labels(np.asarray(labels.train)[rows], np.asarray(labels.test)[test], labels.classes)
    return MemoryData(data.name, tables, data.label_party, target)


def _spread(count: int, wanted: int) -> NDArray[np.int64]:
    return np.linspace(0, count, min(count, wanted), endpoint=False).astype(np.int64)


def reset_peak() -> None:
    """Reset the peak memory of the process, where the system allows that, and of the GPU."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def peak() -> int:
    """Return the largest resident memory in bytes; 0 where the system does not report it."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def fitting(total: int, need: int) -> int:
    """Return the number of trials of `need` bytes that fit in `total` bytes, a tenth of them left free."""
    return int(0.9 * total // need) if need else 0


def on_one_gpu(gpus: float, workers: int = 0) -> int:
    """Return the number of trials that share a GPU, each with `gpus` of it; at most `workers` unless that is 0."""
    each = max(1, int(1 / gpus + 1e-9)) if gpus <= 1 else 1
    return min(each, workers) if workers else each


def check_gpus(shapes: Sequence[CostGroup], gpus: float, workers: int = 0) -> None:
    """Refuse more trials on a GPU than its memory holds, by measurements on the first GPU of this machine.

    Raises
    ------
    SetupError
        When they do not fit; the message has the number that would.
    """
    need = max(shape.probe.gpu for shape in shapes) + CONTEXT
    check_gpu(need, torch.cuda.get_device_properties(0).total_memory, on_one_gpu(gpus, workers))


def check_gpu(need: int, total: int, at_once: int) -> None:
    """Refuse `at_once` trials of `need` bytes each on a GPU of `total` bytes if they do not fit.

    Raises
    ------
    SetupError
        When they do not fit; the message has the number that would.
    """
    fits = fitting(total, need)
    if fits < at_once:
        cure = f"{fits} would: gpus = {1 / fits:.3g}" if fits else "smaller batches or a larger GPU are needed"
        raise SetupError(
            f"{at_once} trials on a GPU need {size(at_once * need)}, and it has {size(total)}; {cure} in [sweep]"
        )


def summary(shapes: Sequence[CostGroup], order: Sequence[Trial], saved: Mapping[str, float]) -> dict[str, Any]:
    """Return seconds of each trial in the order of the sweep, and the largest memory of a trial.

    Trials that are trained together take less; `saved` are the seconds of a step that they save, by the trial's name.
    """
    seconds = {
        trial.run: length - saved.get(trial.run, 0.0) * shape.probe.steps(trial.config)
        for shape in shapes
        for trial, length in zip(shape.trials, shape.seconds, strict=True)
    }
    return {
        "seconds": [seconds[trial.run] for trial in order],
        "memory": max(shape.probe.memory for shape in shapes),
        "gpu": max(shape.probe.gpu for shape in shapes),
    }
