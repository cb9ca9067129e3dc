"""An attacker's joint view: the mean gradients, columns and embeddings of a sample of its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flower_vfl.attacks.embedding.inference import LEAKED
from flower_vfl.attacks.joint import JointAttack, JointView, OwnRows
from flower_vfl.attacks.longitudinal.base import NO_KNOWN_ROWS, KnownRows, Memory
from flower_vfl.auditing.audit_labels import UNSEEN_ROW, AuditLabels, draw_known
from flower_vfl.auditing.joint import TEST_ROWS, WIDE_ROWS, JointEvaluator, JointLabels, most_rows, sample_rows
from flower_vfl.auditing.trained_model import BATCH
from flower_vfl.data.store.dataset import PartyTable
from flower_vfl.data.store.source import FeatureSource
from flower_vfl.nn.placement import Placement, widened
from flower_vfl.parties.feature import embed
from flower_vfl.protocol.schedule import Schedule

TOO_FEW = "too few rows of a class have come for the labels it knows"
"""Reason for a joint attack without a number."""


def known_among(attack: JointAttack, rows: NDArray[np.int64], truth: NDArray[np.bool_]) -> KnownRows | None:
    """Return the rows with labels that an attack knows, by position in a sample; None where there are too few.

    Parameters
    ----------
    attack : JointAttack
        The attack.
    rows : NDArray
        (n,) rows of the training table, sorted.
    truth : NDArray
        (n,) true for rows of the class that is to be detected.
    """
    if LEAKED not in attack.needs:
        return NO_KNOWN_ROWS
    labels = np.full(int(rows[-1]) + 1 if len(rows) else 0, UNSEEN_ROW, dtype=np.uint8)
    labels[rows] = truth
    known = draw_known(labels, attack.leaks)
    return None if known is None else KnownRows(np.searchsorted(rows, known.rows), known.labels)


def read_group(
    attacks: Sequence[JointAttack],
    view: JointView,
    rows: NDArray[np.int64],
    labels: AuditLabels,
    schedule: Schedule,
    *,
    party: str,
    defended: bool,
) -> list[dict[str, Any]]:
    """Run joint attacks on the joined view of several parties; return entries for `result.json`.

    Parameters
    ----------
    attacks : Sequence[JointAttack]
        The attacks that are run.
    view : JointView
        The joined view of the parties of these rows.
    rows : NDArray
        (n,) rows of the training table, sorted.
    labels : AuditLabels
        The true labels.
    schedule : Schedule
        Gives the batches of the rows in time order.
    party : str
        The colluding group, such as "a+b".
    defended : bool
        True if any defense is in force.
    """
    scorer = _group_scorer(labels, party, defended=defended)
    truth = JointLabels(labels.at(rows) == labels.positive(0), np.zeros(0, dtype=np.bool_), schedule.batches_of(rows))
    return _entries(scorer, [attack.fresh() for attack in attacks], view, rows, truth)


def group_unavailable(
    attacks: Sequence[JointAttack], why: str, labels: AuditLabels, *, party: str, defended: bool
) -> list[dict[str, Any]]:
    """Return the entries of joint attacks that could not be run on several parties, with the reason."""
    scorer = _group_scorer(labels, party, defended=defended)
    return [scorer.unavailable(attack, why) for attack in attacks]


def _group_scorer(labels: AuditLabels, party: str, *, defended: bool) -> JointEvaluator:
    classes, positive = labels.classes, labels.positive(0)
    return JointEvaluator(party=party, defended=defended, positive=positive, classes=classes, source="monitor")


def _entries(
    scorer: JointEvaluator,
    attacks: Sequence[JointAttack],
    view: JointView,
    rows: NDArray[np.int64],
    truth: JointLabels,
) -> list[dict[str, Any]]:
    """Return the entries of attacks on a view, each with the labels of the rows that it knows."""
    found = []
    for attack in attacks:
        known = known_among(attack, rows, truth.train)
        if known is None:
            found.append(scorer.unavailable(attack, TOO_FEW))
        else:
            found += scorer.entries(attack, replace(view, known=known), truth)
    return found


class JointObserver:
    """An observer that keeps a sample of a party's row memory, and runs joint attacks on it after training.

    Parameters
    ----------
    attacks : Sequence[JointAttack]
        The attacks that are run.
    table : PartyTable
        The party's columns.
    labels, test_labels : AuditLabels
        The true labels of training and test rows, for the scorer and for the few rows that an attack knows.
    schedule : Schedule
        Gives the batches of the rows in time order.
    party : str
        The feature party.
    defended : bool
        True if any defense is in force.
    placement : Placement
        The device of the bottom model.
    seed : int
        Seed of the attacks' own randomness.
    """

    def __init__(
        self,
        attacks: Sequence[JointAttack],
        table: PartyTable,
        labels: AuditLabels,
        test_labels: AuditLabels,
        schedule: Schedule,
        *,
        party: str,
        defended: bool,
        placement: Placement,
        seed: int = 0,
    ) -> None:
        self._attacks, self._table, self._placement = [attack.fresh() for attack in attacks], table, placement
        self._labels, self._test_labels, self._schedule = labels, test_labels, schedule
        self._party, self._defended = party, defended
        self._seed = seed
        self._columns = sum(prod(tensor.shape[1:]) for tensor in table.train.gather(np.zeros(1, dtype=np.int64)))
        self._rows = np.empty(0, dtype=np.int64)
        self._occurred = 0
        self._gradients: Tensor | None = None
        self.epoch = 0
        """The epoch at the end of which the last sample was taken."""

    def take(self, epoch: int, memory: Memory) -> None:
        """Take the mean gradients of the sampled rows at the end of an epoch (from 1); earlier ones are dropped."""
        if memory.rows != self._occurred:
            batches = self._schedule.batches_of(memory.order)
            self._rows = sample_rows(memory.order, most_rows(memory.width, columns=self._columns), batches)
            self._occurred = memory.rows
        self._gradients, self.epoch = memory.at(self._rows, "mean"), epoch

    @property
    def taken(self) -> bool:
        """True if this process has the sample."""
        return self._gradients is not None

    def entries(self, bottom: nn.Module, why: str = "") -> list[dict[str, Any]]:
        """Run every attack on the trained model, and return its entries for `result.json`.

        Parameters
        ----------
        bottom : nn.Module
            The trained bottom model.
        why : str
            The reason for an empty row memory, if it is empty.
        """
        labels, positive = self._labels, self._labels.positive(0)
        scorer = JointEvaluator(party=self._party, defended=self._defended, positive=positive, classes=labels.classes)
        if self._gradients is None:
            why = why or "training ended before its first epoch did"
            return [scorer.unavailable(attack, why) for attack in self._attacks]
        most = WIDE_ROWS if self._columns > 1024 else TEST_ROWS
        test_rows = sample_rows(np.arange(len(self._table.test) if self._test_labels.complete else 0), most)
        train, test = self._own(bottom, self._table.train, self._rows), self._own(bottom, self._table.test, test_rows)
        truth = JointLabels(
            labels.at(self._rows) == positive,
            self._test_labels.at(test_rows) == positive,
            self._schedule.batches_of(self._rows),
        )
        view = JointView(self._gradients, train, test, words=self._table.spec.vocabulary > 0, seed=self._seed)
        return _entries(scorer, self._attacks, view, self._rows, truth)

    def _own(self, bottom: nn.Module, source: FeatureSource, rows: NDArray[np.int64]) -> OwnRows:
        """Return the party's columns and embeddings of rows, in main memory."""
        pieces = [rows[low : low + BATCH] for low in range(0, len(rows), BATCH)] or [rows]
        if not len(rows):
            shape = self._own(bottom, self._table.train, self._rows[:2])
            return OwnRows(tuple(tensor[:0] for tensor in shape.inputs), shape.embeddings[:0])
        embedded = [widened(embed(bottom, source, piece, self._placement)).cpu() for piece in pieces]
        return OwnRows(source.gather(rows), torch.cat(embedded))

    def state(self) -> dict[str, Any]:
        """Return the epoch of the sample, which is taken again from the files of the row memory."""
        return {"epoch": self.epoch}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`."""
        self.epoch, self._gradients, self._occurred = int(state["epoch"]), None, 0
