"""Base recipe of data sets of images in classes: selection of rows and classes, and writing."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from flower_vfl.data.encoding.encoding import PartyEncoding
from flower_vfl.data.encoding.labels import EncodedLabels
from flower_vfl.data.sources.recipe import Options, Progress, Recipe
from flower_vfl.data.store.builder import Builder
from flower_vfl.data.store.dataset import PARTS, FeatureSpec, Part
from flower_vfl.errors import DataError, suggestion

DRAW_SEED = 2022
"""Seed of all draws of rows: a thinned or limited set is the same everywhere."""

TEST_FIFTH = 5
"""Number of examples of a thinned set per example of its test part, as in the paper's 80/20 split."""

Rows = NDArray[np.int64]


class ImageOptions(Options):
    """Options of a data set of images in classes."""

    names: ClassVar[tuple[str, ...]]
    """Names of the published classes, in their order."""

    classes: list[str] = Field([], description="these classes only, by name or number, in this order; empty: all")
    positive: str = Field("", description="a class by name or number against the rest; empty: each is a class")
    thin: list[Annotated[int, Field(ge=1)]] = Field(
        [], description="so many positives and negatives in all, e.g. [584, 5256]; empty: all images"
    )
    limit: int = Field(0, ge=0, description="so many training images, drawn at random; the test part stays; 0: all")

    @field_validator("classes")
    @classmethod
    def _check_classes(cls, classes: list[str]) -> list[str]:
        names = [cls._class_name(name) for name in classes]
        if len(names) == 1 or len(set(names)) < len(names):
            raise ValueError("name two classes or more, each once")
        return names

    @field_validator("positive")
    @classmethod
    def _check_positive(cls, positive: str) -> str:
        return cls._class_name(positive) if positive else positive

    @classmethod
    def _class_name(cls, given: str) -> str:
        if given in cls.names:
            return given
        if given.isdecimal() and int(given) < len(cls.names):
            return cls.names[int(given)]
        raise ValueError(f"there is no class {given!r}; {suggestion(given, cls.names)}, or 0 to {len(cls.names) - 1}")

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        if self.thin and (len(self.thin) != 2 or min(self.thin) < TEST_FIFTH):
            raise ValueError(
                f"thin is two numbers of at least {TEST_FIFTH}, positives and negatives, given {self.thin}"
            )
        if self.thin and not self.positive:
            raise ValueError("thin needs two classes: set positive too")
        if self.thin and self.limit:
            raise ValueError("thin says already how many images there are: leave limit out")
        if self.positive and self.classes and self.positive not in self.classes:
            raise ValueError(f"positive is {self.positive!r}, which is none of the classes {', '.join(self.classes)}")
        return self


@dataclass(frozen=True)
class ImageFiles:
    """The raw images of one part.

    Parameters
    ----------
    labels : ndarray of int64, (N,)
        Published class of each row.
    read : Callable
        Takes rows (n,), ascending, and yields places among them and their pixels, uint8, in pieces of bounded size.
    """

    labels: NDArray[np.int64]
    read: Callable[[Rows], Iterator[tuple[Rows, NDArray[np.uint8]]]]


def in_order(pieces: Iterable[NDArray[np.uint8]], rows: Rows) -> Iterator[tuple[Rows, NDArray[np.uint8]]]:
    """Yield places among ascending rows and their images, from all images in ordered pieces; every piece is read."""
    first = 0
    for piece in pieces:
        low, high = np.searchsorted(rows, [first, first + len(piece)])
        yield np.arange(low, high), piece[rows[low:high] - first]
        first += len(piece)


def check_labels(labels: NDArray[np.uint8], classes: int, where: Path) -> NDArray[np.int64]:
    """Return labels (N,) as class numbers.

    Raises
    ------
    DataError
        When a label is no class.
    """
    wrong = np.flatnonzero(labels >= classes)
    if wrong.size:
        raise DataError(f"{where}: label {wrong[0]} is {labels[wrong[0]]}, allowed are 0 to {classes - 1}")
    return labels.astype(np.int64)


