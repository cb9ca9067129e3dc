"""Catalog of the data sets by name: list, preparation on first use, and opening."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeGuard

from flower_vfl.data.formats.archives import on_disk
from flower_vfl.data.sources.names import RECIPE_CLASSES
from flower_vfl.data.sources.recipe import Options, Progress, Recipe, build_options
from flower_vfl.data.store import layout
from flower_vfl.data.store.builder import Builder
from flower_vfl.data.store.dataset import Dataset, open_dataset
from flower_vfl.errors import ConfigError, DataError, OutputExistsError, SetupError, lookup
from flower_vfl.files import write_json_atomic

_log = logging.getLogger(__name__)
_WAIT_SECONDS = 0.5
_WARNINGS = "warnings.json"
_REVISION = 8
"""Number of changes of the content of prepared folders since their layout's schema; cached folders of an earlier
revision are prepared again."""

CACHE_VARIABLE = "FLOWER_VFL_CACHE"
DATASETS_VARIABLE = "FLOWER_VFL_DATASETS"
"""Environment variable with the folder of raw or prepared data sets, each under its name, used without a path."""


class _Recipes(Mapping[str, Recipe]):
    """Recipes by name; the module of a recipe is imported at its first use, as a party opens one data set."""

    def __init__(self, classes: Mapping[str, str]) -> None:
        self._classes, self._made = classes, dict[str, Recipe]()

    def __getitem__(self, name: str) -> Recipe:
        if name not in self._made:
            module, _, kind = self._classes[name].partition(":")
            self._made[name] = getattr(import_module(f"{__package__}.{module}"), kind)()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._classes)

    def __len__(self) -> int:
        return len(self._classes)


RECIPES = _Recipes(RECIPE_CLASSES)


@dataclass(frozen=True)
class CatalogEntry:
    """One line of `flower-vfl data list`.

    Parameters
    ----------
    name, description, licence : str
        Name, description and terms of use.
    rows : int or None
        Training rows by default; None where they depend on the user.
    usable : bool
        True if it can be used here as it is.
    advice : str
        Steps that make it usable; empty if it is.
    """

    name: str
    description: str
    licence: str
    rows: int | None
    usable: bool
    advice: str


def available() -> list[CatalogEntry]:
    """Return an entry for each data set, with the steps that make it usable on this host."""
    return [
        CatalogEntry(recipe.name, recipe.description, recipe.licence, recipe.rows, not advice, advice)
        for recipe in RECIPES.values()
        for advice in ("" if _stored(recipe) else recipe.advice(),)
    ]


def load(
    name: str, *, path: str | Path = "", cache: Path | None = None, options: Mapping[str, Any] | None = None
) -> Dataset:
    """Open a data set, preparing it on first use.

    Parameters
    ----------
    name : str
        One of `available()`.
    path : str or Path
        A prepared folder, or the raw source; empty for FLOWER_VFL_DATASETS/<name> where that exists, else for the
        files of the data set's package.
    cache : Path, optional
        Folder of prepared data; without it FLOWER_VFL_CACHE or ~/.cache/flower-vfl.
    options : Mapping, optional
        Options of the data set; other options or changed raw files make another entry in the cache.

    Raises
    ------
    ConfigError
        When the name or an option is wrong.
    DataError
        When the data is missing or cannot be used.
    SetupError
        When the cache cannot be written.
    """
    recipe, source = _found(name, path)
    if _is_prepared(source):
        return _open_prepared(recipe, source, options or {})
    checked = build_options(recipe, options or {})
    folder = (cache or _default_cache()) / f"{recipe.name}-{_cache_key(recipe, source, checked)}"
    while not folder.exists():
        _make_cache(folder.parent)
        try:
            return _prepare(recipe, source, folder, checked, lambda done: None)
        except OutputExistsError:
            # Another process has prepared the same data, or is preparing it.
            if not folder.exists():
                _log.info("%s is being prepared by another process", folder)
                time.sleep(_WAIT_SECONDS)
    for warning in _read_warnings(folder):
        _log.warning("%s", warning)
    return open_dataset(folder)


def check(name: str, *, path: str | Path = "", options: Mapping[str, Any] | None = None) -> None:
    """Check name, path and options of a data set as `load` does, without reading any data.

    Raises
    ------
    ConfigError, DataError
        As in `load`.
    """
    recipe, source = _found(name, path)
    if not _is_prepared(source):
        build_options(recipe, options or {})


def prepare(
    name: str,
    *,
    source: Path | None = None,
    out: Path,
    options: Mapping[str, Any] | None = None,
    published: bool = False,
    progress: Progress = lambda done: None,
) -> Dataset:
    """Prepare a data set into a folder, which then is complete or absent.

    Parameters
    ----------
    name : str
        One of `available()`.
    source : Path, optional
        The raw data, where it does not come with a package.
    out : Path
        A folder that does not exist yet or is empty.
    options : Mapping, optional
        Options of the data set.
    published : bool
        True to repeat the preprocessing of the papers' authors, except where `options` differ.
    progress : callable
        Called with the part of the work that is done, 0 to 1.

    Raises
    ------
    OutputExistsError
        When `out` is not empty.
    ConfigError, DataError
        As in `load`.
    """
    recipe = lookup("data set", name, RECIPES)
    if source is not None and not source.exists():
        raise DataError(f"{source} does not exist")
    _check_source(recipe, source)
    if published and not recipe.published:
        known = ", ".join(other.name for other in RECIPES.values() if other.published)
        raise ConfigError(f"{name} has no preprocessing that its authors published; {known} have")
    chosen = {**(recipe.published if published else {}), **(options or {})}
    return _prepare(recipe, source, out, build_options(recipe, chosen), progress)


def _found(name: str, path: str | Path) -> tuple[Recipe, Path | None]:
    """Return a recipe and the path of its data, None for the files of its package."""
    recipe = lookup("data set", name, RECIPES)
    source = Path(path).expanduser() if str(path) else _stored(recipe)
    if source is not None and not source.exists():
        raise DataError(f"data.path names {str(path)!r}, which does not exist")
    if not _is_prepared(source):
        _check_source(recipe, source)
    return recipe, source


def _is_prepared(source: Path | None) -> TypeGuard[Path]:
    return source is not None and (source / layout.MANIFEST).is_file()


def _check_source(recipe: Recipe, source: Path | None) -> None:
    if source is not None and recipe.pathless:
        raise DataError(f"{recipe.name} {recipe.pathless} and is not read from a path; given {source}")


def _prepare(recipe: Recipe, source: Path | None, out: Path, options: Options, progress: Progress) -> Dataset:
    if recipe.resumable:
        with (
            layout.lasting_folder(out, f"{recipe.name} {_cache_key(recipe, source, options)}") as (folder, notes),
            _warnings_kept(folder),
        ):
            recipe.write(Builder(folder, notes), source, options, progress)
    else:
        with layout.new_folder(out) as folder, _warnings_kept(folder):
            recipe.write(Builder(folder), source, options, progress)
    progress(1.0)
    return open_dataset(out)


@contextmanager
def _warnings_kept(folder: Path) -> Iterator[None]:
    """Write the warnings that are logged while data is prepared to its folder, for later uses."""
    collector, watched = _Collector(), logging.getLogger("flower_vfl.data")
    watched.addHandler(collector)
    try:
        yield
    finally:
        watched.removeHandler(collector)
    write_json_atomic(folder / _WARNINGS, collector.warnings)


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.warnings: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.warnings.append(record.getMessage())


def _read_warnings(folder: Path) -> list[str]:
    path = folder / _WARNINGS
    try:
        return [str(warning) for warning in json.loads(path.read_text(encoding="utf8"))]
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: {error}; remove its folder, and the data is prepared again") from None


def _open_prepared(recipe: Recipe, folder: Path, options: Mapping[str, Any]) -> Dataset:
    """Open a prepared folder after checking its data set and options against the requested ones."""
    dataset = open_dataset(folder)
    if dataset.name != recipe.name:
        raise DataError(f"{folder} holds {dataset.name!r}, not {recipe.name!r}; set data.name to {dataset.name!r}")
    if options:
        wanted = build_options(recipe, {**dataset.options, **options}).model_dump(mode="json")
        given = {key.partition(".")[0] for key in options}
        other = sorted(key for key in given if dataset.options.get(key) != wanted[key])
        if other:
            raise DataError(
                f"{folder} was prepared with {other[0]} = {dataset.options.get(other[0])!r}, asked for is "
                f"{wanted[other[0]]!r}; leave the option out or prepare the data again"
            )
    return dataset


def _cache_key(recipe: Recipe, source: Path | None, options: Options) -> str:
    paths = [on_disk(path) for path in recipe.inputs(source, options)]
    files = [(str(path.resolve()), *_version(path.stat())) for path in paths]
    facts = [layout.LAYOUT_VERSION, _REVISION, options.model_dump(mode="json"), files]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _version(found: os.stat_result) -> tuple[int, ...]:
    """Return numbers that differ where a file may have changed, also where its size and time were restored."""
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _stored(recipe: Recipe) -> Path | None:
    """Return the path of a data set in the folder of all data sets; None if it is not there."""
    named = os.environ.get(DATASETS_VARIABLE)
    place = Path(named).expanduser() / recipe.name if named else None
    return place if place is not None and place.exists() else None


def _default_cache() -> Path:
    named = os.environ.get(CACHE_VARIABLE)
    try:
        return Path(named) if named else Path.home() / ".cache" / "flower-vfl"
    except RuntimeError as error:
        raise _no_cache(f"this user has no home folder: {error}") from None


def _make_cache(folder: Path) -> None:
    """Make the folder of prepared data, for its owner alone."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _no_cache(f"{folder} cannot be made: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise _no_cache(f"{folder} cannot be written")


def _no_cache(reason: str) -> SetupError:
    return SetupError(
        f"there is no place for prepared data: {reason}; set {CACHE_VARIABLE} to a folder that can be written"
    )
