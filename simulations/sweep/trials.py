"""The trials of a sweep's file, each a whole configuration with a name of its own."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from flower_vfl.apps.run_state import config_digest
from flower_vfl.auditing.entries import NO_GRADIENTS
from flower_vfl.config import Config, build_config, canonical_key, load_config
from flower_vfl.config.parsing import NO_DEFENSE, call, parse_defenses, written
from flower_vfl.errors import ConfigError
from flower_vfl.simulations.sweep.definition import NOTHING_VARIES, Definition

MOST_TRIALS = 20_000
BASE_KEY, DEFENSES_KEY = "base", "defenses"
_SEEDS = ("seed", "schedule_seed")
_SHOWN = 8
_NAME_LENGTH = 96

TrialValues = dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """One run of a sweep.

    Attributes
    ----------
    run
        Its name, and that of its folder.
    config
        Configuration of the run.
    values
        The keys that vary in this sweep, with this trial's values; defenses as text.
    digest
        Digest of everything in the configuration that changes what is computed.
    """

    run: str
    config: Config
    values: Mapping[str, Any]
    digest: str


def trials_of(definition: Definition, overrides: Mapping[str, Any] | None = None) -> list[Trial]:
    """Return the trials of a sweep, in the order of its file.

    Parameters
    ----------
    definition : Definition
        Content of the sweep's file.
    overrides : Mapping, optional
        Values of the command line's `--set`, for keys that do not vary.

    Raises
    ------
    ConfigError
        When nothing varies, two trials would be the same, or a trial's configuration is wrong; all of the latter are
        named at once.
    """
    fixed = _with_overrides(definition, overrides or {})
    names = base_names(definition.bases)
    bases = {names[base]: load_config(base).model_dump() if base else {} for base in definition.bases}
    points = list(_points(definition))
    found, problems = [], []
    for base, point in product(bases, points):
        try:
            found.append((base, point, build_config(bases[base], {**fixed, **_settings(point)})))
        except ConfigError as error:
            start = {BASE_KEY: base} if len(bases) > 1 else {}
            problems.append(f"{_words({**start, **point})}: {error}")
    if problems:
        more = f" (and {len(problems) - _SHOWN} more)" if len(problems) > _SHOWN else ""
        raise ConfigError(f"{len(problems)} trials cannot run: {'; '.join(problems[:_SHOWN])}{more}")
    return _named(definition, found)


def base_names(bases: Sequence[str]) -> dict[str, str]:
    """Return the name of each base in tables: for files, the shortest ends of their paths of which no two are equal.

    Examples
    --------
    >>> base_names(["census", "mine/small.toml"])
    {'census': 'census', 'mine/small.toml': 'small'}
    >>> base_names(["a/base.toml", "b/base.toml"])
    {'a/base.toml': 'a/base', 'b/base.toml': 'b/base'}
    """
    parts = {base: Path(base.removesuffix(".toml")).parts for base in bases}
    for length in range(1, max(map(len, parts.values())) + 1):
        names = {base: "/".join(found[-length:]) for base, found in parts.items()}
        if len(set(names.values())) == len(bases):
            return names
    return {base: base for base in bases}  # a preset, and a file of its name beside the sweep's


def _with_overrides(definition: Definition, overrides: Mapping[str, Any]) -> TrialValues:
    given = {canonical_key(key): value for key, value in overrides.items()}
    varying = {*definition.grid, *definition.random, *(key for case in definition.cases for key in case)}
    clash = sorted(given.keys() & varying)
    if clash:
        raise ConfigError(f"--set gives {', '.join(clash)}, which the sweep varies; change the sweep's file")
    return {**definition.fixed, **given}


def _points(definition: Definition) -> Iterator[TrialValues]:
    """Yield the values of each trial beyond its base and the shared ones; each sample meets the whole grid."""
    grid = {key: _grid_values(key, values) for key, values in definition.grid.items()}
    count = math.prod([*map(len, grid.values()), max(1, len(definition.cases)), len(definition.bases)])
    count *= definition.running.samples
    if count > MOST_TRIALS:
        raise ConfigError(f"that would be {count:,} trials; {MOST_TRIALS:,} are the most that one sweep takes")
    for case in definition.cases or ({},):
        chosen = {key: _one_chain(value) if key == DEFENSES_KEY else value for key, value in case.items()}
        for values in product(*grid.values()):
            for sample in range(definition.running.samples):
                yield {**chosen, **dict(zip(grid, values, strict=True)), **_draws(definition, sample)}


def _settings(point: TrialValues) -> TrialValues:
    """Return the values of a trial; `no_gradients(pretrain=3)` as defense becomes training without gradients."""
    chain = point.get(DEFENSES_KEY, [])
    if NO_GRADIENTS not in [entry.get("name") for entry in chain]:
        return point
    params = {name: value for name, value in chain[0].items() if name != "name"}
    if len(chain) > 1 or params.keys() - {"pretrain"}:
        raise ConfigError(f'{NO_GRADIENTS} stands by itself, with pretrain or without it: "{NO_GRADIENTS}(pretrain=3)"')
    pretrain = {f"training.{name}": value for name, value in params.items()}
    return {**point, DEFENSES_KEY: [], "training.gradients": False, "training.patience": 0, **pretrain}


def _grid_values(key: str, values: list[Any]) -> list[Any]:
    found = [chain for value in values for chain in chains(value)] if key == DEFENSES_KEY else values
    if any(one == other for index, one in enumerate(found) for other in found[:index]):
        raise ConfigError(f"[grid] {key} has one value twice: {written([show(key, value) for value in found])}")
    return found


def chains(value: Any) -> list[list[dict[str, Any]]]:
    """Return the chains of defenses that one value stands for: a parameter with a list of values gives one for each.

    Examples
    --------
    >>> chains({"name": "iso", "t": [1.0, 4.0]})
    [[{'name': 'iso', 't': 1.0}], [{'name': 'iso', 't': 4.0}]]
    >>> chains("none"), chains("marvell(s=4.0), label_dp")
    ([[]], [[{'name': 'marvell', 's': 4.0}, {'name': 'label_dp'}]])
    """
    if isinstance(value, str):
        return [parse_defenses(value)]
    entries = value if isinstance(value, list) else [value]
    parsed: list[dict[str, Any]] = []
    for entry in entries:
        if isinstance(entry, str):
            parsed += parse_defenses(entry)
        elif isinstance(entry, dict):
            parsed.append(entry)
        else:
            raise ConfigError(
                f'{entry!r:.80} is no defense: write {{ name = "iso", t = [1.0, 4.0] }}, "iso(t=1.0)", or "none"'
            )
    return [list(chain) for chain in product(*map(_strengths, parsed))]


def _strengths(entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    lists = [value if isinstance(value, list) else [value] for value in entry.values()]
    return [dict(zip(entry, values, strict=True)) for values in product(*lists)]


def _one_chain(value: Any) -> list[dict[str, Any]]:
    found = chains(value)
    if len(found) != 1:
        raise ConfigError("[[cases]] defenses has several strengths; a case is one setting, put them into [grid]")
    return found[0]


def _draws(definition: Definition, sample: int) -> TrialValues:
    """Draw the keys of [random] once, each key and sample from a generator of its own, so that more change no other."""
    drawn: TrialValues = {}
    for key, space in definition.random.items():
        generator = random.Random(f"{definition.running.seed} {sample} {key}")
        if key == DEFENSES_KEY:
            options = [chain for value in (space if isinstance(space, list) else [space]) for chain in chains(value)]
            drawn[key] = [_draw_defense(entry, generator) for entry in generator.choice(options)]
        else:
            drawn[key] = _draw(key, space, generator)
    return drawn


def _draw_defense(entry: Mapping[str, Any], generator: random.Random) -> dict[str, Any]:
    return {k: _draw(f"defenses {k}", v, generator) if isinstance(v, dict) else v for k, v in entry.items()}


def _draw(key: str, space: Any, generator: random.Random) -> Any:
    """Draw from a list, or from a range `{ low = 1e-4, high = 1e-2, log = true }`, of integers if both ends are."""
    if isinstance(space, list) and space:
        return generator.choice(space)
    if not (isinstance(space, dict) and {"low", "high"} <= space.keys() <= {"low", "high", "log"}):
        raise ConfigError(
            f"[random] {key} needs a list of values, or {{ low = ..., high = ..., log = true }}, given {space!r:.80}"
        )
    low, high, log = space["low"], space["high"], space.get("log", False)
    numbers = all(isinstance(end, int | float) and not isinstance(end, bool) for end in (low, high))
    if not (numbers and isinstance(log, bool) and math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigError(f"[random] {key} needs numbers with low < high, and log true or false, given {space!r:.80}")
    if log and low <= 0:
        raise ConfigError(f"[random] {key} has log = true, which needs low > 0, given {low!r}")
    whole = isinstance(low, int) and isinstance(high, int)
    ends = (float(low), float(high) + (1.0 if whole else 0.0))
    drawn = math.exp(generator.uniform(*map(math.log, ends))) if log else generator.uniform(*ends)
    return min(math.floor(drawn), high) if whole else float(f"{drawn:.6g}")


def _named(definition: Definition, found: Iterable[tuple[str, TrialValues, Config]]) -> list[Trial]:
    """Return the trials, named by the values that vary; refuse two equal ones, but drop repeated draws."""
    rows = [({BASE_KEY: base, **point}, config, config_digest(config)) for base, point, config in found]
    keys = list(dict.fromkeys(key for values, _, _ in rows for key in values))
    shown = [{key: show(key, values[key]) for key in keys if key in values} for values, _, _ in rows]
    varying = [key for key in keys if len({str(row.get(key)) for row in shown}) > 1]
    if not varying:
        raise ConfigError(NOTHING_VARIES)
    trials: dict[str, Trial] = {}
    taken: set[str] = set()
    for (_, config, digest), words in zip(rows, shown, strict=True):
        values = {key: words[key] for key in varying if key in words}
        if digest in trials:
            if definition.random:
                continue
            raise ConfigError(
                f"two trials are the same: {_words(trials[digest].values)}, and {_words(values)}; one value is given "
                "in two ways, or a key that varies is not used"
            )
        name = unused_name(_slug(values), taken)
        trials[digest] = Trial(name, config, values, digest)
    if len(trials) == 1:
        raise ConfigError(NOTHING_VARIES)
    return list(trials.values())


def unused_name(name: str, taken: set[str]) -> str:
    """Return a name, or the first of `name-2`, `name-3`, ... that is not taken, and take it."""
    unused, number = name, 1
    while unused in taken:
        number += 1
        unused = f"{name}-{number}"
    taken.add(unused)
    return unused


def show(key: str, value: Any) -> Any:
    """Return a value as tables show it: a scalar as it is, defenses as calls, the rest as text.

    Examples
    --------
    >>> show("defenses", [{"name": "marvell", "s": 4.0}]), show("defenses", []), show("training.epochs", 3)
    ('marvell(s=4)', 'none', 3)
    """
    if key == DEFENSES_KEY and isinstance(value, list):
        return ", ".join(map(_call, value)) or NO_DEFENSE
    return value if isinstance(value, str | int | float | bool) else written(value)


def _call(entry: Mapping[str, Any]) -> str:
    return call(str(entry.get("name")), {name: value for name, value in entry.items() if name != "name"})


def setting_of(trial: Trial) -> str:
    """Return what varies in a sweep, but for seeds, in words."""
    return _words({key: value for key, value in trial.values.items() if key.rpartition(".")[2] not in _SEEDS})


def _words(values: Mapping[str, Any]) -> str:
    parts = (f"{key} = {show(key, value)}" for key, value in values.items() if (key, value) != (BASE_KEY, ""))
    return ", ".join(parts) or "the only trial"


def _slug(values: Mapping[str, Any]) -> str:
    """Return a folder's name: texts by themselves, other values after the last part of their key."""
    parts = []
    for key, value in values.items():
        text = re.sub(r"[^A-Za-z0-9.+]+", "-", written(value).replace("=", "")).strip("-.")
        parts.append(text if isinstance(value, str) else f"{key.rpartition('.')[2]}{text}")
    return "-".join(filter(None, parts))[:_NAME_LENGTH] or "trial"
