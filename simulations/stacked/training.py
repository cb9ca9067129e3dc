"""The training of many runs as one, without frames: the parties' computations, for all runs at once.

Every run has its own weights, order of rows, noise and dropout, drawn as the run by itself draws them. Only the order
in which products add up their terms differs, and with it the last digit of a float.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import vmap

from flower_vfl.attacks.base import RowAttack
from flower_vfl.auditing.attacker import chosen_layers
from flower_vfl.data.store.memory import VerticalData
from flower_vfl.errors import ConfigError
from flower_vfl.metrics import Values, snapshot
from flower_vfl.metrics.of_many_runs import utilities
from flower_vfl.nn.dropout import bound_generators
from flower_vfl.nn.ensemble import mixture
from flower_vfl.nn.stacked import Stack
from flower_vfl.parties.hooks import StepView, checked_log
from flower_vfl.parties.network import JoinedEmbeddings, LabelModel
from flower_vfl.protocol.schedule import RowsPart, Schedule, is_scored
from flower_vfl.simulations.stacked.feeding import Feeding
from flower_vfl.simulations.stacked.member import Member, Trained, TrainedPart
from flower_vfl.simulations.stacked.reading import CLEAN, SENT, Batch, Readers, StackedView, batch_of
from flower_vfl.simulations.stacked.records import Curves, Recorded, Records, RunRecorder, ViewResults, measured
from flower_vfl.strategies import Outcome
from flower_vfl.strategies.gradients.base import GradientDefense
from flower_vfl.tracking import Series
from flower_vfl.training.assembly import build_monitor
from flower_vfl.training.factories import optimizers_of
from flower_vfl.training.outcome import Epoch

LOSS: Series = ("label", "", "", "train_loss")

SETTLE_STEPS = 64
"""Number of steps after which losses and leaks are read from the device, and runs that diverged are found."""

Gradients = dict[tuple[str, str, str], Tensor]
StepProgress = Callable[[int, int, float], None]
"""A function that receives the number of steps done, their total, and the mean loss."""


class StackedTraining:
    """A training loop for the members of a stack together.

    Parameters
    ----------
    members : Sequence[Member]
        The R runs, with the same data set, architecture and configuration, except seeds and defenses.
    dataset : VerticalData
        The data.
    on_snapshot : Callable, optional
        Function that receives the number of a run, a step, and the values of its snapshot.

    Attributes
    ----------
    diverged
        (R,) True for runs that have had a loss or a prediction that is not finite; their records are meaningless.

    Raises
    ------
    ConfigError
        When the data or the model cannot be stacked.
    """

    def __init__(
        self,
        members: Sequence[Member],
        dataset: VerticalData,
        on_snapshot: Callable[[int, int, Values], None] = lambda run, step, values: None,
    ) -> None:
        first = members[0]
        if first.labels.classes != 2:
            raise ConfigError(f"runs in a stack learn two classes, this data has {first.labels.classes}")
        self._members, self._on_snapshot = list(members), on_snapshot
        self._config, self._base = first.config, first.strategy.base
        self._parties, self._labels = self._base.parties, first.labels
        self._device = first.config.device
        schedules = [member.schedule for member in members]
        self._feeding = Feeding(schedules, dataset, self._base.table, self._device)
        self.records, self.diverged = Records(len(members)), np.zeros(len(members), dtype=bool)
        self.epochs: list[list[Epoch]] = [[] for _ in members]
        self._losses: list[Tensor] = []
        self.steps, self.seconds = 0, 0.0
        self._every = self._config.cadence(first.schedule.steps)
        self._values: list[list[Recorded]] = [[] for _ in members]
        self._audits = [
            build_monitor(member.strategy, member.schedule, recorder=RunRecorder(values))
            for member, values in zip(members, self._values, strict=True)
        ]
        self._build()
        self._plan_readings()

    def _build(self) -> None:
        first, schedule = self._members[0], self._members[0].schedule
        self._watched = {
            party: chosen_layers(first.bottoms[party], self._config.attack.layers, party)
            if party in self._attackers
            else {}
            for party in self._parties
        }
        self._bottoms = {
            party: Stack([member.bottoms[party] for member in self._members], watched=self._watched[party])
            for party in self._parties
        }
        self._top = Stack([member.label.module for member in self._members], self._logits)
        self._optimizers = {
            party: optimizers_of(self._config, stack.module, schedule) for party, stack in self._bottoms.items()
        }
        self._top_optimizers = optimizers_of(self._config, self._top.module, schedule)
        self._dropout = {party: bool(bound_generators(first.bottoms[party])) for party in self._parties}
        self._defended: list[tuple[type[GradientDefense], list[GradientDefense], Tensor]] = []
        kinds: dict[tuple[type[GradientDefense], str], list[tuple[int, GradientDefense]]] = {}
        for run, member in enumerate(self._members):
            for defense in member.strategy.chain():
                if isinstance(defense, GradientDefense):
                    kinds.setdefault((type(defense), defense.scope), []).append((run, defense))
        for (kind, _), entries in kinds.items():
            runs = torch.tensor([run for run, _ in entries], device=self._device)
            self._defended.append((kind, [defense for _, defense in entries], runs))

    @property
    def _attackers(self) -> list[str]:
        """The parties with attacks that are scored during training."""
        return self._members[0].audited if self._base.step_attacks else []

    def _logits(self, module: nn.ModuleDict, parts: Sequence[Tensor], own: Sequence[Tensor]) -> Tensor:
        """Call one run's network of the label party."""
        bottom = dict(module.named_children()).get("bottom")
        model = LabelModel(module["top"], self._base, self._parties, bottom=bottom, fusion=self._config.model.fusion)
        return model.join(list(parts), [] if bottom is None else [bottom(*own)], apart=module.training)

    def _plan_readings(self) -> None:
        """Set up the readers: the gradients that are attacked, and the names of the records."""
        attacks = [attack for attack in self._base.step_attacks if isinstance(attack, RowAttack)]
        monitors = self._config.attack.monitor
        changed = np.array([member.strategy.changes_gradients for member in self._members])
        layers = {party: self._config.attack.layers or ["cut", *self._watched[party]] for party in self._attackers}
        views: list[StackedView] = []
        for party in self._parties:
            names = ("",) * ("cut" in layers.get(party, [])) + ("monitor",) * monitors
            views += [StackedView((party,), "cut", SENT, names)] if names else []
            views += [StackedView((party,), layer, SENT, ("",)) for layer in layers.get(party, []) if layer != "cut"]
        groups = [tuple(members) for members in self._config.parties.coalitions(self._parties).values()]
        views += [StackedView(group, "cut", SENT, ("monitor",)) for group in groups if monitors]
        if monitors and changed.any():
            alone_and_groups = [*((party,) for party in self._parties), *groups]
            views += [StackedView(group, "cut", CLEAN, ("undefended",)) for group in alone_and_groups]
        self._readers = Readers(attacks, views if attacks else [], changed)
        self._layers = layers
        self._audit = self._base.audit_labels

    def _positive(self, step: int) -> int:
        """Return the class that attacks detect in a step."""
        return self._audit.positive(step // self._every)

    def _positives_in(self, step: int, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return the mask (B,) of the rows of that class."""
        found: NDArray[np.bool_] = self._audit.at(rows) == self._positive(step)
        return found

    def dry_run(self, steps: int) -> float:
        """Do some steps of the first epoch and one evaluation batch; return the seconds of a step."""
        self._feeding.begin_epoch(1)
        self._step(0, 1)  # excludes what is done once
        self._settle(lambda *_: None)
        began = time.perf_counter()
        for step in range(steps):
            self._step(step % self._members[0].schedule.steps_of(1).stop, 1)
        self._settle(lambda *_: None)
        seconds = (time.perf_counter() - began) / steps
        self._predict("test", most=1)
        return seconds

    def train(self, progress: StepProgress = lambda step, steps, loss: None) -> None:
        """Train all runs to the end of their schedule; stop where every run has diverged."""
        schedule, began = self._members[0].schedule, time.perf_counter()
        for epoch in range(1, schedule.epochs + 1):
            self._feeding.begin_epoch(epoch)
            for step in schedule.steps_of(epoch):
                self._step(step, epoch)
                self.steps = step + 1
                last = self.steps == schedule.steps_of(epoch).stop
                if last or self.steps % SETTLE_STEPS == 0:
                    self._settle(progress)
                    if self.diverged.all():
                        return
            self._evaluate(epoch)
        self.seconds = time.perf_counter() - began

    def _step(self, step: int, epoch: int) -> None:
        rows, which = self._feeding.rows(step), self._feeding.which
        labels = self._feeding.per_run(
            [torch.from_numpy(self._members[0].prepared[part].astype(np.int64)) for part in rows]
        )
        embeddings = {party: self._bottoms[party](*self._feeding.columns(party, rows)) for party in self._parties}
        seen = {party: dict(stack.seen) for party, stack in self._bottoms.items()}  # outputs of the watched layers
        received = JoinedEmbeddings(embeddings, labels)
        logits = self._top(list(received.parts.values()), self._feeding.own(rows))
        losses = vmap(lambda one, y: self._base.loss(one, y, one)[0])(logits, labels)
        self._top_optimizers.zero_grad()
        wanted = step in self._config.attack.snapshots and logits.dim() == 2
        slopes = received.slopes(logits) if wanted else None
        joint = received.backward(losses.sum())
        protected, logs = self._protect(joint, labels, rows, logits, received.parts)
        self._top_optimizers.step()
        sent, clean = received.split(protected), received.split(joint)
        reads = bool(self._readers.views) and is_scored(step, self._every)
        references: dict[tuple[str, str], Tensor] = {}
        if reads:
            positive = [self._positives_in(step, part) for part in rows]
            batch = batch_of(positive, which, step, self._readers.most_hints)
            if self._readers.refers:
                references = self._reference_gradients(rows, batch, embeddings, seen, clean)
        gradients = self._learn(embeddings, seen, sent)
        if reads:
            gradients |= {(party, "cut", CLEAN): tensor for party, tensor in clean.items()}
            with torch.no_grad():
                self._readers.read(step, epoch, batch, gradients, references)
        self._audit_runs(step, epoch, rows, embeddings, sent)
        self._record(step, epoch, rows, losses, logs)
        if slopes is not None:
            self._snapshot(step, labels, logits, slopes, joint)

    def _audit_runs(
        self,
        step: int,
        epoch: int,
        rows: Sequence[NDArray[np.int64]],
        embeddings: Mapping[str, Tensor],
        sent: Mapping[str, Tensor],
    ) -> None:
        """Pass the embeddings and sent gradients of each run to its monitor, whose informed audits sample them."""
        if not self._config.attack.informed:
            return
        for run, monitor in enumerate(self._audits):
            if monitor is not None and not self.diverged[run]:
                shown = ({party: tensor[run].detach() for party, tensor in each.items()} for each in (embeddings, sent))
                monitor.audit(step, epoch, rows[self._feeding.orders[run]], *shown)
        self.records.add_runs(self._values)

    def _protect(
        self,
        joint: Tensor,
        labels: Tensor,
        rows: Sequence[NDArray[np.int64]],
        logits: Tensor,
        embeddings: Mapping[str, Tensor],
    ) -> tuple[Tensor, list[dict[str, float]]]:
        """Return the gradients (R, B, D) after the defenses, and the log of each run's defense."""
        protected, logs = joint.clone(), [dict[str, float]() for _ in self._members]
        given = [each.detach() for each in logits]
        if self._config.model.ensemble > 1:
            given = [mixture(each) for each in given]
        steps = [
            StepView(
                rows[order],
                self._base.widths,
                given[run],
                {party: part[run].detach() for party, part in embeddings.items()},
            )
            for run, order in enumerate(self._feeding.orders)
        ]
        for kind, defenses, runs in self._defended:
            views = [steps[run] for run in runs.tolist()]
            protected[runs], found = kind.protect_runs(defenses, joint[runs], labels[runs], views)
            for run, log in zip(runs.tolist(), found, strict=True):
                logs[run] = checked_log(log, "protect")
        return protected, logs

    def _learn(
        self, embeddings: Mapping[str, Tensor], seen: Mapping[str, Mapping[str, Tensor]], sent: Mapping[str, Tensor]
    ) -> Gradients:
        """Do the feature parties' optimizer steps; return their gradients at the cut and at watched layers."""
        gradients: Gradients = {(party, "cut", SENT): tensor for party, tensor in sent.items()}
        for party, z in embeddings.items():
            for layer, output in seen[party].items():
                keep = partial(gradients.__setitem__, (party, layer, SENT))
                output.register_hook(keep)  # type: ignore[no-untyped-call]
            self._optimizers[party].zero_grad()
            torch.autograd.backward(z, sent[party])
            self._optimizers[party].step()
        return gradients

    def _reference_gradients(
        self,
        rows: Sequence[NDArray[np.int64]],
        batch: Batch,
        embeddings: Mapping[str, Tensor],
        seen: Mapping[str, Mapping[str, Tensor]],
        clean: Mapping[str, Tensor],
    ) -> dict[tuple[str, str], Tensor]:
        """Return the clean gradients (R, D) of the reference rows at the cut and, by backward pass, at watched layers.

        They are computed in a pass of that row alone. With dropout, which such a pass would draw again, they are
        computed in the graph of the batch.
        """
        found: dict[tuple[str, str], Tensor] = {}
        for party, gradient in clean.items():
            place = batch.reference[:, None]
            cut = batch.at(place, gradient.flatten(2))
            found[party, "cut"] = cut[:, 0]
            if not seen[party]:
                continue
            if self._dropout[party]:
                z, layers = embeddings[party], seen[party]
                seed = torch.zeros_like(z.flatten(2)).scatter(1, place[..., None].expand_as(cut), cut).view_as(z)
            else:
                # Twice, since a model need not accept a batch of one row.
                twice = [part[[row, row]] for part, row in zip(rows, batch.references, strict=True)]
                z = self._bottoms[party](*self._feeding.columns(party, twice))
                layers = self._bottoms[party].seen
                seed = torch.cat([cut, torch.zeros_like(cut)], dim=1).view_as(z)
                place = torch.zeros_like(place)
            back = torch.autograd.grad(z, list(layers.values()), seed, retain_graph=self._dropout[party])
            for layer, g in zip(layers, back, strict=True):
                found[party, layer] = batch.at(place, g.flatten(2))[:, 0]
        return found

    def _snapshot(self, step: int, labels: Tensor, logits: Tensor, slopes: Tensor, joint: Tensor) -> None:
        for run in np.flatnonzero(~self.diverged).tolist():
            parts = (labels[run], logits[run].detach(), slopes[run], joint[run])
            self._on_snapshot(run, step, snapshot(*parts, generator=np.random.default_rng(step)))

    def _record(
        self,
        step: int,
        epoch: int,
        rows: Sequence[NDArray[np.int64]],
        losses: Tensor,
        logs: Sequence[Mapping[str, float]],
    ) -> None:
        self._losses.append(losses.detach())
        self.records.add_logs(step, epoch, logs)
        positives = np.array([np.count_nonzero(self._positives_in(step, part)) for part in rows])
        counts = {"batch_rows": np.array([part.size for part in rows]), "batch_positives": positives}
        for metric, values in counts.items():
            self.records.add(("label", "", "", metric), step, epoch, values[self._feeding.orders])

    def _settle(self, progress: StepProgress) -> None:
        """Read the losses and leaks since the last call from the device, and find runs that diverged."""
        losses = torch.stack(self._losses).double().cpu().numpy()
        schedule = self._members[0].schedule
        for ago, values in enumerate(losses, start=self.steps - len(losses)):
            self.records.add(LOSS, ago, schedule.epoch_of(ago), values)
        self._losses = []
        self.diverged |= ~np.isfinite(losses).all(axis=0)
        self._readers.settle(self.records, self.diverged)
        well = losses[-1][~self.diverged]
        progress(self.steps, schedule.steps, float(well.mean()) if well.size else math.nan)

    def _evaluate(self, epoch: int) -> None:
        """Measure the predictions of each run for its validation rows and for the test rows."""
        losses = [self.records.of_epoch(LOSS, epoch, run) for run in range(len(self._members))]
        found = {"train_loss": np.array(losses).mean(axis=1)}
        parts: tuple[RowsPart, ...] = ("validation", "test")
        for part in parts:
            logits = self._predict(part)
            if not logits.shape[1]:
                continue
            self.diverged |= ~torch.isfinite(logits).flatten(1).all(dim=1).cpu().numpy()
            truth = self._labels.test if part == "test" else self._labels.train
            rows = self._feeding.all_evaluated(part)
            labels = self._feeding.per_run([torch.from_numpy(truth[chosen].astype(np.int64)) for chosen in rows])
            measures = utilities(logits.nan_to_num(), labels)  # the values of runs that diverged are not used
            found |= {f"{part}_{name}": values.cpu().numpy() for name, values in measures.items()}
        for run, entries in enumerate(self.epochs):
            entries.append({"epoch": epoch, **{name: float(values[run]) for name, values in found.items()}})
        for name, values in found.items():
            metric = "epoch_train_loss" if name == "train_loss" else name
            self.records.add(("label", "", "", metric), self.steps - 1, epoch, values)
        self.records.add_all(self.steps - 1, epoch, [member.label.end_epoch() for member in self._members])

    @torch.no_grad()
    def _predict(self, part: RowsPart, most: int | None = None) -> Tensor:
        """Return each run's logits (R, N) for a part of the rows, or for its first `most` batches."""
        pieces = [torch.zeros(len(self._members), 0, device=self._device)]
        for rows in islice(self._feeding.evaluated(part), most):
            test = part == "test"
            columns = {party: self._feeding.columns(party, rows, test=test) for party in self._parties}
            z = [self._bottoms[party](*columns[party], train=False) for party in self._parties]
            pieces.append(self._top(z, self._feeding.own(rows, test=test), train=False))
        return torch.cat(pieces, dim=1)

    def trained(self, run: int) -> tuple[Trained, Curves]:
        """Return the results of the training of one run, and all its curves."""
        member, curves = self._members[run], self.records.curves(run)
        schedule, runs = member.schedule, len(self._members)
        bytes_up, bytes_down = self._bytes(member.schedule)
        outcome = Outcome(
            epochs=self.epochs[run],
            steps=schedule.steps,
            seconds=self.seconds / runs,
            seconds_compute=self.seconds / runs,
            logged=self.records.logged(curves),
            together=runs,
            bytes_up=bytes_up,
            bytes_down=bytes_down,
        )
        losses = self.records.of_epoch(LOSS, schedule.epochs, run)
        readings = self._readings(member.strategy.changes_gradients)
        trained = Trained(
            self._share(self._top, self._top_optimizers, member.label.module, run),
            {
                party: self._share(self._bottoms[party], self._optimizers[party], member.bottoms[party], run)
                for party in self._parties
            },
            outcome,
            losses,
            {party: measured(curves, found, self._positive, run) for party, found in readings[0].items()},
            [measured(curves, found, self._positive, run) for found in readings[1]],
            [] if (monitor := self._audits[run]) is None else monitor.audited,
        )
        return trained, curves

    @staticmethod
    def _share(stack: Stack, optimizers: Any, module: nn.Module, run: int) -> TrainedPart:
        """Return one party's trained part of one run; its dropout was drawn from its own generators."""
        dropout = [generator.get_state() for generator in bound_generators(module)]
        return TrainedPart(stack.state_of(run), stack.optimizer_of(optimizers.state_dict(), run), dropout)

    def _readings(self, changed: bool) -> tuple[dict[str, list[ViewResults]], list[list[ViewResults]]]:
        """Return the readings of a run: those of each attacker, and of the monitor, in the order of their scorers."""
        views, attacks = self._readers.views, len(self._readers.attacks)
        seen: dict[str, list[ViewResults]] = {}
        for party, layers in self._layers.items():
            alone = {view.layer: view.readings("") for view in views if "" in view.names and view.parties == (party,)}
            seen[party] = [alone[layer][number] for number in range(attacks) for layer in layers]
        names = ("monitor", "undefended") if changed else ("monitor",)
        monitored = [view.readings(name) for name in names for view in self._groups(name)]
        return seen, monitored

    def _groups(self, name: str) -> list[StackedView]:
        """Return the monitor's views of one kind: of single parties first, then of those that collude."""
        return sorted(
            (view for view in self._readers.views if name in view.names), key=lambda view: len(view.parties) > 1
        )

    def _bytes(self, schedule: Schedule) -> tuple[int, int]:
        """Return the bytes of embeddings and gradients that a run by itself sends, up and down."""
        width = sum(self._base.widths.values())
        rows = sum(schedule.batch_rows(step) for step in range(schedule.steps))
        evaluated = schedule.epochs * (schedule.validation_rows + schedule.test_rows)
        return 4 * width * (rows + evaluated), 4 * width * rows
