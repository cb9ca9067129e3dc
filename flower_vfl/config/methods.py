"""Names of the attacks and defenses that a configuration can give, checked before the methods themselves are loaded."""

from __future__ import annotations

from flower_vfl.config.run import Config
from flower_vfl.registry import MethodNames

ATTACK_NAMES = MethodNames(
    "attack",
    "flower_vfl.attacks",
    (
        *("norm", "cosine", "inner_product", "direction_count", "hint", "residual", "direction", "shell"),
        *("gradient_clustering", "remembered_norm", "remembered_direction", "remembered_difference"),
        *("remembered_hint", "remembered_fit", "remembered_quadratic", "remembered_network", "spectral"),
        *("clustering", "model_completion", "embedding_reader", "joint_regression", "joint_reader"),
    ),
)
"""Those of `flower_vfl.attacks.ATTACK_METHODS`, which needs torch."""

DEFENSE_NAMES = MethodNames(
    "defense",
    "flower_vfl.defenses",
    (
        *("distance_correlation", "iso", "label_dp", "local_head", "marvell", "marvell_full", "max_norm"),
        "potential_energy",
    ),
)
"""Those of `flower_vfl.strategies.DEFENSE_METHODS`, which needs torch."""


def check_methods(config: Config) -> None:
    """Refuse a configuration that names an attack or a defense which no installed package has.

    Only the part that composes a run needs the methods: a host without attacks may lack a package of attacks. So this
    is no part of reading a configuration. A `module:Class` is not checked.

    Raises
    ------
    ConfigError
        For an unknown name, with the nearest ones.
    """
    for names, calls in ((ATTACK_NAMES, config.attack.calls), (DEFENSE_NAMES, config.defenses)):
        for call in calls:
            names.check(call["name"])
