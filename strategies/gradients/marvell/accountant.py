"""What Marvell did in each epoch, and what all releases of a row promise together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flower_vfl.metrics import Release, together
from flower_vfl.protocol.schedule import Rows
from flower_vfl.strategies.gradients.deviation_correlation import Recurrence, deviations, take_in
from flower_vfl.strategies.gradients.marvell.estimates import Classes
from flower_vfl.strategies.gradients.marvell.solver import NoiseSpectrum
from flower_vfl.strategies.gradients.units import beside, working

_NUMBERS = ("distance", "u", "v", "along_neg", "along_pos", "across_neg", "across_pos")

LARGEST = 400
"""Rows of the matrices that are inverted after an epoch, epochs times directions: some 20 epochs, 30 ms."""


def most_epochs(width: int) -> int:
    """Return after how many epochs something is still said of gradients (B, width): there are T directions at most.

    Examples
    --------
    >>> most_epochs(32), most_epochs(4)
    (20, 100)
    """
    return max(math.isqrt(LARGEST), LARGEST // max(width, 1))


class Course:
    """Keeps one `Release` an epoch, of the mean over its batches, each in units of its own root mean square row.

    How much of an example's deviation from its class comes again with it is measured on a sample of rows
    (`Recurrence`). All of it is computed from labels and stays at the label party.

    Parameters
    ----------
    labels : ndarray of int, (N,)
        Of the table's rows, 0 or 1; the sample is chosen by them.
    repeats : bool
        Whether a row comes again in each epoch; otherwise it has one release, that of its own epoch.
    """

    def __init__(self, labels: NDArray[Any], *, repeats: bool = True) -> None:
        self._repeats = repeats
        self._recurrence = Recurrence(labels)
        self.largest = 0.0
        """The largest divergence so far, of a step and of all releases of a row; inf where that is not known."""
        self._releases: list[Release] = []
        self._batches, self._sums = 0, np.zeros(len(_NUMBERS))
        self._direction = torch.zeros(0, dtype=torch.float64)

    def add(self, classes: Classes, spectrum: NoiseSpectrum[float], g: Tensor, y: Tensor, rows: Rows | None) -> None:
        """Take in a batch: its model and noise in units of `classes`, its clean gradients, labels and rows."""
        if self.count(classes, spectrum, rows):
            take_in_stacked({0: (self, classes)}, g[None], y[None], [rows])

    def count(self, classes: Classes, spectrum: NoiseSpectrum[float], rows: Rows | None) -> bool:
        """Take in what is known of a batch without its gradients; say whether these are still to be looked at."""
        self.note(spectrum)
        if classes.rms <= 0.0:
            return False
        square = classes.rms**2
        noise = (spectrum.lam1_neg, spectrum.lam1_pos, spectrum.lam2_neg, spectrum.lam2_pos)
        self._sums += np.array([classes.g, classes.u, classes.v, *noise]) / square
        pointing = classes.direction.double() * math.sqrt(classes.g / square)
        self._direction = pointing + self._direction if self._direction.shape == pointing.shape else pointing
        self._batches += 1
        return rows is not None and self._repeats and len(self._releases) < most_epochs(classes.d)

    def note(self, spectrum: NoiseSpectrum[float]) -> None:
        """Take in what the noise of a batch leaves, also of one that could not be estimated from."""
        self.largest = max(self.largest, spectrum.sum_kl)

    def end_epoch(self, rho: float) -> dict[str, float]:
        """Close the epoch; return the joint divergence of all releases so far, and how much came again since the last.

        Nothing, where no batch of it had both classes, where too few rows came in each epoch to know what comes again,
        and after so many epochs that it would take too long.
        """
        if not self._batches:
            self.largest = math.inf
            return {}
        numbers = dict(zip(_NUMBERS, (self._sums / self._batches).tolist(), strict=True))
        direction = self._direction.numpy()
        length, first = float(np.linalg.norm(direction)), np.eye(1, len(direction))[0]
        release = Release(
            direction / length if length > 0.0 else first,
            math.sqrt(numbers["distance"]),
            (numbers["u"], numbers["v"]),
            (max(numbers["along_neg"], numbers["across_neg"]), max(numbers["along_pos"], numbers["across_pos"])),
            (numbers["across_neg"], numbers["across_pos"]),
        )
        fits = [old for old in self._releases if self._repeats and old.direction.shape == release.direction.shape]
        self._releases = [*fits, release]
        self._batches, self._sums, self._direction = 0, np.zeros(len(_NUMBERS)), torch.zeros(0, dtype=torch.float64)
        count = len(self._releases)
        if count > most_epochs(len(direction)):
            self.largest = math.inf
            return {}
        self._recurrence.end_epoch()
        kept = self._recurrence.correlations(count) if count > 1 else np.ones((2, 1, 1))
        if kept is None:
            self.largest = math.inf
            return {}
        found = together(self._releases, rho=rho, kept=kept).sum_kl()
        self.largest = max(self.largest, found)
        return {"sum_kl": found, "kept": float(kept[:, -1, -2].mean()) if count > 1 else 0.0}

    def state(self) -> dict[str, Any]:
        """Return plain values and tensors."""
        fields = ("direction", "distance", "spread", "along", "across")
        releases = [{name: getattr(release, name) for name in fields} for release in self._releases]
        return {
            "releases": [{**one, "direction": torch.from_numpy(one["direction"])} for one in releases],
            "batches": self._batches,
            "sums": torch.from_numpy(self._sums.copy()),
            "direction": self._direction.clone(),
            "recurrence": self._recurrence.state(),
            "largest": self.largest,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._releases = [
            Release(
                one["direction"].numpy(),
                one["distance"],
                *((one[name][0], one[name][1]) for name in ("spread", "along", "across")),
            )
            for one in state["releases"]
        ]
        self._batches = state["batches"]
        self._sums, self._direction = state["sums"].numpy().copy(), state["direction"].clone()
        self._recurrence.restore(state["recurrence"])
        self.largest = state["largest"]


def take_in_stacked(
    counted: Mapping[int, tuple[Course, Classes]], g: Tensor, y: Tensor, rows: Sequence[Rows | None]
) -> None:
    """Let courses look at the gradients of the batches that they have counted.

    Parameters
    ----------
    counted : Mapping[int, tuple[Course, Classes]]
        Of some of R runs, by their number: the course, and the model of the batch.
    g, y : Tensor
        (R, B, D) clean gradients and (R, B) labels.
    rows : Sequence of Rows
        (B,) of each run's table.
    """
    if not counted:
        return
    if len(counted) < len(g):
        runs = torch.tensor(list(counted)).to(g.device, non_blocking=True)
        g, y = g[runs], y[runs]
    lengths = beside(torch.tensor([classes.unit * classes.rms for _, classes in counted.values()]), g)
    away = deviations(working(g) / lengths[:, None, None], y)
    of_run = [row for run in counted if (row := rows[run]) is not None]
    take_in([course._recurrence for course, _ in counted.values()], away, of_run)
