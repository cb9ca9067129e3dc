"""Sources of a party's features, one batch of rows at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from flower_vfl.data.store.mapped import file_of, release_pages
from flower_vfl.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


_SAMPLE = 2**16
"""Largest number of rows from which quantiles are computed."""


@runtime_checkable
class FeatureSource(Protocol):
    """Rows of features that can be gathered by position.

    Any object with these two methods can be a party's source: memory maps, images on disk, a data base.
    """

    def __len__(self) -> int:
        """Return the number of rows."""
        ...

    def gather(self, rows: NDArray[np.integer]) -> tuple[torch.Tensor, ...]:
        """Return copies of the features at `rows`, each tensor (B, ...), floats as float32 and integers as int64."""
        ...


class SomeRows:
    """Selected rows of a source.

    Parameters
    ----------
    source : FeatureSource
        Source of the rows.
    rows : ndarray of int64, (N,)
        Positions of the rows in the source, in this order.
    """

    __slots__ = ("_rows", "_source")

    def __init__(self, source: FeatureSource, rows: NDArray[np.int64]) -> None:
        self._source, self._rows = source, rows

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def gather(self, rows: NDArray[np.integer]) -> tuple[torch.Tensor, ...]:
        """Return copies of the features at `rows` of these rows."""
        return self._source.gather(self._rows[rows])


class JoinedRows:
    """The rows of one source, then those of another with the same features.

    Parameters
    ----------
    first, second : FeatureSource
        Sources of the rows.
    """

    __slots__ = ("_first", "_second")

    def __init__(self, first: FeatureSource, second: FeatureSource) -> None:
        self._first, self._second = first, second

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._first) + len(self._second)

    def gather(self, rows: NDArray[np.integer]) -> tuple[torch.Tensor, ...]:
        """Return copies of the features at `rows` of both."""
        import torch

        of_first = rows < len(self._first)
        back = torch.from_numpy(np.argsort(np.argsort(~of_first, kind="stable"), kind="stable"))
        pairs = zip(
            self._first.gather(rows[of_first]), self._second.gather(rows[~of_first] - len(self._first)), strict=True
        )
        return tuple(torch.cat(pair)[back] for pair in pairs)


class LabelledRows:
    """The rows of a source, each with its class as the last of its tensors.

    Parameters
    ----------
    source : FeatureSource
        The features.
    labels : ndarray of whole numbers, (N,)
        The classes, in the order of its rows.

    Raises
    ------
    DataError
        When there are more or fewer classes than rows.
    """

    __slots__ = ("_labels", "_source")

    def __init__(self, source: FeatureSource, labels: NDArray[np.integer]) -> None:
        if len(source) != len(labels):
            raise DataError(f"{len(source)} rows need a label each, given {len(labels)}")
        self._source, self._labels = source, labels

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._source)

    def gather(self, rows: NDArray[np.integer]) -> tuple[torch.Tensor, ...]:
        """Return copies of the features at `rows`, and of their classes (B,)."""
        import torch

        return (*self._source.gather(rows), torch.from_numpy(self._labels[rows].astype(np.int64)))


def quantiles(source: FeatureSource, probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return quantiles of the numeric columns in evenly spread rows, and those of their distinct values, (2 Q, F)."""
    rows = np.linspace(0, len(source), min(len(source), _SAMPLE), endpoint=False).astype(np.int64)
    columns = source.gather(rows)[0].double().numpy().T
    found = [
        np.concatenate([np.quantile(column, probabilities), np.quantile(np.unique(column), probabilities)])
        for column in columns
    ]
    return np.stack(found, axis=1)


