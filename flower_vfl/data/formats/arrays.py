"""A user's own rows that are not tables: arrays in an .npz file, and images in a folder."""

from __future__ import annotations

import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flower_vfl.data.encoding.values import Place
from flower_vfl.data.formats.images import Rows
from flower_vfl.data.formats.raw import listed
from flower_vfl.data.formats.tree import IMAGE_ENDINGS, image_size, read_images
from flower_vfl.data.store.dataset import FeatureSpec
from flower_vfl.data.store.layout import UNREADABLE
from flower_vfl.errors import DataError

ROW = "row of the arrays"
"""Column with the row of the arrays that belongs to an ID."""

_PIECE = 256


@dataclass(frozen=True)
class StoredArrays:
    """Rows of plain arrays, each with an ID.

    Parameters
    ----------
    columns : pyarrow.Table
        The ID and possibly the label of each row, and its number under `ROW`.
    shape : tuple of int
        Shape of one row.
    pixels : bool
        True if the values are bytes, 0 to 255.
    read : Callable
        Takes rows (n,), ascending, and yields positions among them with their values, in pieces of bounded size.
    """

    columns: pa.Table
    shape: tuple[int, ...]
    pixels: bool
    read: Callable[[Rows], Iterator[tuple[Rows, NDArray[np.generic]]]]

    @property
    def spec(self) -> FeatureSpec:
        """Shape and kind of a row."""
        return FeatureSpec(0, (), self.shape, pixels=self.pixels)

    def copy(self, rows: Rows, out: NDArray[np.generic]) -> None:
        """Write rows (n,), in any order, to an array (n, ...)."""
        order = rows.argsort()
        for places, values in self.read(rows[order]):
            out[order[places]] = values


def holds_arrays(path: Path) -> bool:
    """Return True if a path is a folder of images or a file of arrays."""
    return path.is_dir() or path.suffix.lower() == ".npz"


def open_arrays(path: Path, *, id_name: str, label: str, size: Sequence[int]) -> StoredArrays:
    """Return the rows of a file of arrays or of a folder of images.

    Parameters
    ----------
    path : Path
        An .npz file whose arrays of one dimension are columns, the ID among them, and whose one other array has the
        features (N, ...), numbers or bytes; or a folder with NAME.jpg, .jpeg or .png, where NAME is the ID. Images may
        lie in folders inside it, whose names are then their labels.
    id_name, label : str
        Names of the columns.
    size : sequence of int
        Height and width to which images are scaled; empty where all have one size.

    Raises
    ------
    DataError
        When the path is something else, or damaged.
    """
    return _open_images(path, id_name, label, tuple(size)) if path.is_dir() else _open_npz(path, id_name)


def image_paths(folder: Path) -> list[Path]:
    """Return all images of a folder and of the folders in it, by name.

    Raises
    ------
    DataError
        When one of the folders may not be read.
    """
    found = listed(folder)
    inside = [entry for inner in found if inner.is_dir() for entry in listed(Path(inner))]
    paths = (Path(entry) for entry in (*found, *inside))
    return sorted(path for path in paths if path.suffix.lower() in IMAGE_ENDINGS)


def _open_npz(path: Path, id_name: str) -> StoredArrays:
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            raise DataError(f"{path} is one array without IDs; write both into one file with numpy.savez")
        with loaded as file:
            found = {name: file[name] for name in file.files}
    except (*UNREADABLE, zipfile.BadZipFile, zlib.error, lzma.LZMAError, RuntimeError) as error:
        raise DataError(f"{path} is no .npz file of plain arrays: {error}") from None
    strange = [name for name, array in found.items() if not isinstance(array, np.ndarray)]
    if strange:
        raise DataError(f"{path} holds {strange[0]!r}, which is no array; write the file with numpy.savez")
    features = [name for name, array in found.items() if array.ndim > 1]
    if len(features) != 1:
        raise DataError(
            f"{path} must hold one array of several dimensions, the features, it holds {len(features)}: "
            f"{', '.join(features) or 'only ' + ', '.join(found)}"
        )
    if id_name not in found:
        raise DataError(
            f"{path} has no array {id_name!r}, the ID of each row; it holds {', '.join(found)}. Add one "
            "(numpy.savez), or name another in the option id"
        )
    values = found.pop(features[0])
    if not (values.dtype == np.uint8 or values.dtype.kind in "fiu"):
        raise DataError(f"{path}: the features {features[0]!r} are of type {values.dtype}; make them numbers")
    if not len(values) or not values[0].size:
        raise DataError(f"{path}: the features {features[0]!r} have the shape {values.shape}: nothing is there")
    wrong = [name for name, array in found.items() if array.shape != (len(values),)]
    if wrong:
        raise DataError(f"{path}: {wrong[0]!r} has the shape {found[wrong[0]].shape}, the features have {values.shape}")
    pixels = values.dtype == np.uint8
    if not pixels:
        with np.errstate(over="ignore"):  # values that are too large are reported with their row
            values = values.astype(np.float32)
    columns = {name: _column(path, name, array) for name, array in found.items()}
    return StoredArrays(
        _numbered(columns, len(values)),
        tuple(map(int, values.shape[1:])),
        pixels,
        partial(_pieces, values, Place(str(path), features[0])),
    )


def _column(path: Path, name: str, array: NDArray[np.generic]) -> pa.Array:
    try:
        return pa.array(array.astype(array.dtype.newbyteorder("=")))
    except (pa.ArrowException, TypeError):
        raise DataError(f"{path}: {name!r} is of type {array.dtype}; make it numbers or texts") from None


def _pieces(values: NDArray[Any], place: Place, rows: Rows) -> Iterator[tuple[Rows, NDArray[Any]]]:
    for low in range(0, len(rows), _PIECE):
        places = np.arange(low, min(low + _PIECE, len(rows)))
        piece = values[rows[places]]
        wrong = ~np.isfinite(piece).reshape(len(piece), -1).all(axis=1)
        if wrong.any():
            raise DataError(
                f"{place.file}: row {rows[places[wrong.argmax()]] + 1} of the features {place.column!r} holds a number "
                "that is not finite in float32; correct it, or leave the row out"
            )
        yield places, piece


def _open_images(folder: Path, id_name: str, label: str, size: tuple[int, ...]) -> StoredArrays:
    paths = image_paths(folder)
    if not paths:
        raise DataError(f"{folder} holds no image: NAME.jpg, .jpeg or .png, or folders of them")
    nested = {path.parent != folder for path in paths}
    if len(nested) > 1:
        raise DataError(f"{folder} holds images beside folders of images; folders are labels, so that all are in one")
    named: dict[str, Path] = {}
    for path in paths:
        if named.setdefault(path.stem, path) != path:
            one, other = named[path.stem].relative_to(folder), path.relative_to(folder)
            raise DataError(f"{folder}: images of one ID occur more than once, {one} and {other}; rename or remove one")
    columns = {id_name: pa.array(list(named), pa.string())}
    if nested == {True}:
        columns[label or "label"] = pa.array([path.parent.name for path in paths], pa.string())
    needed = size or image_size(paths[0])
    advice = "; scale all to one size with the option image_size"
    read = partial(read_images, paths, needed, shrink=bool(size), advice=advice)
    return StoredArrays(_numbered(columns, len(paths)), (3, *needed), True, read)


def _numbered(columns: dict[str, pa.Array], rows: int) -> pa.Table:
    return pa.table({**columns, ROW: pa.array(range(rows), pa.int64())})
