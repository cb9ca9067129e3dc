"""Progress of a training for people: a bar with speed, loss and leak at a terminal, and one line an epoch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from flower_vfl.strategies import Observer

_REFRESH_STEPS = 5


class LiveProgress(Observer):
    """A bar of steps with loss, leak AUC and speed, and one line an epoch.

    Parameters
    ----------
    title : str
        Title of the run.
    console : Console
        The console; without a terminal the bar is not shown.
    clock : Callable
        Clock in seconds.
    """

    def __init__(self, title: str, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._title, self._clock, self._console = title, clock, console
        self._steps = self._epochs = 0
        self._first: tuple[int, float] | None = None
        self._smooth = [math.nan, math.nan]
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TextColumn("{task.fields[values]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(title, total=None, start=False, speed="", values="opening sessions")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def on_pretraining(self, done: int, steps: int) -> None:
        """Show the number of steps that the slowest party has done."""
        self._progress.update(self._task, total=steps, completed=done, values="pre-training without labels")

    def on_start(self, steps: int, epochs: int, parties: tuple[str, ...]) -> None:
        """Set the number of steps, and start the bar."""
        self._steps, self._epochs = steps, epochs
        self._progress.update(self._task, total=steps, completed=0, values="")
        self._progress.start_task(self._task)

    def on_step(self, step: int, epoch: int, loss: float, leak: float) -> None:
        """Update the bar."""
        self._first = self._first or (step, self._clock())
        for index, value in enumerate((loss, leak)):
            if not math.isnan(value):
                before = self._smooth[index]
                self._smooth[index] = value if math.isnan(before) else 0.9 * before + 0.1 * value
        if step % _REFRESH_STEPS:
            return
        shown = [f"loss {self._smooth[0]:.4f}"]
        if not math.isnan(self._smooth[1]):
            shown.append(f"leak AUC {self._smooth[1]:.3f}")
        speed = self._progress.tasks[0].speed
        self._progress.update(
            self._task,
            completed=step + 1,
            description=f"{self._title} · epoch {epoch}",
            values=" · ".join(shown),
            speed=f"{speed:.0f} steps/s" if speed else "",
        )

    def on_epoch(self, step: int, epoch: int, metrics: Mapping[str, float]) -> None:
        """Print the metrics of an epoch."""
        names = {"train_loss": "loss", "validation_auc": "validation AUC", "next_auc": "AUC of the next day"}
        if "validation_auc" not in metrics:
            names |= {"validation_macro_auc": "validation AUC", "validation_accuracy": "validation accuracy"}
        names |= {"test_auc": "test AUC"}
        names |= {"test_accuracy": "test accuracy"} if "test_auc" not in metrics else {}
        shown = ", ".join(f"{label} {metrics[name]:.4f}" for name, label in names.items() if name in metrics)
        line = progress_line(epoch, self._epochs, f"{self._title}: {shown}", self._seconds_left(step), most=True)
        self._console.print(Text(line), soft_wrap=True)

    def _seconds_left(self, step: int) -> float | None:
        """Return the estimated seconds of the steps after this one; None while it is not known."""
        first, began = self._first or (step, 0.0)
        return (self._clock() - began) * (self._steps - 1 - step) / (step - first) if step > first else None


def time_words(seconds: float) -> str:
    """Return a duration in words.

    Examples
    --------
    >>> time_words(39.6), time_words(125.0)
    ('40 s', '2 min 5 s')
    """
    minutes, rest = divmod(max(1, round(seconds)), 60)
    return f"{minutes} min {rest} s" if minutes >= 2 else f"{60 * minutes + rest} s"


def progress_line(done: int, total: int, what: str, left: float | None, *, most: bool = False) -> str:
    """Return a line with the part that is done, its name and the time left; `most` if the rest may end earlier.

    Examples
    --------
    >>> progress_line(3, 9, "marvell_full", 40.2), progress_line(9, 9, "iso", 0.0)
    ('3/9 marvell_full ... 40 s left', '9/9 iso')
    """
    if left is None or done >= total:
        return f"{done}/{total} {what}"
    return f"{done}/{total} {what} ... {'at most ' if most else ''}{time_words(left)} left"
