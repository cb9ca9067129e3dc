"""The privacy accountant of Marvell with full covariances: the noise of each epoch, and the bound on all releases."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flower_vfl.metrics import ShapedRelease, together_shaped
from flower_vfl.protocol.schedule import Rows
from flower_vfl.strategies.gradients.deviation_correlation import DeviationCorrelation
from flower_vfl.strategies.gradients.marvell.chains import Chains
from flower_vfl.strategies.gradients.marvell.full_noise import FullNoise, Pair
from flower_vfl.strategies.gradients.units import working

LARGEST_COVARIANCE = 640
"""Number of rows of the largest inverted matrix, epochs times width: 20 epochs of 32 numbers, some seconds."""


def accounted_epochs(width: int) -> int:
    """Return the largest number of epochs that can be accounted for gradients (B, width): at least the first.

    Examples
    --------
    >>> accounted_epochs(32), accounted_epochs(128), accounted_epochs(1600)
    (20, 5, 1)
    """
    return max(1, LARGEST_COVARIANCE // max(width, 1))


@dataclass(frozen=True, slots=True)
class PartNoise:
    """The noise of one party's part of the gradients, or of those of all parties.

    Attributes
    ----------
    noise
        The noise, in a unit of its own.
    unit
        That unit, in units of the `Pair` of the batch.
    """

    noise: FullNoise
    unit: float = 1.0


def release(pair: Pair, parts: Sequence[PartNoise]) -> ShapedRelease:
    """Return the release of these classes, with noise of its own for each part, side by side in this order."""
    basis = None if pair.basis is None else pair.basis.double().cpu().numpy()
    own = np.stack([_root(covariance) for covariance in pair.covariances.double().cpu().numpy()])
    if basis is not None:
        own = basis @ own @ basis.T
    widths = [len(part.noise.line) for part in parts]
    noise = np.zeros((2, sum(widths), sum(widths) + len(parts)))
    low = 0
    for number, (part, width) in enumerate(zip(parts, widths, strict=True)):
        rows = slice(low, low + width)
        noise[:, rows, rows] = part.unit * _symmetric_root(part.noise)
        line = part.noise.line.double().cpu().numpy()
        noise[:, rows, sum(widths) + number] = part.unit * math.sqrt(part.noise.along) * line
        low += width
    return ShapedRelease(pair.means.double().cpu().numpy(), own, noise)


def _root(covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    values, vectors = np.linalg.eigh(covariance)
    root: NDArray[np.float64] = (vectors * np.sqrt(values.clip(min=0.0))) @ vectors.T
    return root


def _symmetric_root(noise: FullNoise) -> NDArray[np.float64]:
    """Return the symmetric root of each class's noise, (2, D, D), without the noise along the means' line."""
    directions, levels = noise.directions.double().cpu().numpy(), noise.levels.cpu().numpy()
    base = math.sqrt(noise.everywhere)
    added = np.sqrt(noise.everywhere + levels) - base
    roots: NDArray[np.float64] = base * np.eye(len(directions)) + (directions * added[:, None]) @ directions.T
    return roots


class FullAccountant:
    """An accountant of random sequences of batches, one of each epoch (`Chains`).

    The correlation of an example's deviations across epochs, direction by direction, is measured on a sample
    of rows (`DeviationCorrelation`). All of it is computed from labels and stays at the label party.

    Parameters
    ----------
    labels : ndarray of int, (N,)
        Labels of the table's rows, 0 or 1; the sample is chosen by them.
    repeats : bool
        True if each row recurs in every epoch; otherwise it has one release, that of its own epoch.
    one_epoch : bool
        True if only one epoch is accounted for: the correlation of the noise across epochs is unknown here.
    """

    def __init__(self, labels: NDArray[Any], *, repeats: bool = True, one_epoch: bool = False) -> None:
        self.largest = 0.0
        """The largest divergence so far, of a step and of all releases of a row; inf where it is unknown."""
        self._repeats, self._one_epoch = repeats, one_epoch
        self._recurrence = DeviationCorrelation(labels)
        self._chains = Chains[ShapedRelease]()
        self._epochs, self._batches, self._total, self._width = 0, 0, 0.0, 0

    def add(self, pair: Pair, parts: Sequence[PartNoise], left: float, g: Tensor, y: Tensor, rows: Rows | None) -> None:
        """Add a batch: its classes, its noise and the divergence left, its clean gradients, labels and rows."""
        self.largest = max(self.largest, left)
        self._width = g.shape[1]
        self._total += left
        self._batches += 1
        if not self._repeats or self._epochs >= self._epoch_limit or self._epoch_limit == 1:
            return
        self._chains.add(partial(release, pair, parts))
        if rows is not None and pair.square > 0.0:
            unit = pair.unit * math.sqrt(pair.square)
            self._recurrence.add(working(g), y, rows, unit=unit, means=pair.centres * pair.unit)

    def end_epoch(self, rho: float) -> dict[str, float]:
        """Close the epoch; return the joint divergence of all releases and the latest correlation of deviations.

        The result is empty if no batch of the epoch had both classes, if too few rows, or no two of a class in a batch,
        occurred in each epoch to estimate a correlation, and after more epochs than can be accounted for.
        """
        if not self._batches:
            self.largest = math.inf
            return {}
        mean, self._total, self._batches = self._total / self._batches, 0.0, 0
        self._epochs += 1
        if self._chains.end_epoch():
            self._recurrence.end_epoch()
        count = self._epochs if self._repeats else 1
        if count > self._epoch_limit:
            self.largest = math.inf
            return {}
        kept = 0.0
        if count > 1:
            correlations, own = self._recurrence.correlations(count), self._recurrence.couplings(count)
            if correlations is None or own is None:
                self.largest = math.inf
                return {}
            kept = float(correlations[:, -1, -2].mean())
            mean = float(
                np.mean([together_shaped(chain, rho=rho, kept=own).sum_kl() for chain in self._chains.sequences])
            )
        self.largest = max(self.largest, mean)
        return {"sum_kl": mean, "kept": kept}

    @property
    def _epoch_limit(self) -> int:
        return 1 if self._one_epoch else accounted_epochs(self._width)

    def state(self) -> dict[str, Any]:
        """Return the state as plain values and tensors."""
        return {
            "chains": self._chains.state(_to_tensors),
            "numbers": [self._epochs, self._batches, self._width],
            "total": self._total,
            "largest": self.largest,
            "recurrence": self._recurrence.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned."""
        self._chains.restore(state["chains"], _from_tensors)
        self._epochs, self._batches, self._width = state["numbers"]
        self._total, self.largest = state["total"], state["largest"]
        self._recurrence.restore(state["recurrence"])


def _to_tensors(one: ShapedRelease) -> dict[str, Tensor]:
    return {name: torch.from_numpy(getattr(one, name)) for name in ShapedRelease.__slots__}


def _from_tensors(state: Mapping[str, Tensor]) -> ShapedRelease:
    return ShapedRelease(**{name: state[name].numpy() for name in ShapedRelease.__slots__})
