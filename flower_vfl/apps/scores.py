"""The file of scores: one row an ID, written as predictions come in, whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from flower_vfl.errors import ConfigError, DataError, OutputExistsError
from flower_vfl.files import replacing

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

_WRITERS = {".csv": pa_csv.CSVWriter, ".parquet": pq.ParquetWriter}


def check_target(path: Path, *, overwrite: bool) -> None:
    """Refuse a file that cannot be written, before anything is computed.

    Raises
    ------
    ConfigError
        When its name ends in something else than .csv or .parquet.
    OutputExistsError
        When it exists and may not be replaced.
    DataError
        When there is no folder for it.
    """
    if path.suffix.lower() not in _WRITERS:
        raise ConfigError(f"scores go into {' or '.join(f'*{ending}' for ending in _WRITERS)}, given {path}")
    if path.is_dir() or (path.exists() and not overwrite):
        raise OutputExistsError(f"{path} exists; name another file, or replace it with --overwrite")
    if not path.absolute().parent.is_dir():
        raise DataError(f"there is no folder {path.absolute().parent} for {path.name}")


class ScoreWriter:
    """Appends batches to an open file.

    Two classes give the columns `id` and `score`, the probability of the positive class; more give `id`, `predicted`
    and one `score_<class>` each.

    Parameters
    ----------
    writer : CSVWriter or ParquetWriter
        A writer of tables of `schema`.
    classes : tuple of str
        Names of the classes.
    class_rows : sequence of int
        (C,) training rows of each class, where training weighted classes inversely to them; else empty. A weighted
        model gives the probabilities of classes of equal size, and the scores are those of classes of these sizes.
        `predicted` is the class that the model prefers.
    """

    def __init__(
        self,
        writer: pa_csv.CSVWriter | pq.ParquetWriter,
        classes: tuple[str, ...],
        class_rows: Sequence[int],
    ) -> None:
        self._writer, self._classes = writer, classes
        sizes = class_rows or np.ones(len(classes))
        self._offsets = np.log(np.maximum(sizes, 1))  # training counts an absent class as one row, too

    def write(self, ids: pa.Array, logits: Tensor) -> None:
        """Append rows with the IDs (B,) and the logits (B,) or (B, C)."""
        columns = _columns(logits, self._classes, self._offsets)
        self._writer.write_table(pa.table([ids, *columns], schema=schema_of(self._classes)))


def schema_of(classes: tuple[str, ...]) -> pa.Schema:
    """Return the columns of a score file."""
    score = [("score", pa.float64())]
    if len(classes) > 2:
        score = [("predicted", pa.string()), *((f"score_{name}", pa.float64()) for name in classes)]
    return pa.schema([("id", pa.string()), *score])


def _columns(logits: Tensor, classes: tuple[str, ...], offsets: NDArray[np.float64]) -> list[pa.Array]:
    import torch

    if logits.dim() == 1:
        return [pa.array(torch.sigmoid(logits.double() + (offsets[1] - offsets[0])).numpy())]
    scores = torch.softmax(logits.double() + torch.from_numpy(offsets), dim=1)
    predicted = pa.array(classes, pa.string()).take(pa.array(logits.argmax(dim=1).numpy()))
    return [predicted, *(pa.array(column.contiguous().numpy()) for column in scores.T)]


@contextmanager
def writing(path: Path, classes: tuple[str, ...], class_rows: Sequence[int] = ()) -> Iterator[ScoreWriter]:
    """Yield the writer of a file, open to its owner only, that appears at `path` if the block ends without error."""
    schema = schema_of(classes)
    with replacing(path) as temporary, _WRITERS[path.suffix.lower()](temporary, schema) as writer:
        yield ScoreWriter(writer, classes, class_rows)