class ArraySource:
    """Features in arrays of equal length, memory-mapped or not.

    A gather reads the rows of the batch and nothing else: its cost and its memory do not depend on the length of the
    table.

    Parameters
    ----------
    *arrays : ndarray, each (N, ...)
        Arrays of the rows: floats become float32, integers and booleans int64, one tensor an array.

    Raises
    ------
    DataError
        When there is no array, when lengths differ, or when one holds neither numbers nor booleans.

    Examples
    --------
    >>> source = ArraySource(np.arange(6.0).reshape(3, 2), np.array([[7], [8], [9]]))
    >>> [tensor.tolist() for tensor in source.gather(np.array([2, 0]))]
    [[[4.0, 5.0], [0.0, 1.0]], [[9], [7]]]
    """

    __slots__ = ("_arrays", "_dtypes", "_files", "_length")

    def __init__(self, *arrays: NDArray[Any]) -> None:
        if not arrays:
            raise DataError("a source of features needs at least one array, given none")
        for position, array in enumerate(arrays):
            if array.ndim == 0 or array.dtype.kind not in "fiub":
                raise DataError(
                    f"array {position} has dtype {array.dtype} and {array.ndim} dimensions; allowed: floats, integers "
                    "or booleans with one row an example"
                )
        lengths = [len(array) for array in arrays]
        if len(set(lengths)) > 1:
            raise DataError(f"arrays of one source must be equally long, given {lengths} rows")
        self._length = lengths[0]
        # A plain view: np.memmap's own indexing costs several microseconds a call.
        self._arrays = tuple(np.asarray(array) for array in arrays)
        self._dtypes = tuple(np.dtype(np.float32 if array.dtype.kind == "f" else np.int64) for array in arrays)
        self._files = tuple(file_of(array) for array in self._arrays)

    def __len__(self) -> int:
        return self._length

    @property
    def row_bytes(self) -> int:
        """Size in bytes of a stored row."""
        return sum(array.nbytes for array in self._arrays) // max(1, self._length)

    @property
    def file_bytes(self) -> int:
        """Size in bytes of its arrays if all of them are in files, else 0."""
        return sum(array.nbytes for array in self._arrays) if None not in self._files else 0

    def gather(self, rows: NDArray[np.integer]) -> tuple[torch.Tensor, ...]:
        """Return copies of the rows.

        Parameters
        ----------
        rows : ndarray of integers, (B,)
            Positions from 0; a position may occur more than once.

        Returns
        -------
        tuple of Tensor
            One (B, ...) tensor an array, in the order of the arrays.

        Raises
        ------
        DataError
            When `rows` is no vector of integers, or when a position lies outside the table.
        """
        self._check(rows)
        return self.converted([array.take(rows, axis=0) for array in self._arrays])

    def read(self, rows: NDArray[np.integer]) -> list[NDArray[Any]]:
        """Return copies of very many rows as they are stored; files are read from front to end, in large pieces.

        It takes as long as reading the whole files, wherever the rows are in them, and holds one piece of them. A
        `gather` of rows that are not in memory waits for the disk once a row.

        Raises
        ------
        DataError
            As `gather`, and when a file has become shorter.
        """
        self._check(rows)
        order = np.argsort(rows, kind="stable")
        return [
            array.take(rows, axis=0) if file is None else file.rows(rows[order], order)
            for array, file in zip(self._arrays, self._files, strict=True)
        ]

    def converted(self, stored: Sequence[NDArray[Any]]) -> tuple[torch.Tensor, ...]:
        """Return the tensors of `gather` from stored rows, one array (B, ...) for each array of the source."""
        import torch

        pairs = zip(stored, self._dtypes, strict=True)
        return tuple(torch.from_numpy(array.astype(wanted, copy=False)) for array, wanted in pairs)

    def release_pages(self) -> None:
        """Release the pages of its files from this process; the system may keep them in its cache."""
        for array in self._arrays:
            release_pages(array)

    def _check(self, rows: NDArray[np.integer]) -> None:
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise DataError(f"rows must be a vector of integers, given {rows.dtype} of shape {rows.shape}")
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < self._length:
            raise DataError(f"rows {rows.min()} to {rows.max()} were asked for, the table has 0 to {self._length - 1}")


class PixelSource(ArraySource):
    """Images in one array of bytes, a quarter of the size of floats; `gather` returns 255 as 1.0.

    Parameters
    ----------
    images : ndarray of uint8, (N, ...)
        Pixels, memory-mapped or not.

    Raises
    ------
    DataError
        When the array holds no bytes.

    Examples
    --------
    >>> PixelSource(np.array([[0, 51], [255, 0]], np.uint8)).gather(np.array([1, 0]))[0].tolist()
    [[1.0, 0.0], [0.0, 0.20000000298023224]]
    """

    __slots__ = ()

    def __init__(self, images: NDArray[np.uint8]) -> None:
        if images.dtype != np.uint8:
            raise DataError(f"pixels are bytes (uint8), given {images.dtype}")
        super().__init__(images)
        self._dtypes = (np.dtype(np.float32),)

    def converted(self, stored: Sequence[NDArray[Any]]) -> tuple[torch.Tensor, ...]:
        """Return rows of bytes as (B, ...) float32 from 0 to 1."""
        return tuple(images.div_(255) for images in super().converted(stored))
