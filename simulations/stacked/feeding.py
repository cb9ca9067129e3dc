"""The rows of each run of a stack, and their columns: runs with one schedule seed share both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from flower_vfl.data.store.dataset import PartyTable
from flower_vfl.data.store.memory import VerticalData
from flower_vfl.data.store.source import FeatureSource
from flower_vfl.protocol.schedule import Rows, RowsPart, Schedule


class Feeding:
    """Rows and columns of R runs.

    Parameters
    ----------
    schedules : Sequence[Schedule]
        Schedule of each run; they differ only in their seeds.
    dataset : VerticalData
        The data.
    own : PartyTable, optional
        The label party's own columns.
    device : str
        The device of the columns.

    Attributes
    ----------
    orders
        (R,) index of each run's order of rows among the distinct orders.
    which
        `orders` as a tensor on the device.
    """

    def __init__(
        self, schedules: Sequence[Schedule], dataset: VerticalData, own: PartyTable | None, device: str
    ) -> None:
        seeds = [schedule.seed for schedule in schedules]
        self._distinct = [schedules[seeds.index(seed)] for seed in dict.fromkeys(seeds)]
        known = [schedule.seed for schedule in self._distinct]
        self.orders = np.array([known.index(seed) for seed in seeds])
        self.which = torch.from_numpy(self.orders).to(device)
        self._dataset, self._own, self._device = dataset, own, device
        self._batches: dict[int, list[Rows]] = {}
        self._validation = [
            [schedule.eval_batch("validation", i) for i in self._range("validation")] for schedule in self._distinct
        ]

    def _range(self, part: RowsPart) -> range:
        return range(self._distinct[0].batches(part))

    def begin_epoch(self, epoch: int) -> None:
        """Draw the orders of an epoch, one after the other: a schedule caches the latest only."""
        steps = self._distinct[0].steps_of(epoch)
        orders = [[schedule.train_batch(step) for step in steps] for schedule in self._distinct]
        self._batches = {step: list(rows) for step, rows in zip(steps, zip(*orders, strict=True), strict=True)}

    def rows(self, step: int) -> list[Rows]:
        """Return the rows (B,) of a step, for each distinct order."""
        return self._batches[step]

    def evaluated(self, part: RowsPart) -> Iterator[list[Rows]]:
        """Yield the rows of each evaluation batch, for each distinct order; test rows once: all share them."""
        for index in self._range(part):
            if part == "test":
                yield [self._distinct[0].eval_batch(part, index)]
            else:
                yield [batches[index] for batches in self._validation]

    def all_evaluated(self, part: RowsPart) -> list[Rows]:
        """Return all rows (N,) that are evaluated, for each distinct order; test rows once."""
        return [np.concatenate(pieces) for pieces in zip(*self.evaluated(part), strict=True)]

    def columns(self, party: str, rows: Sequence[Rows], *, test: bool = False) -> tuple[Tensor, ...]:
        """Return the columns of a feature party in these rows, (R, B, ...) each."""
        table = self._dataset.party(party)
        return self._gathered(table.test if test else table.train, rows)

    def own(self, rows: Sequence[Rows], *, test: bool = False) -> list[Tensor]:
        """Return the label party's own columns, if it has some."""
        if self._own is None:
            return []
        return list(self._gathered(self._own.test if test else self._own.train, rows))

    def _gathered(self, source: FeatureSource, rows: Sequence[Rows]) -> tuple[Tensor, ...]:
        return tuple(self.per_run(list(pieces)) for pieces in zip(*(source.gather(part) for part in rows), strict=True))

    def per_run(self, pieces: Sequence[Tensor]) -> Tensor:
        """Return the piece of each run's order, (R, B, ...), from pieces (B, ...) for each distinct order."""
        if len(pieces) == 1:
            return pieces[0].to(self._device).expand(len(self.orders), *pieces[0].shape)
        return torch.stack(list(pieces)).to(self._device)[self.which]
