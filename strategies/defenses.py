"""The built-in defenses, and those of other installed packages."""

from __future__ import annotations

from flower_vfl.registry import DEFENSE_NAMES, Methods
from flower_vfl.strategies.base import Defense

DEFENSE_METHODS: Methods[Defense] = Methods(DEFENSE_NAMES, (Defense,))
"""The built-in defenses and those of other installed packages."""

DEFENSES: dict[str, type[Defense]] = DEFENSE_METHODS.builtin
"""Built-in defenses by the name that a configuration uses."""
