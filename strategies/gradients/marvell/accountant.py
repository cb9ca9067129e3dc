"""The privacy accountant of Marvell: the noise of each epoch and the bound on all releases of a row together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flower_vfl.metrics import EpochRelease, together
from flower_vfl.protocol.schedule import Rows
from flower_vfl.strategies.gradients.deviation_correlation import DeviationCorrelation, deviations, take_in
from flower_vfl.strategies.gradients.marvell.estimates import TwoClassModel
from flower_vfl.strategies.gradients.marvell.solver import NoiseSpectrum
from flower_vfl.strategies.gradients.units import beside, working

_NUMBERS = ("distance", "u", "v", "along_neg", "along_pos", "across_neg", "across_pos")
"""Square of the means' distance, variances of clean gradients, and inverses of the variances of what is sent."""

_LEAST_VARIANCE = 1e-12
"""Variance, in units of the mean square row, below which a every divergence is as good as infinite."""

LARGEST_DIRECTIONS = 400
"""Number of rows of the largest inverted matrix, epochs times directions: some 20 epochs, 30 ms."""


def accounted_epochs(width: int) -> int:
    """Return the largest number of epochs T that can be accounted for gradients (B, width): T directions at most.

    Examples
    --------
    >>> accounted_epochs(32), accounted_epochs(4)
    (20, 100)
    """
    return max(math.isqrt(LARGEST_DIRECTIONS), LARGEST_DIRECTIONS // max(width, 1))


class IsotropicAccountant:
    """An accountant with one `EpochRelease` an epoch: the mean over its batches, in units of its root mean square row.

    The variances of what is sent are averaged by their inverses, which the divergence follows: a batch of small
    gradients with much noise does not hide others that have little.

    Where batches differ, the divergence of their mean is below the mean of their divergences: a batch of small
    gradients with much noise hides others that have little. The joint divergence of all epochs is multiplied by the
    ratio of the two, summed over the epochs; with fresh deviations it is then exactly the sum of the means.

    The correlation of an example's deviations across epochs is measured on a sample of rows (`DeviationCorrelation`).
    Everything is computed from labels and stays at the label party.

    Parameters
    ----------
    labels : ndarray of int, (N,)
        Labels of the table's rows, 0 or 1; the sample is chosen by them.
    repeats : bool
        True if each row recurs in every epoch; otherwise it has one release, that of its own epoch.
    """

    def __init__(self, labels: NDArray[Any], *, repeats: bool = True) -> None:
        self._repeats = repeats
        self._recurrence = DeviationCorrelation(labels)
        self.largest = 0.0
        """The largest divergence so far, of a step and of all releases of a row; inf where it is unknown."""
        self._releases: list[EpochRelease] = []
        self._divergences: list[tuple[float, float]] = []  # of the mean release of each epoch; mean over its batches
        self._batches, self._sums, self._total = 0, np.zeros(len(_NUMBERS)), 0.0
        self._direction = torch.zeros(0, dtype=torch.float64)

    def add(
        self, classes: TwoClassModel, spectrum: NoiseSpectrum[float], g: Tensor, y: Tensor, rows: Rows | None
    ) -> None:
        """Add a batch: its model and noise in units of `classes`, its clean gradients, labels and rows."""
        if self.count(classes, spectrum, rows):
            take_in_batches({0: (self, classes)}, g, y, [rows])

    def count(self, classes: TwoClassModel, spectrum: NoiseSpectrum[float], rows: Rows | None) -> bool:
        """Add the model of a batch without its gradients; return True if these must be added too."""
        self.note(spectrum)
        if classes.rms <= 0.0:
            return False
        square = classes.rms**2
        noise = np.array([spectrum.lam1_neg, spectrum.lam1_pos, spectrum.lam2_neg, spectrum.lam2_pos])
        sent = (noise + [classes.u, classes.v] * 2) / square
        self._sums[:3] += np.array([classes.g, classes.u, classes.v]) / square
        self._sums[3:] += 1.0 / np.maximum(sent, _LEAST_VARIANCE)
        pointing = classes.direction.double() * math.sqrt(classes.g / square)
        self._direction = pointing + self._direction if self._direction.shape == pointing.shape else pointing
        self._batches += 1
        self._total += spectrum.sum_kl
        return rows is not None and self._repeats and len(self._releases) < accounted_epochs(classes.d)

    def note(self, spectrum: NoiseSpectrum[float]) -> None:
        """Update `largest` by the divergence that a batch's noise leaves, also for a batch without an estimate."""
        self.largest = max(self.largest, spectrum.sum_kl)

    def end_epoch(self, rho: float) -> dict[str, float]:
        """Close the epoch; return the joint divergence of all releases and the latest correlation of deviations.

        The result is empty if no batch of the epoch had both classes, if too few rows occurred in each epoch to
        estimate a correlation, and after more epochs than can be accounted for.
        """
        if not self._batches:
            self.largest = math.inf
            return {}
        numbers = dict(zip(_NUMBERS, (self._sums / self._batches).tolist(), strict=True))
        direction = self._direction.numpy()
        length, first = float(np.linalg.norm(direction)), np.eye(1, len(direction))[0]
        spread = (numbers["u"], numbers["v"])
        along, across = (
            [
                max(1.0 / numbers[f"{where}_{label}"] - own, 0.0)
                for label, own in zip(("neg", "pos"), spread, strict=True)
            ]
            for where in ("along", "across")
        )
        release = EpochRelease(
            direction / length if length > 0.0 else first,
            math.sqrt(numbers["distance"]),
            spread,
            (max(along[0], across[0]), max(along[1], across[1])),
            (across[0], across[1]),
        )
        fits = [old for old in self._releases if self._repeats and old.direction.shape == release.direction.shape]
        self._releases = [*fits, release]
        count = len(self._releases)
        own, mean = together([release], rho=rho, kept=1.0).sum_kl(), self._total / self._batches
        self._divergences = [*self._divergences[: count - 1], (own, max(own, mean))]
        self._batches, self._sums, self._total = 0, np.zeros(len(_NUMBERS)), 0.0
        self._direction = torch.zeros(0, dtype=torch.float64)
        if count > accounted_epochs(len(direction)):
            self.largest = math.inf
            return {}
        self._recurrence.end_epoch()
        kept = self._recurrence.correlations(count) if count > 1 else np.ones((2, 1, 1))
        if kept is None:
            self.largest = math.inf
            return {}
        of_means, of_batches = map(sum, zip(*self._divergences, strict=True))
        found = together(self._releases, rho=rho, kept=kept).sum_kl()
        found *= of_batches / of_means if 0.0 < of_means < math.inf else 1.0
        self.largest = max(self.largest, found)
        return {"sum_kl": found, "kept": float(kept[:, -1, -2].mean()) if count > 1 else 0.0}

    def state(self) -> dict[str, Any]:
        """Return the state as plain values and tensors."""
        fields = ("direction", "distance", "spread", "along", "across")
        releases = [{name: getattr(release, name) for name in fields} for release in self._releases]
        return {
            "releases": [{**one, "direction": torch.from_numpy(one["direction"])} for one in releases],
            "batches": self._batches,
            "sums": torch.from_numpy(self._sums.copy()),
            "total": self._total,
            "divergences": list(self._divergences),
            "direction": self._direction.clone(),
            "recurrence": self._recurrence.state(),
            "largest": self.largest,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned."""
        self._releases = [
            EpochRelease(
                one["direction"].numpy(),
                one["distance"],
                *((one[name][0], one[name][1]) for name in ("spread", "along", "across")),
            )
            for one in state["releases"]
        ]
        self._batches, self._total = state["batches"], state["total"]
        self._divergences = [(own, mean) for own, mean in state["divergences"]]
        self._sums, self._direction = state["sums"].numpy().copy(), state["direction"].clone()
        self._recurrence.restore(state["recurrence"])
        self.largest = state["largest"]


def take_in_batches(
    counted: Mapping[int, tuple[IsotropicAccountant, TwoClassModel]], g: Tensor, y: Tensor, rows: Sequence[Rows | None]
) -> None:
    """Add the gradients of batches to the accountants that have counted these.

    Parameters
    ----------
    counted : Mapping[int, tuple[IsotropicAccountant, TwoClassModel]]
        The accountant and the model of the batch, by number of the run; some of R runs.
    g, y : Tensor
        (R, B, D) clean gradients and (R, B) labels; or (B, D) and (B,) of one run.
    rows : Sequence of Rows
        (B,) rows of each run's table.
    """
    if not counted:
        return
    if g.dim() == 2:
        g, y = g[None], y[None]
    elif len(counted) < len(g):
        runs = torch.tensor(list(counted)).to(g.device, non_blocking=True)
        g, y = g[runs], y[runs]
    lengths = beside(torch.tensor([classes.unit * classes.rms for _, classes in counted.values()]), g)
    away = deviations(working(g) / lengths[:, None, None], y)
    of_run = [row for run in counted if (row := rows[run]) is not None]
    take_in([account._recurrence for account, _ in counted.values()], away, of_run)
