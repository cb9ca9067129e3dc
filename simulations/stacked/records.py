"""Records of the measurements of many runs, step by step, and each run's part of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_vfl.auditing.summaries import StepResults
from flower_vfl.tracking import Series, StepColumn

RunValues = NDArray[np.float64]
Curves = Mapping[Series, tuple[StepColumn, StepColumn, StepColumn]]


@dataclass
class _Curve:
    """One value a step and run, and a mask of the runs that have it."""

    steps: list[int] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    values: list[RunValues] = field(default_factory=list)
    known: list[NDArray[np.bool_]] = field(default_factory=list)


Recorded = tuple[Series, int, int, float]
"""A value of one run: its name, step and epoch."""


class RunRecorder:
    """A recorder of the values of one run, until the records of all runs take them.

    Parameters
    ----------
    values : list
        List to which they are added.
    """

    def __init__(self, values: list[Recorded]) -> None:
        self._values = values

    def add(self, *, step: int, epoch: int, party: str, layer: str, attack: str, metric: str, value: float) -> None:
        """Take one value."""
        self._values.append(((party, layer, attack, metric), step, epoch, value))

    def flush(self) -> None:
        """Do nothing: the records of all runs are written at the end."""


@dataclass(frozen=True)
class ViewResults:
    """The measurements of one attack on one view.

    Attributes
    ----------
    party, layer, attack
        The view's party and layer, and the attack's label.
    metrics
        Names of the leak AUC and the detection error in the log.
    known_rows
        Number of rows of a batch that supplied side information.
    kept
        Function that returns the attack's state of a run.
    """

    party: str
    layer: str
    attack: str
    metrics: tuple[str, str]
    known_rows: int
    kept: Callable[[int], Mapping[str, Any]]


class Records:
    """Curves of R runs.

    Parameters
    ----------
    runs : int
        R.
    """

    def __init__(self, runs: int) -> None:
        self._all_runs = np.ones(runs, dtype=bool)
        self._curves: dict[Series, _Curve] = {}
        self._logged: set[Series] = set()

    def add(self, key: Series, step: int, epoch: int, values: Sequence[float] | RunValues, known: Any = None) -> None:
        """Take one value (R,) of each run; those that are not `known` (R,) have none at this step."""
        curve = self._curves.setdefault(key, _Curve())
        curve.steps.append(step)
        curve.epochs.append(epoch)
        curve.values.append(np.asarray(values, dtype=np.float64))
        curve.known.append(self._all_runs if known is None else known)

    def add_logs(self, step: int, epoch: int, logs: Sequence[Mapping[str, float]]) -> None:
        """Take the log of each run's defenses in a step; `logged` returns the sums."""
        self._logged |= {("label", "", "", metric) for log in logs for metric in log}
        self.add_all(step, epoch, logs)

    def add_all(self, step: int, epoch: int, logs: Sequence[Mapping[str, float]]) -> None:
        """Take values of the label party by their names, for each run those that it has."""
        for metric in dict.fromkeys(metric for log in logs for metric in log):
            values = [log.get(metric, math.nan) for log in logs]
            known = np.array([metric in log for log in logs])
            self.add(("label", "", "", metric), step, epoch, values, known)

    def add_runs(self, values: Sequence[list[Recorded]]) -> None:
        """Move the values of single runs out of these lists, one list a run, into the records."""
        places: dict[tuple[Series, int, int], dict[int, float]] = {}
        for run, entries in enumerate(values):
            for key, step, epoch, value in entries:
                places.setdefault((key, step, epoch), {})[run] = value
            entries.clear()
        for (key, step, epoch), found in places.items():
            row = [found.get(run, math.nan) for run in range(len(values))]
            self.add(key, step, epoch, row, np.array([run in found for run in range(len(values))]))

    def logged(self, curves: Curves) -> dict[str, float]:
        """Return the sums over the steps of the defenses' log entries in the curves of one run."""
        return {key[3]: float(np.cumsum(curves[key][2])[-1]) for key in self._logged if key in curves}

    def of_epoch(self, key: Series, epoch: int, run: int) -> list[float]:
        """Return the values of one curve and run in an epoch."""
        curve = self._curves[key]
        return [float(values[run]) for values, place in zip(curve.values, curve.epochs, strict=True) if place == epoch]

    def curves(self, run: int) -> Curves:
        """Return steps, epochs and values of each curve of one run."""
        found = {}
        for key, curve in self._curves.items():
            known = np.array([some[run] for some in curve.known])
            if known.any():
                columns = (curve.steps, curve.epochs, [values[run] for values in curve.values])
                steps, epochs, values = (np.array(column)[known] for column in columns)
                found[key] = (steps, epochs, values)
        return found


def measured(
    curves: Curves, readings: Sequence[ViewResults], positives_in: Callable[[int], int], run: int
) -> list[StepResults]:
    """Return the results of each reading in the curves of one run.

    Parameters
    ----------
    curves : Curves
        Curves of the run.
    readings : Sequence[ViewResults]
        The readings to return.
    positives_in : Callable
        Function that returns the class that was to be detected in a step.
    run : int
        Number of the run.
    """
    rows, positives = (curves["label", "", "", name][2] for name in ("batch_rows", "batch_positives"))
    found = []
    for reading in readings:
        place = (reading.party, reading.layer, reading.attack)
        (steps, epochs, values), (_, _, errors) = (curves[*place, metric] for metric in reading.metrics)
        classes = np.array([positives_in(step) for step in steps.tolist()])
        yes = positives[steps]  # every step has a number of positives
        counts = rows[steps] - yes, yes - reading.known_rows
        found.append(StepResults(epochs, classes, values, errors, *counts, reading.kept(run)))
    return found
