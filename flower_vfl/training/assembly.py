"""Builders of the parts of a training run: the label party, its models, the monitor, the guard and the checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord
from numpy.typing import NDArray
from torch import nn

from flower_vfl.auditing.halves import Split
from flower_vfl.auditing.monitor import LeakageMonitor
from flower_vfl.auditing.recorder import Recorder
from flower_vfl.config import Config
from flower_vfl.data.store.source import FeatureSource
from flower_vfl.errors import ConfigError
from flower_vfl.nn.dropout import bind_dropout
from flower_vfl.nn.fusion import fused_shape
from flower_vfl.nn.initialise import new_model, seeded_initialisation
from flower_vfl.nn.placement import Placement
from flower_vfl.parties.feature import embed, embedding_shape
from flower_vfl.parties.hooks import Cut, Log, checked_pair
from flower_vfl.parties.label import LabelParty
from flower_vfl.parties.network import adds_to_logits
from flower_vfl.protocol.schedule import Rows, Schedule
from flower_vfl.training.checkpointing import MODEL, Checkpointing, CommittedStore
from flower_vfl.training.context import TrainingContext
from flower_vfl.training.factories import optimizers_of
from flower_vfl.training.loop import TrainingLoop
from flower_vfl.training.privacy import proven_delta
from flower_vfl.training.protocols import StrategySettings, TrainedStrategy
from flower_vfl.training.replay_guard import ReplayGuard
from flower_vfl.transport.base import Link

NO_CONTEXT = TrainingContext()
"""The context of a run without checkpoints, row memory or prepared sessions."""

_INTEGER_TYPES = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


def prepare_labels(strategy: TrainedStrategy) -> tuple[NDArray[np.int64], Log]:
    """Return the training labels (N,) as prepared by the defenses, and the log entries of these.

    Defenses that prepare labels receive a copy: leaks are measured against the true labels, which are the user's.

    Raises
    ------
    ConfigError
        When the prepared labels are not one class of the data for each row.
    """
    labels, classes = torch.from_numpy(strategy.base.labels.train), strategy.base.labels.classes
    names = [defense.name for defense in strategy.chain() if defense.writes("prepare_labels")]
    found, owner = strategy.prepare_labels(labels.clone() if names else labels), ", ".join(names)
    prepared, log = checked_pair(found, "prepare_labels", owner)
    what = f"prepare_labels of {owner or type(strategy).__name__}"
    if prepared.shape != labels.shape or prepared.dtype not in _INTEGER_TYPES:
        raise ConfigError(
            f"{what} returned {prepared.dtype} {tuple(prepared.shape)}; return the class of each of the {len(labels)} "
            "rows, a tensor (N,) of whole numbers; soft labels cannot be trained on"
        )
    low, high = (int(prepared.min()), int(prepared.max())) if len(prepared) else (0, 0)
    if low < 0 or high >= classes:
        raise ConfigError(
            f"{what} returned classes {low} to {high}; labels of {classes} classes are 0 to {classes - 1}"
        )
    return prepared.long().cpu().numpy(), log


def build_label_party(
    strategy: TrainedStrategy,
    prepared: NDArray[Any],
    schedule: Schedule,
    links: Mapping[str, Link],
    initial_arrays: ArrayRecord | None = None,
) -> LabelParty:
    """Build the label party and the trainable modules of its defenses; it trains on the prepared labels."""
    base, config = strategy.base, strategy.base.config
    learned = build_defenses(strategy, {party: link.shape for party, link in links.items()})
    probe = None if base.table is None else (base.table.train, schedule.train_batch(0)[:2])
    top, bottom = build_models(base, [link.shape for link in links.values()], probe)
    if initial_arrays is not None:
        top.load_state_dict(initial_arrays.to_torch_state_dict())
    modules = nn.ModuleDict({"top": top, **({} if bottom is None else {"bottom": bottom})})
    return LabelParty(
        top,
        optimizers_of(config, modules, schedule, base.optimizer),
        prepared,
        strategy,
        schedule,
        base.parties,
        true_labels=base.labels.train,
        bottom=bottom,
        table=base.table,
        fusion=config.model.fusion,
        learned=learned,
        learners=[optimizers_of(config, module, schedule) for module in learned.values()],
        clip_norm=config.training.clip_norm,
        keep_clean=bool(base.step_attacks or base.longitudinal_attacks),
        snapshots=config.attack.snapshots,
        placement=Placement.of(config),
    )


def build_defenses(strategy: TrainedStrategy, cut: Cut) -> dict[str, nn.Module]:
    """Call `build` of every strategy with the shapes of the embeddings; return the trainable modules by defense.

    The initial weights derive from the label party's secret; the modules are moved to its device.
    """
    base, device = strategy.base, torch.device(strategy.base.config.device)
    base.build(cut, device)
    learned: dict[str, nn.Module] = {}
    for position, defense in enumerate(reversed(strategy.chain())):
        with seeded_initialisation(base.secret.seed("weights", "defense", position)):
            defense.build(cut, device)
        if len(defense.modules):
            bind_dropout(defense.modules, base.secret.generator("dropout", "defense", position, device=str(device)))
            learned[f"{position} {defense.name}"] = Placement.of(base.config).place(defense.modules)
    return learned


def build_models(
    base: StrategySettings, shapes: list[tuple[int, ...]], probe: tuple[FeatureSource, Rows] | None
) -> tuple[nn.Module, nn.Module | None]:
    """Build the label party's top model and, where it has columns, its bottom model.

    Parameters
    ----------
    base : StrategySettings
        The innermost strategy, which holds the factories of both models.
    shapes : list of tuple
        Shape of one row of each feature party's embedding.
    probe : tuple, optional
        Columns of the label party, and rows of them that are embedded to find the shape of its own embedding.
    """
    config, placement, bottom = base.config, Placement.of(base.config), None
    if base.bottom is not None and probe is not None:
        made = new_model(base.bottom, base.secret.seed("weights", "bottom"), "the label party's own model")
        bottom = placement.place(made)
        if not adds_to_logits(bottom):
            shapes = [*shapes, embedding_shape(embed(bottom, *probe, placement), "the label party")]
    if not shapes:
        raise ConfigError("nobody has features: name feature parties or let the label party use its own columns")
    top = base.top
    if not isinstance(top, nn.Module):
        make = partial(top, fused_shape(shapes, config.model.fusion))
        top = new_model(make, base.secret.seed("weights", "top"), "the top model")
    return placement.place(top), bottom


def build_monitor(
    strategy: TrainedStrategy,
    schedule: Schedule,
    context: TrainingContext = NO_CONTEXT,
    *,
    recorder: Recorder | None = None,
) -> LeakageMonitor | None:
    """Build the monitor, which attacks at the label party with its own labels; None if no attack runs there.

    Values go to `recorder`, by default the strategy's observer.
    """
    base, attack = strategy.base, strategy.base.config.attack
    if not (base.attacks or attack.informed) or not attack.monitor:
        return None
    return LeakageMonitor(
        [*base.parties, *base.config.parties.coalitions(base.parties)],
        base.attacks,
        base.audit_labels,
        schedule,
        defended=bool(strategy.chain()),
        changed=strategy.changes_gradients,
        recorder=recorder or base.observer,
        every=base.config.cadence(schedule.steps),
        memory=context.memory,
        informed=attack.informed,
        split=Split(base.secret.seed("informed"), base.canaries.rows),
        delta=proven_delta(strategy),
        read_by={name for defense in strategy.chain() for name in defense.read_by},
    )


def build_replay_guard(strategy: TrainedStrategy, context: TrainingContext) -> ReplayGuard | None:
    """Build the guard against replayed steps; None without defenses, or if repeated steps have the same embeddings."""
    base, defenses, store = strategy.base, strategy.chain(), _store(strategy.base.config, context)
    if store is None or not defenses or base.config.transport.kind == "inproc":
        return None
    return ReplayGuard(defenses, store.received, known=context.resume)


def build_checkpointing(
    strategy: TrainedStrategy,
    context: TrainingContext,
    schedule: Schedule,
    links: Mapping[str, Link],
    label: LabelParty,
    training: TrainingLoop,
    monitor: LeakageMonitor | None,
    guard: ReplayGuard | None = None,
) -> Checkpointing | None:
    """Build the coordinator of checkpoints; None without a store of states, or if checkpoints are disabled."""
    base, store = strategy.base, _store(strategy.base.config, context)
    if store is None:
        return None
    return Checkpointing(
        store,
        links,
        {
            MODEL: label,
            "training": training,
            **{f"defense {position}": defense for position, defense in enumerate(strategy.chain())},
            **({} if monitor is None else {"monitor": monitor}),
            **({} if guard is None else {"received": guard}),
        },
        schedule=schedule,
        recorder=base.observer,
        timeout=base.config.transport.step_timeout,
        frozen=not base.config.training.gradients,
    )


def _store(config: Config, context: TrainingContext) -> CommittedStore | None:
    """Return the store of states; None without one, or if checkpoints are disabled."""
    return None if config.checkpoint.every < 0 else context.store
