"""Settings of several runs: the same defense at the same strength, whatever the seed."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flower_vfl.apps.result_schema import kept_utility
from flower_vfl.auditing.entries import label_of, reached, received
from flower_vfl.registry import is_number
from flower_vfl.reports.figures import Point
from flower_vfl.reports.leaks import worst
from flower_vfl.reports.words import METRICS, usual_params

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from flower_vfl.reports.run import Run

    Chain = Sequence[Mapping[str, Any]]

SEEDS = ("seed", "schedule_seed")


def axes_of(measure: str) -> dict[str, str]:
    """Return the utilities that leaks are drawn against, that measure and the loss, with their axis labels.

    Examples
    --------
    >>> list(axes_of("test_accuracy").values())
    ['test accuracy (right is better)', 'test loss (left is better)']
    """
    words = METRICS[measure].replace("Test", "test")
    return {measure: f"{words} (right is better)", "test_loss": "test loss (left is better)"}


@dataclass(frozen=True, slots=True)
class Strength:
    """Parameters in which a chain of defenses differs from the others of a figure.

    Attributes
    ----------
    family
        Name of its line: the defenses, the names of the parameters that differ along the line, and other unusual
        parameters, such as ``marvell s``.
    values
        All numbers among the parameters; a family is ordered by them.
    name
        Label of a point, the values that differ: ``4``, or ``rho = 0.5`` where the parameter is not the strength of
        the method.
    title
        The defenses with every parameter that differs or is unusual, such as ``marvell s = 4``.
    """

    family: str
    values: tuple[float, ...]
    name: str
    title: str


@dataclass(frozen=True, slots=True)
class Setting:
    """Runs that differ in their seeds only.

    Attributes
    ----------
    strength
        Strength of their defenses.
    rest
        The rest of the configuration, as JSON, to separate settings that only seem equal.
    runs
        The runs.
    """

    strength: Strength
    rest: str
    runs: list[Run]

    @property
    def title(self) -> str:
        """The defenses with their strength."""
        return self.strength.title

    def point(self, attack: str, layer: str, utility: str) -> Point | None:
        """Return the setting's point in a figure; None where no run measured both leak and utility."""
        pairs = []
        for run in self.runs:
            entry, value = worst(run.result, layer, attack=attack), kept_utility(run.result).get(utility)
            if entry is not None and isinstance(value, float | int):
                pairs.append((reached(entry), float(value)))
        if not pairs:
            return None
        (leak, leaks), (useful, utilities) = (_spread(values) for values in zip(*pairs, strict=True))
        return Point(self.strength.name, leak, useful, leaks, utilities)


def _spread(values: Sequence[float]) -> tuple[float, tuple[float, float]]:
    return sum(values) / len(values), (min(values), max(values))


def settings_of(runs: Sequence[Run]) -> list[Setting]:
    """Return the settings of runs: families in the order of their first runs, each ordered by strength."""
    found: dict[tuple[Strength, str], list[Run]] = {}
    for run, strength in zip(runs, strengths_of([run.result["defenses"] for run in runs]), strict=True):
        config = {key: value for key, value in tomllib.loads(run.config).items() if key not in (*SEEDS, "defenses")}
        found.setdefault((strength, json.dumps(config, sort_keys=True, default=str)), []).append(run)
    settings = [Setting(*key, members) for key, members in found.items()]
    order = list(dict.fromkeys((setting.strength.family, setting.rest) for setting in settings))
    return sorted(settings, key=lambda s: (order.index((s.strength.family, s.rest)), s.strength.values))


def strengths_of(chains: Sequence[Chain]) -> list[Strength]:
    """Return the strength of each chain of defenses among those of one figure, in their order."""
    parsed = [[_Params.of(defense) for defense in chain] for chain in chains]
    kinds: dict[tuple[tuple[str, ...], ...], list[list[_Params]]] = {}
    for chain in parsed:
        kinds.setdefault(_kind(chain), []).append(chain)
    varying = {kind: _varying(members) for kind, members in kinds.items()}
    return [_strength(chain, varying[_kind(chain)]) for chain in parsed]


@dataclass(frozen=True, slots=True)
class _Params:
    """One defense: its name with the unusual parameters that are no numbers, its numbers, and the usual values.

    The first number is the strength.
    """

    words: str
    numbers: dict[str, float]
    usual: Mapping[str, Any]

    @classmethod
    def of(cls, defense: Mapping[str, Any]) -> _Params:
        params = defense.get("params")
        params = params if isinstance(params, dict) else {}
        name = str(defense.get("name"))
        numbers, usual = {k: float(v) for k, v in params.items() if is_number(v)}, usual_params(name)
        others = [
            key if value is True else str(value)
            for key, value in params.items()
            if key not in numbers and value is not False and usual.get(key) != value
        ]
        return cls(" ".join([name, *others]), numbers, usual)

    def named(self, varying: Collection[str], *, valued: bool) -> str:
        """Return the defense with the numbers that vary, and the unusual ones, which always have their value."""
        shown = [
            f"{key} = {value:g}" if valued or key not in varying else key
            for key, value in self.numbers.items()
            if key in varying or self.usual.get(key) != value
        ]
        return " ".join(filter(None, (self.words, ", ".join(shown))))


def _kind(chain: Sequence[_Params]) -> tuple[tuple[str, ...], ...]:
    return tuple((defense.words, *defense.numbers) for defense in chain)


def _varying(chains: Sequence[Sequence[_Params]]) -> list[list[str]]:
    """Return the numbers of each defense in which chains of one kind differ, by name; if none does, its strength."""
    varying = [
        [key for key in versions[0].numbers if len({defense.numbers[key] for defense in versions}) > 1]
        for versions in zip(*chains, strict=True)
    ]
    if any(varying):
        return varying
    return [[key for key in list(d.numbers)[:1] if d.usual.get(key) != d.numbers[key]] for d in chains[0]]


def _strength(chain: Sequence[_Params], varying: Sequence[Sequence[str]]) -> Strength:
    numbers = [(key, defense.numbers[key]) for defense, keys in zip(chain, varying, strict=True) for key in keys]
    alone = len(numbers) == 1 and numbers[0][0] in (next(iter(defense.numbers), None) for defense in chain)
    family, title = (
        " + ".join(defense.named(keys, valued=valued) for defense, keys in zip(chain, varying, strict=True))
        for valued in (False, True)
    )
    return Strength(
        family=family or "no defense",
        values=tuple(value for defense in chain for value in defense.numbers.values()),
        name=", ".join(f"{value:g}" if alone else f"{key} = {value:g}" for key, value in numbers),
        title=title or "no defense",
    )


def families(settings: Sequence[Setting]) -> dict[str, list[Setting]]:
    """Return the lines of a trade-off figure by family; where two names are equal, each gets a run's name."""
    lines: dict[tuple[str, str], list[Setting]] = {}
    for setting in settings:
        lines.setdefault((setting.strength.family, setting.rest), []).append(setting)
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
    """Return the keys in which the runs' configurations differ, except defenses and seeds."""
    configs = [_leaves(tomllib.loads(run.config)) for run in runs]
    keys = {key for config in configs for key in config if key.split(".")[0] not in (*SEEDS, "defenses")}
    return sorted(key for key in keys if len({json.dumps(config.get(key), default=str) for config in configs}) > 1)


def _leaves(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for key, value in values.items():
        leaves |= _leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return leaves
