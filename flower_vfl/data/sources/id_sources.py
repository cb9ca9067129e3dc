"""IDs of each party from its own files, which an alignment compares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from flower_vfl.data.encoding.ids import join_ids, read_ids, whole_ids
from flower_vfl.data.encoding.values import Place, require_columns
from flower_vfl.data.formats.arrays import holds_arrays, open_arrays
from flower_vfl.data.formats.tables import Dialect, read_header, read_table
from flower_vfl.data.sources.files_options import LABELS, FilesOptions
from flower_vfl.data.sources.own_files import Files
from flower_vfl.data.sources.party_files import RawFile, label_holder, read_raw, resolved, with_label
from flower_vfl.data.sources.recipe import build_options
from flower_vfl.data.store.party_names import check_parties
from flower_vfl.errors import DataError


@dataclass(frozen=True)
class LabelColumn:
    """Location of the labels.

    Parameters
    ----------
    path : Path
        Their file.
    column : str
        Their column.
    missing : tuple of str
        Texts that mark a missing label, besides the usual ones.
    """

    path: Path
    column: str
    missing: tuple[str, ...] = ()

    def rows(self, id_column: str, dialect: Dialect) -> pa.Array:
        """Return a mask (N,) of the rows with a label.

        Raises
        ------
        DataError
            When the file has no such column.
        """
        table = _columns(self.path, id_column, dialect, label=self.column)
        require_columns(table, [self.column], str(self.path))
        return with_label(table.column(self.column), Place(str(self.path), self.column), self.missing)


@dataclass(frozen=True)
class IdSource:
    """Location of a party's IDs.

    Parameters
    ----------
    files : tuple of Path
        Files of the party; of several, the IDs in all are read.
    column : str
        Column of the ID.
    dialects : tuple of Dialect
        Syntax of each file; if empty, the default for its name.
    whole : bool
        True to read 1.0 and 001 as the ID 1.
    labels : LabelColumn, optional
        The labels without which a row is left out; by default none is.
    settings : str
        Sentence about where the file and its column are set, for the errors of a host that has no `data.options`.
    """

    files: tuple[Path, ...]
    column: str
    dialects: tuple[Dialect, ...] = ()
    whole: bool = False
    labels: LabelColumn | None = None
    settings: str = ""

    def read(self) -> list[str]:
        """Return the party's IDs, sorted by character code.

        Raises
        ------
        DataError
            As `read_ids`.
        """
        try:
            return self._read()
        except DataError as error:
            if not self.settings:
                raise
            raise DataError(f"{error}. {self.settings}") from None

    def _read(self) -> list[str]:
        found = {}
        for path, dialect in zip(self.files, self.dialects or [Dialect()] * len(self.files), strict=True):
            if not path.exists():
                raise DataError(f"there is no file {path}")
            table = _columns(path, self.column, dialect)
            table = whole_ids(table, self.column, str(path)) if self.whole else table
            needed = self.labels.rows(self.column, dialect) if self.labels and self.labels.path == path else None
            found[str(path)] = read_ids(table, self.column, str(path), needed)
        return join_ids(found, "inner", self.column)


def id_sources(source: Path | None, given: Mapping[str, Any]) -> tuple[str, dict[str, IdSource]]:
    """Return the label party and the source of each party's IDs, from the options of `files`: all on this host.

    Raises
    ------
    ConfigError, DataError
        When an option is wrong, or no file has labels.
    """
    options = build_options(Files(), given)
    if not isinstance(options, FilesOptions):
        raise TypeError(type(options))
    paths = {key: resolved(source, name) for key, name in options.paths("train").items()}
    holder = label_holder({key: RawFile(path, _header(path, options, key)) for key, path in paths.items()}, options)
    label_party = options.label_party or (holder if holder in options.files else "label")
    found: dict[str, list[tuple[Path, Dialect]]] = {}
    for key, path in paths.items():
        found.setdefault(label_party if key == LABELS else key, []).append((path, options.dialect(key)))
    if label_party not in found:
        raise DataError(
            "no file has the labels, and an alignment starts from the IDs of the label party: name its file in "
            "labels_file, or in label the column of labels"
        )
    check_parties(found, label_party)
    sources = {}
    labels = None
    if holder and options.unlabelled == "drop":
        labels = LabelColumn(paths[holder], options.label, options.missing_values)
    for party, pairs in found.items():
        files, dialects = zip(*pairs, strict=True)
        own = labels if party == label_party else None
        sources[party] = IdSource(files, options.id, dialects, whole=options.whole_ids, labels=own)
    return label_party, sources


def _header(path: Path, options: FilesOptions, key: str) -> pa.Table:
    return read_raw(path, options, key).table if holds_arrays(path) else read_header(path, options.dialect(key))


def _columns(path: Path, column: str, dialect: Dialect, *, label: str = "") -> pa.Table:
    """Return a table with the ID column of a file, or with its column of labels, and possibly others."""
    if not holds_arrays(path):
        return read_table(path, label or column, dialect)
    return open_arrays(path, id_name=column, label=label, size=()).columns
