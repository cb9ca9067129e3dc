"""Attacks on labels. They see a transcript or a memory, and declared side information, never a label or a defense."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_args

from flower_vfl.attacks.base import (
    NOTHING,
    WHILE_TRAINING,
    Attack,
    AttackMethod,
    Reads,
    RowAttack,
    SideInformation,
    whole,
)
from flower_vfl.attacks.embedding.clustering import ClusteringAttack
from flower_vfl.attacks.embedding.embedding_reader import EmbeddingReaderAttack
from flower_vfl.attacks.embedding.inference import InferenceAttack, Leaked, TrainedView
from flower_vfl.attacks.embedding.model_completion import ModelCompletionAttack
from flower_vfl.attacks.embedding.spectral import SpectralAttack
from flower_vfl.attacks.gradient.cosine import CosineAttack
from flower_vfl.attacks.gradient.direction import DirectionAttack
from flower_vfl.attacks.gradient.direction_count import DirectionCountAttack
from flower_vfl.attacks.gradient.gradient_clustering import GradientClusteringAttack
from flower_vfl.attacks.gradient.hint import HintAttack
from flower_vfl.attacks.gradient.inner_product import InnerProductAttack
from flower_vfl.attacks.gradient.norm import NormAttack
from flower_vfl.attacks.gradient.residual import ResidualAttack
from flower_vfl.attacks.gradient.shell import ShellAttack
from flower_vfl.attacks.joint import JointAttack, JointReaderAttack, JointRegressionAttack
from flower_vfl.attacks.longitudinal.base import KnownRows, Memory, MemoryAttack
from flower_vfl.attacks.longitudinal.difference import RememberedDifferenceAttack
from flower_vfl.attacks.longitudinal.direction import RememberedBatchesAttack, RememberedDirectionAttack
from flower_vfl.attacks.longitudinal.hint import RememberedHintAttack
from flower_vfl.attacks.longitudinal.linear import RememberedFitAttack
from flower_vfl.attacks.longitudinal.network import RememberedNetworkAttack
from flower_vfl.attacks.longitudinal.norm import RememberedNormAttack
from flower_vfl.attacks.longitudinal.quadratic import RememberedQuadraticAttack
from flower_vfl.attacks.longitudinal.scales import RememberedScalesAttack
from flower_vfl.errors import ConfigError
from flower_vfl.registry import ATTACK_NAMES, Methods

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ATTACK_METHODS: Methods[AttackMethod] = Methods(ATTACK_NAMES, (Attack, InferenceAttack, MemoryAttack, JointAttack))
"""The built-in attacks and those of other installed packages."""

ATTACKS: Mapping[str, type[AttackMethod]] = MappingProxyType(ATTACK_METHODS.builtin)
"""Every built-in attack by the name that configs and results use."""


def make_attack(name: str, /, **params: Any) -> AttackMethod:
    """Make an attack by its name, or by its class as `module:Class`.

    Raises
    ------
    ConfigError
        For an unknown name, for a class that is no attack or declares invalid attributes, and for parameters that the
        attack does not have.

    Examples
    --------
    >>> make_attack("norm").name
    'norm'
    """
    return _make(ATTACK_METHODS.find(name), params)


def _make(method: type[AttackMethod], params: Mapping[str, Any]) -> AttackMethod:
    attack = ATTACK_METHODS.make(method, **params)
    for base, allowed in ((Attack, WHILE_TRAINING), (InferenceAttack, get_args(Reads))):
        reads = getattr(attack, "reads", None)
        if isinstance(attack, base) and reads not in allowed:
            raise ConfigError(
                f"the attack {attack.label!r} reads {reads!r}: its `reads` is one of {', '.join(allowed)}"
            )
    if isinstance(attack, InferenceAttack):
        whole(attack.label, "draws", attack.draws)
    return attack


def make_attacks(calls: Iterable[Mapping[str, Any]]) -> list[AttackMethod]:
    """Make attacks from mappings of a name and parameters, as in ``AttackConfig.calls``.

    Raises
    ------
    ConfigError
        As `make_attack` does, and for two attacks with one label, which a log could not distinguish.

    Examples
    --------
    >>> [attack.label for attack in make_attacks([{"name": "norm"}, {"name": "hint", "k": 1}])]
    ['norm', 'hint(k=1)']
    """
    attacks: dict[str, AttackMethod] = {}
    calls = list(calls)
    for call, method in zip(calls, ATTACK_METHODS.find_all(call["name"] for call in calls), strict=True):
        attack = _make(method, {key: value for key, value in call.items() if key != "name"})
        if attacks.setdefault(attack.label, attack) is not attack:
            raise ConfigError(f"The attack {attack.label!r} is named twice: name each once, or with other parameters.")
    return list(attacks.values())


__all__ = [
    "ATTACKS",
    "ATTACK_METHODS",
    "NOTHING",
    "Attack",
    "AttackMethod",
    "ClusteringAttack",
    "CosineAttack",
    "DirectionAttack",
    "DirectionCountAttack",
    "EmbeddingReaderAttack",
    "GradientClusteringAttack",
    "HintAttack",
    "InferenceAttack",
    "InnerProductAttack",
    "JointAttack",
    "JointReaderAttack",
    "JointRegressionAttack",
    "KnownRows",
    "Leaked",
    "Memory",
    "MemoryAttack",
    "ModelCompletionAttack",
    "NormAttack",
    "RememberedBatchesAttack",
    "RememberedDifferenceAttack",
    "RememberedDirectionAttack",
    "RememberedFitAttack",
    "RememberedHintAttack",
    "RememberedNetworkAttack",
    "RememberedNormAttack",
    "RememberedQuadraticAttack",
    "RememberedScalesAttack",
    "ResidualAttack",
    "RowAttack",
    "ShellAttack",
    "SideInformation",
    "SpectralAttack",
    "TrainedView",
    "make_attack",
    "make_attacks",
]
