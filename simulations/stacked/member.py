"""One run of a stack: built like an ordinary run, and saved like one.

A stack writes the checkpoint of a run after its last step. The run then goes on from it by itself, like any other:
attacks on the trained model, result and report. A stack replaces only the training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from flower_vfl.apps.factories import default_bottom, default_top
from flower_vfl.apps.feature_party import build_feature_party
from flower_vfl.apps.label_party import build_strategy
from flower_vfl.apps.run_state import LABEL, PartyStorage
from flower_vfl.auditing.evaluator import evaluator_state
from flower_vfl.auditing.summaries import StepResults
from flower_vfl.config import Config
from flower_vfl.data.store.memory import VerticalData
from flower_vfl.nn.optim import State
from flower_vfl.parties.feature import FeatureParty
from flower_vfl.parties.label import LabelParty
from flower_vfl.protocol.schedule import Schedule
from flower_vfl.rng import Secret
from flower_vfl.strategies import Observer, Outcome
from flower_vfl.training.assembly import build_checkpointing, build_label_party, build_monitor, prepare_labels
from flower_vfl.training.context import TrainingContext
from flower_vfl.training.factories import schedule_of
from flower_vfl.training.handshake import check_fit, send_audit
from flower_vfl.training.loop import TrainingLoop
from flower_vfl.training.outcome import measured
from flower_vfl.transport.base import Link
from flower_vfl.transport.inproc import InprocLink


@dataclass(frozen=True)
class TrainedPart:
    """One party's part of a trained run: its weights, and the states of its optimizer and of its dropout."""

    weights: Mapping[str, Tensor]
    optimizer: State
    dropout: list[Tensor]


@dataclass(frozen=True)
class Trained:
    """The results of the training of one run.

    Attributes
    ----------
    label, parties
        The trained parts of the label party and of each feature party.
    outcome, losses
        The outcome; the losses (T,) of the last epoch.
    seen
        Results of each attacker's attacks, by party.
    monitored
        Results of the monitor's attacks, in the order of its views.
    audited
        The states of the monitor's informed audits, in the same order.
    """

    label: TrainedPart
    parties: Mapping[str, TrainedPart]
    outcome: Outcome
    losses: list[float]
    seen: Mapping[str, list[StepResults]]
    monitored: list[list[StepResults]]
    audited: list[dict[str, Any] | None]


class Member:
    """The components of one run of a stack; its random numbers are those of the run by itself.

    Parameters
    ----------
    config : Config
        The run's configuration.
    dataset : VerticalData
        The data, which all runs of a stack share.

    Attributes
    ----------
    strategy
        Strategy of the label party, with its defenses, which draw their noise.
    label, bottoms
        The label party, and the feature parties' bottom models, before training.
    """

    def __init__(self, config: Config, dataset: VerticalData) -> None:
        self.config, self._dataset, self.labels = config, dataset, dataset.labels()
        self.strategy = build_strategy(
            config,
            dataset,
            self.labels,
            top=default_top,
            bottom=default_bottom,
            secret=Secret.for_simulation(config.seed, LABEL),
            observer=Observer(),
            outcome=Outcome(),
        )
        for one in self.strategy.hook_targets:
            one.begin()
        self.prepared, _ = prepare_labels(self.strategy)
        aligned = dataset.alignment
        self.schedule: Schedule = schedule_of(config, aligned.rows, aligned.test_rows)
        # An attacker would register hooks in its model; a stack reads gradients in its own way.
        honest = config.attack.without_attacks()
        machines, links = self._parties(config.model_copy(update={"attack": honest}))
        self.label: LabelParty = self._label_party(links)
        self.bottoms: dict[str, nn.Module] = {party: machine.bottom for party, machine in machines.items()}

    def _parties(
        self, config: Config, folder: Path | None = None, training: str = ""
    ) -> tuple[dict[str, FeatureParty], dict[str, Link]]:
        """Return the feature parties and links to them; with a folder, they keep their states in it."""
        machines: dict[str, FeatureParty] = {}
        links: dict[str, Link] = {}
        for party in self.strategy.base.parties:
            secret, store = Secret.for_simulation(config.seed, party), None
            if folder is not None:
                storage = PartyStorage.of_feature_party(folder, party, training)
                store = storage.store(self.config, self._dataset, party, secret)
            machine = build_feature_party(party, config, self._dataset, secret, simulation=True, store=store)
            machines[party], links[party] = machine, InprocLink(machine)
            check_fit(links[party], config, self.schedule, self._dataset.alignment.digest)
        return machines, links

    def _label_party(self, links: dict[str, Link]) -> LabelParty:
        return build_label_party(self.strategy, self.prepared, self.schedule, links)

    @property
    def audited(self) -> list[str]:
        """The parties with attacks that are scored."""
        return self.config.parties.attackers or list(self.strategy.base.parties)

    def keep(self, folder: Path, trained: Trained) -> None:
        """Write the checkpoints of all parties after the last step into the run's folder."""
        base, schedule = self.strategy.base, self.schedule
        storage = PartyStorage.of_label_party(folder, resume=False)
        machines, links = self._parties(self.config, folder, storage.training)
        send_audit(base, {party: links[party] for party in self.audited})
        for party, machine in machines.items():
            part, state = trained.parties[party], machine.state()
            seen = {"steps": evaluator_state(trained.seen[party])} if party in trained.seen else {}
            dropout = {"dropout": part.dropout[0]} if part.dropout else {}
            done = {"bottom": part.weights, "optimizers": part.optimizer, "next_step": schedule.steps}
            machine.restore({**state, **done, **dropout, "observer": {**state["observer"], **seen}})
        label, monitor = self._label_party(links), build_monitor(self.strategy, schedule)
        of_label = trained.label
        learned = {"modules": of_label.weights, "optimizers": of_label.optimizer, "dropout": of_label.dropout}
        label.restore({**label.state(), **learned})
        if monitor is not None:
            views = zip(trained.monitored or [[] for _ in trained.audited], trained.audited, strict=True)
            monitor.restore(
                [
                    {"steps": evaluator_state(view), "transcript": [], "remembered": None, "informed": audit}
                    for view, audit in views
                ]
            )
        training = TrainingLoop(
            label,
            links,
            schedule,
            (self.labels.train, self.labels.test),
            self.labels.classes,
            self.config,
            monitor=monitor,
            observer=base.observer,
            outcome=trained.outcome,
        )
        training.restore({"losses": trained.losses, "outcome": measured(trained.outcome)})
        own = base.table.name if base.table is not None else ""
        context = TrainingContext(store=storage.store(self.config, self._dataset, own, base.secret, labels=True))
        checkpointing = build_checkpointing(self.strategy, context, schedule, links, label, training, monitor)
        if checkpointing is not None:
            checkpointing.save(schedule.steps)
