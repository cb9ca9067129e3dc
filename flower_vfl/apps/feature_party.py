"""The feature party of a configuration; modules that only attackers need are imported for them alone."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from torch import nn

from flower_vfl.apps.factories import BottomFactory, TopFactory, default_bottom, default_top, party_names
from flower_vfl.auditing.recorder import Recorder
from flower_vfl.config import Config
from flower_vfl.data.store.dataset import PartyTable
from flower_vfl.data.store.memory import VerticalData
from flower_vfl.nn.dropout import bind_dropout
from flower_vfl.nn.initialise import new_model, seeded_initialisation
from flower_vfl.nn.placement import Placement
from flower_vfl.nn.pretraining import reconstruction_of
from flower_vfl.parties.feature import FeatureParty, Store, embed
from flower_vfl.parties.observation import ObservationPoint, PartyObserver
from flower_vfl.parties.pretraining import Pretraining
from flower_vfl.protocol.schedule import Schedule
from flower_vfl.rng import Secret
from flower_vfl.training.factories import OptimizerFactory, optimizers_of, schedule_of


def build_feature_party(
    name: str,
    config: Config,
    dataset: VerticalData,
    secret: Secret,
    *,
    bottom: BottomFactory = default_bottom,
    top: TopFactory = default_top,
    optimizer: OptimizerFactory | None = None,
    simulation: bool,
    recorder: Recorder | None = None,
    store: Store | None = None,
    memory: Path | None = None,
) -> FeatureParty:
    """Build a feature party, with an attacker that observes it if the configuration names it.

    `top` makes the model that an attacker rebuilds, and `memory` is the folder of its row memory.
    """
    table = dataset.party(name)
    aligned = dataset.alignment
    schedule = schedule_of(config, aligned.rows, aligned.test_rows, periods=aligned.periods)
    made = new_model(partial(bottom, table.spec, config), secret.seed("weights"), f"the bottom model of party {name!r}")
    model = Placement.of(config).place(made)
    dropout = secret.generator("dropout", device=config.device)
    bind_dropout(model, dropout)
    party = FeatureParty(
        name,
        model,
        optimizers_of(config, model, schedule, optimizer),
        table,
        schedule,
        alignment=aligned.digest,
        in_flight=config.transport.in_flight,
        dropout=dropout,
        placement=Placement.of(config),
        store=store,
        gradients=config.training.gradients,
        refit=config.training.refit > 0,
        pretraining=_pretraining(name, config, table, model, schedule, secret),
    )
    if config.attack.names and name in (config.parties.attackers or party_names(config, dataset)):
        factories = bottom, top
        party.observer = _attacker(
            party.point, config, secret, factories, simulation=simulation, recorder=recorder, memory=memory
        )
    return party


def _attacker(
    point: ObservationPoint,
    config: Config,
    secret: Secret,
    factories: tuple[BottomFactory, TopFactory],
    *,
    simulation: bool,
    recorder: Recorder | None,
    memory: Path | None,
) -> PartyObserver:
    """Build the attacker that observes a party from this point."""
    from flower_vfl.attacks import make_attacks
    from flower_vfl.auditing.attacker import Attacker
    from flower_vfl.auditing.trained_model import FreshModels

    bottom, top = factories
    return Attacker(
        point,
        attacks=make_attacks(config.attack.calls),
        fresh=FreshModels(
            bottom=lambda: bottom(point.table.spec, config),
            top=lambda shape, classes: top(shape, classes, config),
            seed=partial(secret.seed, "attacks"),
        ),
        layers=config.attack.layers,
        simulation=simulation,
        defended=bool(config.defenses),
        recorder=recorder,
        every=config.cadence(point.schedule.steps),
        positives=config.attack.positives,
        memory=memory,
    )


def _pretraining(
    name: str, config: Config, table: PartyTable, bottom: nn.Module, schedule: Schedule, secret: Secret
) -> Pretraining | None:
    """Build the pre-training of the bottom model, seeded by the party's own secret; None where there is none.

    Raises
    ------
    ConfigError
        When there is no objective for the party's data.
    """
    epochs, placement = config.training.pretrain, Placement.of(config)
    if not epochs:
        return None
    shape = embed(bottom, table.train, schedule.train_batch(0)[:2], placement).shape[1:]
    with seeded_initialisation(secret.seed("pretrain", "decoder")):
        objective = reconstruction_of(table.spec, shape, f"party {name!r}")
    placement.place(objective)
    return Pretraining(
        bottom,
        objective,
        table.train,
        schedule,
        epochs,
        generator=secret.generator("pretrain"),
        placement=placement,
        patience=config.transport.step_timeout,
        unaligned=table.unaligned,
    )
