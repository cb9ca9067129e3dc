"""An estimate of the remaining time of several tasks."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from flower_vfl.simulations.demo.pool import Ended, Event, Failed, Progressed, Started

_STEPS_SHARE = 0.8
"""Share of the steps in a run's time; the rest are readers at the end, and the report."""


@dataclass
class _Running:
    began: float
    share: float = 0.0


@dataclass
class Countdown:
    """An estimate of the time that is left, from the durations of the tasks so far.

    Parameters
    ----------
    places : int
        Number of tasks that run at once.
    clock : Callable
        Function that returns seconds.
    """

    places: int
    clock: Callable[[], float] = time.monotonic
    _running: dict[str, _Running] = field(default_factory=dict)
    _durations: list[float] = field(default_factory=list)

    def take(self, event: Event) -> None:
        """Update the estimate by an event."""
        match event:
            case Started(name):
                self._running[name] = _Running(self.clock())
            case Progressed(name, share):
                self._running[name].share = share
            case Ended(name, _) | Failed(name):
                state = self._running.pop(name, None)
                if state is not None and isinstance(event, Ended):
                    self._durations.append(self.clock() - state.began)

    def seconds_left(self, waiting: int) -> float | None:
        """Return the estimated remaining seconds with `waiting` tasks not begun; None while nothing is known."""
        now = self.clock()
        expected = {name: self._expected(state, now) for name, state in self._running.items()}
        known = self._durations or [total for total in expected.values() if total is not None]
        if not known:
            return None
        mean = math.fsum(known) / len(known)
        free = [
            max(0.0, (mean if (total := expected[name]) is None else total) - (now - state.began))
            for name, state in self._running.items()
        ]
        free += [0.0] * max(0, self.places - len(free))
        heapq.heapify(free)
        for _ in range(waiting):
            heapq.heapreplace(free, free[0] + mean)
        return max(free, default=0.0)

    def _expected(self, state: _Running, now: float) -> float | None:
        """Return the estimated seconds of a whole task, by the finished share; None while that is too small."""
        share = _STEPS_SHARE * state.share
        return (now - state.began) / share if share > 0.1 else None

    @property
    def running(self) -> dict[str, float]:
        """The tasks that are under way, each with the share of its steps that is done."""
        return {name: state.share for name, state in self._running.items()}
