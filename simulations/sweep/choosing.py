"""The choice to train trials together, by measurements on a part of the data, on this machine or this GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from flower_vfl import machine
from flower_vfl.apps.factories import computing
from flower_vfl.config import Config
from flower_vfl.data.store.memory import VerticalData
from flower_vfl.protocol.printable import reason_of
from flower_vfl.simulations.stacked.member import Member
from flower_vfl.simulations.stacked.training import StackedTraining
from flower_vfl.simulations.sweep.checking import OpenData, SettingProgress, quiet_log
from flower_vfl.simulations.sweep.definition import Running
from flower_vfl.simulations.sweep.grouping import Group, groups
from flower_vfl.simulations.sweep.planning import fitting, measure, part_of, peak, reset_peak
from flower_vfl.simulations.sweep.trials import Trial
from flower_vfl.training.factories import schedule_of

SMALL_STACK, LARGER_STACK = 2, 8
"""Sizes of the two stacks that are measured; time and memory of larger ones are extrapolated linearly from them."""

GAIN = 1.25
"""Least speed-up of a stack: its trials are finished one by one, and its floats differ in the last digit."""

MEASURED_STEPS = 6
_STEP_BYTES, _ROW_BYTES = 400, 100
"""Estimated bytes that a short measurement does not show: the records of a step, and a row while it is evaluated."""


@dataclass(frozen=True)
class StackCost:
    """Time and memory of a stack.

    Attributes
    ----------
    runs
        Number of runs of the stack.
    seconds, memory
        Seconds of a step, and peak memory in bytes: resident memory, or tensors on the GPU.
    """

    runs: int
    seconds: float
    memory: int


@dataclass(frozen=True)
class StackingChoice:
    """The way in which the trials of a group are trained.

    Attributes
    ----------
    group
        The group of trials.
    stacks
        Trials that are trained together; empty where each is trained by itself.
    why
        Reason of the choice.
    alone, together
        Seconds of a step of a run by itself, and of one of the largest stack; NaN where that was not measured.
    memory
        Memory of that stack, in bytes.
    """

    group: Group
    stacks: tuple[tuple[Trial, ...], ...]
    why: str
    alone: float = math.nan
    together: float = math.nan
    memory: int = 0

    @property
    def on_gpu(self) -> bool:
        """True if that memory is a GPU's."""
        return self.group.trials[0].config.device != "cpu"


def at(few: StackCost, more: StackCost, runs: int) -> StackCost:
    """Return time and memory of a stack of `runs`, extrapolated linearly from two measured stacks; neither decreases.

    If both measured stacks have the same size, time and memory are proportional to the runs.
    """
    width = more.runs - few.runs
    seconds = max(0.0, (more.seconds - few.seconds) / width) if width else more.seconds / more.runs
    memory = max(0, more.memory - few.memory) / width if width else more.memory / more.runs
    beyond = runs - more.runs
    return StackCost(runs, more.seconds + beyond * seconds, int(more.memory + beyond * memory))


def choose(
    trials: Sequence[Trial],
    running: Running,
    places: int,
    progress: SettingProgress = lambda done, total: None,
) -> list[StackingChoice]:
    """Return for each group of trials the choice to train its members together or one by one.

    Parameters
    ----------
    trials : Sequence[Trial]
        Trials of which nothing has been trained.
    running : Running
        ``stacking`` is the user's choice, ``gpus`` the share of a GPU that a trial has.
    places : int
        Number of trials, or stacks, that run at once.
    progress : SettingProgress
        Receives the number of groups that are measured, and of all groups.
    """
    found, data = [], OpenData()
    candidates = groups(trials)
    with quiet_log():
        for index, group in enumerate(candidates):
            progress(index, len(candidates))
            found.append(
                StackingChoice(group, (), group.reason) if group.reason else _decide(group, running, places, data)
            )
    return found


