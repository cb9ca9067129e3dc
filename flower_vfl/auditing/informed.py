"""The informed audit: readers of the gradients sent to one party, which the label party fits to its own labels.

A named attack is one fixed rule. A reader that was fitted to the labels of half of the rows is the best of many rules,
and can break a defense that no named attack breaks. The label party has all labels: it needs no other party for the
audit, and sends nothing of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flower_vfl.attacks.joint import JointView
from flower_vfl.attacks.joint.regression import evidence
from flower_vfl.attacks.longitudinal.base import batch_scales, centred_in_batch_units, centred_signs
from flower_vfl.attacks.rows import as_rows
from flower_vfl.auditing.batched_scoring import MOST_PENDING_BYTES, STEPS_AT_ONCE
from flower_vfl.auditing.collected import Collected
from flower_vfl.auditing.columns import joint_view, read_with_columns
from flower_vfl.auditing.context import for_products, in_context, in_steps_around, scores_around
from flower_vfl.auditing.entries import AUDIT
from flower_vfl.auditing.epsilon import Evidence
from flower_vfl.auditing.features import GradientFeatures, with_embeddings
from flower_vfl.auditing.halves import Split
from flower_vfl.auditing.members import ALONE, Members
from flower_vfl.auditing.panel import Membership, RowPanel
from flower_vfl.auditing.panel_attacks import BATCH_SCALES, DIRECTION, panel_entries, results_of, scores_of
from flower_vfl.auditing.readers import (
    DISCRIMINANTS,
    IN_CONTEXT,
    LARGEST_FIT,
    LEARNERS,
    OF_PRODUCTS,
    OF_SIGNS,
    OF_STEPS_AROUND,
    WITHIN_BATCH,
    Fit,
)
from flower_vfl.auditing.recorder import Recorder
from flower_vfl.auditing.selection import (
    SPAN_BATCH,
    SPAN_EPOCH,
    SPAN_EPOCHS,
    SURE,
    FittedReader,
    Sample,
    best,
    best_gain,
    candidates,
    linear_scores,
    measured,
    ranks_within,
    strongest,
)
from flower_vfl.auditing.verdict import INFORMED
from flower_vfl.data.store.dataset import PartyTable
from flower_vfl.metrics import LeakSummary, leak_auc
from flower_vfl.protocol.schedule import Rows, Schedule, is_scored
from flower_vfl.protocol.tensors import brought

MOST_BYTES = 1 << 27
"""Largest number of bytes of one sample of rows, and of the panel."""

FEW_ROWS = 16384
"""Number of rows of an epoch up to which every step of it is sampled."""

QUICK = 4096
"""Largest number of rows of an epoch that discriminants read during training."""

SMALLEST_FIT = 2048
"""Smallest limit of the rows to which trees and a network are fitted, for any number of audits."""

Views: TypeAlias = list[tuple[str, Tensor]]
"""Inputs of readers: the columns (n, F) of all members, named "", and those of each member of a group."""

_GRADIENTS, _EMBEDDINGS = "gradients", "embeddings"


def informed_rows(wanted: int, numbers: int) -> int:
    """Return the number of rows to keep, of ``numbers`` numbers each: at most ``wanted``, within `MOST_BYTES`."""
    return min(wanted, MOST_BYTES // (4 * max(numbers, 1)))


class InformedAudit:
    """An audit of one party: a bounded sample of its embeddings and received gradients, and the readers of it.

    While training goes on, discriminants read the sample of each epoch. At the end all readers read the sample of the
    epoch that leaked most, each batch of it, and a panel of rows that was followed over all epochs.

    Parameters
    ----------
    labels : NDArray
        (N,) true class of each row of the training table; they do not leave this object.
    classes : int
        Number of classes.
    positives : Sequence[int]
        Classes that are read.
    schedule : Schedule
        Gives the rows of each step, and the end of each epoch.
    split : Split
        Split of the rows: to fit readers, to choose one, to score it, and canaries.
    party : str
        The feature party that is audited, or a colluding group such as "a+b".
    members : Sequence[str]
        The parties of a colluding group; empty for a single party. Readers use the numbers of all, and of each one
        alone.
    defended : bool
        True if any defense is in force.
    recorder : Recorder
        Recorder of the values of each epoch.
    rows : int
        Number of rows that are kept.
    every : int
        Number of steps of which one is sampled in an epoch of many rows.
    remembered : Sequence[str]
        Names of the longitudinal attacks that read the panel, after each epoch, for each class that is read.
    audits : int
        Number of audits that share the seconds that readers may take at the end of a run.
    """

    def __init__(
        self,
        labels: NDArray[Any],
        classes: int,
        positives: Sequence[int],
        schedule: Schedule,
        split: Split,
        *,
        party: str,
        defended: bool,
        recorder: Recorder,
        rows: int,
        members: Sequence[str] = (),
        every: int = 1,
        remembered: Sequence[str] = (DIRECTION,),
        audits: int = 1,
    ) -> None:
        self._labels, self._classes, self._positives = labels, classes, list(positives)
        self._schedule, self._split, self._party = schedule, split, party
        self._defended, self._recorder = defended, recorder
        self._most_rows, self._every = rows, every
        most = max(LARGEST_FIT // audits, SMALLEST_FIT)
        self._fits: dict[str, Fit] = {
            **DISCRIMINANTS,
            **{name: partial(learner, most=most) for name, learner in LEARNERS.items()},
        }
        self._names, self._members, self._features = tuple(members), ALONE, GradientFeatures()
        self._panel: RowPanel | None = None
        self._current, self._kept = Collected(), Collected()
        self._kept_auc = -math.inf
        self._remembered = {name: results_of(name, party, self._positives, defended=defended) for name in remembered}
        self._pending: list[tuple[int, int, Rows, Tensor, Tensor]] = []
        self._entries: list[dict[str, Any]] | None = None
        self._with_columns: list[dict[str, Any]] = []
        self._evidence = Evidence(party, np.zeros(0, dtype=np.int64), np.zeros((0, 0)), (), ())

    def observe(self, step: int, epoch: int, rows: Rows, z: Tensor, g: Tensor, widths: Sequence[int] = ()) -> None:
        """Take in one step: received embeddings (B, ...) and the gradients (B, ...) that are sent.

        For a group, ``widths`` are the numbers of columns of each member, in embeddings as in gradients.
        """
        if self._names != self._members.names:
            self._set_members(widths)
        self._pending.append((step, epoch, rows, z, g))
        last = step == self._schedule.steps_of(epoch)[-1]
        held = sum(z.nbytes + g.nbytes for *_, z, g in self._pending)
        if last or len(self._pending) >= STEPS_AT_ONCE or held > MOST_PENDING_BYTES:
            self._settle()
        if last:
            self._end_epoch(step, epoch)

    def _set_members(self, widths: Sequence[int]) -> None:
        """Set the members with their widths, which are empty before the first batch."""
        self._members = Members(self._names, tuple(widths)) if widths else ALONE
        self._features = GradientFeatures(self._members)

    def _settle(self) -> None:
        """Process the pending steps in main memory: in a row they take less time, and a GPU is waited for once."""
        pending, self._pending = self._pending, []
        tensors = [as_rows(tensor) for _, _, _, z, g in pending for tensor in (z, g)]
        if tensors and tensors[0].device.type != "cpu":
            tensors = brought(tensors)
        for (step, epoch, rows, _, _), z, g in zip(pending, tensors[::2], tensors[1::2], strict=True):
            self._add_step(step, epoch, rows, z.float(), g)

    def _add_step(self, step: int, epoch: int, rows: Rows, z: Tensor, g: Tensor) -> None:
        panel = self._panel or self._make_panel(g.shape[1], z.shape[1])
        found, places = panel.places(rows)
        if found.size:
            x, at = centred_in_batch_units(g), torch.from_numpy(found)
            signs = centred_signs(g).index_select(0, at)
            scales = batch_scales(g)[:, 0] if BATCH_SCALES in self._remembered else torch.zeros(len(g))
            panel.add(places, x.index_select(0, at), signs, z.index_select(0, at), scales.index_select(0, at))
        if self._samples(step, epoch, g.shape[1] + self._features.more + z.shape[1]):
            self._current.add(step, rows, self._features.of(g), z)

    def _make_panel(self, width: int, z_width: int) -> RowPanel:
        count = informed_rows(self._most_rows // 4, 4 * width + z_width)
        membership = Membership(self._split, self._labels, self._classes, count, self._schedule)
        self._panel = RowPanel(membership, width, z_width, self._members)
        return self._panel

    def _samples(self, step: int, epoch: int, numbers: int) -> bool:
        """Return True if a step of rows with so many numbers is sampled: where steps are left out, two in a row.

        The sample has `FEW_ROWS` rows at least, if the epoch has as many; with more it has one step in `every`.
        """
        steps = self._schedule.steps_of(epoch)
        batch = max(1, self._schedule.batch_rows(steps[0]))
        most = max(1, informed_rows(self._most_rows, numbers) // batch)
        together = 2 if most > 1 else 1
        blocks = -(-len(steps) // together)
        apart = min(self._every, max(1, len(steps) * batch // FEW_ROWS))
        return is_scored((step - steps[0]) // together, max(apart, -(-blocks // (most // together))))

    def _end_epoch(self, step: int, epoch: int) -> None:
        """Fit discriminants to the epoch's sample, keep it if it leaks most so far, and attack the panel."""
        if self._panel is not None:
            self._panel.settle()
        sample = self._sample(self._current).thinned(self._classes, QUICK)
        chosen = best(self._read(sample, self._features.views(torch.from_numpy(sample.x)), SPAN_EPOCH, DISCRIMINANTS))
        if chosen is not None:
            self._add(step, epoch, INFORMED, "auc", leak_auc(chosen.scores, chosen.labels))
        reached = -1.0 if chosen is None else chosen.chosen_by
        if reached > self._kept_auc and self._current.steps:
            self._kept, self._kept_auc = self._current, reached
        self._current = Collected()
        if self._panel is not None:
            for name in self._remembered:
                self._run_attack(step, epoch, self._panel, name)

    def _run_attack(self, step: int, epoch: int, panel: RowPanel, attack: str) -> None:
        """Score the randomly drawn rows of the panel by a longitudinal attack.

        The scores are compared with each class against the rest. Of more than one class none is the rarer one by which
        a side is chosen: each has the larger AUC of both sides, and the step log the largest of all.
        """
        rows = panel.arrived.numpy() & panel.random
        numbers = self._labels[panel.rows[rows]]
        counts = {positive: int(np.count_nonzero(numbers == positive)) for positive in self._positives}
        present = [positive for positive, count in counts.items() if 0 < count < len(numbers)]
        if not present:
            return
        scores = scores_of(attack, panel, torch.from_numpy(rows))
        batches = self._schedule.batches_of(panel.rows[rows])
        scores = scores if batches is None else ranks_within(scores, batches)
        found, either_side = self._remembered[attack], len(self._positives) > 1
        values = [found[one].add(epoch, scores, numbers == one, either_side=either_side) for one in present]
        self._add(step, epoch, attack, "remembered_auc", max(values))

    def _add(self, step: int, epoch: int, attack: str, metric: str, value: float) -> None:
        self._recorder.add(
            step=step,
            epoch=epoch,
            party=self._party,
            layer="cut",
            attack=attack,
            metric=f"monitor_{metric}",
            value=value,
        )

    def _sample(self, collected: Collected) -> Sample:
        rows = collected.rows
        y = self._labels[rows].astype(np.int64)
        return Sample(collected.columns.numpy(), y, self._split.parts(rows), collected.batches)

    def _panel_sample(self) -> tuple[Sample, Views, Views] | None:
        """Return the panel's rows, their gradients over all epochs and their last embeddings, as inputs of readers."""
        panel = self._panel
        if panel is None or not len(panel.rows):
            return None
        rows = panel.arrived
        times = torch.log(panel.times.clamp(min=1).float())[rows]
        views = []
        for place, (name, mean) in enumerate(self._members.views(panel.mean[rows])):
            lengths = torch.linalg.vector_norm(mean, dim=1).clamp(min=1e-6).log()
            ends = [dict(self._members.views(kept[rows]))[name] for kept in (panel.first, panel.last)]
            agreement = torch.stack([lengths, lengths + times / 2], dim=1)  # agreement of the epochs' gradients
            summaries = [agreement, panel.lengths[rows, place], panel.likeness[rows, place, None]]
            views.append((name, torch.cat([mean, *ends, *summaries], dim=1)))
        at = panel.rows[rows.numpy()]
        batches = self._schedule.batches_of(at)
        bare = Sample(np.zeros((len(at), 0)), self._labels[at].astype(np.int64), self._split.parts(at), batches)
        return bare, views, self._members.views(panel.embeddings[rows])

    def _read(
        self, sample: Sample, views: Views, span: str, fits: Mapping[str, Fit], *, sure: float = math.inf
    ) -> list[FittedReader]:
        """Return readers fitted to the rows of a sample, on the columns of all members and on those of each member."""
        return [
            replace(candidate, member=name)
            for name, x in views
            for candidate in candidates(
                *(sample.with_columns(x.numpy()), fits, span),
                classes=self._classes,
                positives=self._positives,
                sure=sure,
            )
        ]

    def panel_of(self, tables: Sequence[PartyTable], *, random: bool) -> tuple[NDArray[np.int64], JointView] | None:
        """Return the rows of the panel that have occurred, and their `JointView` with columns; None without any.

        Parameters
        ----------
        tables : Sequence[PartyTable]
            The columns of the party, or of each member.
        random : bool
            True to return only the rows that were drawn regardless of their class.
        """
        self._settle()
        panel = self._panel
        if panel is None or not len(panel.rows):
            return None
        panel.settle()
        arrived = panel.arrived & torch.from_numpy(panel.random) if random else panel.arrived
        rows = panel.rows[arrived.numpy()]
        return rows, joint_view(tables, rows, panel.mean[arrived], panel.embeddings[arrived])

    def read_columns(self, tables: Sequence[PartyTable]) -> None:
        """Fit readers to the panel together with the columns of its parties, which only a simulation has; called once.

        Call it before `finish`, which drops the panel.
        """
        found = self.panel_of(tables, random=False)
        if found is None:
            return
        rows, view = found
        panel = self._panel
        lengths = None
        if panel is not None:
            lengths = torch.cat([panel.lengths.flatten(1), panel.likeness], dim=1)[panel.arrived]
        y, parts = self._labels[rows].astype(np.int64), self._split.parts(rows)
        entry = read_with_columns(
            *(view, y, parts),
            lengths=lengths,
            signs=None if panel is None else panel.mean_sign[panel.arrived],
            batches=self._schedule.batches_of(rows),
            party=self._party,
            defended=self._defended,
            classes=self._classes,
            positives=self._positives,
            members=self._members,
        )
        self._with_columns = [entry]

    def finish(self) -> None:
        """Fit all readers to the kept sample and to the panel; called once, when training has ended."""
        self._settle()
        if self._panel is not None:
            self._panel.settle()
        if not self._kept.steps:
            self._kept, self._current = self._current, Collected()  # training ended within the first epoch
        whole, sample = self._fits, self._sample(self._kept)
        gradients, z = self._features.views(self._kept.columns), self._members.views(self._kept.embeddings)
        alone = self._read(sample, gradients, SPAN_EPOCH, whole, sure=SURE)
        alone += self._read(sample, gradients, SPAN_BATCH, WITHIN_BATCH)
        alone += self._read_context(sample)
        both = [(name, with_embeddings(x, own)) for (name, x), (_, own) in zip(gradients, z, strict=True)]
        joint = self._read(sample, both, SPAN_EPOCH, whole, sure=SURE)
        baselines = {SPAN_EPOCH: self._read(sample, z, SPAN_EPOCH, whole)}
        repeated = self._panel is not None and bool((self._panel.times > 1).any())
        more = self._panel is not None and np.count_nonzero(self._panel.arrived.numpy()) > len(sample.y)
        followed = self._read_panel(whole if repeated or more else DISCRIMINANTS)
        if repeated or more:  # for rows that occurred once, the readers of a whole epoch give the same
            alone, joint = alone + followed[0], joint + followed[1]
            baselines[SPAN_EPOCHS] = followed[2]
        joint += [reader for reader in alone if reader.span in baselines]  # who has more numbers need not use them
        lacking = {positive: why for positive in self._positives if (why := sample.lacking(positive))}
        self._entries = [
            self._entry([_GRADIENTS], alone, None, lacking),
            self._entry([_GRADIENTS, _EMBEDDINGS], joint, baselines, lacking),
        ]
        self._current, self._kept, self._panel = Collected(), Collected(), None

    def _read_context(self, sample: Sample) -> list[FittedReader]:
        """Return readers of a sample's gradients beside others, and of their products, see `context`."""
        width, batches = sample.x.shape[1] - self._features.more, self._kept.batches
        found: list[FittedReader] = []
        for name, part in self._members.views(self._kept.columns[:, :width]):
            scores = linear_scores(sample.with_columns(part.numpy()), self._classes)
            if scores is not None:
                columns = [in_context(part, batches), scores_around(torch.from_numpy(scores).float(), batches)]
                found += self._read(sample, [(name, torch.cat(columns, dim=1))], SPAN_EPOCH, IN_CONTEXT)
            found += self._read(sample, [(name, for_products(part, batches))], SPAN_EPOCH, OF_PRODUCTS)
            around = in_steps_around(part, batches)
            if around is not None:
                found += self._read(sample, [(name, around)], SPAN_EPOCH, OF_STEPS_AROUND)
        return found

    def _read_panel(self, fits: Mapping[str, Fit]) -> tuple[list[FittedReader], list[FittedReader], list[FittedReader]]:
        """Return readers of the panel's gradients, of these with embeddings, of embeddings; keep them as evidence."""
        panel = self._panel_sample()
        if panel is None or self._panel is None:
            return [], [], []
        rows, gradients, z = panel
        alone = self._read(rows, gradients, SPAN_EPOCHS, fits, sure=SURE)
        joint = self._read(rows, _side_by_side(gradients, z), SPAN_EPOCHS, fits, sure=SURE)
        baselines = self._read(rows, z, SPAN_EPOCHS, fits)
        at = self._panel.arrived
        signs = self._members.views(self._panel.mean_sign[at])
        alone += self._read(rows, signs, SPAN_EPOCHS, OF_SIGNS)
        joint += self._read(rows, _side_by_side(signs, z), SPAN_EPOCHS, OF_SIGNS)
        columns = [evidence(mean) for _, mean in self._members.views(self._panel.mean[at])]
        self._evidence = Evidence(
            self._party, self._panel.rows[at.numpy()], torch.cat(columns, dim=1).numpy(), [*alone, *joint], baselines
        )
        return alone, joint, baselines

    def take_evidence(self) -> Evidence:
        """Return the readers' scores of rows that they were not fitted to, after `finish`, and drop them."""
        found, self._evidence = self._evidence, replace(self._evidence, readers=(), without=())
        return found

    @property
    def followed(self) -> tuple[NDArray[np.int64], Tensor]:
        """The rows (n,) that were followed over the epochs, before `finish`, and their last embeddings (n, E)."""
        panel = self._panel
        if panel is None:
            return np.zeros(0, dtype=np.int64), torch.zeros(0, 0)
        panel.settle()
        return panel.rows[panel.arrived.numpy()], panel.embeddings[panel.arrived]

    def _entry(
        self,
        sees: list[str],
        found: Sequence[FittedReader],
        baselines: Mapping[str, Sequence[FittedReader]] | None,
        lacking: Mapping[int, str],
    ) -> dict[str, Any]:
        """Return one entry of ``result.json``; `lacking` has the reason for each class with too few sampled rows."""
        entry = {**LeakSummary(INFORMED, self._party, phase=AUDIT, source="monitor", defended=self._defended).result()}
        entry |= {"label": INFORMED, "sees": sees, "steps": None, "one_class_steps": None}
        chosen = best(found) if baselines is None else best_gain(found, list(chain(*baselines.values())))
        if chosen is None:
            return {**entry, "unavailable": next(iter(lacking.values()), "no row was sampled")}
        unread = {positive: why for positive, why in lacking.items() if positive not in {one.positive for one in found}}
        if unread:
            others = len(unread) - 1
            more = f"; likewise for {others} further class{'es' if others > 1 else ''}" if others else ""
            entry["unread"] = f"{next(iter(unread.values()))}{more}"
        same_span = [] if baselines is None else baselines.get(chosen.span, [])
        return {**entry, **measured(chosen, found, strongest(same_span, chosen.positive))}

    def entries(self) -> list[dict[str, Any]]:
        """Return the entries of ``result.json``; before `finish`, those of the panel only."""
        remembered = chain.from_iterable(panel_entries(found) for found in self._remembered.values())
        return [*remembered, *(self._entries or []), *self._with_columns]

    def state(self) -> dict[str, Any]:
        """Return the state that a resumed run needs, as plain values and tensors."""
        self._settle()
        return {
            "widths": list(self._members.widths),
            "features": self._features.state(),
            "panel": None if self._panel is None else self._panel.state(),
            "now": self._current.state(),
            "kept": self._kept.state(),
            "kept_auc": self._kept_auc,
            "remembered": {
                name: {str(positive): one.state() for positive, one in found.items()}
                for name, found in self._remembered.items()
            },
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`."""
        self._pending, self._entries, self._with_columns = [], None, []
        self._set_members(state["widths"])
        self._features.restore(state["features"])
        self._current, self._kept = Collected.of(state["now"]), Collected.of(state["kept"])
        self._kept_auc = state["kept_auc"]
        for name, found in self._remembered.items():
            for positive, one in found.items():
                one.restore(state["remembered"][name][str(positive)])
        if state["panel"] is not None:
            widths = state["panel"]["sums"].shape[1], state["panel"]["embeddings"].shape[1]
            self._make_panel(*widths).restore(state["panel"])
        else:
            self._panel = None


def _side_by_side(gradients: Views, z: Views) -> Views:
    """Return the columns of gradients and the embeddings of each view, side by side."""
    return [(name, torch.cat([x, own], dim=1)) for (name, x), (_, own) in zip(gradients, z, strict=True)]
