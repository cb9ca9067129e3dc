"""One training run of a strategy, from the handshake to the last report."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from flower_vfl.auditing.evaluator import Oracle
from flower_vfl.metrics import Embeddings, compact, sample_rows
from flower_vfl.metrics.embeddings import READ, RECEIVED
from flower_vfl.parties.label import LabelParty
from flower_vfl.protocol.schedule import Rows, Schedule
from flower_vfl.rng import Secret
from flower_vfl.training.assembly import (
    NO_CONTEXT,
    build_checkpointing,
    build_label_party,
    build_monitor,
    build_replay_guard,
    prepare_labels,
)
from flower_vfl.training.conditional_oracle import build_conditional
from flower_vfl.training.context import TrainingContext
from flower_vfl.training.factories import schedule_of
from flower_vfl.training.grids import is_simulation, replaces_nodes
from flower_vfl.training.handshake import check_fit, send_audit, software_of
from flower_vfl.training.loop import TrainingLoop
from flower_vfl.training.model_selection import ModelSelection
from flower_vfl.training.outcome import Outcome
from flower_vfl.training.party_report import read_report
from flower_vfl.training.pipeline_depth import announce_depth, choose_depth
from flower_vfl.training.pretraining import own_pretraining, pretrain
from flower_vfl.training.privacy import check_fresh_start, open_account
from flower_vfl.training.probe import CutFormat, cut_of
from flower_vfl.training.protocols import StrategySettings, TrainedStrategy
from flower_vfl.training.recovery import PartyRecovery
from flower_vfl.training.refit import Refit
from flower_vfl.transport.sessions import TRAINING, Sessions

_log = logging.getLogger(__name__)


@dataclass
class VerticalResult(Result):
    """Flower's result, with the outcome of a vertical training."""

    outcome: Outcome = field(default_factory=Outcome)


