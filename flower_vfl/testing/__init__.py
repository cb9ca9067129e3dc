"""Checks for authors of methods: one call runs all checks of an attack or a defense that built-in ones pass.

>>> from flower_vfl.attacks import HintAttack
>>> from flower_vfl.strategies import Iso
>>> from flower_vfl.testing import check_attack, check_defense
>>> check_attack(HintAttack, k=3)
>>> check_defense(Iso, t=25.0)
"""

from flower_vfl.errors import CheckError
from flower_vfl.testing.attacks import check_attack
from flower_vfl.testing.defenses import check_defense

__all__ = ["CheckError", "check_attack", "check_defense"]
