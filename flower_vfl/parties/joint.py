"""An attacker's joint view: of a sample of its rows the mean gradients, the columns and the embeddings."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flower_vfl.attacks.inference import LEAKED
from flower_vfl.attacks.joint import JointAttack, JointView, OwnRows
from flower_vfl.attacks.remembering import NOBODY, KnownRows, Memory
from flower_vfl.auditing.columns import MOST_ROWS, read_with_columns
from flower_vfl.auditing.halves import Split
from flower_vfl.auditing.joint import TEST_ROWS, WIDE_ROWS, JointLabels, JointScorer, most_rows, sample_rows
from flower_vfl.data.dataset import PartyTable
from flower_vfl.data.source import FeatureSource
from flower_vfl.errors import ConfigError
from flower_vfl.nn.placement import Placement, widened
from flower_vfl.parties.feature import embed
from flower_vfl.parties.scoring import AuditLabels, draw_examples

_log = logging.getLogger(__name__)

BATCH = 4096
"""Rows of a pass through the trained model."""

_UNSEEN = 255
"""Of rows that are not in the sample, where 0 and 1 are what the label of a row can be."""


class JointObserver:
    """Keeps a sample of what a party remembers, and lets joint attacks read it once training is finished.

    Parameters
    ----------
    attacks : Sequence[JointAttack]
        What is run.
    table : PartyTable
        The party's columns.
    labels, test_labels : AuditLabels
        The true labels, for the scorer and for the few rows that an attack knows.
    party : str
        The feature party.
    defended : bool
        Whether any defense is in force.
    placement : Placement
        Where the bottom model is.
    informed : int
        Rows that readers of gradients with columns are fitted to and scored on; 0: none.
    seed : int
        Where the attacks' own randomness starts, and from which the halves of these rows derive.
    """

    def __init__(
        self,
        attacks: Sequence[JointAttack],
        table: PartyTable,
        labels: AuditLabels,
        test_labels: AuditLabels,
        *,
        party: str,
        defended: bool,
        placement: Placement,
        informed: int = 0,
        seed: int = 0,
    ) -> None:
        self._attacks, self._table, self._placement = [attack.fresh() for attack in attacks], table, placement
        self._labels, self._test_labels = labels, test_labels
        self._party, self._defended = party, defended
        self._informed, self._seed = min(informed, MOST_ROWS), seed
        self._columns = sum(prod(tensor.shape[1:]) for tensor in table.train.gather(np.zeros(1, dtype=np.int64)))
        self._rows = np.empty(0, dtype=np.int64)
        self._came = 0
        self._gradients: Tensor | None = None
        self.epoch = 0
        """The last epoch at whose end the sample was taken."""

    def take(self, epoch: int, memory: Memory) -> None:
        """Take the mean gradients of the sampled rows at the end of an epoch (from 1); earlier ones are forgotten."""
        if memory.rows != self._came:
            self._rows = sample_rows(memory.order, most_rows(memory.width, columns=self._columns))
            self._came = memory.rows
        self._gradients, self.epoch = memory.at(self._rows, "mean"), epoch

    @property
    def taken(self) -> bool:
        """Whether the sample is in this process."""
        return self._gradients is not None

    def entries(self, bottom: nn.Module, why: str = "") -> list[dict[str, Any]]:
        """Run every attack on the trained model, and return its entries for `result.json`.

        Parameters
        ----------
        bottom : nn.Module
            The trained bottom model.
        why : str
            Why nothing was remembered, where that is so.
        """
        labels, positive = self._labels, self._labels.positive(0)
        scorer = JointScorer(party=self._party, defended=self._defended, positive=positive, classes=labels.classes)
        if self._gradients is None:
            why = why or "training ended before its first epoch did"
            return [scorer.unavailable(attack, why) for attack in self._attacks]
        most = WIDE_ROWS if self._columns > 1024 else TEST_ROWS
        test_rows = sample_rows(np.arange(len(self._table.test) if self._test_labels.complete else 0), most)
        train, test = self._own(bottom, self._table.train, self._rows), self._own(bottom, self._table.test, test_rows)
        truth = JointLabels(labels.at(self._rows) == positive, self._test_labels.at(test_rows) == positive)
        found = []
        for attack in self._attacks:
            known = self._known(attack, truth)
            if known is None:
                found.append(scorer.unavailable(attack, "too few rows of a class have come for the labels it knows"))
                continue
            view = JointView(self._gradients, train, test, known, self._table.spec.vocabulary > 0, self._seed)
            found += scorer.entries(attack, view, truth)
        return [*found, *self._read_informed(train, test)]

    def _read_informed(self, train: OwnRows, test: OwnRows) -> list[dict[str, Any]]:
        """Fit readers to true labels of half of the rows, and score them on the other half; nothing where it is off."""
        if not self._informed or self._gradients is None:
            return []
        rows = sample_rows(self._rows, self._informed)
        at = torch.from_numpy(np.searchsorted(self._rows, rows))
        own = OwnRows(tuple(tensor[at] for tensor in train.inputs), train.embeddings[at])
        view = JointView(self._gradients[at], own, test, words=self._table.spec.vocabulary > 0)
        entry = read_with_columns(
            *(view, self._labels.at(rows).astype(np.int64), Split(self._seed).parts(rows)),
            party=self._party,
            defended=self._defended,
            classes=self._labels.classes,
            positives=(self._labels.positive(0),),
        )
        return [entry]

    def _own(self, bottom: nn.Module, source: FeatureSource, rows: NDArray[np.int64]) -> OwnRows:
        """Return the party's columns and embeddings of rows, in main memory."""
        pieces = [rows[low : low + BATCH] for low in range(0, len(rows), BATCH)] or [rows]
        if not len(rows):
            shape = self._own(bottom, self._table.train, self._rows[:2])
            return OwnRows(tuple(tensor[:0] for tensor in shape.inputs), shape.embeddings[:0])
        embedded = [widened(embed(bottom, source, piece, self._placement)).cpu() for piece in pieces]
        return OwnRows(source.gather(rows), torch.cat(embedded))

    def _known(self, attack: JointAttack, truth: JointLabels) -> KnownRows | None:
        """Return the rows whose labels the attack knows, by position in the sample; None where there are too few."""
        if LEAKED not in attack.needs:
            return NOBODY
        labels = np.full(len(self._labels.numbers), _UNSEEN, dtype=np.uint8)
        labels[self._rows] = truth.train
        try:
            drawn = np.sort(draw_examples(labels, 0, classes=2, count=attack.leaks))
        except ConfigError:  # in time order, the first days may have too few
            return None
        return KnownRows(np.searchsorted(self._rows, drawn), labels[drawn].astype(np.int64))

    def state(self) -> dict[str, Any]:
        """Return when the sample was taken: it is in the files of the memory, from which it is taken again."""
        return {"epoch": self.epoch}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self.epoch, self._gradients, self._came = int(state["epoch"]), None, 0
