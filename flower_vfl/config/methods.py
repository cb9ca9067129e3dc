"""The attacks and defenses that a configuration names, checked before the methods themselves are loaded."""

from __future__ import annotations

from flower_vfl.config.run import Config
from flower_vfl.errors import ConfigError
from flower_vfl.registry import ATTACK_NAMES, DEFENSE_NAMES


def check_methods(config: Config) -> None:
    """Refuse an attack or a defense that no installed package has, and a parameter that a built-in one does not have.

    Only the part that composes a run needs the methods: a host without attacks may lack a package of attacks. So
    reading a configuration does not include this check. Of a `module:Class` only the outermost package must be there;
    parameters that a class inherits are not checked.

    Raises
    ------
    ConfigError
        When a name or a parameter is unknown; the message gives the nearest ones.
    """
    if any(call["name"] == "no_gradients" for call in config.defenses):
        raise ConfigError(
            "no_gradients is a defense in the grid of a sweep alone; in a run set training.gradients = false, with "
            "training.pretrain above 0"
        )
    for names, calls in ((ATTACK_NAMES, config.attack.calls), (DEFENSE_NAMES, config.defenses)):
        for call in calls:
            names.check(call["name"], {key: value for key, value in call.items() if key != "name"})