class TrainingRun:
    """One training run of the outermost strategy, whose hooks are called.

    Parameters
    ----------
    strategy : TrainedStrategy
        The strategy that is trained, with its defenses.
    grid : Grid
        Flower's grid.
    context : TrainingContext
        The run's store of states, and the objects prepared for it.

    Attributes
    ----------
    label_party : LabelParty or None
        The label party with its models; None until the sessions are open.
    cut : CutFormat
        Shapes and number formats of the parties' embeddings; empty until then.
    session : str
        The label party's name of the run's sessions.
    begun : bool
        True once all parties are ready to train: restored, where the run is resumed.
    """

    def __init__(self, strategy: TrainedStrategy, grid: Grid, context: TrainingContext = NO_CONTEXT) -> None:
        self._strategy, self._grid, self._context = strategy, grid, context
        self.label_party: LabelParty | None = None
        self.cut: CutFormat = {}
        self.session = ""
        self.begun = False

    def execute(
        self,
        initial_arrays: ArrayRecord | None = None,
        epochs: int = 0,
        timeout: float = 3600,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> VerticalResult:
        """Open the sessions, train, evaluate, collect the reports; the parameters are those of `start`."""
        strategy, base, context = self._strategy, self._strategy.base, self._context
        config, simulation = base.config, is_simulation(self._grid)
        base.claim(Secret.for_simulation(config.seed, "label") if simulation else None)
        if initial_arrays is not None:
            check_fresh_start(strategy)
        schedule = schedule_of(config, len(base.labels.train), len(base.labels.test), epochs, periods=base.periods)
        self._check_bound(schedule)
        for one in strategy.hook_targets:
            one.begin()
        labels = base.labels.train  # the true ones
        base.plant_canaries(np.setdiff1d(np.arange(schedule.rows), schedule.held_out))
        name = context.offer.get(TRAINING, "")
        charge = open_account(strategy, schedule, labels, simulation=simulation, name=name)
        prepared, log = prepare_labels(strategy)
        strategy.summary()
        audited = _audited(base) if simulation else []
        with context.sessions or Sessions(
            self._grid, base.parties, config.transport, simulation=simulation, offer=context.offer
        ) as sessions:
            self.session = sessions.session
            links = sessions.open(lambda link: check_fit(link, config, schedule, base.alignment, audited=audited))
            self.cut, base.outcome.hosts = cut_of(links), software_of(links)
            label = self.label_party = build_label_party(strategy, prepared, schedule, links, initial_arrays)
            self._check_bound(schedule)
            for metric, value in log.items():
                base.observer.add(step=0, epoch=0, party="label", layer="", attack="", metric=metric, value=value)

            def after_epoch(epoch: int) -> None:
                if evaluate_fn is not None:
                    evaluate_fn(epoch, _top_of(label))

            stages = _Stages(
                strategy, context, sessions, label, schedule, audited=audited, replaces=replaces_nodes(self._grid)
            )
            stages.begin()
            self.begun = True
            charge()  # nothing that depends on a label was sent before
            stages.train(after_epoch)
            stages.finish(timeout)
            context.on_finished()
            sessions.announce_export(config.transport.step_timeout)
            stages.forget()
        return VerticalResult(
            outcome=base.outcome,
            arrays=ArrayRecord() if base.outcome.model_step is None else _top_of(label),
            evaluate_metrics_serverapp={int(done["epoch"]): MetricRecord(dict(done)) for done in base.outcome.epochs},
        )

    def _check_bound(self, schedule: Schedule) -> None:
        """Refuse a limit of the bound that the defenses cannot account for, before and after the cut is known."""
        if self._strategy.base.config.attack.max_bound < 1.0:
            self._strategy.check_bound(schedule.epochs)


def _top_of(label: LabelParty) -> ArrayRecord:
    return ArrayRecord(dict(label.top.state_dict()))


class _Stages:
    """The stages of a run with open sessions: begin or resume, train, let all parties finish."""

    def __init__(
        self,
        strategy: TrainedStrategy,
        context: TrainingContext,
        sessions: Sessions,
        label: LabelParty,
        schedule: Schedule,
        *,
        audited: list[str],
        replaces: bool,
    ) -> None:
        base, links = strategy.base, sessions.links
        self._strategy, self._context, self._sessions = strategy, context, sessions
        self._label, self._schedule, self._audited = label, schedule, audited
        self._monitor, guard = build_monitor(strategy, schedule, context), build_replay_guard(strategy, context)
        self._conditional = build_conditional(strategy, schedule.steps) if audited else None
        if self._conditional is not None:
            label.keep_inside(self._conditional.oracle.every)
        self._training = TrainingLoop(
            label,
            links,
            schedule,
            (base.labels.train, base.labels.test),
            base.labels.classes,
            base.config,
            monitor=self._monitor,
            observer=base.observer,
            outcome=base.outcome,
            oracle=Oracle(base.step_attacks, base.audit_labels, base.config.cadence(schedule.steps)),
            audited=self._audited,
            sample=_sample(base),
            guard=guard,
            conditional=self._conditional,
        )
        self._checkpointing = build_checkpointing(
            strategy, context, schedule, links, label, self._training, self._monitor, guard
        )
        self._recovery = PartyRecovery(sessions, self._checkpointing, replaced=replaces)
        timeout = base.config.transport.step_timeout
        self._selection = ModelSelection(self._training, label, schedule, links, self._checkpointing, timeout=timeout)
        self._refit = Refit(self._training, label, schedule, base)
        self._initial: dict[str, Any] | None = None

    def begin(self) -> None:
        """Bring all parties to the step at which training starts or resumes, and recover lost parties."""
        with _stop_logged():
            self._recovery.begin(self._begin)
        self._initial = None

    def _begin(self) -> None:
        """Restore the last checkpoint, or pre-train and send the audit labels; set the number of steps in flight."""
        base, links, outcome = self._strategy.base, self._sessions.links, self._strategy.base.outcome
        resumed = self._checkpointing is not None and self._context.resume and self._checkpointing.resume()
        if not resumed:
            timeout = base.config.transport.step_timeout
            own = own_pretraining(self._strategy, self._label, self._schedule)
            if own is not None:
                self._restart()
            pretrain(links, self._schedule, base.config.training.pretrain, base.observer, timeout=timeout, own=own)
        if not resumed and self._audited:
            send_audit(base, {party: links[party] for party in self._audited})
        known, rows = outcome.in_flight if resumed else 0, self._schedule.batch_rows(0)
        outcome.in_flight = choose_depth(self._label, links, rows, base.config.transport, known=known)
        if self._checkpointing is not None and not resumed:
            self._checkpointing.save(0)

    def _restart(self) -> None:
        """Return the label party to its state before its own pre-training, where a lost party makes all restart."""
        if self._initial is None:
            self._initial = deepcopy(self._label.state())
        else:
            self._label.restore(self._initial)

    def train(self, after_epoch: Callable[[int], None]) -> None:
        """Train, recover lost parties, and measure the leaks of the trained model."""
        base, links, outcome = self._strategy.base, self._sessions.links, self._strategy.base.outcome
        save = None if self._checkpointing is None else self._checkpointing.save

        def work() -> None:
            self._selection.train(after_epoch, save)
            self._refit()

        try:
            with _stop_logged():
                self._recovery.train(
                    work,
                    lambda: announce_depth(links, outcome.in_flight, base.config.transport),
                )
                self._read_trained()
                if self._monitor is not None:
                    self._monitor.finish_audit(self._context.columns if base.config.attack.audit else None, base.table)
                    outcome.epsilon = self._monitor.epsilon
        finally:
            outcome.leakage = [] if self._monitor is None else self._monitor.entries()
            outcome.leakage += [] if self._conditional is None else self._conditional.oracle.entries()
            outcome.weights = "" if outcome.model_step is None else self._label.weights
            if self._training.sampled:
                base.observer.on_embeddings(_labelled(self._strategy, self._training))

    def finish(self, timeout: float) -> None:
        """Let every party finish, and record the reports."""
        base, outcome = self._strategy.base, self._strategy.base.outcome
        self._recovery.finish(timeout, self._selection.announce)
        for party in self._sessions.links:
            attacks = base.attacks if party in self._audited else []
            report = outcome.reports[party] = read_report(party, self._sessions.reports[party], attacks)
            outcome.leakage = [*report["leakage"], *outcome.leakage]

    def forget(self) -> None:
        """Remove the monitor's row memory: no party can be restored any more."""
        if self._monitor is not None:
            self._monitor.forget()

    def _read_trained(self) -> None:
        """Let the monitor attack the embeddings of the test rows by the trained bottom models."""
        base, training = self._strategy.base, self._training
        if self._monitor is not None and training.test_embeddings:
            self._monitor.read_trained(
                training.test_embeddings,
                base.labels.test,
                base.labels.classes,
                partial(base.secret.seed, "attacks"),
                step=base.outcome.steps,
                epoch=len(base.outcome.epochs),
            )


@contextmanager
def _stop_logged() -> Iterator[None]:
    """Log at once that the run stops, where a signal ends the block: readers and reports take seconds."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        _log.warning("stopping; what was measured is being written …")
        raise


def _audited(base: StrategySettings) -> list[str]:
    """Return the parties whose attacks are scored with true labels in a simulation."""
    audits = bool(base.attacks) and base.config.attack.audit
    return base.config.parties.attackers or list(base.parties) if audits else []


def _sample(base: StrategySettings) -> Rows:
    """Draw the test rows whose embeddings the label party keeps, for its own report."""
    generator = np.random.default_rng(base.secret.seed("embeddings"))
    return sample_rows(base.labels.test, base.config.attack.embeddings, generator=generator)


@torch.no_grad()
def _labelled(strategy: TrainedStrategy, training: TrainingLoop) -> list[Embeddings]:
    """Return the kept embeddings with their labels, and also as a defense changes them for the top model."""
    rows, labels = training.sample, strategy.base.labels.test[training.sample].astype(np.int64)
    found = []
    for party, z in training.sampled.items():
        read, _ = strategy.embed(z.to(strategy.base.config.device), party=party, train=False)
        views = {RECEIVED: z} if torch.equal(read.to(z), z) else {RECEIVED: z, READ: read}
        found += [Embeddings(party, view, rows, labels, compact(tensor)) for view, tensor in views.items()]
    return found
