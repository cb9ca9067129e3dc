"""A sweep's file: the values that all trials share, those that vary, and the resources of the trials."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError

from flower_vfl.apps.sweeps import DEFINITION, origin_of
from flower_vfl.config import canonical_key, explain, leaf_paths, read_source, sweep_names
from flower_vfl.config.section import Section
from flower_vfl.errors import ConfigError, suggestion

TRIAL_TABLES = ("set", "grid", "random", "cases")
_KNOWN = ("base", "sweep", *TRIAL_TABLES)
NOTHING_VARIES = (
    "nothing varies: give a key several values in [grid] (seed = [0, 1, 2]), a range in [random], several [[cases]], "
    "or several presets as base; `flower-vfl run` does a single run"
)


class Running(Section):
    """The table `sweep`: the number of trials that are drawn, and the resources of each."""

    samples: int = Field(default=1, ge=1, le=100_000, description="how often the keys of [random] are drawn")
    seed: int = Field(default=0, ge=0, lt=2**63, description="seed of those draws")
    retries: int = Field(default=1, ge=0, le=100, description="how often a trial that failed is tried again")
    cpus: int = Field(default=0, ge=0, le=1024, description="processors of a trial; 0: as many as its threads")
    gpus: float = Field(default=0.0, ge=0.0, le=64.0, description="GPUs of a trial, 0.25: four trials on one GPU")
    stacking: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="train trials together that differ in seeds and defenses: where it is faster, or not",
    )

    def with_stacking(self, wanted: bool) -> Self:
        """Return the same table if `wanted` is true, else the same with stacking off."""
        return self if wanted else self.model_copy(update={"stacking": "off"})


@dataclass(frozen=True)
class Budget:
    """Limits of a search: no trial begins or goes on after its time.

    Attributes
    ----------
    ends
        End of all trials, by the clock `time.monotonic`: the time to start Ray and to check the trials counts too.
    measure
        Metric that is compared after each epoch; larger is better.
    given
        Trial of the settings that were given. All others are ended when they are behind (successive halving); without
        it, none is.
    words
        Trial to the words by which the progress names it; others have the names of their folders.
    latest
        End of all trials if none has ended at `ends`: until then they go on, and the first that ends is the last.
    """

    ends: float
    measure: str
    given: str = ""
    words: Mapping[str, str] = field(default_factory=dict)
    latest: float = 0.0


@dataclass(frozen=True)
class Definition:
    """Content of a sweep's file; every key is the dotted path of the configuration.

    Attributes
    ----------
    text
        The file.
    folder
        Folder to which paths of bases are relative: that of the file, or of the original for the copy in a sweep.
    bases
        Presets or files that trials begin from; an empty name for the defaults.
    fixed
        Values that all trials share.
    grid
        Keys with the values of which every combination is a trial.
    random
        Keys with the list or the range from which their values are drawn.
    cases
        Settings of several keys at once, each of which is combined with the rest.
    running
        The table `sweep`: drawing and running of trials.
    """

    text: str
    folder: Path
    bases: tuple[str, ...]
    fixed: Mapping[str, Any]
    grid: Mapping[str, list[Any]]
    random: Mapping[str, Any]
    cases: tuple[Mapping[str, Any], ...]
    running: Running


def load_definition(source: str) -> Definition:
    """Read a sweep's preset by name or its TOML file by path.

    Raises
    ------
    ConfigError
        When there is no such file, or a part of it is unknown, malformed, or in conflict with another.
    """
    text, values = read_source(source, sweep_names(), preset="preset of a sweep", file="sweep's file", folders=False)
    try:
        return _build(text, values, _folder(source))
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def parse_definition(text: str, folder: Path) -> Definition:
    """Return the content of the text of a sweep's file, whose paths are relative to `folder`.

    Raises
    ------
    ConfigError
        When a part of the text is unknown, malformed, or in conflict with another.
    """
    return _build(text, tomllib.loads(text), folder)


def _folder(source: str) -> Path:
    """Return the folder to which the paths of a definition are relative."""
    path = Path(source)
    if path.suffix != ".toml":
        return Path()
    return origin_of(path.parent) if path.name == DEFINITION else path.parent


def _build(text: str, values: Mapping[str, Any], folder: Path) -> Definition:
    for name in values:
        if name not in _KNOWN:
            raise ConfigError(f"a sweep has no {name!r}; {suggestion(name, _KNOWN)}. Keys of runs go into [set]")
    tables = {name: values.get(name, {}) for name in ("set", "grid", "random", "sweep")}
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{name} must be a table, [{name}], given {table!r:.80}")
    cases = values.get("cases", [])
    if not (isinstance(cases, list) and all(isinstance(case, dict) for case in cases)):
        raise ConfigError(f"cases must be tables, [[cases]], given {cases!r:.80}")
    try:
        running = Running.model_validate(tables["sweep"])
    except ValidationError as error:
        raise ConfigError(f"[sweep] {explain(error, Running)}") from None
    definition = Definition(
        text=text,
        folder=folder,
        bases=_bases(values.get("base", ""), folder),
        fixed=_flat(tables["set"], "[set]"),
        grid=_flat(tables["grid"], "[grid]"),
        random=_flat(tables["random"], "[random]"),
        cases=tuple(_flat(case, "[[cases]]") for case in cases),
        running=running,
    )
    _check_lists(definition)
    _check_conflicts(definition)
    return definition


def _bases(given: Any, folder: Path) -> tuple[str, ...]:
    """Return the presets or files that trials begin from; a path is relative to the folder."""
    bases = [given] if isinstance(given, str) else given
    if not (isinstance(bases, list) and bases and all(isinstance(base, str) for base in bases)):
        raise ConfigError(f"base must be a preset, a path ending in .toml, or a list of them, given {given!r:.80}")
    if len(set(bases)) < len(bases):
        raise ConfigError("base names the same preset twice")
    return tuple(str(folder / base) if base.endswith(".toml") else base for base in bases)


def _flat(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the values of a table of nested or dotted keys, by dotted path."""
    flat: dict[str, Any] = {}
    for key, value in _leaves(table, ""):
        try:
            path = canonical_key(key)
        except ConfigError as error:
            raise ConfigError(f"{where} {error}") from None
        if path in flat:
            raise ConfigError(f"{where} gives {path} twice")
        flat[path] = value
    return flat


