"""The interface of longitudinal attacks: the history of each row over the epochs in, a score for each row out.

Attacks on one step see each person once, with the noise of that step. A party that adds up the gradients of the same
person averages fresh noise away. A longitudinal attack runs after each epoch, over all rows that have occurred until
then. It sees a row memory, and the labels of the few rows that it declares to know: it is a *reader* of the memory,
fitted on the known rows, if any.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from flower_vfl.attacks.base import AttackMethod, nobody
from flower_vfl.attacks.rows import as_rows
from flower_vfl.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from collections.abc import Set as AbstractSet

    from torch import Tensor

Kept: TypeAlias = Literal["mean", "last", "difference", "epochs", "batches", "scales"]
"""Statistics of each row in a memory, in units of its batches: the mean over the epochs, the gradient of the last
epoch, its difference from the epoch before, the gradients of all epochs side by side; and the means over the epochs of
its batches' mean gradients, or of the logarithms of their scales, each of which cannot be kept together with others."""

DEPTH: dict[Kept, float] = {"mean": 1, "batches": 1, "scales": 1, "last": 2, "difference": 3, "epochs": math.inf}
"""Largest number of running sums, of one epoch each, that a statistic needs."""

Sums: TypeAlias = NDArray[np.float32] | NDArray[np.float16]
"""Running sums (n, D)."""

CACHED_NUMBERS = 1 << 20
"""Count of numbers in one piece of a memory: 4 MiB, which fit into a processor's cache."""

LEAST_SCALE = 1e-12
"""Scale of a batch of zeros."""

_SAFE = (1e-12, 1e18)
"""Range of a batch's norm in which no square that matters has vanished or overflowed in float32."""


def in_batch_units(g: Tensor) -> Tensor:
    r"""Return gradients as rows in units of their batch's root mean square, so that all epochs have equal weight.

    .. math:: x_i = g_i \Big/ \sqrt{\tfrac{1}{BD} \sum_{j} \| g_j \|^2}

    Gradients shrink while a network learns; the first epoch would dominate a sum of them as they are.

    Parameters
    ----------
    g
        (B, ...) gradients of one batch.

    Returns
    -------
    Tensor
        (B, D) of float32; zeros for a batch of zeros. The scale of ``g`` changes nothing, from 1e-30 to 1e30.

    Examples
    --------
    >>> in_batch_units(torch.tensor([[4.0, 0.0], [0.0, -4.0]]) * 1e-30).square().mean().round(decimals=4)
    tensor(1.)
    """
    rows = as_rows(g)
    rows = rows if rows.dtype.itemsize >= 4 else rows.float()
    norm = torch.linalg.vector_norm(rows).item()
    if not _SAFE[0] < norm < _SAFE[1]:
        rows = rows.double()
        largest = float(rows.abs().amax()) if rows.numel() else 0.0
        rows = rows / (largest or 1.0)
        norm = torch.linalg.vector_norm(rows).item()
    return (rows * (math.sqrt(rows.numel()) / norm if norm else 0.0)).float()


def centred_in_batch_units(g: Tensor) -> Tensor:
    r"""Return gradients less their batch's mean, in units of the root mean square of the differences.

    The mean of a batch depends on its number of positives, whatever the order of its rows. Added up over epochs, it
    would show for each row the number of its batches with many positives, perhaps with itself among them: a property of
    batches, not of the row's gradient. Gradients that were shuffled within their batches would seem to leak. A batch
    of one row becomes zeros.

    Examples
    --------
    >>> centred_in_batch_units(torch.tensor([[9.0, 1.0], [5.0, 1.0]]))
    tensor([[ 1.4142,  0.0000],
            [-1.4142,  0.0000]])
    """
    rows = as_rows(g)
    rows = rows if rows.dtype.itemsize >= 4 else rows.float()
    return in_batch_units(rows - rows.mean(dim=0)) if len(rows) else in_batch_units(rows)


def batch_means(g: Tensor) -> Tensor:
    r"""Return the mean gradient of the batch for each of its rows, in units of the root mean square of the rows.

    `centred_in_batch_units` takes this mean away.

    Examples
    --------
    >>> batch_means(torch.tensor([[7.0, 1.0], [5.0, 5.0]])).round(decimals=4)
    tensor([[1.2000, 0.6000],
            [1.2000, 0.6000]])
    """
    x = in_batch_units(g)
    return x.mean(dim=0, keepdim=True).expand_as(x).clone() if len(x) else x


