"""Storage of parsed blocks, as files of columns until they are encoded, and of notes with results."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flower_vfl.data.clicks.parse import Parsed
from flower_vfl.data.store import layout
from flower_vfl.errors import DataError
from flower_vfl.files import replacing, write_json_atomic

_KEY = b"block"


class WorkFolder:
    """Folder of pieces, vocabularies and notes; each file is complete or absent.

    Parameters
    ----------
    folder : Path
        Folder of the files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has_piece(self, number: int) -> bool:
        """Return True if a block was read and is not encoded yet."""
        return self._piece(number).is_file()

    def keep_piece(self, number: int, rows: pa.Table, parsed: Parsed) -> None:
        """Write the selected rows of a block, and the facts about its lines."""
        facts = json.dumps([parsed.lines, parsed.bad, parsed.examples])
        table = rows.replace_schema_metadata({_KEY: facts})
        with replacing(self._piece(number)) as temporary, pa.ipc.new_file(temporary, table.schema) as writer:
            writer.write_table(table)

    def piece_facts(self, number: int) -> tuple[int, int, list[str]]:
        """Return the number of lines of a block, the number of bad ones, and the errors of the first."""
        with pa.OSFile(str(self._piece(number))) as file:
            lines, bad, examples = json.loads(pa.ipc.open_file(file).schema.metadata[_KEY])
        return int(lines), int(bad), [str(example) for example in examples]

    def columns(self, number: int) -> list[str]:
        """Return the names of the columns of a block."""
        with pa.OSFile(str(self._piece(number))) as file:
            return list(pa.ipc.open_file(file).schema.names)

    def read_piece(self, number: int, columns: Collection[str] = ()) -> pa.Table:
        """Return the rows of a block, with all columns or the named ones."""
        with pa.OSFile(str(self._piece(number))) as file:
            schema = pa.ipc.open_file(file).schema
            wanted = [schema.get_field_index(name) for name in columns] or None
            return pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=wanted)).read_all()

    def drop_piece(self, number: int) -> None:
        """Remove a block that is encoded."""
        self._piece(number).unlink(missing_ok=True)

    def has_note(self, name: str) -> bool:
        """Return True if a note of this name exists."""
        return (self._folder / f"{name}.json").is_file()

    def keep_note(self, name: str, content: dict[str, Any]) -> None:
        """Write a note."""
        write_json_atomic(self._folder / f"{name}.json", content)

    def read_note(self, name: str) -> dict[str, Any]:
        """Return a note."""
        return layout.read_json(self._folder / f"{name}.json")

    def keep_keys(self, column: str, keys: NDArray[np.uint32]) -> None:
        """Write the vocabulary of a column."""
        with replacing(self._keys(column)) as temporary, temporary.open("wb") as file:
            np.save(file, keys)

    def read_keys(self, column: str) -> NDArray[np.uint32]:
        """Return the vocabulary of a column."""
        found = np.load(self._keys(column), allow_pickle=False)
        if found.dtype != np.uint32 or found.ndim != 1:
            raise DataError(f"{self._keys(column)} holds no vocabulary; remove the folder and begin again")
        return np.asarray(found)

    def _piece(self, number: int) -> Path:
        return self._folder / f"piece-{number:06}.arrow"

    def _keys(self, column: str) -> Path:
        return self._folder / f"keys-{column}.npy"