def _leaves(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield keys with values; a table that is a section of the configuration is entered."""
    sections = {path.rpartition(".")[0] for path in leaf_paths()} | {"data.options"}
    for name, value in table.items():
        key = prefix + name
        if isinstance(value, dict) and key in sections:
            yield from _leaves(value, f"{key}.")
        else:
            yield key, value


def _check_lists(definition: Definition) -> None:
    for key, values in definition.grid.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"[grid] {key} needs a list of values, given {values!r:.80}; one value for all: [set]")
    if definition.running.samples > 1 and not definition.random:
        raise ConfigError("[sweep] samples counts draws of the keys in [random], and there are none")


def _check_conflicts(definition: Definition) -> None:
    """Refuse a key that is given in two places: one of the two would be ignored."""
    places = {"[set]": definition.fixed, "[grid]": definition.grid, "[random]": definition.random}
    named = [(key, place) for place, keys in places.items() for key in keys]
    named += [(key, "[[cases]]") for key in dict.fromkeys(key for case in definition.cases for key in case)]
    for (key, place), (other, elsewhere) in combinations(named, 2):
        if key == other or key.startswith(f"{other}.") or other.startswith(f"{key}."):
            words = key if key == other else f"{key} and {other}"
            where = f"{place} and {elsewhere}" if place != elsewhere else place
            raise ConfigError(f"{words} conflict: {where} give one thing twice; leave one of the two out")
