"""The alignment file: the IDs that all parties have, as `flower-vfl align` writes them at each party.

This Parquet file has the common IDs in their canonical order, sorted by character code, the parties and a digest.
`data prepare files` reads it; the prepared data then has the same digest at every party, which training checks.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from flower_vfl.data.store import layout
from flower_vfl.data.store.party_names import check_parties
from flower_vfl.errors import DataError
from flower_vfl.files import replacing, writing_to

_SCHEMA = 2
_KEY = b"flower-vfl alignment"


@dataclass(frozen=True)
class AlignmentFile:
    """Result of an alignment at one party.

    Parameters
    ----------
    ids : tuple of str
        The IDs that all parties have, in their canonical order.
    parties : tuple of str
        The feature parties that took part.
    label_party : str
        The label party.
    """

    ids: tuple[str, ...]
    parties: tuple[str, ...]
    label_party: str

    @property
    def digest(self) -> str:
        """SHA-256 of the ordered IDs; equal at all parties."""
        return layout.ids_digest({"alignment": (len(self.ids), self.ids)})

    @property
    def checksum(self) -> str:
        """SHA-256 of the content of the file, the parties included; equal at all parties."""
        return hashlib.sha256(json.dumps([self.digest, self.parties, self.label_party]).encode()).hexdigest()

    def write(self, path: Path) -> None:
        """Write the file, complete or not at all, readable by its owner only: the common IDs are private.

        Raises
        ------
        StorageError, DataError
            When the file cannot be written.
        """
        facts = {
            "schema": _SCHEMA,
            "parties": list(self.parties),
            "label_party": self.label_party,
            "digest": self.digest,
            "checksum": self.checksum,
        }
        table = pa.table({"id": pa.array(self.ids, pa.string())}).replace_schema_metadata({_KEY: json.dumps(facts)})
        with writing_to(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as temporary:
                pq.write_table(table, temporary)

    @classmethod
    def read(cls, path: Path) -> AlignmentFile:
        """Return the alignment that `write` wrote.

        Raises
        ------
        DataError
            When the file is no alignment, or not as it was written.
        """
        try:
            table = pq.read_table(path)
            facts = json.loads((table.schema.metadata or {})[_KEY])
            column = table.column("id")
            if column.type != pa.string() or column.null_count:
                raise ValueError
            ids = tuple(column.to_pylist())
        except FileNotFoundError:
            raise DataError(f"there is no alignment {path}; `flower-vfl align --help` says how to make one") from None
        except (OSError, KeyError, ValueError, RecursionError, pa.ArrowException):
            raise DataError(
                f"{path} is no alignment that `flower-vfl align` wrote: name the file that it left on this host "
                f"(FLOWER_VFL_ALIGNMENT of the label party, `alignment` in --node-config of a feature party)"
            ) from None
        if not isinstance(facts, dict) or facts.get("schema") != _SCHEMA:
            raise DataError(f"{path} is no alignment of this version; align again")
        label_party = layout.entry(path, facts, "label_party", str)
        found = cls(ids, check_parties(layout.entry(path, facts, "parties", list), label_party), label_party)
        as_written = found.digest == facts.get("digest") and found.checksum == facts.get("checksum")
        if not ids or list(ids) != sorted(set(ids)) or not as_written:
            raise DataError(f"{path} is not as it was written: its digest differs; align again")
        return found
