"""A vertical data set on disk, of which each party opens its own files only.

Files of a prepared folder, of which a party's host needs only the manifest and the party's own folder::

    manifest.json                     name, parties, counts, digest of the alignment, licence: nothing private
    ids/{train,test}.parquet          the shared IDs in their canonical order (absent where rows are numbered)
    ids/ids.json                      digests of these files, where the alignment's is of another kind
    <party>/party.json                the party's columns, shapes, digests of its files
    <party>/encoding.json             the encoding of each of its columns, also for new rows
    <party>/vocabulary.parquet        the values of its categorical columns, one column behind the other
    <party>/{train,test}/*.npy        numeric (N, F) float32, categorical (N, K) int32, or features (N, ...) float32
                                      (images: uint8; texts: int32 word ids)
    <party>/vectors.npy               of texts: the initial vector of each word (V, W) float32; may be absent
    labels/labels.json, {train,test}.npy
    <party>/unaligned/*.npy           rows of people whom others lack, counted in party.json alone; may be absent
    labels/unaligned.npy              the labels of the label party's unaligned rows
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from flower_vfl.data.encoding.encoding import PartyEncoding
from flower_vfl.data.encoding.labels import whole_labels
from flower_vfl.data.store import layout
from flower_vfl.data.store.party_names import check_parties
from flower_vfl.data.store.periods import Periods, periods_from_json
from flower_vfl.data.store.source import ArraySource, FeatureSource, PixelSource, quantiles
from flower_vfl.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

Part = Literal["train", "test"]
PARTS: tuple[Part, Part] = ("train", "test")
UNALIGNED = "unaligned"
"""Name of the folder of a party's unaligned rows, whose people not all parties have."""


