"""Storage of the embeddings of all rows at the label party, for training without gradients and for refits."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from flower_vfl.errors import StorageError
from flower_vfl.files import reserve, writing_to
from flower_vfl.machine import free_memory
from flower_vfl.protocol.schedule import Rows, RowsPart, Schedule
from flower_vfl.transport.base import Link


class KeptEmbeddings:
    """The embeddings of each feature party for the rows of both tables.

    They are in main memory, or in unnamed files if they need more than half of the free memory.

    Parameters
    ----------
    links : Mapping[str, Link]
        Link to each feature party, with the shape of its embeddings.
    schedule : Schedule
        Gives the number of rows of each table.
    """

    def __init__(self, links: Mapping[str, Link], schedule: Schedule) -> None:
        rows = {"train": schedule.rows, "test": schedule.test_rows}
        needed = sum(
            count * link.dtype.itemsize * int(np.prod(link.shape)) for count in rows.values() for link in links.values()
        )
        free = free_memory()
        in_files = bool(free) and needed > free // 2
        self._tables = {
            name: {party: _table(count, link, needed, in_files=in_files) for party, link in links.items()}
            for name, count in rows.items()
        }

    def put(self, part: RowsPart, rows: Rows, embeddings: Mapping[str, Tensor]) -> None:
        """Store the embeddings (B, ...) of some rows."""
        index = torch.from_numpy(rows)
        for party, z in embeddings.items():
            self._table(part)[party][index] = z.cpu()

    def of(self, part: RowsPart, rows: Rows) -> dict[str, Tensor]:
        """Return the embeddings (B, ...) of some rows, by party."""
        index = torch.from_numpy(rows)
        return {party: table[index] for party, table in self._table(part).items()}

    def _table(self, part: RowsPart) -> dict[str, Tensor]:
        return self._tables["test" if part == "test" else "train"]


def _table(rows: int, link: Link, needed: int, *, in_files: bool) -> Tensor:
    """Return an uninitialised tensor for the embeddings of this number of rows of a party.

    Raises
    ------
    StorageError
        When neither main memory nor the disk has room.
    """
    shape = (rows, *link.shape)
    if not in_files or not rows:
        return torch.empty(shape, dtype=link.dtype)
    size = link.dtype.itemsize * int(np.prod(shape))
    folder = Path(tempfile.gettempdir())
    try:
        with writing_to(folder / "embeddings"), tempfile.TemporaryFile(dir=folder) as file:
            reserve(file, size)
            return torch.from_numpy(np.memmap(file, dtype=np.uint8, mode="r+", shape=size)).view(link.dtype).view(shape)
    except StorageError as error:
        raise StorageError(
            f"training.gradients = false keeps the embeddings of all rows, {needed / 2**30:.1f} GiB, and neither main "
            f"memory nor {folder} has room for them: name another folder in the environment variable TMPDIR, make "
            f"model.cut smaller, or set training.gradients to true ({error})"
        ) from error
