"""Marvell: the noise on gradients that hides labels best for its power (Li et al., 2022)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flower_vfl.lazy import lazy_names

if TYPE_CHECKING:
    from flower_vfl.strategies.gradients.marvell.isotropic import Marvell, perturb
    from flower_vfl.strategies.gradients.marvell.solver import NoiseSpectrum, optimal_noise

__all__ = ["Marvell", "NoiseSpectrum", "optimal_noise", "perturb"]

_HOMES = {
    **dict.fromkeys(("Marvell", "perturb"), "flower_vfl.strategies.gradients.marvell.isotropic"),
    **dict.fromkeys(("NoiseSpectrum", "optimal_noise"), "flower_vfl.strategies.gradients.marvell.solver"),
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
