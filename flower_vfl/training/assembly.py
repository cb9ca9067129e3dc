"""What a training is made of: the label party with its models, the monitor, and who keeps their states."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from flwr.app import ArrayRecord
from numpy.typing import NDArray
from torch import Tensor, nn

from flower_vfl.auditing.halves import Split
from flower_vfl.auditing.monitor import LeakageMonitor
from flower_vfl.auditing.recorder import Recorder
from flower_vfl.data.store.source import FeatureSource
from flower_vfl.errors import ConfigError
from flower_vfl.nn.fusion import fused_shape
from flower_vfl.nn.initialise import new_model
from flower_vfl.nn.placement import Placement
from flower_vfl.parties.feature import embed, embedding_shape
from flower_vfl.parties.label import LabelParty, Log, adds_to_logits, checked_log
from flower_vfl.protocol.schedule import Rows, Schedule
from flower_vfl.strategies.base import Defense, HookedStrategy
from flower_vfl.training.checkpointing import MODEL, Checkpointing, Ledger
from flower_vfl.training.factories import optimizers_of
from flower_vfl.training.loop import Training
from flower_vfl.training.replay_guard import Repeats
from flower_vfl.transport.base import Link

if TYPE_CHECKING:
    from flower_vfl.strategies.vertical import VerticalStrategy

_WHOLE = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


def prepare_labels(strategy: HookedStrategy) -> tuple[NDArray[np.int64], Log]:
    """Return the labels (N,) that are trained on, as the defenses prepare them, and what these want logged.

    Defenses that prepare labels get a copy: leaks are measured against the true ones, which are the user's.

    Raises
    ------
    ConfigError
        When what they return are no classes of the data, one a row.
    """
    labels, classes = torch.from_numpy(strategy.base.labels.train), strategy.base.labels.classes
    names = [defense.name for defense in strategy.chain() if type(defense).prepare_labels is not Defense.prepare_labels]
    prepared, log = strategy.prepare_labels(labels.clone() if names else labels)
    what = f"prepare_labels of {', '.join(names) or type(strategy).__name__}"
    if not isinstance(prepared, Tensor) or prepared.shape != labels.shape or prepared.dtype not in _WHOLE:
        found = f"{prepared.dtype} {tuple(prepared.shape)}" if isinstance(prepared, Tensor) else repr(prepared)
        raise ConfigError(
            f"{what} returned {found}; return the class of each of the {len(labels)} rows, a tensor (N,) of whole "
            "numbers; soft labels cannot be trained on"
        )
    low, high = (int(prepared.min()), int(prepared.max())) if len(prepared) else (0, 0)
    if low < 0 or high >= classes:
        raise ConfigError(
            f"{what} returned classes {low} to {high}; labels of {classes} classes are 0 to {classes - 1}"
        )
    return prepared.long().cpu().numpy(), checked_log(log, "prepare_labels")


def build_label_party(
    strategy: HookedStrategy,
    prepared: NDArray[Any],
    schedule: Schedule,
    links: dict[str, Link],
    initial_arrays: ArrayRecord | None,
) -> LabelParty:
    """Build the label party; its labels are those that the defenses have prepared."""
    base, config = strategy.base, strategy.base.config
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
        bottom=bottom,
        table=base.table,
        fusion=config.model.fusion,
        clip_norm=config.training.clip_norm,
        keep_clean=bool(base.watching or base.remembering),
        snapshots=config.attack.snapshots,
        placement=Placement.of(config),
    )


def build_models(
    base: VerticalStrategy, shapes: list[tuple[int, ...]], probe: tuple[FeatureSource, Rows] | None
) -> tuple[nn.Module, nn.Module | None]:
    """Build the label party's top model and, where it has columns, its bottom model.

    Parameters
    ----------
    base : VerticalStrategy
        What makes them.
    shapes : list of tuple
        Of one row of each feature party's embedding.
    probe : tuple, optional
        Columns of the label party, and rows of them that tell the shape of its own embedding, if it gives one.
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
    strategy: HookedStrategy, schedule: Schedule, *, recorder: Recorder | None = None
) -> LeakageMonitor | None:
    """Build what attacks at the label party, with its own labels; None where nothing does.

    Values go to the strategy's observer, or to another recorder.
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
        recorder=recorder or base.observer,
        every=attack.cadence(schedule.steps),
        memory=base.memory,
        informed=attack.informed,
        split=Split(base.secret.seed("informed")),
    )


def build_repeats(strategy: HookedStrategy) -> Repeats | None:
    """Build what looks at steps that are done again; None where nobody can go back, or sends something else then."""
    base, defenses, ledger = strategy.base, strategy.chain(), _ledger(strategy.base)
    if ledger is None or not defenses or base.config.transport.kind == "inproc":
        return None
    return Repeats(defenses, ledger.received, known=base.resume)


def build_checkpointing(
    strategy: HookedStrategy,
    schedule: Schedule,
    links: dict[str, Link],
    label: LabelParty,
    training: Training,
    monitor: LeakageMonitor | None,
    repeats: Repeats | None = None,
) -> Checkpointing | None:
    """Build what keeps everybody's states; None where nobody asked for them."""
    base, ledger = strategy.base, _ledger(strategy.base)
    if ledger is None:
        return None
    return Checkpointing(
        ledger,
        links,
        {
            MODEL: label,
            "training": training,
            **{f"defense {position}": defense for position, defense in enumerate(strategy.chain())},
            **({} if monitor is None else {"monitor": monitor}),
            **({} if repeats is None else {"received": repeats}),
        },
        schedule=schedule,
        recorder=base.observer,
        timeout=base.config.transport.step_timeout,
    )


def _ledger(base: VerticalStrategy) -> Ledger | None:
    """Return where states are kept; None where there is no place, or none are wanted."""
    return None if base.config.checkpoint.every < 0 else base.ledger
