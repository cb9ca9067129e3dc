"""Several runs by their settings: the same defense at the same strength, whatever the seed."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flower_vfl.reports.figures import Point
from flower_vfl.reports.leaks import label_of, reached, received, worst
from flower_vfl.reports.words import USUAL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flower_vfl.reports.run import Run

SEEDS = ("seed", "schedule_seed")
UTILITIES = {"test_auc": "test AUC (right is better)", "test_loss": "test loss (left is better)"}


@dataclass(frozen=True, slots=True)
class Setting:
    """Runs that differ in their seeds only.

    Attributes
    ----------
    family
        The defenses and the names of their strengths, such as ``marvell s``.
    strength
        The values of those strengths; a family is ordered by them.
    rest
        Everything else that was configured, to tell apart what only looks alike.
    runs
        The runs.
    """

    family: str
    strength: tuple[float, ...]
    rest: str
    runs: list[Run]

    @property
    def name(self) -> str:
        """The strength as a figure shows it."""
        return ", ".join(f"{value:g}" for value in self.strength)

    @property
    def title(self) -> str:
        """Family and strength."""
        return f"{self.family} = {self.name}" if self.strength else self.family

    def point(self, attack: str, layer: str, utility: str) -> Point | None:
        """Return the setting's place in a figure; None where no run measured both."""
        pairs = []
        for run in self.runs:
            entry, last = worst(run.result, layer, attack=attack), run.result["utility"].get("last")
            value = last.get(utility) if isinstance(last, dict) else None
            if entry is not None and isinstance(value, float | int):
                pairs.append((reached(entry), float(value)))
        if not pairs:
            return None
        (leak, leaks), (useful, utilities) = (_spread(values) for values in zip(*pairs, strict=True))
        return Point(self.name, leak, useful, leaks, utilities)


def _spread(values: Sequence[float]) -> tuple[float, tuple[float, float]]:
    return sum(values) / len(values), (min(values), max(values))


def settings_of(runs: Sequence[Run]) -> list[Setting]:
    """Group runs by their settings: families in the order in which they come, each by its strength."""
    found: dict[tuple[str, tuple[float, ...], str], list[Run]] = {}
    for run in runs:
        config = {key: value for key, value in tomllib.loads(run.config).items() if key not in (*SEEDS, "defenses")}
        key = (*strength_of(run.result["defenses"]), json.dumps(config, sort_keys=True, default=str))
        found.setdefault(key, []).append(run)
    settings = [Setting(*key, members) for key, members in found.items()]
    order = list(dict.fromkeys((setting.family, setting.rest) for setting in settings))
    return sorted(settings, key=lambda s: (order.index((s.family, s.rest)), s.strength))


def strength_of(defenses: Sequence[Mapping[str, Any]]) -> tuple[str, tuple[float, ...]]:
    """Return the family of a chain of defenses, and the numbers that order it."""
    names: list[str] = []
    strengths: list[float] = []
    for defense in defenses:
        params = defense.get("params")
        params = params if isinstance(params, dict) else {}
        numbers = {k: float(v) for k, v in params.items() if isinstance(v, int | float) and not isinstance(v, bool)}
        others = [
            key if value is True else str(value)
            for key, value in params.items()
            if key not in numbers and value is not False and USUAL.get(key) != value
        ]
        names.append(" ".join([str(defense.get("name")), *others, *numbers]))
        strengths += numbers.values()
    return " + ".join(names) or "no defense", tuple(strengths)


def families(settings: Sequence[Setting]) -> dict[str, list[Setting]]:
    """Return the lines of a trade-off figure: one a family, with a run's name where two look alike."""
    lines: dict[tuple[str, str], list[Setting]] = {}
    for setting in settings:
        lines.setdefault((setting.family, setting.rest), []).append(setting)
    names = [family for family, _ in lines]
    return {
        family if names.count(family) == 1 else f"{family} · {members[0].runs[0].name}": members
        for (family, _), members in lines.items()
    }


def measured_at(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Return (attack's label, layer) of every leak AUC, the attacks in their order, the cut first."""
    pairs = dict.fromkeys((label_of(e), str(e.get("layer"))) for run in runs for e in received(run.result))
    attacks = list(dict.fromkeys(attack for attack, _ in pairs))
    return sorted(pairs, key=lambda pair: (attacks.index(pair[0]), pair[1] != "cut", pair[1] != "first", pair[1]))


def differences(runs: Sequence[Run]) -> list[str]:
    """Return what the runs' configurations differ in, but for defenses and seeds."""
    configs = [_leaves(tomllib.loads(run.config)) for run in runs]
    keys = {key for config in configs for key in config if key.split(".")[0] not in (*SEEDS, "defenses")}
    return sorted(key for key in keys if len({json.dumps(config.get(key), default=str) for config in configs}) > 1)


def _leaves(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for key, value in values.items():
        leaves |= _leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return leaves