def _decide(group: Group, running: Running, places: int, data: Callable[[Config], VerticalData]) -> StackingChoice:
    config = group.trials[0].config
    needed = math.ceil(len(group.trials) / max(1, places))
    forced = running.stacking == "on"
    if needed < SMALL_STACK:
        return StackingChoice(group, (), f"there is room for all {len(group.trials)} at once")
    if config.device != "cpu" and not torch.cuda.is_available():
        if forced:
            return StackingChoice(group, _cut(group.trials, needed), "asked for; there is no GPU here to measure on")
        return StackingChoice(group, (), "there is no GPU here to measure on; stacking = 'on' does without")
    try:
        alone = measure(_evenly_spaced(group.trials, 3)[1].config, data).step
        few, more = (
            measure_stack(_evenly_spaced(group.trials, count), data)
            for count in (SMALL_STACK, min(LARGER_STACK, needed))
        )
    except Exception as error:  # noqa: BLE001 - methods of other packages run; a trial by itself reports the error
        return StackingChoice(group, (), f"they could not be measured together: {reason_of(error)}")
    runs = _fitting(few, more, needed, _limit(config, running, places), data(config), config)
    if runs < SMALL_STACK:
        return StackingChoice(group, (), "memory is too small for two of them", alone)
    stack = at(few, more, runs)
    faster = GAIN * stack.seconds < runs * alone
    words = f"a step of {runs} takes {1000 * stack.seconds:.1f} ms, of one by itself {1000 * alone:.1f} ms"
    stacks = _cut(group.trials, runs) if faster or forced else ()
    return StackingChoice(group, stacks, words, alone, stack.seconds, stack.memory)


def _evenly_spaced(trials: Sequence[Trial], count: int) -> list[Trial]:
    """Return `count` trials, evenly spaced to include all defenses."""
    return [trials[number * len(trials) // count] for number in range(count)]


def measure_stack(trials: Sequence[Trial], data: Callable[[Config], VerticalData]) -> StackCost:
    """Train some trials together for a few steps on a part of the data, and return their time and memory.

    Raises
    ------
    FlowerVflError
        When they cannot be trained together.
    """
    first = trials[0].config
    whole = data(first)
    fitted = [trial.config.fitted(whole.alignment.rows) for trial in trials]  # to all rows, not to these few
    part = part_of(whole, fitted[0])
    reset_peak()
    with computing(first):
        training = StackedTraining([Member(config, part) for config in fitted], part)
        seconds = training.dry_run(MEASURED_STEPS)
    memory = peak() if first.device == "cpu" else torch.cuda.max_memory_allocated()
    return StackCost(len(trials), seconds, memory)


def _fitting(few: StackCost, more: StackCost, needed: int, limit: int, data: VerticalData, config: Config) -> int:
    """Return the number of runs, at most `needed`, that one stack can hold."""
    schedule = schedule_of(config, data.alignment.rows, data.alignment.test_rows)
    each = _ROW_BYTES * max(schedule.test_rows, schedule.validation_rows)
    each += _STEP_BYTES * schedule.steps if config.device == "cpu" else 0  # not on a GPU: records are in main memory
    return next((runs for runs in range(needed, 0, -1) if fitting(limit, at(few, more, runs).memory + runs * each)), 0)


def _limit(config: Config, running: Running, places: int) -> int:
    """Return the bytes that one place may use, of the GPU or of this machine."""
    if config.device != "cpu":
        return int(torch.cuda.get_device_properties(0).total_memory * min(1.0, running.gpus or 1.0))
    return machine.memory() // max(1, places)


def _cut(trials: Sequence[Trial], most: int) -> tuple[tuple[Trial, ...], ...]:
    """Return stacks of nearly the same size, of at most `most` trials each; a stack has at least two."""
    count = math.ceil(len(trials) / most)
    bounds = [round(number * len(trials) / count) for number in range(count + 1)]
    cut = (tuple(trials[low:high]) for low, high in pairwise(bounds))
    return tuple(stack for stack in cut if len(stack) >= SMALL_STACK)


def saved(choices: Sequence[StackingChoice]) -> dict[str, float]:
    """Return the seconds of a step that a trial saves by training in a stack, by the trial's name."""
    return {
        trial.run: choice.alone - choice.together / max(map(len, choice.stacks))
        for choice in choices
        for stack in choice.stacks
        for trial in stack
        if math.isfinite(choice.alone)
    }
