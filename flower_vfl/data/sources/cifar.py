"""CIFAR-10 as it is published, in its binary or its Python version, and as a tree of JPEG copies."""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flower_vfl.data.formats.images import ImageFiles, ImageOptions, ImageRecipe, check_labels, in_order
from flower_vfl.data.formats.raw import find_files, opened, require_folder
from flower_vfl.data.formats.tree import image_files, open_tree
from flower_vfl.data.store.dataset import PARTS, Part
from flower_vfl.errors import DataError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
DIGESTS = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
"""MD5 of the files of the Python version, as published."""

_BATCHES: dict[Part, list[str]] = {"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]}
_FOLDERS = ("", "cifar-10-batches-bin", "cifar-10-batches-py")
_ADVICE = "download CIFAR-10 (cifar-10-binary.tar.gz) from www.cs.toronto.edu/~kriz and set data.path to it"
_SHAPE = (3, 32, 32)
_ENDINGS = (".jpg", ".jpeg")
_PIXELS = 3 * 32 * 32
_ITEMS = 10_000
_LARGEST = 64 * 2**20


class CifarOptions(ImageOptions):
    """Options of cifar10 and cifar10-jpeg."""

    names: ClassVar[tuple[str, ...]] = CLASSES


class _CifarRecipe(ImageRecipe):
    shape: ClassVar[tuple[int, int, int]] = _SHAPE
    licence: ClassVar[str] = "none stated (A. Krizhevsky)"
    rows: ClassVar[int | None] = 50_000
    options: ClassVar[type[ImageOptions]] = CifarOptions

    def named(self, source: Path | None) -> Path:
        """Return the path of the raw data, which the user must give."""
        if source is None:
            raise DataError(f"{self.name} is not here: {self.advice()}")
        return source


class Cifar10(_CifarRecipe):
    """60,000 photographs of 32 x 32 in ten classes.

    Files of the Python version are pickles, which can run code. They are read only when their MD5 is the published one,
    and even then nothing but arrays, numbers and text is built from them.
    """

    name: ClassVar[str] = "cifar10"
    description: ClassVar[str] = "60,000 photographs of 32 x 32, ten classes or some of them"
    format: ClassVar[str] = "batches"

    def advice(self) -> str:
        """Return the steps to get the files."""
        return _ADVICE

    def inputs(self, source: Path | None, options: ImageOptions) -> list[Path]:
        """Return the five training batches and the test batch, of the binary version where both are there.

        They are in a folder or in the published archive.
        """
        folder = self.named(source)
        require_folder(folder, "data_batch_1 and the others")
        names = [name for part in PARTS for name in _BATCHES[part]]
        for ending in (".bin", ""):
            for inner in _FOLDERS if folder.is_dir() else [""]:
                found = find_files(folder / inner, [f"{name}{ending}" for name in names])
                if len(found) == len(names):
                    return list(found.values())
        raise DataError(f"{folder} must hold data_batch_1 to data_batch_5 and test_batch, all with .bin or all without")

    def files(self, source: Path | None, options: ImageOptions) -> Mapping[Part, ImageFiles]:
        """Return the images with their labels; the pixels of one batch at a time are in memory."""
        paths = self.inputs(source, options)
        read = _read_binary if paths[0].suffix else _read_pickle
        return {"train": _batches(paths[:-1], read), "test": _batches(paths[-1:], read)}


class Cifar10Jpeg(_CifarRecipe):
    """CIFAR-10 as JPEG files, which are lossy: results on these copies are not results on CIFAR-10.

    Rows are numbered in the order of class and file name, whether the files lie in a folder or in an archive.
    """

    name: ClassVar[str] = "cifar10-jpeg"
    description: ClassVar[str] = (
        "lossy JPEG copies of CIFAR-10, {train,test}/class/NNNN.jpg in a folder or a tar archive"
    )
    format: ClassVar[str] = "JPEG files"

    def advice(self) -> str:
        """Return the step to name the files."""
        return "set data.path to a folder or a .tar.xz with {train,test}/class/NNNN.jpg"

    def inputs(self, source: Path | None, options: ImageOptions) -> list[Path]:
        """Return the archive, or all files of the folder."""
        return image_files(self.named(source), _ENDINGS)

    def files(self, source: Path | None, options: ImageOptions) -> Mapping[Part, ImageFiles]:
        """Return the images of each part, with their labels."""
        return open_tree(self.named(source), CLASSES, _SHAPE[1:], _ENDINGS)


_Read = Callable[[Path], tuple[NDArray[np.uint8], NDArray[np.uint8]]]


def _batches(paths: Sequence[Path], read: _Read) -> ImageFiles:
    """Return the images of several files, in their order."""
    labels = [check_labels(read(path)[0], len(CLASSES), path) for path in paths]
    return ImageFiles(np.concatenate(labels), lambda rows: in_order((read(path)[1] for path in paths), rows))


def _read_binary(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read a file of the binary version: labels (N,) and pixels (N, 3072); a record is a label and its pixels."""
    content, record = _content(path), 1 + _PIXELS
    if len(content) % record or not content:
        raise DataError(
            f"{path} has {len(content)} bytes; records of {record} bytes are needed, {_ITEMS} of them as published"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, record)
    return records[:, 0], records[:, 1:]


def _read_pickle(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read a file of the Python version: labels (N,) and pixels (N, 3072)."""
    content = _content(path)
    # The hashed bytes are the ones that are unpickled: the file could change in between.
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != DIGESTS[path.name]:
        raise DataError(
            f"{path} has the MD5 {found}, published is {DIGESTS[path.name]}; it is a pickle, which could run code, and "
            "was not read: take the published file, or the binary version"
        )
    try:
        batch: dict[bytes, Any] = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
        labels, pixels = np.array(batch[b"labels"], np.uint8), np.asarray(batch[b"data"])
    except (pickle.UnpicklingError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels), _PIXELS):
        raise DataError(f"{path} holds pixels {pixels.dtype} {pixels.shape} for {len(labels)} labels")
    return labels, pixels


def _content(path: Path) -> bytes:
    with opened(path) as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise DataError(f"{path} has more than {_LARGEST} bytes, {_ITEMS * (1 + _PIXELS)} are published")
    return content


class _ArraysOnly(pickle.Unpickler):
    """Unpickler of numpy arrays that refuses all other objects."""

    def find_class(self, module: str, name: str) -> Any:
        """Return one of the three objects that a pickled array refers to."""
        if (module, name) == ("numpy.core.multiarray", "_reconstruct"):
            return np.empty(0).__reduce__()[0]
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}")
