"""Writing of the arrays of the prepared folder, piece by piece."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flower_vfl.data.clicks.fit import Vocabulary
from flower_vfl.data.clicks.survey import Source, Survey, TestSplit
from flower_vfl.data.clicks.threads import in_order
from flower_vfl.data.clicks.work import WorkFolder
from flower_vfl.data.encoding.encoding import NumericEncoding, PartyEncoding
from flower_vfl.data.encoding.values import parse_numbers
from flower_vfl.data.sources.recipe import Progress
from flower_vfl.data.store import layout
from flower_vfl.data.store.builder import Builder
from flower_vfl.data.store.dataset import PARTS, FeatureSpec, Part

_SYNC_EVERY = 16

Fitted = Mapping[str, NumericEncoding | Vocabulary]


class Encoder:
    """Encoder of the columns of each party.

    Parameters
    ----------
    builder : Builder
        Builder of the prepared folder.
    work : WorkFolder
        Storage of the pieces.
    source, split, found : Source, TestSplit, Survey
        Number of pieces, selection of the test rows, and number of rows of each piece.
    fitted : Mapping
        Encoding of each column.
    parties : Mapping
        Columns of each party, numeric ones first.
    """

    def __init__(
        self,
        builder: Builder,
        work: WorkFolder,
        source: Source,
        split: TestSplit,
        found: Survey,
        fitted: Fitted,
        parties: Mapping[str, Sequence[str]],
    ) -> None:
        self._builder, self._work, self._source, self._split, self._survey = builder, work, source, split, found
        self._fitted = fitted
        self._numeric: dict[str, list[NumericEncoding]] = {}
        self._categorical: dict[str, list[Vocabulary]] = {}
        for party, names in parties.items():
            columns = [fitted[name] for name in names]
            self._numeric[party] = [column for column in columns if isinstance(column, NumericEncoding)]
            self._categorical[party] = [column for column in columns if isinstance(column, Vocabulary)]

    def write(self, progress: Progress) -> None:
        """Write all pieces; those that were written before have been removed and are not written again."""
        self._builder.align_numbered({part: self._survey.total(part) for part in PARTS}, self._survey.digest)
        with ExitStack() as stack:
            files: dict[tuple[str, Part], layout.ArrayFile] = {}
            for part in PARTS:
                files["labels", part] = self._builder.open_labels(part)
                for party in self._numeric:
                    opened = self._builder.open_arrays(party, self.spec(party), part)
                    files |= {(f"{party}/{name}", part): file for name, file in opened.items()}
            for file in files.values():
                stack.callback(file.close)
            written: list[int] = []
            for number in in_order(lambda number: self._write_piece(number, files), range(self._source.pieces)):
                written.append(number)
                if len(written) == _SYNC_EVERY or number == self._source.pieces - 1:
                    # A piece is removed when its arrays are synced to the disk; a sync for each piece would be slow.
                    for file in files.values():
                        file.sync()
                    for done in written:
                        self._work.drop_piece(done)
                    written = []
                progress((number + 1) / self._source.pieces)

    def finish(self) -> None:
        """Check all arrays, and write the descriptions of the parties and of the labels."""
        values = {column.name: column.encoding() for own in self._categorical.values() for column in own}
        for party, numeric in self._numeric.items():
            own = tuple(values[column.name] for column in self._categorical[party])
            encoding = PartyEncoding(tuple(numeric), own)
            self._builder.finish_party(party, self.spec(party), encoding.columns, encoding)
        self._builder.finish_labels(("0", "1"))

    def spec(self, party: str) -> FeatureSpec:
        """Return the shape of a party's features."""
        levels = tuple(len(column.keys) + column.missing + 1 for column in self._categorical[party])
        return FeatureSpec(sum(column.width for column in self._numeric[party]), levels)

    def _write_piece(self, number: int, files: Mapping[tuple[str, Part], layout.ArrayFile]) -> int:
        if not self._work.has_piece(number):
            return number
        rows = self._work.read_piece(number)
        test = self._split.held_out(rows, self._survey.last_day)
        arrays = {"labels": np.asarray(rows.column("label").to_numpy(), np.int64), **self._encode(rows)}
        for (name, part), file in files.items():
            file.write(self._survey.start(part, number), arrays[name][test if part == "test" else ~test])
        return number

    def _encode(self, rows: pa.Table) -> dict[str, NDArray[np.generic]]:
        encoded: dict[str, NDArray[np.generic]] = {}
        for name, column in self._fitted.items():
            if isinstance(column, NumericEncoding):
                encoded[name] = column.apply(parse_numbers(rows.column(name))[0])
            else:
                encoded[name] = column.ids(rows.column(name).combine_chunks())
        arrays: dict[str, NDArray[np.generic]] = {}
        for party, numeric in self._numeric.items():
            if numeric:
                arrays[f"{party}/numeric.npy"] = np.concatenate([encoded[column.name] for column in numeric], axis=1)
            if self._categorical[party]:
                ids = [encoded[column.name] for column in self._categorical[party]]
                arrays[f"{party}/categorical.npy"] = np.stack(ids, axis=1)
        return arrays
