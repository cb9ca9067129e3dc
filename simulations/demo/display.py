"""The demo's progress: one line that changes at a terminal, a line for each run that begins or ends elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from flower_vfl.apps.progress import progress_line
from flower_vfl.simulations.demo.countdown import Countdown


class Display:
    """A display of the number of finished runs, and of the remaining time.

    Parameters
    ----------
    total : int
        Number of runs.
    countdown : Countdown
        Estimates the time that is left.
    console : Console
        Console of the display.
    """

    def __init__(self, total: int, countdown: Countdown, console: Console) -> None:
        self._total, self._countdown, self._console = total, countdown, console
        self._announced: set[str] = set()
        self._live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def _start(self) -> None:
        if self._console.is_terminal:
            self._live.start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the display for the length of a block."""
        self._live.stop()
        try:
            yield
        finally:
            self._start()

    def refresh(self, done: int, waiting: int) -> None:
        """Redraw the line, at a terminal; elsewhere print one for each run that has begun since."""
        if not self._console.is_terminal:
            for name in self._countdown.running.keys() - self._announced:
                self._announced.add(name)
                self._console.print(Text(self._progress(done, waiting, f"{name} begins")), soft_wrap=True)
            return
        under_way = ", ".join(f"{name} {100 * share:.0f} %" for name, share in self._countdown.running.items())
        self._live.update(Text(self._progress(done, waiting, under_way), overflow="ellipsis"), refresh=True)

    def line(self, done: int, waiting: int, news: str) -> None:
        """Print a line that stays."""
        self._console.print(Text(self._progress(done, waiting, news)), soft_wrap=True)
        self.refresh(done, waiting)

    def _progress(self, done: int, waiting: int, what: str) -> str:
        return progress_line(done, self._total, what, self._countdown.seconds_left(waiting))
