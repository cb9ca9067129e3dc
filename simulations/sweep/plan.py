"""Output of `flower-vfl sweep --plan`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from flower_vfl import machine
from flower_vfl.errors import SetupError
from flower_vfl.reports.words import duration, size
from flower_vfl.simulations.cluster import Cluster
from flower_vfl.simulations.sweep.checking import check_trials
from flower_vfl.simulations.sweep.choosing import LARGER_STACK, SMALL_STACK, StackingChoice, choose, saved
from flower_vfl.simulations.sweep.definition import Definition
from flower_vfl.simulations.sweep.planning import (
    CONTEXT,
    MOST_TEST_ROWS,
    PROBE_STEPS,
    WARM_UP,
    CostGroup,
    check_gpus,
    fitting,
    makespan,
    on_one_gpu,
    shapes_of,
    summary,
)
from flower_vfl.simulations.sweep.sweeping import processors
from flower_vfl.simulations.sweep.trials import trials_of
from flower_vfl.terminal import console

GPUS = (1, 4, 8)


def print_plan(
    definition: Definition, overrides: Mapping[str, Any], *, workers: int = 0, stacking: bool = True
) -> None:
    """Check and measure the trials of a sweep, and print its estimated time and memory.

    Raises
    ------
    FlowerVflError
        When a trial cannot run.
    SetupError
        When the trials that share a GPU by [sweep] gpus do not fit it.
    """
    trials, running = trials_of(definition, overrides), definition.running.with_stacking(stacking)
    places, refused = _places(processors(trials, running), running.gpus, workers)
    choices = list[StackingChoice]()
    with Status("checking the trials", console=console()) as status:
        check_trials(trials, running, lambda done, total: status.update(f"checking the trials: {done} of {total}"))
        shapes = shapes_of(trials, lambda done, total: status.update(f"measuring: {done} of {total}"))
        if running.stacking != "off":
            choices = choose(trials, running, places, lambda done, total: status.update(f"together: {done} of {total}"))
    found = summary(shapes, trials, saved(choices))
    screen = Console()
    screen.print(shape_table(shapes))
    screen.print(choice_table(choices) if choices else Text("Each trial is trained by itself: stacking is off."))
    screen.print(Text(_on_this_machine(found, choices, places, refused)))
    if found["gpu"]:
        check_gpus(shapes, running.gpus, workers)
    screen.print(Text(_on_gpus(found, choices, running.gpus)))
    screen.print(Text(_measured(shapes)))


def shape_table(shapes: Sequence[CostGroup]) -> Table:
    """Return a table with a row for each shape: number of trials, time of a step and of a trial, and memory."""
    table = Table(title="Trials that cost the same a step")
    for column in ("data, network, batch: defense", "trials", "a step", "a trial", "memory"):
        table.add_column(column, justify="left" if column.startswith("data") else "right", overflow="fold")
    for shape in shapes:
        low, high = min(shape.seconds), max(shape.seconds)
        trial = duration(low) if high - low < 0.05 * high else f"{duration(low)} … {duration(high)}"
        step = f"{1000 * shape.probe.step:.1f} ms"
        table.add_row(Text(shape.title), str(len(shape.trials)), step, trial, size(shape.probe.memory or None))
    return table


def choice_table(choices: Sequence[StackingChoice]) -> Table:
    """Return a table with a row for each group of trials: how they are trained, and the reason."""
    table = Table(title="Trials that share all but seeds and defenses")
    for column in ("trials", "trained", "memory", "why"):
        table.add_column(column, justify="left" if column == "why" else "right", overflow="fold")
    for choice in choices:
        sizes = ", ".join(str(len(stack)) for stack in choice.stacks)
        row = (
            str(len(choice.group.trials)),
            f"{sizes} together" if sizes else "one by one",
            size(choice.memory or None),
        )
        table.add_row(*row, Text(choice.why))
    return table


def _places(cpus: float, gpus: float, workers: int) -> tuple[int, str]:
    """Return the number of trials, or stacks, that run at once on this machine; 1 and the reason if none can."""
    try:
        room = Cluster(((float(machine.cores()), float(torch.cuda.device_count())),)).places(cpus, gpus)
    except SetupError as error:
        return 1, str(error)
    return min(room, workers or room), ""


def _on_this_machine(found: Mapping[str, Any], choices: Sequence[StackingChoice], places: int, refused: str) -> str:
    """Return a text on the sweep's time and memory on this machine, or on the reason why it would not run here."""
    count, long = len(found["seconds"]), duration(makespan(found["seconds"], places))
    if refused:
        return f"{count} trials, one after the other about {long}; not on this machine: {refused}."
    total = machine.memory()
    memory = _largest(found["memory"], choices, gpu=False)
    fits = fitting(total, memory)
    at_once = f"{places} at once{', a stack counted as one' if any(choice.stacks for choice in choices) else ''}"
    words = (
        f"{count} trials on this machine ({machine.cores()} cores), {at_once}: about {long}, and "
        f"{size(places * memory)} of {size(total)} of memory."
    )
    if fits and fits < places:
        words += f" Memory is enough for {fits} at once: --workers {fits}."
    return words


def _largest(trial: int, choices: Sequence[StackingChoice], *, gpu: bool) -> int:
    """Return the memory of the largest trial or stack, on a GPU or in main memory."""
    return max([trial, *(choice.memory for choice in choices if choice.stacks and choice.on_gpu == gpu)])


def _on_gpus(found: Mapping[str, Any], choices: Sequence[StackingChoice], gpus: float) -> str:
    """Return a text on the sweep's time on several GPUs, if one was measured."""
    if not found["gpu"]:
        return (
            "On GPUs: not measured, for there is none here or no trial has device = 'cuda'. Plan on a machine with "
            "one; gpus in [sweep] says which share of a GPU a trial gets."
        )
    each = on_one_gpu(gpus)
    times = (f"{n}: {duration(makespan(found['seconds'], n * each))}" for n in GPUS)
    need = size(_largest(found["gpu"], choices, gpu=True) + CONTEXT)
    what = "trials or stacks" if any(choice.stacks for choice in choices) else "trials"
    return f"{each} {what} of {need} on each GPU; on so many GPUs like this one: {', '.join(times)}."


def _measured(shapes: Sequence[CostGroup]) -> str:
    """Return a text on the measured numbers and on those computed from them."""
    cut = any(shape.probe.measured_test_rows < shape.probe.test_rows for shape in shapes)
    part = f" (on {MOST_TEST_ROWS:,} of the test rows, taken times their number)" if cut else ""
    return (
        f"Measured, one trial at a time: {PROBE_STEPS} steps of each row of the table (the median of all but the first "
        f"{WARM_UP}), one evaluation{part}, the attacks on the trained model, the report; memory is the largest of "
        "the whole process. Computed: steps and evaluations times their number, by which early stopping takes less; "
        "trials at once as if they did not slow each other down; attacks on trained models as long after a short "
        f"training as after a long one; of more than {LARGER_STACK} together, time and memory from the stacks of "
        f"{SMALL_STACK} and "
        f"{LARGER_STACK} that were measured. Not in it: starting Ray, about ten seconds, and what runs beside it."
    )
