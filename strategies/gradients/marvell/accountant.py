"""The privacy accountant of Marvell: the noise of each epoch and the bound on all releases of a row together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flower_vfl.metrics import EpochRelease, together
from flower_vfl.protocol.schedule import Rows
from flower_vfl.strategies.gradients.deviation_correlation import DeviationCorrelation, deviations, take_in
from flower_vfl.strategies.gradients.marvell.chains import Chains
from flower_vfl.strategies.gradients.marvell.estimates import TwoClassModel
from flower_vfl.strategies.gradients.marvell.solver import NoiseSpectrum
from flower_vfl.strategies.gradients.units import beside, working

LARGEST_DIRECTIONS = 400
"""Number of rows of the largest inverted matrix, epochs times directions: some 20 epochs, 0.5 s for all chains."""


def accounted_epochs(width: int) -> int:
    """Return the largest number of epochs T that can be accounted for gradients (B, width): T directions at most.

    Examples
    --------
    >>> accounted_epochs(32), accounted_epochs(4)
    (20, 100)
    """
    return max(math.isqrt(LARGEST_DIRECTIONS), LARGEST_DIRECTIONS // max(width, 1))


class IsotropicAccountant:
    """An accountant of random sequences of batches, one of each epoch (`Chains`), each in units of its own rows.

    The divergence of a sequence is that of its single batches and what these reveal together. The first is known for
    all batches; only the second is averaged over the sequences.

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
        self._begin(0)

    def _begin(self, width: int) -> None:
        """Begin with gradients of this width; earlier ones of another width have no deviations in common with them."""
        self._chains = Chains[EpochRelease]()
        self._means: list[float] = []  # of the divergences of an epoch's batches
        self._batches, self._total, self._width = 0, 0.0, width

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
        if classes.d != self._width:
            self._begin(classes.d)
        self._total += spectrum.sum_kl
        self._batches += 1
        self._chains.add(partial(_release, classes, spectrum))
        return rows is not None and self._repeats and len(self._means) < accounted_epochs(classes.d)

    def note(self, spectrum: NoiseSpectrum[float]) -> None:
        """Update `largest` by the divergence that a batch's noise leaves, also for a batch without an estimate."""
        self.largest = max(self.largest, spectrum.sum_kl)

    def end_epoch(self, rho: float) -> dict[str, float]:
        """Close the epoch; return the joint divergence of all releases and the latest correlation of deviations.

        The result is empty if no batch of the epoch had both classes, if too few rows, or no two of a class in a batch,
        occurred in each epoch to estimate a correlation, and after more epochs than can be accounted for.
        """
        if not self._batches:
            self.largest = math.inf
            return {}
        if not self._repeats:
            self._chains.forget()
            self._means = []
        self._chains.end_epoch()
        self._means.append(self._total / self._batches)
        self._batches, self._total, count = 0, 0.0, len(self._means)
        if count > accounted_epochs(self._width):
            self.largest = math.inf
            return {}
        self._recurrence.end_epoch()
        kept = self._recurrence.correlations(count) if count > 1 else np.ones((2, 1, 1))
        if kept is None:
            self.largest = math.inf
            return {}
        found = max(0.0, sum(self._means) + self._together(rho, kept)) if count > 1 else self._means[0]
        self.largest = max(self.largest, found)
        return {"sum_kl": found, "kept": float(kept[:, -1, -2].mean()) if count > 1 else 0.0}

    def _together(self, rho: float, kept: NDArray[np.float64]) -> float:
        """Return the mean divergence of a sequence less those of its batches; inf where that is."""
        found = [
            together(chain, rho=rho, kept=kept).sum_kl()
            - sum(together([one], rho=rho, kept=1.0).sum_kl() for one in chain)
            for chain in self._chains.sequences
        ]
        return float(np.mean(found)) if np.isfinite(found).all() else math.inf

    def state(self) -> dict[str, Any]:
        """Return the state as plain values and tensors."""
        return {
            "chains": self._chains.state(_to_tensors),
            "means": list(self._means),
            "numbers": [self._batches, self._total, self._width],
            "recurrence": self._recurrence.state(),
            "largest": self.largest,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned."""
        self._chains.restore(state["chains"], _from_tensors)
        self._means = list(state["means"])
        self._batches, self._total, self._width = state["numbers"]
        self._recurrence.restore(state["recurrence"])
        self.largest = state["largest"]


def _release(classes: TwoClassModel, spectrum: NoiseSpectrum[float]) -> EpochRelease:
    """Return the release of a batch, in units of its root mean square row."""
    square = classes.rms**2
    direction = classes.direction.double().cpu().numpy()
    if not np.linalg.norm(direction) > 0.5:  # the means coincide
        direction = np.eye(1, len(direction))[0]
    across = (spectrum.lam2_neg / square, spectrum.lam2_pos / square)
    along = (max(spectrum.lam1_neg / square, across[0]), max(spectrum.lam1_pos / square, across[1]))
    spread = (classes.u / square, classes.v / square)
    return EpochRelease(direction, math.sqrt(classes.g / square), spread, along, across)


def _to_tensors(one: EpochRelease) -> dict[str, Any]:
    numbers = {name: getattr(one, name) for name in ("distance", "spread", "along", "across")}
    return {**numbers, "direction": torch.from_numpy(one.direction)}


def _from_tensors(state: Mapping[str, Any]) -> EpochRelease:
    pairs = ((state[name][0], state[name][1]) for name in ("spread", "along", "across"))
    return EpochRelease(state["direction"].numpy(), state["distance"], *pairs)


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
