"""The label party's Flower strategy, and the defenses that wrap it; imported as `flower_vfl.strategies`."""

from flower_vfl.strategies.base import Defense, HookedStrategy
from flower_vfl.strategies.iso import Iso
from flower_vfl.strategies.marvell import Marvell
from flower_vfl.strategies.max_norm import MaxNorm
from flower_vfl.strategies.observer import Observer
from flower_vfl.strategies.training import Outcome
from flower_vfl.strategies.vertical import VerticalStrategy

DEFENSES: dict[str, type[Defense]] = {"iso": Iso, "marvell": Marvell, "max_norm": MaxNorm}
"""Defenses by the name that a configuration uses."""

__all__ = [
    "DEFENSES",
    "Defense",
    "HookedStrategy",
    "Iso",
    "Marvell",
    "MaxNorm",
    "Observer",
    "Outcome",
    "VerticalStrategy",
]
