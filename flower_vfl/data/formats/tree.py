"""Trees of image files, {train,test}/class/name.jpg, in a folder or in a tar archive that is never unpacked on disk."""

from __future__ import annotations

import io
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flower_vfl.data.formats.archives import plain_files
from flower_vfl.data.formats.idx import MAX_ITEMS
from flower_vfl.data.formats.images import ImageFiles, Rows
from flower_vfl.data.formats.raw import listed
from flower_vfl.data.store.dataset import PARTS, Part
from flower_vfl.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

_NAME = re.compile(r"(?:\./)?(train|test)/([^/]+)/[^/]+")
_FORMATS = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG"}
IMAGE_ENDINGS = tuple(_FORMATS)
"""File name endings of images that can be read."""

_LARGEST, _LARGEST_PHOTO = 2**20, 64 * 2**20
_PIECE = 512


class _ImageTree(ABC):
    """Images of two parts, in classes, numbered in the order of class and file name.

    Parameters
    ----------
    path : Path
        The folder or the archive.
    classes : sequence of str
        Names of the folders of classes, in the order of the classes.
    size : tuple of int
        Height and width that every image must have.
    endings : tuple of str
        File name endings of images: ".jpg", ".jpeg", ".png".
    """

    def __init__(self, path: Path, classes: Sequence[str], size: tuple[int, ...], endings: tuple[str, ...]) -> None:
        self.path, self._endings = path, endings
        self._size = size
        self._names: dict[Part, list[tuple[int, str]]] = {"train": [], "test": []}
        for name in self.names():
            match = _NAME.fullmatch(name)
            if not name.endswith(endings) or "/." in name:
                continue  # a user's notes, or a file manager's list of thumbnails
            if match is None or match[2] not in classes:
                raise DataError(
                    f"{path} holds {name!r}; allowed is {{train,test}}/class/name{endings[0]} of the classes "
                    f"{', '.join(classes)}"
                )
            self._names["train" if match[1] == "train" else "test"].append((classes.index(match[2]), name))
            if sum(map(len, self._names.values())) > MAX_ITEMS:
                raise DataError(f"{path} holds more than {MAX_ITEMS} files")
        for part in PARTS:
            self._names[part].sort()
            if not self._names[part]:
                raise DataError(f"{path} holds no {part} images: {{train,test}}/class/name{endings[0]} is needed")
            for (_, name), (_, after) in pairwise(self._names[part]):
                if name == after:
                    raise DataError(f"{path} holds {name!r} twice")

    def files(self, part: Part) -> ImageFiles:
        """Return the images of a part, with their classes."""
        return ImageFiles(np.array([label for label, _ in self._names[part]]), partial(self._read, part))

    def _read(self, part: Part, rows: Rows) -> Iterator[tuple[Rows, NDArray[np.uint8]]]:
        """Yield places among the rows (n,) and the pixels there, (m, 3, height, width)."""
        wanted = {self._names[part][row][1]: place for place, row in enumerate(rows)}
        places: list[int] = []
        pixels: list[NDArray[np.uint8]] = []
        for name, content in self.contents(wanted):
            places.append(wanted[name])
            pixels.append(decoded(content, self.path / name, self._size))
            if len(places) == _PIECE:
                yield np.array(places), np.stack(pixels)
                places, pixels = [], []
        if places:
            yield np.array(places), np.stack(pixels)

    @abstractmethod
    def names(self) -> Iterator[str]:
        """Yield the names of all files."""

    @abstractmethod
    def contents(self, wanted: Mapping[str, int]) -> Iterator[tuple[str, bytes]]:
        """Yield names and contents of the wanted files, in any order."""


class _Folder(_ImageTree):
    def names(self) -> Iterator[str]:
        return (path.relative_to(self.path).as_posix() for path in image_files(self.path, self._endings))

    def contents(self, wanted: Mapping[str, int]) -> Iterator[tuple[str, bytes]]:
        for name in wanted:
            yield name, _content(self.path / name, _LARGEST)


class _Archive(_ImageTree):
    def names(self) -> Iterator[str]:
        return (member.name for _, member in plain_files(self.path))

    def contents(self, wanted: Mapping[str, int]) -> Iterator[tuple[str, bytes]]:
        for archive, member in plain_files(self.path):
            file = archive.extractfile(member) if member.name in wanted else None
            if file is not None:
                yield member.name, file.read(_LARGEST)