def batch_scales(g: Tensor) -> Tensor:
    r"""Return the logarithm of the batch's scale for each of its rows, (B, 1) of float32.

    The scale is the root mean square of the gradients less their mean, the unit of `centred_in_batch_units`.

    Examples
    --------
    >>> batch_scales(torch.tensor([[9.0, 1.0], [5.0, 1.0]])).exp().round(decimals=4)
    tensor([[1.4142],
            [1.4142]])
    """
    rows = as_rows(g).double()
    if not rows.numel():
        return torch.zeros(len(rows), 1)
    scale = float(torch.linalg.vector_norm(rows - rows.mean(dim=0))) / math.sqrt(rows.numel())
    return torch.full((len(rows), 1), math.log(max(scale, LEAST_SCALE)))


def statistic_of_batch(keeps: AbstractSet[Kept]) -> Callable[[Tensor], Tensor]:
    """Return the function of a batch (B, ...) whose values (B, D) a memory adds up, if it keeps these statistics.

    Differences of epochs need gradients without centring: persistent noise cancels in them, and the means of two
    batches would not.

    Raises
    ------
    ArgumentError
        For "batches" or "scales" together with another statistic.
    """
    of_batches = sorted(keeps & {"batches", "scales"})
    if of_batches and len(keeps) > 1:
        raise ArgumentError(
            f"{of_batches[0]!r} cannot be kept together with {', '.join(sorted(keeps - {of_batches[0]}))}."
        )
    alone: dict[AbstractSet[Kept], Callable[[Tensor], Tensor]] = {
        frozenset({"mean"}): centred_in_batch_units,
        frozenset({"batches"}): batch_means,
        frozenset({"scales"}): batch_scales,
    }
    return alone.get(frozenset(keeps), in_batch_units)


