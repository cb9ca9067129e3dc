"""The label party's Flower strategy, and the defenses that wrap it.

Importing this package, `Observer` or `Outcome` loads no torch; the other names do when they are first used.
"""

from typing import TYPE_CHECKING

from flower_vfl.lazy import lazy_names
from flower_vfl.registry import DEFENSE_NAMES

if TYPE_CHECKING:
    from flower_vfl.accounting import Guarantee
    from flower_vfl.parties.hooks import StepView
    from flower_vfl.strategies.base import Defense, HookedStrategy
    from flower_vfl.strategies.defenses import DEFENSE_METHODS, DEFENSES
    from flower_vfl.strategies.embeddings.distance_correlation import DistanceCorrelation
    from flower_vfl.strategies.embeddings.potential_energy import PotentialEnergy
    from flower_vfl.strategies.gradients.base import GradientDefense
    from flower_vfl.strategies.gradients.iso import Iso
    from flower_vfl.strategies.gradients.marvell.full import MarvellFull
    from flower_vfl.strategies.gradients.marvell.isotropic import Marvell
    from flower_vfl.strategies.gradients.max_norm import MaxNorm
    from flower_vfl.strategies.labels.label_dp import LabelDP
    from flower_vfl.strategies.labels.local_head import LocalHead
    from flower_vfl.strategies.vertical import VerticalStrategy
    from flower_vfl.training.observer import Observer
    from flower_vfl.training.outcome import Outcome

__all__ = [
    "DEFENSES",
    "DEFENSE_METHODS",
    "Defense",
    "DistanceCorrelation",
    "GradientDefense",
    "Guarantee",
    "HookedStrategy",
    "Iso",
    "LabelDP",
    "LocalHead",
    "Marvell",
    "MarvellFull",
    "MaxNorm",
    "Observer",
    "Outcome",
    "PotentialEnergy",
    "StepView",
    "VerticalStrategy",
]

_HOMES = {
    **{name: module for module, name in (method.split(":") for method in DEFENSE_NAMES.builtin.values())},
    "Guarantee": "flower_vfl.accounting",
    **dict.fromkeys(("Defense", "HookedStrategy"), "flower_vfl.strategies.base"),
    **dict.fromkeys(("DEFENSES", "DEFENSE_METHODS"), "flower_vfl.strategies.defenses"),
    "GradientDefense": "flower_vfl.strategies.gradients.base",
    "Observer": "flower_vfl.training.observer",
    "Outcome": "flower_vfl.training.outcome",
    "StepView": "flower_vfl.parties.hooks",
    "VerticalStrategy": "flower_vfl.strategies.vertical",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
