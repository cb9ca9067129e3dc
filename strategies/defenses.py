"""The built-in defenses, and those of other installed packages."""

from __future__ import annotations

from flower_vfl.registry import Methods
from flower_vfl.strategies.base import Defense
from flower_vfl.strategies.embeddings.distance_correlation import DistanceCorrelation
from flower_vfl.strategies.embeddings.potential_energy import PotentialEnergy
from flower_vfl.strategies.gradients.iso import Iso
from flower_vfl.strategies.gradients.marvell.full import MarvellFull
from flower_vfl.strategies.gradients.marvell.isotropic import Marvell
from flower_vfl.strategies.gradients.max_norm import MaxNorm
from flower_vfl.strategies.labels.label_dp import LabelDP

DEFENSES: dict[str, type[Defense]] = {
    cls.name: cls for cls in (DistanceCorrelation, Iso, LabelDP, Marvell, MarvellFull, MaxNorm, PotentialEnergy)
}
"""Built-in defenses by the name that a configuration uses."""

DEFENSE_METHODS: Methods[Defense] = Methods("defense", "flower_vfl.defenses", (Defense,), DEFENSES)
"""The built-in defenses and those of other installed packages."""