@dataclass(frozen=True)
class FeatureSpec:
    """The shape of a party's features, from which a bottom model is built.

    A text is a row of word ids, (length,): 0 pads short texts, 1 stands for every word outside the vocabulary.

    Parameters
    ----------
    numeric : int
        Number of numeric columns.
    cardinalities : tuple of int
        Number of levels of each categorical column, the bucket of unseen values (0) included.
    shape : tuple of int
        Shape of one row of plain arrays, (channels, height, width) for images, (length,) for texts; empty for tables.
    pixels : bool
        True if plain arrays are stored as bytes, 0 to 255, and gathered as 0.0 to 1.0.
    vocabulary : int
        Number of word ids V, those of padding and of unseen words included; 0 where rows are no texts.
    vectors : ndarray of float32, (V, W), or None
        For texts: initial vector of each word, for instance GloVe. Only the party with the texts has them.
    quantiles : callable, optional
        For tables: function that returns, for probabilities (Q,), the quantiles of each numeric column in the training
        rows and, below them, those of its distinct values, (2 Q, F). `PartyTable` adds it, at the columns' party only.
    """

    numeric: int
    cardinalities: tuple[int, ...]
    shape: tuple[int, ...] = ()
    pixels: bool = False
    vocabulary: int = 0
    vectors: NDArray[np.float32] | None = field(default=None, repr=False, compare=False)
    quantiles: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = field(
        default=None, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        numbers = (self.numeric, *self.cardinalities, *self.shape, self.vocabulary)
        if any(not isinstance(number, int) or isinstance(number, bool) or number < 0 for number in numbers):
            raise DataError(f"sizes of features must be whole numbers of at least 0, given {self}")
        if any(number < 1 for number in (*self.cardinalities, *self.shape)):
            raise DataError(f"levels and shapes must be at least 1, given {self}")
        if bool(self.shape) == bool(self.numeric or self.cardinalities):
            raise DataError(f"features are a table (numeric, cardinalities) or plain arrays (shape), given {self}")
        if self.pixels and not self.shape:
            raise DataError(f"pixels are plain arrays of a shape, given {self}")
        if self.vocabulary and (len(self.shape) != 1 or self.pixels):
            raise DataError(f"texts have a shape of one number, their length, and no pixels, given {self}")
        if self.vectors is not None and (self.vectors.ndim != 2 or len(self.vectors) != self.vocabulary):
            raise DataError(f"vectors must be ({self.vocabulary}, W), a row a word id, given {self.vectors.shape}")

    @property
    def levels(self) -> tuple[int, ...]:
        """Number of ids of each column of integers."""
        return (self.vocabulary,) * self.shape[0] if self.vocabulary else self.cardinalities

    def arrays(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Return the shape of one row and the dtype of each array of these features, by file name."""
        if self.shape:
            dtype = "int32" if self.vocabulary else "uint8" if self.pixels else "float32"
            return {"features.npy": (self.shape, dtype)}
        found: dict[str, tuple[tuple[int, ...], str]] = {}
        if self.numeric:
            found["numeric.npy"] = ((self.numeric,), "float32")
        if self.cardinalities:
            found["categorical.npy"] = ((len(self.cardinalities),), "int32")
        return found


@dataclass(frozen=True)
class PartyTable:
    """One party's features.

    Parameters
    ----------
    name : str
        Name of the party.
    spec : FeatureSpec
        Shape of the features.
    train, test : FeatureSource
        The rows, in the order that all parties share.
    columns : tuple of str
        Names of the columns, numeric first.
    unaligned : FeatureSource, optional
        Rows of people whom not all parties have. Only pre-training reads them, on the party's own host.
    """

    name: str
    spec: FeatureSpec
    train: FeatureSource
    test: FeatureSource
    columns: tuple[str, ...]
    unaligned: FeatureSource | None = None

    def __post_init__(self) -> None:
        if self.spec.numeric and self.spec.quantiles is None:
            spec = replace(self.spec, quantiles=partial(quantiles, self.train))
            object.__setattr__(self, "spec", spec)


@dataclass(frozen=True)
class Labels:
    """The labels; only the label party opens them.

    Parameters
    ----------
    train, test : ndarray of whole numbers or booleans, (N,)
        Class of each row, 0 to `classes` - 1; 1 is the positive class of two. Arrays that tensors cannot share, and
        whole numbers that are written as floats, are copied as int64.
    classes : int
        Number of classes.
    unaligned : ndarray, (U,), optional
        Labels of the label party's unaligned rows, in their order.

    Raises
    ------
    DataError
        When they are something else, or a label is none of these classes.
    """

    train: NDArray[np.int64]
    test: NDArray[np.int64]
    classes: int
    unaligned: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.classes, int | np.integer):
            raise DataError(f"the number of classes is a whole number, given {self.classes!r}")
        for part in (*PARTS, *(() if self.unaligned is None else (UNALIGNED,))):
            values = whole_labels(getattr(self, part))
            object.__setattr__(self, part, values)
            low, high = int(values.min(initial=0)), int(values.max(initial=0))
            if low < 0 or high >= self.classes:
                raise DataError(f"labels of {self.classes} classes are 0 to {self.classes - 1}, given {low} to {high}")


@dataclass(frozen=True)
class Alignment:
    """Facts that must be equal at all parties for their rows to be of the same persons.

    Parameters
    ----------
    rows, test_rows : int
        Number of rows of the training and of the test table.
    digest : str
        SHA-256 of the ordered IDs of both.
    periods : Periods, optional
        The days of the rows, where these are in time order; parties compare them with the order of batches.

    Raises
    ------
    DataError
        When the periods have other numbers of rows.
    """

    rows: int
    test_rows: int
    digest: str
    periods: Periods | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.periods is not None:
            self.periods.check(self.rows, self.test_rows)


class Dataset:
    """A prepared data set; opening it reads the manifest and nothing else.

    Parameters
    ----------
    folder : Path
        The prepared folder.
    manifest : Mapping
        Contents of its manifest.json; `open_dataset` reads it.

    Raises
    ------
    DataError
        When the manifest is not that of a prepared folder.
    """

    def __init__(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        self.folder = folder
        where = folder / layout.MANIFEST
        alignment = layout.entry(where, manifest, "alignment", dict)
        periods = layout.entry(where, alignment, "periods", dict) if "periods" in alignment else None
        self.name: str = layout.entry(where, manifest, "name", str)
        self.label_party: str = layout.entry(where, manifest, "label_party", str)
        self.parties = check_parties(layout.entry(where, manifest, "parties", list), self.label_party)
        self.licence: str = layout.entry(where, manifest, "licence", str)
        self.source: str = layout.entry(where, manifest, "source", str)
        self.options: dict[str, Any] = layout.entry(where, manifest, "options", dict)
        self.alignment = Alignment(
            layout.count(where, alignment, "rows"),
            layout.count(where, alignment, "test_rows"),
            layout.entry(where, alignment, "digest", str),
            None if periods is None else periods_from_json(where, periods),
        )

    def __repr__(self) -> str:
        return f"Dataset({self.name!r}, parties={self.parties}, label_party={self.label_party!r}, {self.alignment})"

    @property
    def held(self) -> tuple[str, ...]:
        """Parties whose features are on this host."""
        return tuple(name for name in self.parties if (self.folder / name).is_dir())

    def rows(self, part: Part) -> int:
        """Return the number of rows of the training or of the test table."""
        return self.alignment.rows if part == "train" else self.alignment.test_rows

    def spec(self, name: str) -> FeatureSpec:
        """Return the shape of a party's features."""
        return read_spec(self._party_folder(name))

    def party(self, name: str) -> PartyTable:
        """Open a party's features, memory-mapped; no other party's file is touched.

        Raises
        ------
        DataError
            When there is no such party here, or when its files do not match their description.
        """
        folder = self._party_folder(name)
        spec, notes = read_spec(folder), folder / layout.PARTY
        columns = tuple(str(column) for column in layout.entry(notes, layout.read_json(notes), "columns", list))
        source = PixelSource if spec.pixels else ArraySource
        sources = {
            part: source(
                *(
                    layout.open_array(folder / part / file, (rows, *shape), dtype)
                    for file, (shape, dtype) in spec.arrays().items()
                )
            )
            for part, rows in self._rows_in(notes).items()
        }
        return PartyTable(name, spec, sources["train"], sources["test"], columns, sources.get(UNALIGNED))

    def _rows_in(self, notes: Path) -> dict[str, int]:
        """Return the number of rows of each part of a folder; its description `notes` has that of unaligned rows."""
        found: dict[str, int] = {part: self.rows(part) for part in PARTS}
        facts = layout.read_json(notes)
        return found | ({UNALIGNED: layout.count(notes, facts, UNALIGNED)} if UNALIGNED in facts else {})

    def encoding(self, name: str) -> PartyEncoding:
        """Return the encoding of a party's columns, to encode new rows for predictions."""
        return PartyEncoding.read(self._party_folder(name) / layout.ENCODING)

    def encoding_digest(self, name: str) -> str:
        """Return the SHA-256 of the encoding of a party's columns."""
        return layout.digest(self._party_folder(name) / layout.ENCODING)

    def content_digest(self, party: str, *, labels: bool) -> str:
        """Return the SHA-256 of one party's data, from the digests that were stored when it was prepared.

        Parameters
        ----------
        party : str
            Party whose columns are included; empty for none.
        labels : bool
            True to include the labels.
        """
        notes = [self._party_folder(party) / name for name in (layout.PARTY, layout.ENCODING)] if party else []
        notes += [self._labels_folder() / layout.LABELS_FILE] if labels else []
        return hashlib.sha256(" ".join(map(layout.digest, notes)).encode()).hexdigest()

    @cached_property
    def classes(self) -> int:
        """Number of classes; needs the labels' folder."""
        folder = self._labels_folder()
        return layout.count(folder / layout.LABELS_FILE, layout.read_json(folder / layout.LABELS_FILE), "classes")

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes in the source; DataError when they were changed since."""
        folder = self._labels_folder()
        where, facts = folder / layout.LABELS_FILE, layout.read_json(folder / layout.LABELS_FILE)
        names = tuple(str(name) for name in layout.entry(where, facts, "class_names", list))
        if layout.entry(where, facts, "class_names_sha256", str) != layout.names_digest(names):
            raise DataError(f"the names of the classes in {where} are not those that were prepared; prepare them again")
        return names

    @property
    def has_labels(self) -> bool:
        """True if this host holds the labels."""
        return (self.folder / "labels").is_dir()

    def labels(self) -> Labels:
        """Open the labels, and no features.

        Raises
        ------
        DataError
            When this host does not hold them, or when they are not classes 0 to C - 1.
        """
        folder = self._labels_folder()
        arrays = {}
        for part, rows in self._rows_in(folder / layout.LABELS_FILE).items():
            arrays[part] = layout.open_array(folder / f"{part}.npy", (rows,), "int64", "c")
            layout.check_range(folder / f"{part}.npy", arrays[part][:, None], [self.classes])
        return Labels(arrays["train"], arrays["test"], self.classes, arrays.get(UNALIGNED))

    @property
    def has_ids(self) -> bool:
        """True if rows have IDs, not just numbers."""
        return (self.folder / "ids").is_dir()

    def id_column(self, part: Part) -> pa.ChunkedArray:
        """Return the IDs in the shared order as texts, in a fraction of the memory that a list needs."""
        return layout.read_id_column(self._ids_path(part), self.rows(part))

    def ids(self, part: Part) -> list[str]:
        """Return the IDs in the shared order; where the source has none, the number of the row."""
        if not self.has_ids:
            return [str(row) for row in range(self.rows(part))]
        return [str(value) for value in self.id_column(part).to_pylist()]

    def train_ids(self) -> Iterator[str] | None:
        """Return the IDs of the training rows one by one, never all in memory; None where rows have numbers only.

        All IDs are checked before the first one is yielded; DataError when they are not those of the rows.
        """
        return self._each_train_id() if self.has_ids else None

    def _each_train_id(self) -> Iterator[str]:
        self._check_ids()
        yield from layout.each_id(self._ids_path("train"))

    def all_ids(self) -> pa.ChunkedArray:
        """Return the IDs of the training rows, then those of the test rows, in the shared order.

        Raises
        ------
        DataError
            When they are not those of the rows, or not in their order.
        """
        import pyarrow as pa

        columns = [self.id_column(part) for part in PARTS]
        self._check_ids()
        return pa.chunked_array([chunk for column in columns for chunk in column.chunks], pa.string())

    def _check_ids(self) -> None:
        """Check the IDs by the digest of the alignment, which all parties compare, or by the digests of their files."""
        if (self.folder / "ids" / layout.IDS).is_file():
            for part in PARTS:
                layout.verify_file(self.folder / "ids", f"{part}.parquet")
            return
        found = layout.ids_digest({part: (self.rows(part), layout.each_id(self._ids_path(part))) for part in PARTS})
        if found != self.alignment.digest:
            raise DataError(
                f"the IDs in {self.folder / 'ids'} are not those of the rows, or not in their order: their digest is "
                f"{found[:16]}, that of the rows is {self.alignment.digest[:16]}; copy the folder again, or prepare "
                "the data again"
            )

    def _ids_path(self, part: Part) -> Path:
        return self.folder / "ids" / f"{part}.parquet"

    def verify(self) -> None:
        """Read every file that this host holds, a piece at a time, and check that it is as it was prepared.

        It checks the IDs and their order, by the digest of the alignment or of their files, where rows have IDs; for
        each party, and for the labels, the digests of the arrays, their numbers and their category ids; the digests of
        the encodings and of the class names. Other content of the manifest, `party.json` and `labels.json` is not
        covered by a digest, nor is the order of rows that have numbers only.

        Raises
        ------
        DataError
            When a file is not as it was prepared; the message names the first.
        """
        if self.has_ids:
            self._check_ids()
        for name in self.held:
            spec = self.spec(name)
            self._verify_encoding(name)
            for part, rows in self._rows_in(self.folder / name / layout.PARTY).items():
                for file, (shape, dtype) in spec.arrays().items():
                    layout.verify_array(self.folder / name, f"{part}/{file}", (rows, *shape), dtype, spec.levels)
            if spec.vectors is not None:
                layout.verify_array(self.folder / name, layout.VECTORS, spec.vectors.shape, "float32", ())
        if self.has_labels:
            for part, rows in self._rows_in(self.folder / "labels" / layout.LABELS_FILE).items():
                layout.verify_array(self.folder / "labels", f"{part}.npy", (rows,), "int64", (self.classes,))
            if len(self.class_names) != self.classes:
                raise DataError(f"{self.folder / 'labels' / layout.LABELS_FILE} does not name {self.classes} classes")

    def _verify_encoding(self, name: str) -> None:
        folder = self.folder / name
        noted = layout.entry(folder / layout.PARTY, layout.read_json(folder / layout.PARTY), "files", dict)
        for file in layout.ENCODINGS:
            if file in noted or file == layout.ENCODING or (folder / file).exists():
                layout.verify_file(folder, file)

    def _party_folder(self, name: str) -> Path:
        if name not in self.parties:
            known = ", ".join(self.parties) or "none"
            raise DataError(f"{self.name} has no party {name!r} with features; it has {known}")
        folder = self.folder / name
        if not folder.is_dir():
            raise DataError(f"this host does not hold the features of party {name!r}: there is no folder {folder}")
        return folder

    def _labels_folder(self) -> Path:
        folder = self.folder / "labels"
        if not self.has_labels:
            raise DataError(
                f"this host does not hold the labels of {self.name}: there is no folder {folder}; they belong to the "
                f"label party {self.label_party!r}"
            )
        return folder


def read_spec(folder: Path) -> FeatureSpec:
    """Return the shape of the features in a party's folder; vectors of words are memory-mapped."""
    facts = layout.read_json(folder / layout.PARTY)
    where = folder / layout.PARTY
    spec = layout.entry(where, facts, "spec", dict)
    vocabulary, width = (layout.count(where, spec, key) for key in ("vocabulary", "vectors"))
    return FeatureSpec(
        layout.count(where, spec, "numeric"),
        tuple(layout.entry(where, spec, "cardinalities", list)),
        tuple(layout.entry(where, spec, "shape", list)),
        layout.entry(where, spec, "pixels", bool),
        vocabulary,
        layout.open_array(folder / layout.VECTORS, (vocabulary, width), "float32") if width else None,
    )


def open_dataset(path: Path | str) -> Dataset:
    """Open a prepared folder.

    Raises
    ------
    DataError
        When `path` is no folder that `flower-vfl data prepare` wrote.
    """
    folder = Path(path)
    where = folder / layout.MANIFEST
    try:
        there = where.is_file()
    except OSError as error:  # a folder that only another user can read
        raise DataError(f"{folder} cannot be read: {error.strerror}; prepare the data as this user") from None
    if folder.is_file():
        raise DataError(f"{folder} is a file, no prepared data set; `flower-vfl init` begins with tables of your own")
    if not there:
        raise DataError(f"{folder} is no prepared data set: it has no {layout.MANIFEST}; see `flower-vfl data prepare`")
    manifest = layout.read_json(where)
    if (schema := manifest.get("schema")) != layout.LAYOUT_VERSION:
        raise DataError(
            f"{where} has schema {schema!r}, this version reads {layout.LAYOUT_VERSION}; prepare the data again"
        )
    return Dataset(folder, manifest)
