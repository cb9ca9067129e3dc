"""Fashion-MNIST: 70,000 images of clothes; one class against the rest, thinned, is a stand-in for rare positives."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from flower_vfl.data.builder import Builder
from flower_vfl.data.dataset import PARTS, Part
from flower_vfl.data.idx import read_idx
from flower_vfl.data.labels import EncodedLabels
from flower_vfl.data.recipe import Options, Progress, Recipe
from flower_vfl.errors import DataError
from flower_vfl.registry import suggestion

CLASSES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
PACKAGED = Path("/usr/share/datasets/fashion-mnist")
"""Where the Debian package dataset-fashion-mnist puts it."""

THINNING_SEED = 2022
TEST_FIFTH = 5
"""A thinned set has one of so many examples in its test part, as the paper's 80/20."""

_PREFIX: dict[Part, str] = {"train": "train", "test": "t10k"}
_IMAGE = (28, 28)


class FashionOptions(Options):
    """Options of fashion-mnist."""

    positive: str = Field("", description='a class by name or number, e.g. "Shirt", against the rest; empty: all ten')
    thin: list[Annotated[int, Field(ge=1)]] = Field(
        [], description="so many positives and negatives in all, e.g. [584, 5256]; empty: all images"
    )

    @field_validator("positive")
    @classmethod
    def _class(cls, positive: str) -> str:
        if positive in ("", *CLASSES):
            return positive
        if positive.isdecimal() and int(positive) < len(CLASSES):
            return CLASSES[int(positive)]
        raise ValueError(f"no class of fashion-mnist; {suggestion(positive, CLASSES)}, or 0 to {len(CLASSES) - 1}")

    @model_validator(mode="after")
    def _thinned(self) -> Self:
        if self.thin and (len(self.thin) != 2 or min(self.thin) < TEST_FIFTH):
            raise ValueError(
                f"thin is two numbers of at least {TEST_FIFTH}, positives and negatives, given {self.thin}"
            )
        if self.thin and not self.positive:
            raise ValueError("thin needs two classes: set positive too")
        return self


class FashionMnist(Recipe):
    """Images at one party, labels at the other.

    With `thin`, four fifths of each class come from the published training images and one fifth from the published test
    images, drawn without replacement by `numpy.random.default_rng(THINNING_SEED)`, so that no test image was ever a
    training image; they stay in the order of the files.
    """

    name: ClassVar[str] = "fashion-mnist"
    description: ClassVar[str] = "70,000 images of clothes, ten classes or one against the rest, possibly thinned"
    licence: ClassVar[str] = "MIT (Zalando SE)"
    rows: ClassVar[int | None] = 60_000
    options: ClassVar[type[Options]] = FashionOptions

    def advice(self) -> str:
        """Return how to get the files where the Debian package is not installed."""
        return "" if PACKAGED.is_dir() else "apt-get install dataset-fashion-mnist"

    def inputs(self, source: Path | None, options: FashionOptions) -> list[Path]:
        """Return images and labels of the training part, then of the test part."""
        if source is None and not PACKAGED.is_dir():
            raise DataError(
                f"fashion-mnist comes with the Debian package dataset-fashion-mnist: run {self.advice()!r}, or name a "
                "folder that holds train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and "
                "t10k-labels-idx1-ubyte, each with or without .gz"
            )
        folder = source or PACKAGED
        return [_find(folder, _PREFIX[part], kind) for part in PARTS for kind in ("images-idx3", "labels-idx1")]

    def write(self, builder: Builder, source: Path | None, options: FashionOptions, progress: Progress) -> None:
        """Read, choose and write; pixels stay bytes on disk."""
        paths = self.inputs(source, options)
        images, labels = {}, {}
        for step, part in enumerate(PARTS):
            images[part], labels[part] = _read(paths[2 * step], paths[2 * step + 1])
            progress(0.4 * (step + 1))
        if options.positive:
            chosen = CLASSES.index(options.positive)
            labels = {part: (values == chosen).astype(np.int64) for part, values in labels.items()}
        rows = _thinned(labels, options) if options.thin else {part: np.arange(len(labels[part])) for part in PARTS}
        builder.align({part: [f"{part}-{row}" for row in rows[part]] for part in PARTS})
        builder.add_images("image", {part: images[part][rows[part], None] for part in PARTS}, ("pixels",))
        names = (f"not {options.positive}", options.positive) if options.positive else CLASSES
        chosen_labels = [labels[part][rows[part]] for part in PARTS]
        builder.add_labels(EncodedLabels(chosen_labels[0], chosen_labels[1], len(names), names))
        builder.finish(
            name=self.name,
            label_party="label",
            licence=self.licence,
            source=f"idx files of {paths[0].parent}",
            options=options.model_dump(),
        )


def _find(folder: Path, prefix: str, kind: str) -> Path:
    """Return a file under one of the names that are in use."""
    names = [f"{prefix}-{kind.replace('-idx', f'{mark}idx')}-ubyte" for mark in "-."]
    for name in (name + ending for name in names for ending in ("", ".gz")):
        if (folder / name).is_file():
            return folder / name
    raise DataError(f"{folder} holds no {names[0]}, neither gzipped nor plain, nor with a dot before idx")


def _read(images: Path, labels: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read the images (N, 28, 28) of one part and their labels (N,), and check that they belong together."""
    pixels, classes = read_idx(images, _IMAGE), read_idx(labels, ())
    if len(pixels) != len(classes):
        raise DataError(
            f"{images} holds {len(pixels)} images, {labels} {len(classes)} labels: they do not belong together"
        )
    wrong = np.flatnonzero(classes >= len(CLASSES))
    if wrong.size:
        raise DataError(f"{labels}: label {wrong[0]} is {classes[wrong[0]]}, allowed are 0 to {len(CLASSES) - 1}")
    return pixels, classes.astype(np.int64)


def _thinned(labels: dict[Part, NDArray[np.int64]], options: FashionOptions) -> dict[Part, NDArray[np.int64]]:
    """Draw rows of each part, (N,) ascending."""
    rng = np.random.default_rng(THINNING_SEED)
    rows = {}
    for part in PARTS:
        drawn = []
        for wanted, value in zip(options.thin, (1, 0), strict=True):
            tests = round(wanted / TEST_FIFTH)
            count = tests if part == "test" else wanted - tests
            there = np.flatnonzero(labels[part] == value)
            if count > len(there):
                kind = "positives" if value else "negatives"
                raise DataError(f"thin asks for {count} {kind} of the {part} images, there are {len(there)}")
            drawn.append(rng.choice(there, count, replace=False))
        rows[part] = np.sort(np.concatenate(drawn))
    return rows
