"""From a configuration to data, models and parties."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flower_vfl.attacks import make_attacks
from flower_vfl.config import Config
from flower_vfl.data.dataset import FeatureSpec
from flower_vfl.data.memory import VerticalData
from flower_vfl.errors import ConfigError
from flower_vfl.nn import bind_dropout, network_of, seeded_initialisation
from flower_vfl.nn.placement import Placement
from flower_vfl.parties.attacker import Attacker
from flower_vfl.parties.feature import FeatureParty, Store
from flower_vfl.parties.inference import FreshModels
from flower_vfl.parties.scoring import Recorder
from flower_vfl.rng import Secret
from flower_vfl.strategies import DEFENSE_METHODS
from flower_vfl.strategies.base import HookedStrategy
from flower_vfl.strategies.configured import OptimizerFactory, optimizers_of, schedule_of

BottomFactory = Callable[[FeatureSpec, Config], nn.Module]
"""Makes a party's bottom model for what its columns are."""

TopFactory = Callable[[tuple[int, ...], int, Config], nn.Module]
"""Makes the top model for the shape of one row of the fused embedding and the number of classes."""

DataFactory = Callable[[Config], VerticalData]
"""Opens the data that a configuration names; a party then loads only its own part."""


def open_data(config: Config) -> VerticalData:
    """Open the data set that the configuration names, preparing it on first use."""
    from flower_vfl.data.catalog import load

    return load(config.data.name, path=config.data.path, options=config.data.options)


def default_bottom(spec: FeatureSpec, config: Config) -> nn.Module:
    """Make the bottom model of the network that the configuration names."""
    return network_of(config.model).bottom(spec, config.model)


def default_own(spec: FeatureSpec, classes: int, config: Config) -> nn.Module:
    """Make the label party's model of its own columns, of the network that the configuration names."""
    return network_of(config.model).own(spec, classes, config.model)


def default_top(shape: tuple[int, ...], classes: int, config: Config) -> nn.Module:
    """Make the top model of the network that the configuration names."""
    return network_of(config.model).top(shape, classes, config.model)


def parties_here(config: Config, dataset: VerticalData) -> tuple[str, ...]:
    """Return the feature parties of a run whose data is all on this host.

    Raises
    ------
    ConfigError
        When the configuration names parties that the data does not have, or as `party_names`.
    """
    names = party_names(config, dataset)
    for name in names:
        if name not in dataset.parties:
            raise ConfigError(f"there is no party {name!r} in {dataset.name}; it has {', '.join(dataset.parties)}")
    return names


def party_names(config: Config, dataset: VerticalData) -> tuple[str, ...]:
    """Return the feature parties of a run; on a host of its own a party's data says nothing of the others.

    Raises
    ------
    ConfigError
        When there are none or too many, or settings are for a party that takes no part.
    """
    names = tuple(config.parties.features) or tuple(name for name in dataset.parties if name != dataset.label_party)
    for key, named in config.parties.named.items():
        for name in named:
            if name not in names:
                raise ConfigError(f"{key} names {name!r}, which is no feature party of this run: {', '.join(names)}")
    if not 1 <= len(names) <= 32:
        raise ConfigError(
            f"a run has 1 to 32 feature parties, given {len(names)}: neither parties.features nor the data names others"
        )
    return names


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
    """Build a feature party, or an attacker where the configuration says so.

    `top` is what an attacker rebuilds, and `memory` the folder for what it remembers.
    """
    table = dataset.party(name)
    aligned = dataset.alignment
    schedule = schedule_of(config, aligned.rows, aligned.test_rows, periods=aligned.periods)
    with seeded_initialisation(secret.seed("weights")):
        model = Placement.of(config).place(bottom(table.spec, config))
    dropout = secret.generator("dropout", device=config.device)
    bind_dropout(model, dropout)
    shared: dict[str, Any] = {
        "alignment": aligned.digest,
        "in_flight": config.transport.in_flight,
        "dropout": dropout,
        "placement": Placement.of(config),
        "store": store,
    }
    optimizers = optimizers_of(config, model, schedule, optimizer)
    attackers = config.parties.attackers or party_names(config, dataset)
    if name not in attackers or not config.attack.names:
        return FeatureParty(name, model, optimizers, table, schedule, **shared)
    return Attacker(
        name,
        model,
        optimizers,
        table,
        schedule,
        attacks=make_attacks(config.attack.calls),
        fresh=FreshModels(
            bottom=lambda: bottom(table.spec, config),
            top=lambda shape, classes: top(shape, classes, config),
            seed=partial(secret.seed, "attacks"),
        ),
        layers=config.attack.layers,
        simulation=simulation,
        defended=bool(config.defenses),
        recorder=recorder,
        every=config.attack.every,
        positives=config.attack.positives,
        memory=memory,
        **shared,
    )


def defend(strategy: HookedStrategy, defenses: list[dict[str, Any]]) -> HookedStrategy:
    """Wrap a strategy in the configured defenses, given outermost first."""
    methods = DEFENSE_METHODS.find_all(entry["name"] for entry in defenses)
    for entry, method in zip(reversed(defenses), reversed(methods), strict=True):
        params = {key: value for key, value in entry.items() if key != "name"}
        strategy = DEFENSE_METHODS.make(method, strategy, **params)
    return strategy


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Compute with so many torch threads; 0 leaves torch's own choice."""
    before = torch.get_num_threads()
    if count:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def check_device(config: Config) -> None:
    """Refuse a device that this host does not have."""
    if config.device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"device is {config.device!r}, but torch finds no CUDA device on this host")
