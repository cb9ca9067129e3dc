"""The attacks and defenses that a configuration names, checked before the methods themselves are loaded."""

from __future__ import annotations

from flower_vfl.config.run import Config
from flower_vfl.registry import ATTACK_NAMES, DEFENSE_NAMES


def check_methods(config: Config) -> None:
    """Refuse a configuration that names an attack or a defense which no installed package has.

    Only the part that composes a run needs the methods: a host without attacks may lack a package of attacks. So
    reading a configuration does not include this check. A `module:Class` is not checked.

    Raises
    ------
    ConfigError
        When a name is unknown; the message gives the nearest ones.
    """
    for names, calls in ((ATTACK_NAMES, config.attack.calls), (DEFENSE_NAMES, config.defenses)):
        for call in calls:
            names.check(call["name"])
