"""How much of an example's deviation from its class comes again with it in later epochs, measured on a sample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flower_vfl.protocol.schedule import Rows

NUMBERS = 2**15
"""Numbers of a class that are kept of each epoch: 1,024 rows of 32."""

FEWEST = 64
"""Rows of a class that are kept of each epoch at least, however long they are."""

ENOUGH = 16
"""Rows of a class that must have come in each of some epochs before anything is said of what comes again; half of its
sample where that is less."""

_NEGLIGIBLE = 1e-9
"""Of the largest variance: what is below is rounding of single precision."""


def sample(labels: NDArray[Any], width: int) -> Rows:
    """Return sorted rows of each of two classes, evenly spaced over the table, for gradients (B, width).

    Their batches are as random as the order of the rows is, so that in each epoch they come from all parts of it.

    Examples
    --------
    >>> sample(np.arange(4096) % 2, 32)[:4], len(sample(np.arange(4096) % 2, 32))
    (array([0, 1, 4, 5]), 2048)
    """
    most = max(FEWEST, NUMBERS // max(width, 1))
    members = [np.flatnonzero(labels == label) for label in (0, 1)]
    return np.sort(np.concatenate([rows[:: max(1, -(-len(rows) // most))] for rows in members]))


def deviations(g: Tensor, y: Tensor) -> Tensor:
    """Return how gradients (B, D) of examples with labels 0 or 1 (B,) deviate from the mean of their class, (B, D)."""
    members = torch.stack([y == 0, y == 1]).to(g.dtype)
    means = (members @ g) / members.sum(dim=1, keepdim=True).clamp(min=1.0)
    return g - means[y.long()]


class Recurrence:
    r"""Keeps the deviations of a sample of rows from their class means, one vector an epoch, and correlates them.

    The deviations of a class's rows in epoch t, each in units of its batch, are one long vector :math:`\zeta_c^t`; what
    comes again is :math:`k_c^{st} = \langle \zeta_c^s, \zeta_c^t \rangle / (\|\zeta_c^s\| \|\zeta_c^t\|)`. Such a
    matrix has no negative eigenvalue, and neither have the couplings, direction by direction. All of it is computed
    from labels and stays at the label party.

    Parameters
    ----------
    labels : ndarray of int, (N,)
        Classes, 0 or 1, of the table's rows; the sample is chosen by them.
    """

    def __init__(self, labels: NDArray[Any]) -> None:
        self._labels = labels
        self._rows = np.zeros(0, dtype=np.int64)
        self._epochs: list[Tensor] = []
        self._now = torch.zeros(0, 0)

    def add(self, g: Tensor, y: Tensor, rows: Rows) -> None:
        """Take in a batch: clean gradients (B, D) in units of its own, labels (B,) and rows of the table (B,)."""
        if self._now.shape[1] != g.shape[1]:
            self._rows, self._epochs = sample(self._labels, g.shape[1]), []
            self._now = self._nobody(g.shape[1])
        if not len(self._rows):
            return
        places = self._rows.searchsorted(rows).clip(max=len(self._rows) - 1)
        known = np.flatnonzero(self._rows[places] == rows)
        at, mine = (torch.from_numpy(one).to(g.device, non_blocking=True) for one in (places[known], known))
        self._now = self._now.to(g.device)
        self._now[at] = deviations(g, y)[mine].float()

    def end_epoch(self) -> None:
        """Close the epoch."""
        self._epochs.append(self._now.cpu())
        self._now = self._nobody(self._now.shape[1])

    def correlations(self, epochs: int) -> NDArray[np.float64] | None:
        """Return k of negatives and of positives over the latest epochs, (2, T, T).

        None where too few rows of a class came in each of them (`ENOUGH`): then it is not known what comes again. Where
        no row of a class deviated in an epoch, nothing of that epoch does.
        """
        came = self._came(epochs)
        if came is None:
            return None
        found = np.tile(np.eye(epochs), (2, 1, 1))
        for label, deviations in enumerate(came):
            vectors = deviations.reshape(epochs, -1)
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0.0)
            found[label] += (1.0 - np.eye(epochs)) * (vectors @ vectors.T)
        return found

    def couplings(self, epochs: int) -> NDArray[np.float64] | None:
        r"""Return how standardised deviations of negatives and of positives correlate, (2, T D, T D).

        With :math:`\Sigma^t` the covariance of the deviations in epoch t, these are the correlations of
        :math:`(\Sigma^t)^{-1/2} \zeta^t`, for each two directions of each two epochs. Of few rows they are too large
        rather than too small: of fewer than D, everything seems to come again. None as in `correlations`.
        """
        came, width = self._came(epochs), self._now.shape[1]
        if came is None:
            return None
        found = np.tile(np.eye(epochs * width), (2, 1, 1))
        for label, deviations in enumerate(came):
            standard = np.concatenate([rows @ _inverse_root(rows.T @ rows) for rows in deviations], axis=1)
            between = 1.0 - np.kron(np.eye(epochs), np.ones((width, width)))
            found[label] += between * (standard.T @ standard)
        return found

    def _came(self, epochs: int) -> list[NDArray[np.float64]] | None:
        """Return the deviations of each class's rows that came in each of the latest epochs, (T, n, D), or too few."""
        latest = self._epochs[-epochs:]
        if len(latest) < epochs or not len(self._rows):
            return None
        deviations = torch.stack(latest)
        came = deviations.isfinite().all(dim=2).all(dim=0)
        members = [torch.from_numpy(self._labels[self._rows] == label) for label in (0, 1)]
        found = [deviations[:, came & mine].double().numpy() for mine in members]
        enough = [min(ENOUGH, -(-int(mine.sum()) // 2)) for mine in members]
        return found if all(rows.shape[1] >= least for rows, least in zip(found, enough, strict=True)) else None

    def _nobody(self, width: int) -> Tensor:
        return torch.full((len(self._rows), width), torch.nan)

    def state(self) -> dict[str, Any]:
        """Return tensors; the sample itself follows from the labels."""
        return {"epochs": list(self._epochs), "now": self._now.clone()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._epochs, self._now = list(state["epochs"]), state["now"].clone()
        width = self._now.shape[1]
        self._rows = sample(self._labels, width) if width else self._rows[:0]  # without a width nothing came yet


def _inverse_root(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the symmetric inverse root of what is no rounding."""
    values, vectors = np.linalg.eigh(matrix)
    held = values > _NEGLIGIBLE * max(values[-1], np.finfo(np.float64).tiny)
    root: NDArray[np.float64] = (vectors[:, held] / np.sqrt(values[held])) @ vectors[:, held].T
    return root
