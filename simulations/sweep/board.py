"""Progress of a sweep: a live table at a terminal, plain lines elsewhere; and its best runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from flower_vfl.apps.folder import ENDED
from flower_vfl.apps.result_schema import kept_utility
from flower_vfl.protocol.printable import shortened
from flower_vfl.reports.headline import worst_of
from flower_vfl.reports.ranking import NOT_RANKED, not_beaten, validation
from flower_vfl.reports.words import duration, number

_REFRESH_SECONDS = 0.5
_BEST, _RUNNING = 6, 12
REASON_CHARACTERS = 500
"""Characters of a reason that are shown; the table of trials has all of them."""


class UtilityAndLeak(NamedTuple):
    """The numbers by which runs are compared: the utility of the model that a run kept, and its worst leak.

    Attributes
    ----------
    validation
        AUC or accuracy of the validation part, by which runs are ranked; None without one.
    test
        The same of the test rows, which is not used to rank runs.
    leak
        The leak AUC in the headline of its report.
    """

    validation: float | None = None
    test: float | None = None
    leak: float | None = None

    @property
    def words(self) -> str:
        """The numbers that are known, with their names."""
        names = {"validation": self.validation, "test": self.test, "worst leak": self.leak}
        return ", ".join(f"{name} {number(value, 4)}" for name, value in names.items() if value is not None)


@dataclass
class _Underway:
    began: float
    step: int = 0
    steps: int = 0
    loss: float = math.nan
    leak: float = math.nan

    @property
    def share(self) -> float:
        return self.step / self.steps if self.steps else 0.0


@dataclass
class _Ended:
    point: UtilityAndLeak
    seconds: float


@dataclass
class Board:
    """The state of a sweep's trials, and the display that shows it.

    Attributes
    ----------
    total
        Number of all trials.
    before
        Number of trials that had ended before this start.
    result
        Function that returns the result of a trial; None without one.
    console
        Terminal that shows it.
    places
        Number of trials, or stacks, that run at once.
    stacks
        Number of trials that are trained together, by the name of their stack; they end later, each by itself.
    shows_test
        True if the test result of each trial is shown; a search shows only that of the trial it chose.
    ends
        Time of the clock at which all trials end.
    words
        Trial to the words by which it is named; others have the names of their folders.
    settings
        The setting of each trial, in words, as in `best_of`.
    finished
        Number of trials that have left a result since this start.
    """

    total: int
    before: int
    result: Callable[[str], Mapping[str, Any] | None]
    console: Console
    places: int = 1
    clock: Callable[[], float] = time.monotonic
    stacks: Mapping[str, int] = field(default_factory=dict)
    shows_test: bool = True
    ends: float = math.inf
    words: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    underway: dict[str, _Underway] = field(default_factory=dict)
    ended: dict[str, _Ended] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    finished: int = 0
    _live: Live | None = None
    _due: float = 0.0

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live = Live(self.table(), console=self.console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        if kind is KeyboardInterrupt:  # the end of Ray takes seconds
            self.console.print("stopping; what was measured is being written …", soft_wrap=True)

    @property
    def done(self) -> int:
        """Number of trials that have ended or failed, in this start or before."""
        return self.before + len(self.ended) + len(self.failures)

    def started(self, run: str) -> None:
        """Note that a trial begins, for the first time or again."""
        self.underway[run] = _Underway(self.clock())

    def stepped(self, run: str, step: int, steps: int, loss: float, leak: float) -> None:
        """Note the progress of a trial."""
        state = self.underway.setdefault(run, _Underway(self.clock()))
        state.step, state.steps, state.loss, state.leak = step, steps, loss, leak

    def completed(self, run: str) -> None:
        """Note that a trial has ended, and read its result unless it failed."""
        state = self.underway.pop(run, None)
        if run in self.failures or run in self.stacks:
            return
        result = self.result(run)
        self.finished += result is not None and result.get("status") in ENDED
        point = point_of(result) if result else UtilityAndLeak()
        point = point if self.shows_test else point._replace(test=None)
        self.ended[run] = _Ended(point, self.clock() - state.began if state else math.nan)
        if not self.shows_test and (result is None or result.get("status") not in ENDED):
            self._print(f"ended early, for its validation or for the time: {self._named(run)}")
        else:
            self._print(f"finished: {self._named(run)}{f' ({point.words})' if point.words else ''}")

    def retried(self, run: str, reason: str) -> None:
        """Note that a trial failed and is tried again."""
        self.underway.pop(run, None)
        self._print(f"failed, is tried again: {self._named(run)}: {shortened(reason, REASON_CHARACTERS)}", shown=True)

    def failed(self, run: str, reason: str) -> None:
        """Note that a trial failed for good, or a stack, whose trials are then run one by one."""
        self.underway.pop(run, None)
        if run in self.stacks:
            self._print(
                f"not trained as a stack but one by one: {run}: {shortened(reason, REASON_CHARACTERS)}", shown=True
            )
            return
        self.failures[run] = reason
        self._print(f"failed: {self._named(run)}: {shortened(reason, REASON_CHARACTERS)}", shown=True)

    def _named(self, run: str) -> str:
        return self.words.get(run, run)

    def _print(self, words: str, *, shown: bool = False) -> None:
        """Print a line if there is no live table; with `shown`, also above a live table."""
        if self._live is None or shown:
            line = Text(f"{self.done}/{self.total} {words}{self._left_words()}")
            self.console.print(line, soft_wrap=True)

    def seconds_left(self) -> float | None:
        """Return the estimated remaining seconds, by the times of trials so far and the places; None if unknown."""
        taken = [entry.seconds for entry in self.ended.values() if math.isfinite(entry.seconds)]
        now = self.clock()
        if taken:
            mean = sum(taken) / len(taken)
        elif self.stacks:
            rest = [(now - state.began) * (1 / state.share - 1) for state in self.underway.values() if state.share > 0]
            return max(rest, default=None)
        else:
            known = [(now - state.began) / state.share for state in self.underway.values() if state.share > 0]
            if not known:
                return None
            mean = sum(known) / len(known)
        rest = [mean * (1 - state.share) for state in self.underway.values()]
        waiting = self.total - self.done - len(self.underway)
        left = max([*rest, (sum(rest) + waiting * mean) / max(1, self.places)], default=0.0)
        return max(0.0, min(left, self.ends - now))

    def _left_words(self) -> str:
        left = self.seconds_left()
        return "" if left is None or self.done == self.total else f" · about {duration(left)} left"

    def refresh(self) -> None:
        """Redraw the table, at most twice a second."""
        if self._live is not None and self.clock() >= self._due:
            self._due = self.clock() + _REFRESH_SECONDS
            self._live.update(self.table(), refresh=True)

    def table(self) -> Group:
        """Return the display of a terminal: progress, running trials, and the best ones that ended."""
        head = Table.grid(padding=(0, 1), expand=False)
        failed = f", {len(self.failures)} failed" if self.failures else ""
        words = f"{self.done} of {self.total} trials{failed}{self._left_words()}"
        head.add_row(ProgressBar(total=self.total, completed=self.done, width=30), words)
        running = Table(title="running", title_justify="left")
        for column in ("trial", "steps", "loss", "leak AUC"):
            running.add_column(column, justify="left" if column == "trial" else "right", overflow="fold")
        for run, state in list(self.underway.items())[:_RUNNING]:
            steps = f"{state.step:,} / {state.steps:,}" if state.steps else "opening"
            running.add_row(Text(self._named(run)), steps, number(state.loss, 4), number(state.leak))
        if not self.ended:
            return Group(head, running)
        points = {self._named(run): entry.point for run, entry in self.ended.items()}  # those since this start
        return Group(head, running, best_of(points, self.settings))


def best_of(points: Mapping[str, UtilityAndLeak], settings: Mapping[str, str]) -> Table | Text:
    """Return a table of some of the settings that no other beats by validation, by rising leak.

    Parameters
    ----------
    points : Mapping[str, UtilityAndLeak]
        The numbers of each run.
    settings : Mapping[str, str]
        The setting of each run, in words; the runs of one differ in seeds alone, and their mean is compared. Where all
        runs have one setting, or none is given, the runs are compared.

    Returns
    -------
    Table | Text
        Without a validation part nothing is ranked: the reason.
    """
    if points and all(point.validation is None for point in points.values()):
        return Text(NOT_RANKED)
    found: dict[str, list[UtilityAndLeak]] = {}
    several = len(set(settings.values())) > 1
    for run, point in points.items():
        found.setdefault(settings.get(run, run) if several else run, []).append(point)
    named = [
        (f"{name} (mean of {len(values)} seeds)" if values[1:] else name, _mean(values))
        for name, values in found.items()
    ]
    what = "setting" if len(found) < len(points) else "run"
    runs = [named[index] for index in not_beaten([(point.validation, point.leak) for _, point in named])]
    shown = runs if len(runs) <= _BEST else [runs[round(i * (len(runs) - 1) / (_BEST - 1))] for i in range(_BEST)]
    table = Table(title=f"Best by validation: no other {what} validates better and leaks less", title_justify="left")
    for column in (what, "validation", "test", "worst leak"):
        table.add_column(column, justify="left" if column == what else "right", overflow="fold")
    for run, point in shown:
        table.add_row(Text(run), *(number(value, 4) for value in point))
    return table


def point_of(result: Mapping[str, Any]) -> UtilityAndLeak:
    """Return the numbers by which a run is compared; without any if it did not end by itself."""
    if result.get("status") not in ENDED:
        return UtilityAndLeak()
    kept = kept_utility(result)
    values = [kept.get(name) for name in ("test_auc", "test_accuracy")]
    useful = next((float(value) for value in values if isinstance(value, int | float)), None)
    leak = worst_of(result)
    return UtilityAndLeak(validation(result), useful, None if leak is None else leak.value)


def print_sweep(summaries: Sequence[Mapping[str, Any]], settings: Mapping[str, str]) -> None:
    """Print the table of `best_of` for the results of runs, by the setting of each run."""
    Console().print(best_of({str(summary["run"]): point_of(summary) for summary in summaries}, settings))


def _mean(points: Sequence[UtilityAndLeak]) -> UtilityAndLeak:
    """Return the mean of each number; None where a run lacks it."""
    columns = (tuple(column) for column in zip(*points, strict=True))
    return UtilityAndLeak(*(None if None in column else sum(column) / len(column) for column in columns))
