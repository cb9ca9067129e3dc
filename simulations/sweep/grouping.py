"""Groups of trials that can be trained together, and the reasons why others cannot."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flower_vfl.attacks import Attack, InferenceAttack, RowAttack, make_attacks
from flower_vfl.config import Config
from flower_vfl.errors import FlowerVflError
from flower_vfl.simulations.sweep.trials import Trial
from flower_vfl.strategies import DEFENSE_METHODS
from flower_vfl.strategies.gradients.base import GradientDefense

ALONE = "no other trial differs from it in seeds and defenses only"


@dataclass(frozen=True)
class Group:
    """Trials that share all but seeds and defenses.

    Attributes
    ----------
    trials
        In the order of the sweep.
    reason
        Why they cannot be trained together; empty where they can.
    """

    trials: tuple[Trial, ...]
    reason: str = ""


def groups(trials: Sequence[Trial]) -> list[Group]:
    """Put trials that can be trained together into groups; the rest is in groups that say why they cannot."""
    found: dict[tuple[str, str], list[Trial]] = {}
    for trial in trials:
        found.setdefault((_shared(trial.config), obstacle(trial.config)), []).append(trial)
    return [
        Group(tuple(members), reason or (ALONE if len(members) == 1 else "")) for (_, reason), members in found.items()
    ]


def _shared(config: Config) -> str:
    """Return all of a configuration that runs in one stack have in common."""
    values = config.model_copy(update={"seed": 0, "schedule_seed": -1, "defenses": []}).model_dump()
    return json.dumps(values, sort_keys=True)


def obstacle(config: Config) -> str:
    """Return why a run cannot be trained together with others; empty where it can.

    Examples
    --------
    >>> from flower_vfl.config import build_config
    >>> config = build_config({"training": {"epochs": 6}})
    >>> obstacle(config), obstacle(config.model_copy(update={"defenses": [{"name": "label_dp"}]}))
    ('', 'label_dp is no defense of gradients alone')
    """
    return next(_obstacles(config), "")


def _obstacles(config: Config) -> Iterator[str]:
    training, attack = config.training, config.attack
    wrong = {
        "training.patience": training.patience > 0,
        'training.epochs = "auto"': training.patience < 0 and training.ends_early,
        "training.clip_norm": training.clip_norm > 0.0,
        "training.order = 'time'": training.order == "time",
        "training.pretrain": training.pretrain > 0,
        "training.gradients = false": not training.gradients,
        "attack.max_leak": attack.max_leak < 1.0,
        "attack.max_bound": attack.max_bound < 1.0,
        "attack.audit = false": not attack.audit,
        "attack.canaries": attack.canaries > 0,
        "checkpoint.every": config.checkpoint.every != 0,
        "transport.kind": config.transport.kind != "inproc",
        "transport.in_flight": config.transport.in_flight != 1,
        "model.embedding_device = 'cpu'": config.model.embedding_device == "cpu" and config.device != "cpu",
        "precision": config.precision == "bfloat16",
        "sinks": bool(config.sinks),
        "privacy.ledger": bool(config.privacy.ledger),
    }
    yield from (f"{key} is set, which each run does for itself" for key, is_set in wrong.items() if is_set)
    try:
        attacks = make_attacks(attack.calls)
        kinds = DEFENSE_METHODS.find_all(entry["name"] for entry in config.defenses)
    except FlowerVflError as error:
        yield str(error)
        return
    for method in attacks:
        looks = isinstance(method, Attack) or not isinstance(method, InferenceAttack)  # some do both
        if looks and not isinstance(method, RowAttack):
            yield f"the attack {method.label} is no RowAttack, which scores many runs at once"
    for kind in kinds:
        if not (issubclass(kind, GradientDefense) and kind.stacks()):
            yield f"{kind.name} is no defense of gradients alone"
    if len(kinds) > 1:
        yield "one defense wraps another"