def image_files(path: Path, endings: tuple[str, ...]) -> list[Path]:
    """Return the files that are read: an archive itself, or all images of a folder.

    Raises
    ------
    DataError
        When a folder may not be read.
    """
    if not path.is_dir():
        return [path]
    found, folders = list[Path](), [path / part for part in PARTS if (path / part).is_dir()]
    while folders:
        for entry in listed(folders.pop()):
            if entry.name.endswith(endings):
                found.append(Path(entry))
            elif entry.is_dir(follow_symlinks=False):
                folders.append(Path(entry))
    return sorted(found)


def open_tree(
    path: Path, classes: Sequence[str], size: tuple[int, ...], endings: tuple[str, ...]
) -> dict[Part, ImageFiles]:
    """Return the images of each part, in a folder or in an archive, possibly compressed.

    Raises
    ------
    DataError
        When the path holds something else, an image twice, or no images of a part.
    """
    tree = (_Folder if path.is_dir() else _Archive)(path, classes, size, endings)
    return {part: tree.files(part) for part in PARTS}


def decoded(
    content: bytes, path: Path, size: tuple[int, ...], *, shrink: bool = False, advice: str = ""
) -> NDArray[np.uint8]:
    """Return the pixels (3, height, width) of an image file, 0 to 255; greys of 16 bits are scaled to that.

    Parameters
    ----------
    content : bytes
        Content of the file.
    path : Path
        Path of the file. The ending of its name determines the format; no other format is tried.
    size : tuple of int
        Height and width.
    shrink : bool
        True to scale an image of another size to that one, whatever its proportions; else it is refused.
    advice : str
        Advice for an image of another size, at the end of the message.

    Raises
    ------
    DataError
        When it cannot be read, or is of another size.
    """
    from PIL import Image

    with _opened(content, path) as image:
        if image.size != size[::-1] and not shrink:
            given, needed = (" x ".join(map(str, sizes)) for sizes in (image.size, size[::-1]))
            raise DataError(f"{path} has {given} pixels, needed are {needed}{advice}")
        if shrink:
            image.draft("RGB", (2 * size[1], 2 * size[0]))  # a JPEG file is unpacked no larger than is needed
        colours = _eight_bits(image).convert("RGB")
        if colours.size != size[::-1]:
            colours = colours.resize((size[1], size[0]), Image.Resampling.BICUBIC)
        pixels: NDArray[Any] = np.asarray(colours)
    return pixels.transpose(2, 0, 1)


@contextmanager
def _opened(content: bytes, path: Path) -> Iterator[Image]:
    """Open an image; errors of Pillow in the block are a `DataError`."""
    import PIL.Image

    kind = _FORMATS[path.suffix.lower()]
    try:
        with PIL.Image.open(io.BytesIO(content), formats=[kind]) as image:
            yield image
    except (OSError, ValueError, SyntaxError, PIL.Image.DecompressionBombError) as error:
        raise DataError(f"{path} is no {kind} file that can be read: {_reason(error)}") from None


def _eight_bits(image: Image) -> Image:
    """Return an image with greys of 16 bits scaled to 8; Pillow's own conversion makes all values above 255 white."""
    if not image.mode.startswith("I"):
        return image
    from PIL.Image import fromarray

    return fromarray(((np.asarray(image, np.uint32) + 128) // 257).astype(np.uint8))


def _reason(error: Exception) -> str:
    """Return Pillow's error message for a file; for an unknown format that message would name an internal object."""
    from PIL import UnidentifiedImageError

    return "its content is not that of one" if isinstance(error, UnidentifiedImageError) else str(error)


def read_images(
    paths: Sequence[Path], size: tuple[int, ...], rows: Rows, *, shrink: bool, advice: str = ""
) -> Iterator[tuple[Rows, NDArray[np.uint8]]]:
    """Yield places among the rows (n,) of a list of image files and the pixels there, (m, 3, height, width)."""
    for low in range(0, len(rows), _PIECE):
        places = np.arange(low, min(low + _PIECE, len(rows)))
        chosen = [paths[row] for row in rows[places]]
        pixels = [decoded(_content(path, _LARGEST_PHOTO), path, size, shrink=shrink, advice=advice) for path in chosen]
        yield places, np.stack(pixels)


def _content(path: Path, most: int) -> bytes:
    """Return the content of a file, at most its first `most` bytes."""
    try:
        with path.open("rb") as file:
            return file.read(most)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def image_size(path: Path) -> tuple[int, int]:
    """Return the height and width of an image, from the beginning of its file; errors are those of `decoded`."""
    with _opened(_content(path, _LARGEST_PHOTO), path) as image:
        return image.height, image.width
