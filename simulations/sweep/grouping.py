"""Groups of trials that can be trained together, and the reasons why others cannot."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from flower_vfl.attacks import Attack, InferenceAttack, RowAttack, make_attacks
from flower_vfl.config import Config, leaf_paths
from flower_vfl.errors import FlowerVflError
from flower_vfl.simulations.sweep.trials import Trial
from flower_vfl.strategies import DEFENSE_METHODS
from flower_vfl.strategies.gradients.base import GradientDefense

NO_GROUP = "no other trial differs from it in seeds and defenses only"


VARIES = frozenset({"seed", "schedule_seed", "defenses"})
"""Keys in which the runs of a stack may differ. Whether a defense can be in a stack is checked for each defense."""

SERVES = frozenset(
    {
        *("device", "threads", "baselines", "checkpoint.keep"),
        *("data.name", "data.path", "data.options"),
        *("parties.features", "parties.label_features", "parties.attackers", "parties.colluding"),
        *("model.network", "model.split", "model.cut", "model.bottom", "model.top", "model.dropout", "model.fusion"),
        *("model.channels", "model.pools", "model.top_channels", "model.embedding_width", "model.numeric_embedding"),
        "model.ensemble",
        *("training.batch_size", "training.eval_batch_size", "training.validation", "training.class_weights"),
        *("training.optimizer", "training.learning_rate", "training.schedule"),
        *("training.weight_decay", "training.embedding_decay"),
        *("attack.names", "attack.layers", "attack.every", "attack.informed", "attack.positives", "attack.monitor"),
        *("attack.on_leak", "attack.snapshots", "attack.embeddings", "attack.rebuilt"),
        *("transport.wire_dtype", "transport.fallback", "transport.host", "transport.advertise", "transport.port"),
        *("transport.max_frame_mib", "transport.connect_timeout", "transport.step_timeout"),
        *("transport.reconnect_timeout", "transport.rejoin_timeout"),
        *("align.method", "align.max_ids", "align.message_mib", "align.processes", "align.timeout"),
    }
)
"""Keys that may have any value, the same for all runs of a stack; a stack follows them as a single run does."""

REASONS: Mapping[str, str] = {
    "training.epochs": "a run may end early: set training.epochs to a number, or training.patience to 0",
}
"""Reasons why a run is in no stack, other than that the key is set."""

TAKES: Mapping[str, Callable[[Config], bool]] = {
    "precision": lambda config: config.precision != "bfloat16",
    "sinks": lambda config: not config.sinks,
    "metrics_port": lambda config: not config.metrics_port,
    "model.embedding_device": lambda config: config.model.embedding_device == "same" or config.device == "cpu",
    "training.epochs": lambda config: config.training.patience > 0 or not config.training.ends_early,
    "training.patience": lambda config: config.training.patience <= 0,
    "training.order": lambda config: config.training.order == "random",
    "training.fused": lambda config: not config.training.fused,
    "training.clip_norm": lambda config: not config.training.clip_norm,
    "training.pretrain": lambda config: not config.training.pretrain,
    "training.refit": lambda config: not config.training.refit,
    "training.gradients": lambda config: config.training.gradients,
    "attack.canaries": lambda config: not config.attack.canaries,
    "attack.audit": lambda config: config.attack.audit,
    "attack.max_leak": lambda config: config.attack.max_leak == 1.0,
    "attack.max_bound": lambda config: config.attack.max_bound == 1.0,
    "transport.kind": lambda config: config.transport.kind == "inproc",
    "transport.in_flight": lambda config: config.transport.in_flight == 1,
    "checkpoint.every": lambda config: not config.checkpoint.every,
    "privacy.ledger": lambda config: not config.privacy.ledger,
}
"""Keys of which a stack can follow some values only, each with the test of a configuration's value.

A key that is in none of the three collections keeps every run out of stacks until it is added to one.
"""


@dataclass(frozen=True)
class Group:
    """Trials that share all but seeds and defenses.

    Attributes
    ----------
    trials
        The trials, in the order of the sweep.
    reason
        Reason why they cannot be trained together; empty where they can.
    """

    trials: tuple[Trial, ...]
    reason: str = ""


def groups(trials: Sequence[Trial]) -> list[Group]:
    """Return the trials in groups: those that can be trained together, and others with the reason why they cannot."""
    found: dict[tuple[str, str], list[Trial]] = {}
    for trial in trials:
        found.setdefault((_shared(trial.config), obstacle(trial.config)), []).append(trial)
    return [
        Group(tuple(members), reason or (NO_GROUP if len(members) == 1 else ""))
        for (_, reason), members in found.items()
    ]


def _shared(config: Config) -> str:
    """Return the part of a configuration that all runs of a stack share, as JSON."""
    return json.dumps(config.model_dump(exclude=set(VARIES)), sort_keys=True)


def obstacle(config: Config) -> str:
    """Return the reason why a run cannot be trained together with others; empty where it can.

    Examples
    --------
    >>> from flower_vfl.config import build_config
    >>> config = build_config({"training": {"epochs": 6}})
    >>> obstacle(config), obstacle(config.model_copy(update={"defenses": [{"name": "label_dp"}]}))
    ('', 'label_dp is no defense of gradients alone')
    """
    return next(_obstacles(config), "")


def _obstacles(config: Config) -> Iterator[str]:
    for key in leaf_paths(type(config)):
        if key in TAKES:
            if not TAKES[key](config):
                yield REASONS.get(key, f"{key} is set, which each run does for itself")
        elif key not in VARIES | SERVES:
            yield f"{key} is a key that nobody has decided about: put it into VARIES, SERVES or TAKES"
    try:
        attacks = make_attacks(config.attack.calls)
        kinds = DEFENSE_METHODS.find_all(entry["name"] for entry in config.defenses)
    except FlowerVflError as error:
        yield str(error)
        return
    for method in attacks:
        reads_gradients = isinstance(method, Attack) or not isinstance(method, InferenceAttack)  # some do both
        if reads_gradients and not isinstance(method, RowAttack):
            yield f"the attack {method.label} is no RowAttack, which scores many runs at once"
        elif isinstance(method, RowAttack) and not method.stacks:
            yield f"the attack {method.label} scores a step in other ways than by `rate`"
    for kind in kinds:
        if not (issubclass(kind, GradientDefense) and kind.stacks()):
            yield f"{kind.name} is no defense of gradients alone"
    if len(kinds) > 1:
        yield "one defense wraps another"
