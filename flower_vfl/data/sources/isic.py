"""ISIC 2020: photographs of skin lesions, few of them malignant, in either of two layouts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv as pa_csv
from pydantic import Field

from flower_vfl.data.encoding.values import require_columns
from flower_vfl.data.formats.idx import MAX_ITEMS
from flower_vfl.data.formats.images import DRAW_SEED, ImageFiles, ImageOptions, ImageRecipe, Rows
from flower_vfl.data.formats.raw import opened, read_csv
from flower_vfl.data.formats.tree import image_files, open_tree, read_images
from flower_vfl.data.sources.recipe import SplitOptions
from flower_vfl.data.store.dataset import PARTS, Part
from flower_vfl.errors import DataError

CLASSES = ("benign", "malignant")
SHAPE = (3, 84, 84)

_TABLE, _PACKED = "train.csv", "train.csv.gz"
_COLUMNS = ("image_name", "patient_id", "target")
_ENDINGS = (".png", ".jpg", ".jpeg")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")
_FORMS = (
    f"{_TABLE} with jpeg/train/NAME.jpg, or {{train,test}}/{{{','.join(CLASSES)}}}/NAME.png of {SHAPE[2]} x {SHAPE[1]}"
)


class IsicOptions(ImageOptions, SplitOptions):
    """Options of isic."""

    names: ClassVar[tuple[str, ...]] = CLASSES

    positive: str = Field("malignant", description="the positive class")
    benign: int = Field(5256, ge=0, description="so many benign images, drawn at random, of both parts; 0: all")


class Isic(ImageRecipe):
    """Photographs of skin lesions, scaled to 84 x 84; 584 of 33,126 are malignant.

    The published table with its JPEG files is split by patients: all images of a patient are in one part. A tree of
    images that are scaled already has its own parts.
    """

    name: ClassVar[str] = "isic"
    description: ClassVar[str] = "ISIC 2020: skin lesions, malignant or benign, 84 x 84; needs a download"
    licence: ClassVar[str] = "CC BY-NC 4.0 (ISIC 2020, doi 10.34970/2020-ds01): no commercial use"
    rows: ClassVar[int | None] = 4_672
    shape: ClassVar[tuple[int, int, int]] = SHAPE
    format: ClassVar[str] = "image files"
    options: ClassVar[type[ImageOptions]] = IsicOptions

    def advice(self) -> str:
        """Return the steps to get the files."""
        return f"download the training data of ISIC 2020 from challenge2020.isic-archive.com; data.path holds {_FORMS}"

    def inputs(self, source: Path | None, options: ImageOptions) -> list[Path]:
        """Return the table, or the archive or all images of the tree."""
        root = self._root(source)
        table = _table(root)
        return [table] if table else image_files(root, _ENDINGS)

    def files(self, source: Path | None, options: IsicOptions) -> Mapping[Part, ImageFiles]:
        """Return the images of each part, with the requested number of benign ones."""
        root = self._root(source)
        table = _table(root)
        found = _by_table(table, options) if table else open_tree(root, CLASSES, SHAPE[1:], _ENDINGS)
        return _limit_benign(found, options.benign)

    def _root(self, source: Path | None) -> Path:
        """Return the folder or archive of the raw data, which the user must give."""
        if source is None:
            raise DataError(f"isic is not here: {self.advice()}")
        if source.is_dir() and not _table(source) and not all((source / part).is_dir() for part in PARTS):
            raise DataError(f"{source} must hold {_FORMS}")
        return source


def _table(root: Path) -> Path | None:
    """Return the published table of a folder; None without one."""
    return next((root / name for name in (_TABLE, _PACKED) if (root / name).is_file()), None)


def _by_table(path: Path, options: IsicOptions) -> dict[Part, ImageFiles]:
    """Return the images of the table, split by patients."""
    names, patients, labels = _read_table(path)
    chosen = options.split(patients)
    for part, rows in chosen.items():
        if len(np.unique(labels[rows])) < len(CLASSES):
            raise DataError(
                f"{path}: its {part} part has {len(rows)} images, not both of benign and malignant ones; another "
                "split_seed or test_fraction gives other parts"
            )
    folder = path.parent / "jpeg" / "train"
    paths = {part: [folder / f"{names[row]}.jpg" for row in rows] for part, rows in chosen.items()}
    return {
        part: ImageFiles(labels[rows], partial(read_images, paths[part], SHAPE[1:], shrink=True))
        for part, rows in chosen.items()
    }


def _read_table(path: Path) -> tuple[list[str], list[str], NDArray[np.int64]]:
    """Return the images' names, their patients, and their labels (N,)."""
    with opened(path) as file:
        content = file.read()
    convert = pa_csv.ConvertOptions(column_types=dict.fromkeys(_COLUMNS, pa.string()))
    table = read_csv(path, content, "table of ISIC 2020", convert)
    require_columns(table, list(_COLUMNS), str(path))
    if not 0 < table.num_rows <= MAX_ITEMS:
        raise DataError(f"{path} has {table.num_rows} rows; 1 to {MAX_ITEMS} are possible")
    names, patients, targets = (table[column].to_pylist() for column in _COLUMNS)
    seen: set[str] = set()
    for line, (name, patient, target) in enumerate(zip(names, patients, targets, strict=True), start=2):
        if not name or not _NAME.fullmatch(name):
            raise DataError(f"{path}: line {line} has the image name {name!r}; allowed are letters, digits, '_', '-'")
        if name in seen:
            raise DataError(f"{path}: line {line} has the image {name!r} again")
        if not patient:
            raise DataError(f"{path}: line {line} has no patient_id, by which images are split")
        if target not in ("0", "1"):
            raise DataError(f"{path}: line {line} has the target {target!r}; 0 (benign) and 1 (malignant) are allowed")
        seen.add(name)
    return names, patients, np.array([int(target) for target in targets])


def _limit_benign(found: Mapping[Part, ImageFiles], benign: int) -> dict[Part, ImageFiles]:
    """Return the images with `benign` benign ones (0: all), drawn from both parts together to keep their shares."""
    there = [(part, row) for part in PARTS for row in np.flatnonzero(found[part].labels == 0)]
    if not benign or benign >= len(there):
        if benign > len(there):
            raise DataError(f"the option benign asks for {benign} images, there are {len(there)}; 0 takes all")
        return dict(found)
    kept = np.random.default_rng(DRAW_SEED).choice(len(there), benign, replace=False)
    chosen = {part: np.flatnonzero(found[part].labels == 1) for part in PARTS}
    for part in PARTS:
        rows = np.array([there[place][1] for place in kept if there[place][0] == part], dtype=np.int64)
        chosen[part] = np.sort(np.concatenate([chosen[part], rows]))
    return {part: _subset(found[part], chosen[part]) for part in PARTS}


def _subset(files: ImageFiles, rows: Rows) -> ImageFiles:
    return ImageFiles(files.labels[rows], lambda wanted: files.read(rows[wanted]))
