"""Base class of click data sets: common options, and the stages of their preparation."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path, PurePath
from typing import Any, ClassVar, Literal

from pydantic import Field

from flower_vfl.data.clicks.blocks import BlockReader
from flower_vfl.data.clicks.encode import Encoder
from flower_vfl.data.clicks.fields import FieldKind
from flower_vfl.data.clicks.fit import Fitter, Fitting
from flower_vfl.data.clicks.parse import Format
from flower_vfl.data.clicks.survey import TestSplit, read_source, survey
from flower_vfl.data.clicks.work import WorkFolder
from flower_vfl.data.formats.archives import is_archive
from flower_vfl.data.formats.raw import find_files
from flower_vfl.data.sources.recipe import Options, Progress, Recipe
from flower_vfl.data.store.builder import Builder
from flower_vfl.errors import ConfigError, DataError, suggestion

_BEGINNING = 2**20
_ALL = "all"


class ClickOptions(Options):
    """Options of a log of clicks."""

    sample: float = Field(1.0, gt=0.0, le=1.0, description="part of the rows that is kept, drawn by their number")
    test_fraction: float = Field(0.1, gt=0.0, lt=1.0, description="part of these for the test")
    split_seed: int = Field(0, ge=0, description="another seed, another sample and another test set")
    min_count: int = Field(2, ge=1, description="values that occur less often share the bucket of unseen values")
    fit: Literal["train", "all"] = Field("train", description='rows of vocabularies and scales; "all": test rows too')
    scaling: Literal["standard", "min-max"] = Field(
        "standard",
        description='"standard", missing numbers have an indicator; "min-max": 0 to 1, missing numbers are 0',
    )
    bad_lines: float = Field(0.001, ge=0.0, lt=1.0, description="part of the lines that may be bad and are left out")
    columns: tuple[str, ...] = Field((_ALL,), description='columns of the feature party "a"; "all"')
    label_columns: tuple[str, ...] = Field((), description='columns that the label party has, too; "all"')


class ClickRecipe(Recipe):
    """Base recipe of a large text with one click per line; a subclass defines its files and its fields.

    Party "a" has the features, party "label" the clicks and, as an option, features of its own.
    """

    options: ClassVar[type[Options]] = ClickOptions
    resumable: ClassVar[bool] = True
    files: ClassVar[tuple[str, ...]]
    origin: ClassVar[str]

    @abstractmethod
    def recognise(self, path: Path, line: str) -> Format:
        """Return the format of a file from its first line.

        Raises
        ------
        DataError
            When the file is another one.
        """

    def split(self, options: Any) -> TestSplit:
        """Return the selection of the rows that are kept and of the test rows."""
        return TestSplit(options.sample, options.test_fraction, options.split_seed)

    def advice(self) -> str:
        """Return the steps to get the file and to name it."""
        return f"{self.origin}, and name it as --from"

    def inputs(self, source: Path | None, options: ClickOptions) -> list[Path]:
        """Return the file: the one that is named, or the first of those that the folder or tar archive has."""
        if source is None:
            raise DataError(f"{self.name} needs its file: {self.advice()}")
        packed = is_archive(source)
        if source.is_file() and not packed:
            return [source]
        found = find_files(source, [PurePath(name).name for name in self.files] if packed else self.files)
        if not found:
            raise DataError(f"{source} holds none of {', '.join(self.files)}; name the file itself, or {self.origin}")
        return [next(iter(found.values()))]

    def write(self, builder: Builder, source: Path | None, options: ClickOptions, progress: Progress) -> None:
        """Read, survey, fit and encode the rows."""
        if builder.notes is None:
            raise TypeError("a log of clicks is prepared in a folder that outlasts a kill")
        (path,) = self.inputs(source, options)
        made = self.recognise(path, _first_line(path))
        parties = {
            party: _select_columns(names, made.features)
            for party, names in {"a": options.columns, "label": options.label_columns}.items()
            if names
        }
        split = self.split(options)
        work = WorkFolder(builder.notes)
        read = read_source(path, made, split, work, options.bad_lines, _subrange(progress, 0.0, 0.6))
        found = survey(path, read, split, work, builder.folder / "ids", _subrange(progress, 0.6, 0.65))
        fitting = Fitting(options.fit, options.scaling, options.min_count)
        used = {name: kind for name, kind in made.features.items() if any(name in own for own in parties.values())}
        fitted = Fitter(work, read, split, found, fitting).fit(used, _subrange(progress, 0.65, 0.75))
        encoder = Encoder(builder, work, read, split, found, fitted, parties)
        encoder.write(_subrange(progress, 0.75, 0.95))
        encoder.finish()
        self.finish(
            builder,
            options,
            label_party="label",
            source=path.name,
            facts={"text_sha256": read.digest, "lines": read.lines, "bad_lines": read.bad},
            periods=found.periods,
        )


def _first_line(path: Path) -> str:
    for block in BlockReader(path, _BEGINNING).blocks():
        return block.data[: block.data.index(b"\n")].decode("utf8", "replace")
    raise DataError(f"{path} is empty")


def _select_columns(names: tuple[str, ...], features: dict[str, FieldKind]) -> list[str]:
    """Return the named columns, in the order of the file, numeric ones first."""
    for name in names:
        if name not in features and name != _ALL:
            raise ConfigError(f"there is no column {name!r}; {suggestion(name, [*features, _ALL])}")
    return [name for name in features if name in names or _ALL in names]


def _subrange(progress: Progress, start: float, stop: float) -> Progress:
    return lambda done: progress(start + (stop - start) * done)
