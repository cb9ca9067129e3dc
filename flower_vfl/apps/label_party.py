"""The label party's strategy of a configuration."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import nn

from flower_vfl.apps.factories import (
    BottomFactory,
    TopFactory,
    default_bottom,
    default_own,
    default_top,
    party_names,
)
from flower_vfl.attacks import make_attacks
from flower_vfl.config import Config
from flower_vfl.data.store.dataset import Labels, PartyTable
from flower_vfl.data.store.memory import IdentifiedData, VerticalData
from flower_vfl.nn.dropout import bind_dropout
from flower_vfl.nn.networks import network_of
from flower_vfl.rng import Secret
from flower_vfl.strategies.base import HookedStrategy
from flower_vfl.strategies.defenses import DEFENSE_METHODS
from flower_vfl.strategies.vertical import VerticalStrategy
from flower_vfl.training.factories import OptimizerFactory, schedule_of
from flower_vfl.training.observer import Observer
from flower_vfl.training.outcome import Outcome

_log = logging.getLogger(__name__)


def build_strategy(
    config: Config,
    dataset: VerticalData,
    labels: Labels,
    *,
    top: TopFactory,
    bottom: BottomFactory,
    optimizer: OptimizerFactory | None = None,
    secret: Secret,
    observer: Observer,
    outcome: Outcome,
) -> HookedStrategy:
    """Build the label party's strategy with the configured defenses around it."""
    if top is default_top:
        network_of(config.model)  # settings that do not fit it are refused before anything is built
    parties = party_names(config, dataset)
    table = _own_table(config, dataset, parties)
    dropout = secret.generator("dropout", device=config.device)

    def make_bottom() -> nn.Module:
        spec = table.spec  # type: ignore[union-attr]
        model = default_own(spec, labels.classes, config) if bottom is default_bottom else bottom(spec, config)
        bind_dropout(model, dropout)
        return model

    def make_top(shape: tuple[int, ...]) -> nn.Module:
        model = top(shape, labels.classes, config)
        bind_dropout(model, secret.generator("dropout", "top", device=config.device))
        return model

    strategy = VerticalStrategy(
        make_top,
        labels,
        parties=parties,
        config=config,
        bottom=None if table is None else make_bottom,
        table=table,
        alignment=dataset.alignment.digest,
        periods=dataset.alignment.periods,
        ids=dataset.train_ids() if isinstance(dataset, IdentifiedData) else None,
        optimizer=optimizer,
        secret=secret,
        observer=observer,
        outcome=outcome,
    )
    defended = defend(strategy, config.defenses)
    if config.attack.max_bound < 1.0:
        schedule = schedule_of(config, len(labels.train), len(labels.test), periods=dataset.alignment.periods)
        defended.check_bound(schedule.epochs)
    return defended


def _own_table(config: Config, dataset: VerticalData, parties: Sequence[str]) -> PartyTable | None:
    """Return the label party's own columns; None where it has none, or takes part as a feature party."""
    own = dataset.label_party
    if not config.parties.label_features or own not in dataset.parties:
        return None
    if own not in parties:
        return dataset.party(own)
    if config.parties.features:
        _log.info("party %r takes part as a feature party; the label party uses no columns", own)
    return None


def check_methods(config: Config) -> None:
    """Make the configured attacks and defenses once, so that wrong settings of them are found before a run.

    Raises
    ------
    ConfigError
        When there is no method of a name, or a method does not have a parameter or refuses its value.
    """
    make_attacks(config.attack.calls)
    two = np.array([0, 1])
    defend(VerticalStrategy(nn.Identity(), Labels(two, two, classes=2)), config.defenses)


def defend(strategy: HookedStrategy, defenses: list[dict[str, Any]]) -> HookedStrategy:
    """Wrap a strategy in the configured defenses, given outermost first."""
    methods = DEFENSE_METHODS.find_all(entry["name"] for entry in defenses)
    for entry, method in zip(reversed(defenses), reversed(methods), strict=True):
        params = {key: value for key, value in entry.items() if key != "name"}
        strategy = DEFENSE_METHODS.make(method, strategy, **params)
    return strategy
