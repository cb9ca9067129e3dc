"""The choice to train trials together: measured on a part of the data, for this machine or this GPU."""

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
from flower_vfl.simulations.sweep.checking import OpenData, Progress, quiet_log
from flower_vfl.simulations.sweep.definition import Running
from flower_vfl.simulations.sweep.grouping import Group, groups
from flower_vfl.simulations.sweep.planning import fitting, measure, part_of, peak, reset_peak
from flower_vfl.simulations.sweep.trials import Trial
from flower_vfl.training.factories import schedule_of

FEW, MORE = 2, 8
"""Runs of the two stacks that are measured; time and memory of more are computed from the two, in a straight line."""

GAIN = 1.25
"""So much faster a stack must be: its trials are finished one by one, and its floats end in another digit."""

STEPS = 6
_STEP_BYTES, _ROW_BYTES = 400, 100
"""Memory of a run that no short measurement shows, about: recorded in a step, and for a row while it is evaluated."""


@dataclass(frozen=True)
class Measured:
    """Time and memory of a stack of so many runs.

    Attributes
    ----------
    runs
        Of the stack.
    seconds, memory
        Of a step, and at most, in bytes: resident memory, or tensors on the GPU.
    """

    runs: int
    seconds: float
    memory: int


@dataclass(frozen=True)
class Choice:
    """The way in which the trials of a group are trained.

    Attributes
    ----------
    group
        The group.
    stacks
        Trials that are trained together; empty where each is trained by itself.
    why
        In words.
    alone, together
        Seconds of a step of a run by itself, and of one of the largest stack; NaN where that was not measured.
    memory
        Of that stack, in bytes.
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


def at(few: Measured, more: Measured, runs: int) -> Measured:
    """Return what a stack of `runs` takes, on the straight line through two that were measured; it never falls.

    Where both are one and the same, a stack takes in proportion to its runs.
    """
    width = more.runs - few.runs
    seconds = max(0.0, (more.seconds - few.seconds) / width) if width else more.seconds / more.runs
    memory = max(0, more.memory - few.memory) / width if width else more.memory / more.runs
    beyond = runs - more.runs
    return Measured(runs, more.seconds + beyond * seconds, int(more.memory + beyond * memory))


def choose(
    trials: Sequence[Trial],
    running: Running,
    places: int,
    progress: Progress = lambda done, total: None,
) -> list[Choice]:
    """Decide for each group of trials whether its members are trained together.

    Parameters
    ----------
    trials : Sequence[Trial]
        Of which nothing has been trained.
    running : Running
        ``stacking`` says whether it is wanted; ``gpus`` which share of a GPU a trial has.
    places : int
        Number of trials, or stacks, that run at once.
    progress : Progress
        Takes the number of groups that are measured, and of all groups.
    """
    found, data = [], OpenData()
    candidates = groups(trials)
    with quiet_log():
        for index, group in enumerate(candidates):
            progress(index, len(candidates))
            found.append(Choice(group, (), group.reason) if group.reason else _decide(group, running, places, data))
    return found


def _decide(group: Group, running: Running, places: int, data: Callable[[Config], VerticalData]) -> Choice:
    config = group.trials[0].config
    wanted = math.ceil(len(group.trials) / max(1, places))
    forced = running.stacking == "on"
    if wanted < FEW:
        return Choice(group, (), f"there is room for all {len(group.trials)} at once")
    if config.device != "cpu" and not torch.cuda.is_available():
        if forced:
            return Choice(group, _cut(group.trials, wanted), "asked for; there is no GPU here to measure on")
        return Choice(group, (), "there is no GPU here to measure on; stacking = 'on' does without")
    try:
        alone = measure(_some(group.trials, 3)[1].config, data).step
        few, more = (measure_stack(_some(group.trials, count), data) for count in (FEW, min(MORE, wanted)))
    except Exception as error:  # noqa: BLE001 - methods of others are in it; a trial by itself says what is wrong
        return Choice(group, (), f"they could not be measured together: {reason_of(error)}")
    runs = _fitting(few, more, wanted, _limit(config, running, places), data(config), config)
    if runs < FEW:
        return Choice(group, (), "memory is too small for two of them", alone)
    stack = at(few, more, runs)
    faster = GAIN * stack.seconds < runs * alone
    words = f"a step of {runs} takes {1000 * stack.seconds:.1f} ms, of one by itself {1000 * alone:.1f} ms"
    stacks = _cut(group.trials, runs) if faster or forced else ()
    return Choice(group, stacks, words, alone, stack.seconds, stack.memory)


def _some(trials: Sequence[Trial], count: int) -> list[Trial]:
    """Return so many trials, evenly spread: of all defenses some."""
    return [trials[number * len(trials) // count] for number in range(count)]


def measure_stack(trials: Sequence[Trial], data: Callable[[Config], VerticalData]) -> Measured:
    """Train some trials together for a few steps on a part of the data, and return what it took.

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
        seconds = training.dry_run(STEPS)
    memory = peak() if first.device == "cpu" else torch.cuda.max_memory_allocated()
    return Measured(len(trials), seconds, memory)


def _fitting(few: Measured, more: Measured, wanted: int, limit: int, data: VerticalData, config: Config) -> int:
    """Return how many runs, `wanted` at most, one stack can hold."""
    schedule = schedule_of(config, data.alignment.rows, data.alignment.test_rows)
    each = _ROW_BYTES * max(schedule.test_rows, schedule.validation_rows)
    each += _STEP_BYTES * schedule.steps if config.device == "cpu" else 0  # recorded beside a GPU, not on it
    return next((runs for runs in range(wanted, 0, -1) if fitting(limit, at(few, more, runs).memory + runs * each)), 0)


def _limit(config: Config, running: Running, places: int) -> int:
    """Return the bytes that one place may use, of the GPU or of this machine."""
    if config.device != "cpu":
        return int(torch.cuda.get_device_properties(0).total_memory * min(1.0, running.gpus or 1.0))
    return machine.memory() // max(1, places)


def _cut(trials: Sequence[Trial], most: int) -> tuple[tuple[Trial, ...], ...]:
    """Cut trials into stacks of nearly the same size, `most` at most; one alone is none."""
    count = math.ceil(len(trials) / most)
    bounds = [round(number * len(trials) / count) for number in range(count + 1)]
    cut = (tuple(trials[low:high]) for low, high in pairwise(bounds))
    return tuple(stack for stack in cut if len(stack) >= FEW)


def saved(choices: Sequence[Choice]) -> dict[str, float]:
    """Return the seconds of a step that each trial's being in a stack saves, by the trial's name."""
    return {
        trial.run: choice.alone - choice.together / max(map(len, choice.stacks))
        for choice in choices
        for stack in choice.stacks
        for trial in stack
        if math.isfinite(choice.alone)
    }