def centred_signs(g: Tensor) -> Tensor:
    r"""Return the signs of gradients less their mean in the batch, (B, D) of float32.

    Their mean over epochs converges under noise of any tails, and no row of a batch sets the scale of the others.

    Examples
    --------
    >>> centred_signs(torch.tensor([[9e9, 1.0], [-5.0, 1.0]]))
    tensor([[ 1.,  0.],
            [-1.,  0.]])
    """
    signs = as_rows(g).sign().float()
    return signs - signs.mean(dim=0) if len(signs) else signs


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """The row memory of one layer at the end of an epoch.

    Attributes
    ----------
    order
        (N,) the rows of the training table that have occurred, in the order of their last occurrence. Large files are
        in this order, and the rows are read and scored in it.
    times
        Number of occurrences of each of them, at least 1.
    sums
        Running sums (R, D) of gradients in units of their batches (see `statistic_of_batch`): now, before the last
        occurrence, before the one before, as many as are kept. Of float32, or of float16 where the mean alone is read.
        They may be larger than the machine's memory: read them piece by piece. In a run they are read-only, as all
        arrays here: training goes on from them.
    places
        (R,) position of each row of the table in each of the sums; the first are in this `order`. Empty where all rows
        are at their own position.

    Examples
    --------
    >>> before = np.array([[1.0, 0.0], [9.0, 9.0], [0.0, 1.0]], dtype=np.float32)
    >>> memory = Memory(np.array([2, 0]), 2, (before + 2, before))
    >>> torch.cat(list(memory.pieces("mean"))), memory.at(np.array([2]), "last")
    (tensor([[1.0000, 1.5000],
            [1.5000, 1.0000]]), tensor([[2., 2.]]))
    """

    order: NDArray[np.integer]
    times: int
    sums: tuple[Sums, ...]
    places: tuple[NDArray[np.integer], ...] = ()

    @property
    def rows(self) -> int:
        """The number of rows that have occurred, N."""
        return len(self.order)

    @property
    def width(self) -> int:
        """The width of a row, D."""
        return int(self.sums[0].shape[1])

    def pieces(self, kept: Kept) -> Iterator[Tensor]:
        """Yield the result of `at` for the rows that have occurred, in their `order`, piece by piece.

        Raises
        ------
        ArgumentError
            When the memory does not keep this statistic.
        """
        step = max(1, CACHED_NUMBERS // max(1, self.width * (self.times if kept == "epochs" else 1)))
        for low in range(0, self.rows, step):
            piece = slice(low, min(low + step, self.rows))
            in_order = DEPTH[kept] == 1 and self.places
            yield self._mean(self.sums[0][piece]) if in_order else self.at(self.order[piece], kept)

    def at(self, rows: NDArray[np.integer], kept: Kept) -> Tensor:
        """Return a statistic of rows (n, D) by their positions in the table; "epochs" (n, T D), the first one first.

        Raises
        ------
        ArgumentError
            When the memory does not keep this statistic.
        """
        depth = int(min(DEPTH[kept], self.times))  # before the first occurrence all sums are zero
        if len(self.sums) < depth:
            raise ArgumentError(f"The memory does not give {kept!r}: an attack declares what it reads in `keeps`.")
        places = [place.take(rows) for place in self.places[:depth]] or [rows] * depth
        taken = [sums.take(at, axis=0) for sums, at in zip(self.sums, places, strict=False)]
        if DEPTH[kept] == 1:
            return self._mean(taken[0])
        now, *before = (torch.from_numpy(sums).float() for sums in taken)
        if kept == "epochs":
            oldest_first = [torch.zeros_like(now), *reversed(before), now]
            return torch.stack(oldest_first, dim=1).diff(dim=1).flatten(1)
        if kept == "difference" and self.times == 1:
            return torch.zeros(len(rows), self.width)
        last = now - before[0] if before else now
        if kept == "last":
            return last
        return last - (before[0] - before[1] if len(before) > 1 else before[0])

    def _mean(self, sums: Sums) -> Tensor:
        taken = sums.view()
        taken.flags.writeable = True  # nothing is written, but torch warns of arrays that are read-only
        return torch.from_numpy(taken).float() / self.times


@dataclass(frozen=True, slots=True, eq=False)
class KnownRows:
    """Rows with labels that an attack knows; they are not measured.

    Attributes
    ----------
    rows
        (n,) their positions in the training table; all of them have occurred.
    labels
        (n,) 0 or 1.
    """

    rows: NDArray[np.int64] = field(default_factory=nobody)
    labels: NDArray[np.int64] = field(default_factory=nobody)

    def require(self, *classes: int) -> KnownRows:
        """Return itself if it has rows of each of these classes.

        Raises
        ------
        ArgumentError
            When a class is missing: the attack must declare its side information.
        """
        missing = [str(label) for label in classes if label not in self.labels]
        if missing:
            raise ArgumentError(f"No row of class {' or '.join(missing)} is known: declare it in `hints` or `leaks`.")
        return self


NO_KNOWN_ROWS = KnownRows()


class MemoryAttack(AttackMethod):
    """An attack of a curious feature party on its memory of each row over the epochs.

    It sees the memory of one layer and the labels that it declares to know, nothing else. It is run at the end of each
    epoch; an evaluator compares its scores with the true labels.

    Attributes
    ----------
    needs
        Empty; or ``{"hints"}``, the rows of `hints` positives; or ``{"leaked"}``, those of `leaks` examples of each
        class. Then it is measured where these are known.
    keeps
        The statistics that it reads; nothing else is kept for it; "batches" and "scales" go with no other. An attribute
        of the class, or set by its parameters.
    first_epoch
        First epoch after which it can score, counted from 1; set in the same way.
    """

    keeps: frozenset[Kept] = frozenset({"mean"})
    first_epoch: int = 1

    @property
    def hints(self) -> int:
        """The number of positives that it knows."""
        return 0

    @abstractmethod
    def score(self, memory: Memory, known: KnownRows = NO_KNOWN_ROWS) -> Tensor:
        """Score all rows that have occurred.

        Parameters
        ----------
        memory
            The row memory of one layer.
        known
            The rows with labels that it knows, as `needs` declares.

        Returns
        -------
        Tensor
            (N,) in the `order` of the memory, like its pieces; higher means more likely positive; never NaN for
            finite memories.
        """
