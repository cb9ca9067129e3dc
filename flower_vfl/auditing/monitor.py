"""The leakage monitor: the label party attacks its own messages, so that a deployment is measured too.

It sees the cut layer only. Attacks on a party's earlier layers, or with models that it trains on its own columns, are
measured at that party.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flower_vfl.attacks.base import Attack, AttackMethod
from flower_vfl.attacks.embedding.inference import InferenceAttack, TrainedView
from flower_vfl.attacks.joint import JointAttack
from flower_vfl.attacks.longitudinal.base import MemoryAttack
from flower_vfl.auditing.attacked_view import AttackedView, largest
from flower_vfl.auditing.audit_labels import AuditLabels
from flower_vfl.auditing.columns import read_background
from flower_vfl.auditing.epsilon import audit_epsilon
from flower_vfl.auditing.evaluator import Reference
from flower_vfl.auditing.halves import Split
from flower_vfl.auditing.informed import InformedAudit
from flower_vfl.auditing.joint_view import group_unavailable, read_group
from flower_vfl.auditing.panel_attacks import BATCH_SCALES, DIRECTION
from flower_vfl.auditing.read_only import read_only
from flower_vfl.auditing.recorder import Recorder
from flower_vfl.auditing.selection import FittedReader
from flower_vfl.auditing.trained_model import TrainedModelEvaluator
from flower_vfl.data.store.dataset import PartyTable
from flower_vfl.errors import FlowerVflError
from flower_vfl.protocol.printable import reason_of
from flower_vfl.protocol.schedule import Rows, Schedule
from flower_vfl.protocol.transcript import StepTrace

_log = logging.getLogger(__name__)

Columns: TypeAlias = Callable[[str], PartyTable]
"""Function from the name of a feature party to its columns, which only a simulation has."""


@dataclass(frozen=True, slots=True)
class _View:
    """The monitor's state for one party or colluding group."""

    parties: tuple[str, ...]
    attacked: AttackedView
    informed: InformedAudit | None = None

    def joined(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return these parties' tensors side by side, (B, D); that of one party stays as it is."""
        if len(self.parties) == 1:
            return tensors[self.parties[0]]
        return torch.cat([tensors[party].flatten(1) for party in self.parties], dim=1)

    def reference(self, references: Mapping[str, Reference]) -> Reference | None:
        """Return the joined reference of an oracle for these parties; the row is the same for all."""
        if not references:
            return None
        known = [references[party] for party in self.parties]
        return Reference(known[0].row, {"cut": torch.cat([reference.gradients["cut"] for reference in known])})


class LeakageMonitor:
    """A monitor of the gradients to be sent to each party and, under a defense, of the undefended ones.

    Parameters
    ----------
    parties : Sequence[str]
        Feature parties, and colluding groups of them, such as "a+b".
    attacks : Sequence[AttackMethod]
        The attacks that are run; attacks on the trained model that need leaked labels are left to the parties.
    labels : AuditLabels
        The true labels; they do not leave this object.
    schedule : Schedule
        Gives the end of each epoch, for longitudinal attacks.
    defended : bool
        True if any defense is in force.
    changed : bool
        True if one changes gradients: then those before the change are attacked as well.
    recorder : Recorder
        Recorder of all values.
    every : int
        Steps from one scored step to the next; the row memory takes in every step.
    memory : Path, optional
        Folder of the row memory; without one, the memory ends with the process.
    informed : int
        Number of rows of each party that are kept for informed readers; 0 for no audit.
    split : Split
        Split of the rows: to fit these readers, to choose one, to score it, and canaries.
    delta : float
        Delta of the epsilon that the defenses prove, at which epsilon is measured.
    read_by : Collection[str]
        Names of attacks that are known to read the defenses.
    """

    def __init__(
        self,
        parties: Sequence[str],
        attacks: Sequence[AttackMethod],
        labels: AuditLabels,
        schedule: Schedule,
        *,
        defended: bool,
        changed: bool = True,
        recorder: Recorder,
        every: int,
        memory: Path | None = None,
        informed: int = 0,
        split: Split = Split(0),  # noqa: B008 - it is frozen
        delta: float = 0.0,
        read_by: Collection[str] = (),
    ) -> None:
        self._labels, self._schedule, self._memory = labels, schedule, memory
        stepwise = [attack for attack in attacks if isinstance(attack, Attack)]
        self._trained_attacks = [
            attack for attack in attacks if isinstance(attack, InferenceAttack) and not attack.needs
        ]
        self._trained_entries: list[dict[str, Any]] = []
        self._joint = [attack for attack in attacks if isinstance(attack, JointAttack)]
        self._joint_entries: list[dict[str, Any]] = []
        self.epsilon: dict[str, Any] = {}
        """The lower bounds on epsilon, ``epsilon`` of `result.json`; empty before the end and without readers."""
        longitudinal = [attack for attack in attacks if isinstance(attack, MemoryAttack)]
        self._every, self._defended, self._recorder = every, defended, recorder
        self._informed, self._split, self._delta = informed, split, delta
        self._remembered = [DIRECTION, *([BATCH_SCALES] if BATCH_SCALES in read_by else [])]
        self._audits = sum(1 + len(_members(party)) for party in parties)
        on_steps = [*stepwise, *longitudinal]
        self._sent = [self._view("monitor", party, on_steps, defended=defended) for party in parties]
        of_gradients = [attack for attack in stepwise if attack.sees == "gradients"]  # embeddings do not change
        undefended = [*of_gradients, *longitudinal] if defended and changed else []
        self._clean = [self._view("undefended", party, undefended, defended=False) for party in parties if undefended]
        self._attacks = bool(on_steps)

    def _view(self, view: str, party: str, attacks: Sequence[AttackMethod], *, defended: bool) -> _View:
        """Return the attacks and the audit of one party or colluding group."""
        attacked = AttackedView(
            attacks,
            ["cut"],
            self._labels,
            self._schedule,
            party=party,
            source="monitor",
            defended=defended,
            recorder=self._recorder,
            every=self._every,
            memory=None if self._memory is None else self._memory / f"{view}-{party}",
            prefix=view,
        )
        informed = self._audit(party, attacks) if self._informed and view == "monitor" else None
        return _View(tuple(party.split("+")), attacked, informed)

    def _audit(self, party: str, attacks: Sequence[AttackMethod]) -> InformedAudit:
        """Return the audit that fits readers to the labels, for one party or a colluding group."""
        return InformedAudit(
            self._labels.numbers,
            self._labels.classes,
            self._labels.positives,
            self._schedule,
            self._split,
            party=party,
            defended=self._defended,
            recorder=self._recorder,
            rows=self._informed,
            members=_members(party),
            every=self._every,
            audits=self._audits,
            remembered=[name for name in self._remembered if name not in {attack.label for attack in attacks}],
        )

    @torch.no_grad()
    def observe(
        self,
        step: int,
        epoch: int,
        rows: Rows,
        embeddings: Mapping[str, Tensor],
        gradients: Mapping[str, Tensor],
        *,
        clean: Mapping[str, Tensor] = MappingProxyType({}),
        references: Mapping[str, Reference] = MappingProxyType({}),
    ) -> None:
        """Attack the outgoing gradients and the received embeddings of one step.

        Parameters
        ----------
        step, epoch : int
            The step and its epoch.
        rows : Rows
            (B,) rows of the step.
        embeddings, gradients : Mapping[str, Tensor]
            (B, ...) embeddings received from each party and gradients sent to it.
        clean : Mapping[str, Tensor]
            (B, ...) gradients before any defense; needed where one is in force and gradients are attacked.
        references : Mapping[str, Reference]
            Side information of oracle attacks, by party.
        """
        self.audit(step, epoch, rows, embeddings, gradients)
        for seen, tensors in ((self._sent, gradients), (self._clean, clean)):
            for view in seen:
                if self._attacks and view.attacked.reads(step):
                    cut = {"cut": view.joined(tensors)}
                    trace = StepTrace(step, epoch, read_only(rows), view.joined(embeddings), cut)
                    view.attacked.observe(trace, view.reference(references))

    @torch.no_grad()
    def audit(
        self, step: int, epoch: int, rows: Rows, embeddings: Mapping[str, Tensor], gradients: Mapping[str, Tensor]
    ) -> None:
        """Take one step into the samples of informed readers, see `observe`, and run no attack."""
        for view in self._sent:
            if view.informed is not None:
                widths = [gradients[party].flatten(1).shape[1] for party in view.parties]
                view.informed.observe(step, epoch, rows, view.joined(embeddings), view.joined(gradients), widths)

    @property
    def audited(self) -> list[dict[str, Any] | None]:
        """The state of each view's informed audit, in the order of `state`."""
        return [None if view.informed is None else view.informed.state() for view in (*self._sent, *self._clean)]

    @property
    def latest(self) -> float:
        """The largest leak AUC of one of the last 16 steps, or of longitudinal attacks; costs nothing."""
        return largest(view.attacked.latest for view in self._sent)

    @property
    def epoch_leak(self) -> float:
        """The largest leak of the current epoch, over parties and attacks; scores may be turned around.

        For attacks on steps it is the 95 % quantile over the steps; for longitudinal attacks the last value.
        """
        return largest(view.attacked.epoch_leak for view in self._sent)

    @property
    def reads_trained_models(self) -> bool:
        """True if it has attacks for `read_trained`."""
        return bool(self._trained_attacks)

    def read_trained(
        self,
        embeddings: Mapping[str, Tensor],
        labels: NDArray[Any],
        classes: int,
        seed: Callable[..., int],
        *,
        step: int,
        epoch: int,
    ) -> None:
        """Attack the parties' trained models through their embeddings of the test rows.

        Parameters
        ----------
        embeddings : Mapping[str, Tensor]
            (M, ...) embeddings of each party at the last evaluation.
        labels : NDArray
            (M,) true labels of the test rows.
        classes : int
            Number of classes.
        seed : Callable[..., int]
            Derives a seed for a purpose from the label party's secret.
        step, epoch : int
            Numbers of trained steps and of trained epochs, under which the values are logged.
        """
        for view in self._sent:
            party = "+".join(view.parties)
            scorer = TrainedModelEvaluator(
                labels,
                classes,
                party=party,
                source="monitor",
                defended=self._defended,
                recorder=self._recorder,
                step=step,
                epoch=epoch,
            )
            z = view.joined(embeddings)
            for attack in self._trained_attacks:
                draws = (TrainedView(z, classes, seed(attack.label, draw)) for draw in range(attack.draws))
                self._trained_entries.append(scorer.entry(attack, "cut", draws))

    def state(self) -> list[dict[str, Any]]:
        """Return the measurements so far, as plain values."""
        return [
            {
                **view.attacked.state(),
                "informed": None if view.informed is None else view.informed.state(),
            }
            for view in (*self._sent, *self._clean)
        ]

    def restore(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Restore the result of `state`."""
        for view, entry in zip((*self._sent, *self._clean), state, strict=True):
            view.attacked.restore(entry)
            view.attacked.check()
            if view.informed is not None:
                view.informed.restore(entry["informed"])

    def entries(self) -> list[dict[str, Any]]:
        """Return all entries of parties and attacks for `result.json`."""
        views = (*self._sent, *self._clean)
        audits = [view.informed for view in views if view.informed is not None]
        return [
            *(entry for view in views for entry in view.attacked.step_entries()),
            *(entry for view in views for entry in view.attacked.longitudinal_entries()),
            *(entry for audit in audits for entry in audit.entries()),
            *self._joint_entries,
            *self._trained_entries,
        ]

    def finish_audit(self, columns: Columns | None = None, own: PartyTable | None = None) -> None:
        """Run the informed readers on their samples, and bound epsilon; called once, when training has ended.

        With the parties' ``columns``, which only a simulation has, readers of gradients with columns run, too, and the
        joint attacks on colluding parties. The readers' guesses bound epsilon from below; ``own`` are the label party's
        columns, from which the odds of labels are estimated, too.
        """
        followed = [view.informed.followed for view in self._sent if view.informed and len(view.parties) == 1]
        for view in self._sent:
            if columns is not None:
                self._read_columns(view, columns)
            if view.informed is not None:
                view.informed.finish()
        if self._informed:
            self.epsilon = self._audit_epsilon(self._tables(columns, own), followed)

    def _tables(self, columns: Columns | None, own: PartyTable | None) -> list[PartyTable]:
        """Return the tables of all available columns."""
        tables = [] if own is None else [own]
        try:
            parties = [] if columns is None else [view.parties[0] for view in self._sent if len(view.parties) == 1]
            features = [columns(party) for party in parties] if columns is not None else []
        except (FlowerVflError, OSError) as error:
            _log.warning("the odds of labels are estimated without the parties' columns: %s", reason_of(error))
            return tables
        return [*features, *tables]

    def _audit_epsilon(
        self, tables: Sequence[PartyTable], followed: Sequence[tuple[NDArray[np.int64], Tensor]]
    ) -> dict[str, Any]:
        """Return the lower bounds on epsilon from the readers' scores, see `audit_epsilon`."""
        found = [view.informed.take_evidence() for view in self._sent if view.informed is not None]
        background: list[list[FittedReader]] = [[] for _ in found]
        if not self._split.canaries.size:
            known: dict[bytes, list[FittedReader]] = {}
            for place, one in enumerate(found):
                if one.readers and one.rows.tobytes() not in known:
                    known[one.rows.tobytes()] = self._background(one.rows, tables, followed)
                background[place] = known.get(one.rows.tobytes(), [])
        canaries = self._split.canaries.size
        return audit_epsilon(found, background, classes=self._labels.classes, canaries=canaries, delta=self._delta)

    def _background(
        self,
        rows: NDArray[np.int64],
        tables: Sequence[PartyTable],
        followed: Sequence[tuple[NDArray[np.int64], Tensor]],
    ) -> list[FittedReader]:
        """Return readers of these rows without gradients, fitted to all available columns and embeddings."""
        known = [z[at.searchsorted(rows)] for at, z in followed if at.size and bool(np.isin(rows, at).all())]
        return read_background(
            tables,
            rows,
            torch.cat([torch.zeros(len(rows), 0), *known], dim=1),
            self._labels.at(rows).astype(np.int64),
            self._split.parts(rows),
            classes=self._labels.classes,
            positives=list(self._labels.positives),
        )

    def _read_columns(self, view: _View, columns: Columns) -> None:
        """Run readers and, for several parties, joint attacks on gradients together with columns."""
        party, audit = "+".join(view.parties), view.informed
        try:
            tables = [columns(member) for member in view.parties]
        except (FlowerVflError, OSError) as error:  # training is done, and must not be lost
            _log.warning("no reader reads the gradients of %s with columns: %s", party, reason_of(error))
            return
        joint = [attack for attack in self._joint if len(view.parties) > 1]
        found = None if audit is None or not joint else audit.panel_of(tables, random=True)
        if found is not None:
            rows, together = found
            self._joint_entries += read_group(
                *(joint, together, rows, self._labels, self._schedule), party=party, defended=self._defended
            )
        elif joint:
            why = "no rows of these parties were kept: set attack.informed above 0"
            self._joint_entries += group_unavailable(joint, why, self._labels, party=party, defended=self._defended)
        if audit is not None:
            audit.read_columns(tables)

    def forget(self) -> None:
        """Release the row memory, once training has ended."""
        for view in (*self._sent, *self._clean):
            view.attacked.forget()
        if self._memory is not None:
            shutil.rmtree(self._memory, ignore_errors=True)


def _members(party: str) -> list[str]:
    """Return the members of a group such as "a+b"; none for a single party."""
    return party.split("+") if "+" in party else []
