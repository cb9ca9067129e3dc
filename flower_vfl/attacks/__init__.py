"""Attacks on labels. They see a transcript and declared side information, never a label or a defense."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from flower_vfl.attacks.base import Attack
from flower_vfl.attacks.norm import NormAttack
from flower_vfl.errors import ConfigError
from flower_vfl.registry import lookup

if TYPE_CHECKING:
    from collections.abc import Mapping

ATTACKS: Mapping[str, type[Attack]] = MappingProxyType({attack.name: attack for attack in (NormAttack,)})
"""Every attack by the name that configs and results use."""


def make_attack(name: str, **params: Any) -> Attack:
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


__all__ = ["ATTACKS", "Attack", "NormAttack", "make_attack"]
