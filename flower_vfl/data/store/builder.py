"""Builder of a prepared folder: a method for each kind of data of a party, with a check of all arrays at the end."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flower_vfl.data.encoding.encoding import PartyEncoding
from flower_vfl.data.encoding.labels import EncodedLabels
from flower_vfl.data.encoding.text import TextEncoding
from flower_vfl.data.store import layout
from flower_vfl.data.store.dataset import PARTS, UNALIGNED, Alignment, FeatureSpec, Part
from flower_vfl.data.store.party_names import check_parties, check_party_name
from flower_vfl.data.store.periods import Periods
from flower_vfl.errors import DataError

_TEXTS = 256
"""Number of texts that are encoded at once."""


def ids_digest(ids: Mapping[Part, Sequence[str]]) -> str:
    """Return the SHA-256 of the ordered IDs of both parts; equal exactly when all IDs and their order are."""
    return layout.ids_digest({part: (len(ids[part]), ids[part]) for part in PARTS})


class Builder:
    """Writer of a data set into an empty folder.

    Parameters
    ----------
    folder : Path
        Folder of the data set; the caller moves it into place when it is complete.
    notes : Path, optional
        Folder of the state that a resumed preparation needs; not part of the data.
    """

    def __init__(self, folder: Path, notes: Path | None = None) -> None:
        self.folder, self.notes = folder, notes
        self._rows: dict[Part, int] = {}
        self._parties: list[str] = []
        self._unaligned: dict[str, int] = {}
        self._alignment = ""

    def align(self, ids: Mapping[Part, Sequence[str]]) -> None:
        """Write the shared IDs in their order, and set the number of rows.

        Raises
        ------
        DataError
            When there is no training or no test row.
        """
        self.align_numbered({part: len(ids[part]) for part in PARTS}, ids_digest(ids))
        for part in PARTS:
            layout.write_ids(self.folder / "ids" / f"{part}.parquet", ids[part])

    def align_numbered(self, rows: Mapping[Part, int], digest: str) -> None:
        """Set the number of rows and the digest of the alignment, where rows have numbers and no IDs.

        Digests of files of IDs that exist already are written beside them.
        """
        for part in PARTS:
            if rows[part] < 1:
                raise DataError(
                    f"no row is left for the {part} part; there are {rows['train']} + {rows['test']} rows. More rows "
                    "that all parties have are needed, or another share for the test, which the option test_fraction "
                    "names where rows are drawn"
                )
        self._rows = {part: rows[part] for part in PARTS}
        self._alignment = digest
        folder = self.folder / "ids"
        if folder.is_dir():
            files = {file: layout.digest(folder / file) for file in (f"{part}.parquet" for part in PARTS)}
            layout.write_json(folder / layout.IDS, {"files": files})

    def add_table(
        self,
        party: str,
        encoding: PartyEncoding,
        tables: Mapping[Part, pa.Table],
        file: str,
        unaligned: pa.Table | None = None,
    ) -> None:
        """Encode and write a party's table, whose rows are in the shared order, and its unaligned rows."""
        spec = FeatureSpec(encoding.numeric_width, encoding.cardinalities)
        written: dict[str, pa.Table] = {part: tables[part] for part in PARTS}
        if unaligned is not None and unaligned.num_rows:
            written[UNALIGNED] = unaligned
            self._unaligned[party] = unaligned.num_rows
        for part, table in written.items():
            numeric, categorical = encoding.encode(table, file)
            arrays: dict[str, NDArray[Any]] = {"numeric.npy": numeric, "categorical.npy": categorical}
            for name, (_, dtype) in spec.arrays().items():
                layout.save_array(self.folder / party / part / name, arrays[name], dtype)
        self.finish_party(party, spec, encoding.columns, encoding)

    def add_images(self, party: str, images: Mapping[Part, NDArray[Any]], columns: Sequence[str]) -> None:
        """Write plain arrays (N, ...) of a party: floats as float32, uint8 unchanged."""
        shape = tuple(int(size) for size in images["train"].shape[1:])
        spec = FeatureSpec(0, (), shape, pixels=images["train"].dtype == np.uint8)
        for part in PARTS:
            for name, (_, dtype) in spec.arrays().items():
                layout.save_array(self.folder / party / part / name, images[part], dtype)
        self.finish_party(party, spec, columns, PartyEncoding((), ()))

    def add_texts(
        self,
        party: str,
        encoding: TextEncoding,
        texts: Mapping[Part, Iterable[str]],
        rows: Mapping[Part, NDArray[np.int64]],
        vectors: NDArray[np.float32] | None,
    ) -> None:
        """Encode and write a party's texts, a piece at a time.

        Parameters
        ----------
        party : str
            The party.
        encoding : TextEncoding
            Encoding that is fitted on training rows.
        texts : Mapping
            Texts of each part in any order; they are read once.
        rows : Mapping
            Position (N,) of each text in the shared order.
        vectors : ndarray of float32, (V, W), optional
            Initial vector of each word id.

        Raises
        ------
        DataError
            When there are more or fewer texts than rows.
        """
        spec = FeatureSpec(0, (), (encoding.length,), vocabulary=encoding.vocabulary, vectors=vectors)
        for part in PARTS:
            (array,) = self.create_arrays(party, spec, part).values()
            done = 0
            for piece in _pieces(texts[part]):
                if done + len(piece) > len(array):
                    raise DataError(f"party {party!r} has more than {len(array)} texts for the {part} part")
                array[rows[part][done : done + len(piece)]] = encoding.apply(piece)
                done += len(piece)
            if done < len(array):
                raise DataError(f"party {party!r} has {done} texts for the {part} part, needed: {len(array)}")
        self.finish_party(party, spec, (encoding.name,), PartyEncoding((), (), encoding))

    def create_arrays(self, party: str, spec: FeatureSpec, part: Part) -> dict[str, NDArray[Any]]:
        """Create the files of a party's part, to be filled piece by piece before `finish_party`."""
        return self._create(party, spec, part, self._rows[part])

    def create_unaligned(self, party: str, spec: FeatureSpec, rows: int) -> dict[str, NDArray[Any]]:
        """Create the files of a party's unaligned rows, to be filled before `finish_party`."""
        self._unaligned[party] = rows
        return self._create(party, spec, UNALIGNED, rows)

    def remove_unaligned(self, party: str) -> None:
        """Remove the files of `create_unaligned`, if any, that could not be filled."""
        if self._unaligned.pop(party, 0):
            shutil.rmtree(self.folder / party / UNALIGNED)

    def _create(self, party: str, spec: FeatureSpec, part: str, rows: int) -> dict[str, NDArray[Any]]:
        return {
            name: layout.create_array(self.folder / party / part / name, (rows, *shape), dtype)
            for name, (shape, dtype) in spec.arrays().items()
        }

    def open_arrays(self, party: str, spec: FeatureSpec, part: Part) -> dict[str, layout.ArrayFile]:
        """Open the files of a party's part, new or partly written, to be filled by pieces of rows."""
        return {
            name: layout.ArrayFile(self.folder / party / part / name, (self._rows[part], *shape), dtype)
            for name, (shape, dtype) in spec.arrays().items()
        }

    def open_labels(self, part: Part) -> layout.ArrayFile:
        """Open the file of a part's labels, new or partly written, to be filled before `finish_labels`."""
        return layout.ArrayFile(self.folder / "labels" / f"{part}.npy", (self._rows[part],), "int64")

    def finish_party(self, party: str, spec: FeatureSpec, columns: Sequence[str], encoding: PartyEncoding) -> None:
        """Check the arrays of a party and write their description.

        Raises
        ------
        DataError
            When an array has the wrong shape, a number that is not finite or an id outside its column's levels.
        """
        check_party_name(party)
        files = {}
        unaligned = {UNALIGNED: self._unaligned[party]} if party in self._unaligned else {}
        for part, rows in [*self._rows.items(), *unaligned.items()]:
            for name, (shape, dtype) in spec.arrays().items():
                path = self.folder / party / part / name
                layout.check_array(path, (rows, *shape), dtype, spec.levels)
                files[f"{part}/{name}"] = layout.digest(path)
        if spec.vectors is not None:
            path = self.folder / party / layout.VECTORS
            layout.save_array(path, spec.vectors, "float32")
            layout.check_array(path, spec.vectors.shape, "float32", ())
            files[layout.VECTORS] = layout.digest(path)
        encoding.write(self.folder / party / layout.ENCODING)
        for name in layout.ENCODINGS:
            if (self.folder / party / name).is_file():
                files[name] = layout.digest(self.folder / party / name)
        width = 0 if spec.vectors is None else spec.vectors.shape[1]
        shown = {**asdict(replace(spec, vectors=None)), "vectors": width}
        del shown["quantiles"]
        facts = {"spec": shown, "columns": list(columns), "files": files, **unaligned}
        layout.write_json(self.folder / party / layout.PARTY, facts)
        self._parties.append(party)

    def add_labels(self, labels: EncodedLabels, unaligned: NDArray[np.int64] | None = None) -> None:
        """Write the labels of the rows in the shared order, and the labels (U,) of the label party's unaligned rows."""
        written: dict[str, NDArray[np.int64]] = {"train": labels.train, "test": labels.test}
        if unaligned is not None and len(unaligned):
            written[UNALIGNED] = unaligned
        for part, values in written.items():
            layout.save_array(self.folder / "labels" / f"{part}.npy", values, "int64")
        self.finish_labels(labels.names, 0 if unaligned is None else len(unaligned))

    def finish_labels(self, names: Sequence[str], unaligned: int = 0) -> None:
        """Check the labels and write their description, with the names of the classes from 0."""
        files = {}
        more = {UNALIGNED: unaligned} if unaligned else {}
        for part, rows in [*self._rows.items(), *more.items()]:
            path = self.folder / "labels" / f"{part}.npy"
            layout.check_array(path, (rows,), "int64", (len(names),))
            files[f"{part}.npy"] = layout.digest(path)
        digest = layout.names_digest(names)
        facts = {
            "classes": len(names),
            "class_names": list(names),
            "class_names_sha256": digest,
            "files": files,
            **more,
        }
        layout.write_json(self.folder / "labels" / layout.LABELS_FILE, facts)

    def finish(
        self,
        *,
        name: str,
        label_party: str,
        licence: str,
        source: str,
        options: Mapping[str, Any],
        parties: Sequence[str] = (),
        facts: Mapping[str, Any] | None = None,
        periods: Periods | None = None,
    ) -> None:
        """Write the manifest, the last file, which all parties may see.

        `parties` are those with features, where other hosts hold some; `facts` are further facts about the source;
        `periods` are the days of rows in time order, those of the test part after those of the training part.
        """
        aligned = Alignment(self._rows["train"], self._rows["test"], self._alignment, periods)
        alignment: dict[str, Any] = {"rows": aligned.rows, "test_rows": aligned.test_rows, "digest": aligned.digest}
        if periods is not None:
            alignment["periods"] = periods.to_json()
        manifest = {
            "schema": layout.LAYOUT_VERSION,
            "name": name,
            "parties": check_parties(parties or self._parties, label_party),
            "label_party": label_party,
            "alignment": alignment,
            "licence": licence,
            "source": source,
            "options": dict(options),
            "facts": dict(facts or {}),
        }
        layout.write_json(self.folder / layout.MANIFEST, manifest)


def _pieces(texts: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(texts)
    while piece := list(islice(rest, _TEXTS)):
        yield piece
