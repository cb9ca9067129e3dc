"""Attacks on labels. They see a transcript and declared side information, never a label or a defense."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from flower_vfl.attacks.base import Attack, SideInformation
from flower_vfl.attacks.cosine import CosineAttack
from flower_vfl.attacks.direction_count import DirectionCountAttack
from flower_vfl.attacks.hint import HintAttack
from flower_vfl.attacks.inner_product import InnerProductAttack
from flower_vfl.attacks.norm import NormAttack
from flower_vfl.errors import ConfigError
from flower_vfl.registry import lookup

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ATTACKS: Mapping[str, type[Attack]] = MappingProxyType(
    {attack.name: attack for attack in (NormAttack, CosineAttack, InnerProductAttack, DirectionCountAttack, HintAttack)}
)
"""Every attack by the name that configs and results use."""


def make_attack(name: str, /, **params: Any) -> Attack:
    """Make an attack by its name.

    Raises
    ------
    ConfigError
        For a name that is not in `ATTACKS` and for parameters that the attack does not have.

    Examples
    --------
    >>> make_attack("norm").name
    'norm'
    """
    attack = lookup("attack", name, ATTACKS)
    try:
        return attack(**params)
    except TypeError as error:
        raise ConfigError(f"The attack {name!r} cannot be made with {params}: {error}.") from error


def make_attacks(calls: Iterable[Mapping[str, Any]]) -> list[Attack]:
    """Make attacks from a name with parameters each, as ``AttackConfig.calls`` has them.

    Raises
    ------
    ConfigError
        As `make_attack` does, and for the same attack twice: a log could not tell the two apart.

    Examples
    --------
    >>> [attack.label for attack in make_attacks([{"name": "norm"}, {"name": "hint", "k": 1}])]
    ['norm', 'hint(k=1)']
    """
    attacks: dict[str, Attack] = {}
    for call in calls:
        attack = make_attack(call["name"], **{key: value for key, value in call.items() if key != "name"})
        if attacks.setdefault(attack.label, attack) is not attack:
            raise ConfigError(f"The attack {attack.label!r} is named twice: name each once, or with other parameters.")
    return list(attacks.values())


__all__ = [
    "ATTACKS",
    "Attack",
    "CosineAttack",
    "DirectionCountAttack",
    "HintAttack",
    "InnerProductAttack",
    "NormAttack",
    "SideInformation",
    "make_attack",
    "make_attacks",
]