class ImageRecipe(Recipe):
    """Base recipe of images at one party and labels at the other; pixels stay bytes on disk.

    With `thin`, four fifths of each class come from the training images and one fifth from the test images, so that no
    test image was ever a training image. Rows are drawn without replacement by `numpy.random.default_rng(DRAW_SEED)`
    and stay in the order of the files.
    """

    shape: ClassVar[tuple[int, int, int]]
    options: ClassVar[type[ImageOptions]]
    format: ClassVar[str]

    @abstractmethod
    def files(self, source: Path | None, options: Any) -> Mapping[Part, ImageFiles]:
        """Return the raw images of each part, with their labels.

        Raises
        ------
        DataError
            When a file is missing, damaged or does not fit the others.
        """

    def origin(self, source: Path | None, options: ImageOptions) -> str:
        """Return the description of the source files for the manifest."""
        return f"{self.format} of {source or self.inputs(source, options)[0].parent}"

    def write(self, builder: Builder, source: Path | None, options: ImageOptions, progress: Progress) -> None:
        """Choose rows by their labels, then read and write the images of these rows."""
        files = self.files(source, options)
        progress(0.3)
        names, labels = _classes({part: files[part].labels for part in PARTS}, options)
        rows = _rows(labels, names, options)
        builder.align({part: [f"{part}-{row}" for row in rows[part]] for part in PARTS})
        spec = FeatureSpec(0, (), self.shape, pixels=True)
        written, wanted = 0, sum(map(len, rows.values()))
        for part in PARTS:
            out = builder.create_arrays("image", spec, part)["features.npy"]
            for places, pixels in files[part].read(rows[part]):
                out[places] = pixels.reshape(len(places), *self.shape)
                written += len(places)
                progress(0.3 + 0.6 * written / wanted)
        builder.finish_party("image", spec, ("pixels",), PartyEncoding((), ()))
        train, test = (labels[part][rows[part]] for part in PARTS)
        builder.add_labels(EncodedLabels(train, test, names))
        self.finish(builder, options, label_party="label", source=self.origin(source, options))


def _classes(
    labels: Mapping[Part, NDArray[np.int64]], options: ImageOptions
) -> tuple[tuple[str, ...], dict[Part, NDArray[np.int64]]]:
    """Return the classes' names and each row's class (N,), -1 for rows that are not used."""
    names = tuple(options.classes) or options.names
    taken = [options.names.index(name) for name in names]
    class_of = np.full(len(options.names), -1)
    class_of[taken] = 0 if options.positive else np.arange(len(taken))
    if options.positive:
        class_of[options.names.index(options.positive)] = 1
        names = (f"not {options.positive}", options.positive)
    return names, {part: class_of[labels[part]] for part in PARTS}


def _rows(labels: Mapping[Part, NDArray[np.int64]], names: tuple[str, ...], options: ImageOptions) -> dict[Part, Rows]:
    """Return the chosen rows of each part, (N,) ascending."""
    rng = np.random.default_rng(DRAW_SEED)
    if options.thin:
        return {part: _thinned(labels[part], part, options.thin, rng) for part in PARTS}
    rows = {part: np.flatnonzero(labels[part] >= 0) for part in PARTS}
    if options.limit:
        if options.limit > len(rows["train"]):
            raise DataError(f"limit asks for {options.limit} training images, there are {len(rows['train'])}")
        rows["train"] = np.sort(rng.choice(rows["train"], options.limit, replace=False))
        missing = set(range(len(names))) - set(labels["train"][rows["train"]].tolist())
        if missing:
            lost = ", ".join(names[number] for number in sorted(missing))
            raise DataError(f"limit is {options.limit}, which leaves no training image of {lost}: set it higher")
    return rows


def _thinned(labels: NDArray[np.int64], part: Part, thin: list[int], rng: np.random.Generator) -> Rows:
    drawn = []
    for wanted, value in zip(thin, (1, 0), strict=True):
        tests = round(wanted / TEST_FIFTH)
        count = tests if part == "test" else wanted - tests
        there = np.flatnonzero(labels == value)
        if count > len(there):
            kind = "positives" if value else "negatives"
            raise DataError(f"thin asks for {count} {kind} of the {part} images, there are {len(there)}")
        drawn.append(rng.choice(there, count, replace=False))
    return np.sort(np.concatenate(drawn))
