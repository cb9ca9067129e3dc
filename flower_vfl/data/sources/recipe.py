"""Base class of the data sets in the catalog: one subclass, one file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, get_args, get_origin

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from flower_vfl.config.parsing import read_list
from flower_vfl.data.store.builder import Builder
from flower_vfl.data.store.dataset import Part
from flower_vfl.errors import ConfigError, plain_reason, suggestion

Progress = Callable[[float], None]
"""Callback that receives the part of the work that is done, 0 to 1."""


class Options(BaseModel):
    """Options of a data set; a subclass adds them as fields with defaults.

    A list may be given as a text, `84,84` or `[a, b]`, or as its only entry.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, coerce_numbers_to_str=True)

    @field_validator("*", mode="before")
    @classmethod
    def _parse_value(cls, value: Any, info: ValidationInfo) -> Any:
        kind = cls.model_fields[info.field_name or ""].annotation
        if get_origin(kind) not in (list, tuple):
            return _as_text(kind, value)
        item = get_args(kind)[0]
        if isinstance(value, str):
            value = read_list(item, value)
        return [_as_text(item, entry) for entry in (value if isinstance(value, list | tuple) else [value])]


def _as_text(kind: Any, value: Any) -> Any:
    """Return a boolean as the text "true" or "false" if a text is needed; pydantic converts numbers itself."""
    return str(value).lower() if kind is str and isinstance(value, bool) else value


class SplitOptions(Options):
    """Options of a data set without a given split."""

    test_fraction: float = Field(0.2, gt=0.0, lt=1.0, description="part of the rows for the test")
    split_seed: int = Field(0, ge=0, description="another seed, another test set")

    def split(self, ids: Sequence[str]) -> dict[Part, NDArray[np.int64]]:
        """Return the ascending positions of the IDs of each part."""
        from flower_vfl.data.encoding.ids import in_test_set  # it imports pyarrow, which a mistake in a name need not

        held_out = in_test_set(ids, self.test_fraction, self.split_seed)
        return {"train": np.flatnonzero(~held_out), "test": np.flatnonzero(held_out)}


class Recipe(ABC):
    """Preparation of one data set from its raw form.

    A subclass declares the class attributes below and implements `write`; the catalog handles options, cache and atomic
    folders. `pathless` is the origin of data that is not read from a path. `published` are options that repeat the
    preprocessing of its authors. A `resumable` recipe records finished steps in `builder.notes`, and skips them later.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    licence: ClassVar[str]
    rows: ClassVar[int | None] = None
    pathless: ClassVar[str] = ""
    options: ClassVar[type[Options]] = Options
    published: ClassVar[Mapping[str, Any]] = {}
    resumable: ClassVar[bool] = False

    def advice(self) -> str:
        """Return the steps that make the data set usable here without a path; empty when nothing is missing."""
        return ""

    def inputs(self, source: Path | None, options: Any) -> list[Path]:
        """Return the raw files that will be read; when one changes, the cache is not used.

        Raises
        ------
        DataError
            When a file is missing.
        """
        return []

    @abstractmethod
    def write(self, builder: Builder, source: Path | None, options: Any, progress: Progress) -> None:
        """Read the raw data and fill the folder, `finish` last."""

    def finish(self, builder: Builder, options: Options, *, label_party: str, source: str, **further: Any) -> None:
        """Write the manifest, with name, licence and options; `further` are parameters of `Builder.finish`."""
        given = options.model_dump(mode="json")
        builder.finish(
            name=self.name, label_party=label_party, licence=self.licence, source=source, options=given, **further
        )


def build_options(recipe: Recipe, given: Mapping[str, Any]) -> Options:
    """Return checked options; a dotted key such as "files.a" is an entry of a dictionary.

    Raises
    ------
    ConfigError
        When options are unknown or wrong; the message has each of them, the given and the allowed values.
    """
    nested: dict[str, Any] = {}
    for key, value in given.items():
        first, dot, rest = key.partition(".")
        if dot:
            inner = nested.setdefault(first, {})
            nested[first] = {**inner, rest: value} if isinstance(inner, dict) else {rest: value}
        else:
            nested[first] = value
    try:
        return recipe.options.model_validate(nested)
    except ValidationError as error:
        raise ConfigError("; ".join(_explain(recipe, problem) for problem in error.errors())) from None


def _explain(recipe: Recipe, problem: Any) -> str:
    path = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"{recipe.name} has no option {path!r}; {suggestion(path, recipe.options.model_fields)}"
    message = plain_reason(problem["msg"])
    if not problem["loc"]:  # of several options: the message names them
        return f"options of {recipe.name}: {message}"
    return f"option {path} of {recipe.name}: {message}, given {problem['input']!r}"
