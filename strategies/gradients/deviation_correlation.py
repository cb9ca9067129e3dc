"""Correlation across epochs of an example's deviation from its class mean, measured on a sample of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flower_vfl.protocol.schedule import Rows
from flower_vfl.strategies.gradients.units import beside

MOST_ENTRIES = 2**15
"""Number of entries that are kept for a class in each epoch: 1,024 rows of 32."""

FEWEST_KEPT = 64
"""Smallest number of rows that are kept for a class in each epoch, whatever their width."""

ENOUGH_ROWS = 16
"""Number of rows of a class that must occur in each of several epochs before a correlation is estimated; half of its
sample if that is less."""

BATCHES_AT_ONCE = 16
"""Number of batches that are processed at once: between two steps the processor's caches lose the data for this."""

MOST_WAITING_BYTES = 2**26
"""Number of bytes of gradients that may wait for that."""

_NEGLIGIBLE = 1e-9
"""Share of the largest variance; smaller variances are rounding errors of single precision."""


def sample(labels: NDArray[Any], width: int) -> Rows:
    """Return sorted rows of each of two classes, evenly spaced over the table, for gradients (B, width).

    Their batches are as random as the order of the rows is, so that in each epoch they come from all parts of it.

    Examples
    --------
    >>> sample(np.arange(4096) % 2, 32)[:4], len(sample(np.arange(4096) % 2, 32))
    (array([0, 1, 4, 5]), 2048)
    """
    most = max(FEWEST_KEPT, MOST_ENTRIES // max(width, 1))
    members = [np.flatnonzero(labels == label) for label in (0, 1)]
    return np.sort(np.concatenate([rows[:: max(1, -(-len(rows) // most))] for rows in members]))


def deviations(g: Tensor, y: Tensor, chosen: Tensor | None = None) -> Tensor:
    """Return deviations of gradients (..., B, D) with labels 0 or 1 (..., B) from the mean of their class and batch.

    If rows (n,) of a single batch are chosen, only theirs are returned.
    """
    members = torch.stack([y == 0, y == 1], dim=-2).to(g.dtype)
    means = (members @ g) / members.sum(dim=-1, keepdim=True).clamp(min=1.0)
    if chosen is not None:
        g, y = g[chosen], y[chosen]
    return g - means.take_along_dim(y.long()[..., None], dim=-2)


class DeviationCorrelation:
    r"""An estimator of correlations of a sample's deviations from their class means, one vector an epoch.

    The deviations of a class's rows in epoch t, each in units of its batch, are one long vector :math:`\zeta_c^t`; the
    correlation is :math:`k_c^{st} = \langle \zeta_c^s, \zeta_c^t \rangle / (\|\zeta_c^s\| \|\zeta_c^t\|)`. Such a
    matrix has no negative eigenvalue, and neither have the couplings, direction by direction. All of it is computed
    from labels and stays at the label party.

    A row's own part of its batch's mean makes such a correlation smaller, by the factor :math:`1 - 1 / n` with n rows
    of the class in a batch: products of two epochs shrink by its square, variances by it. Its mean for batches in
    random order is divided out, as far as no eigenvalue becomes negative.

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
        self._shared: Tensor | None = None  # of runs that train together; `_now` is its rows from `_low`
        self._low, self._batch = 0, 0
        self._pending: list[tuple[Tensor, Tensor, Rows, float, Tensor | None]] = []

    def add(self, g: Tensor, y: Tensor, rows: Rows, unit: float = 1.0, means: Tensor | None = None) -> None:
        """Add a batch: clean gradients (B, D), labels (B,), rows of the table (B,) and the unit of length.

        Means of the classes (2, D) are not computed again if given. The tensors must not be modified afterwards: they
        are processed with later batches.
        """
        self._pending.append((g, y, rows, unit, means))
        if len(self._pending) >= BATCHES_AT_ONCE or sum(one[0].nbytes for one in self._pending) > MOST_WAITING_BYTES:
            self._process_pending()

    def _process_pending(self) -> None:
        """Process the pending batches."""
        pending, self._pending = self._pending, []
        for batch in pending:
            self._store(*batch)

    def _store(self, g: Tensor, y: Tensor, rows: Rows, unit: float, means: Tensor | None) -> None:
        places, known = self._find(rows, g.shape[1])
        if not len(known):
            return
        now = _shared_deviations([self], g.device)
        there, here = (torch.from_numpy(one).to(g.device, non_blocking=True) for one in (self._low + places, known))
        if means is None:
            away = deviations(g, y, here)
        else:
            away = g.index_select(0, here) - beside(means, g).index_select(0, y.index_select(0, here).long())
        now.index_copy_(0, there, away.div_(unit).float())  # `now[there] =` takes twice as long

    def _find(self, rows: Rows, width: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the places in the sample of those rows (B,) that are in it, and their places in the batch.

        The size of the largest batch is kept.
        """
        self._batch = max(self._batch, len(rows))
        if self._now.shape[1] != width:
            self._rows, self._epochs = sample(self._labels, width), []
            self._begin(width)
        if not len(self._rows):
            return self._rows, self._rows
        places = self._rows.searchsorted(rows).clip(max=len(self._rows) - 1)
        known = np.flatnonzero(self._rows[places] == rows)
        return places[known], known

    def end_epoch(self) -> None:
        """Close the epoch."""
        self._process_pending()
        self._epochs.append(self._now.cpu())
        self._begin(self._now.shape[1])

    def correlations(self, epochs: int) -> NDArray[np.float64] | None:
        """Return k of negatives and of positives over the latest epochs, (2, T, T).

        None if too few rows of a class occurred in each of them (`ENOUGH_ROWS`), or no batch has two rows of it: then
        the correlation is unknown. Without deviations in a class, an epoch correlates with no other.
        """
        recurring = self._recurring(epochs)
        if recurring is None:
            return None
        found = np.tile(np.eye(epochs), (2, 1, 1))
        for label, deviations in enumerate(recurring):
            vectors = deviations.reshape(epochs, -1)
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0.0)
            found[label] += self._without_batch_means((1.0 - np.eye(epochs)) * (vectors @ vectors.T), label)
        return found

    def couplings(self, epochs: int) -> NDArray[np.float64] | None:
        r"""Return the correlations of standardised deviations of negatives and of positives, (2, T D, T D).

        With :math:`\Sigma^t` the covariance of the deviations in epoch t, these are the correlations of
        :math:`(\Sigma^t)^{-1/2} \zeta^t`, for each two directions of each two epochs. With few rows they are too
        large rather than too small: with fewer than D rows, all deviations seem to recur. None as in `correlations`.
        """
        recurring, width = self._recurring(epochs), self._now.shape[1]
        if recurring is None:
            return None
        found = np.tile(np.eye(epochs * width), (2, 1, 1))
        for label, deviations in enumerate(recurring):
            standard = np.concatenate([rows @ _inverse_root(rows.T @ rows) for rows in deviations], axis=1)
            between = 1.0 - np.kron(np.eye(epochs), np.ones((width, width)))
            found[label] += self._without_batch_means(between * (standard.T @ standard), label)
        return found

    def _without_batch_means(self, between: NDArray[np.float64], label: int) -> NDArray[np.float64]:
        """Return correlations between epochs divided by `_shrinkage`, as far as no eigenvalue becomes negative."""
        gain = 1.0 / self._shrinkage(label)
        least = float(np.linalg.eigvalsh(between)[0])
        return between * (min(gain, max(1.0, -1.0 / least)) if least < 0.0 else gain)

    def _shrinkage(self, label: int) -> float:
        """Return the factor of a class by which means of batches make its correlations smaller.

        It is the mean of 1 - 1 / n over its rows, n - 1 of the others being in the batch at random. Batches with a part
        of the table have the same rows in that part of the cases; then their means recur too, and take nothing away.
        """
        mine, rows = int(np.count_nonzero(self._labels == label)), len(self._labels)
        share = (mine - 1) / max(1, rows - 1)
        if share <= 0.0 or self._batch < 2:
            return 0.0
        lost = (1.0 - (1.0 - share) ** self._batch) / (self._batch * share)
        return 1.0 - lost * (1.0 - min(1.0, self._batch / rows))

    def _recurring(self, epochs: int) -> list[NDArray[np.float64]] | None:
        """Return the deviations (T, n, D) of each class's rows that occurred in all latest epochs; None for too few."""
        latest = self._epochs[-epochs:]
        if len(latest) < epochs or not len(self._rows) or not all(map(self._shrinkage, (0, 1))):
            return None
        deviations = torch.stack(latest)
        occurred = deviations.isfinite().all(dim=2).all(dim=0)
        members = [torch.from_numpy(self._labels[self._rows] == label) for label in (0, 1)]
        found = [deviations[:, occurred & mine].double().numpy() for mine in members]
        enough = [min(ENOUGH_ROWS, -(-int(mine.sum()) // 2)) for mine in members]
        return found if all(rows.shape[1] >= least for rows, least in zip(found, enough, strict=True)) else None

    def _begin(self, width: int) -> None:
        self._now, self._shared = torch.full((len(self._rows), width), torch.nan), None

    def state(self) -> dict[str, Any]:
        """Return what was measured; the sample derives from the labels."""
        self._process_pending()
        return {"epochs": list(self._epochs), "now": self._now.clone(), "batch": self._batch}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned."""
        self._epochs, self._now, self._shared, self._pending = list(state["epochs"]), state["now"].clone(), None, []
        self._batch = state["batch"]
        width = self._now.shape[1]
        self._rows = sample(self._labels, width) if width else self._rows[:0]  # without a width no batch was added


def take_in(recurrences: Sequence[DeviationCorrelation], away: Tensor, rows: Sequence[Rows]) -> None:
    """Add a batch of each of R runs that train together: a GPU needs the same time for all of them as for one.

    Parameters
    ----------
    recurrences : Sequence of DeviationCorrelation
        Estimators of the runs.
    away : Tensor
        (R, B, D) deviations, in units of each batch.
    rows : Sequence of Rows
        (B,) rows of each run's table.
    """
    batch, width = away.shape[1:]
    found = [recurrence._find(own, width) for recurrence, own in zip(recurrences, rows, strict=True)]
    now = _shared_deviations(recurrences, away.device)
    at = np.concatenate([one._low + places for one, (places, _) in zip(recurrences, found, strict=True)])
    mine = np.concatenate([number * batch + known for number, (_, known) in enumerate(found)])
    there, here = (torch.from_numpy(one).to(away.device, non_blocking=True) for one in (at, mine))
    now[there] = away.flatten(0, 1)[here].float()


def _shared_deviations(recurrences: Sequence[DeviationCorrelation], device: torch.device) -> Tensor:
    """Return one tensor with this epoch's deviations of all estimators; `_now` of each becomes a view of it."""
    shared = recurrences[0]._shared
    if shared is None or shared.device != device or any(one._shared is not shared for one in recurrences):
        shared, low = torch.cat([one._now.to(device) for one in recurrences]), 0
        for one in recurrences:
            one._shared, one._low, low = shared, low, low + len(one._now)
            one._now = shared[one._low : low]
    return shared


def _inverse_root(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the symmetric inverse root, without the directions that are rounding errors."""
    values, vectors = np.linalg.eigh(matrix)
    held = values > _NEGLIGIBLE * max(values[-1], np.finfo(np.float64).tiny)
    root: NDArray[np.float64] = (vectors[:, held] / np.sqrt(values[held])) @ vectors[:, held].T
    return root
