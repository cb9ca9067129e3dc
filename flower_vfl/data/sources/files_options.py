"""Options of a user's own files."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Literal

from pydantic import Field, field_validator, model_validator

from flower_vfl.data.encoding.dates import DateFormat
from flower_vfl.data.encoding.ids import Join
from flower_vfl.data.encoding.inference import Rules
from flower_vfl.data.encoding.reading import COLUMN_KINDS
from flower_vfl.data.encoding.values import Missing
from flower_vfl.data.formats.tables import Dialect, dialect_of
from flower_vfl.data.sources.recipe import Options
from flower_vfl.data.store.dataset import Part
from flower_vfl.errors import suggestion

LABELS = "labels"
"""Key of the labels' file among the files of the parties."""


class FilesOptions(Options):
    """Options of files."""

    files: dict[str, str] = Field(default_factory=dict, description="party to its file; those that this host holds")
    test_files: dict[str, str] = Field(default_factory=dict, description="party to its test file; none: split by ID")
    labels_file: str = Field("", description="file of the labels; empty: the label is a column of a party's file")
    test_labels_file: str = Field("", description="file of the test labels, with test_files")
    label: str = Field("label", description='column of the label; "" on a host that holds no labels')
    id: str = Field("id", description="column of the ID, in every file")
    label_party: str = Field(
        "", description="party that holds the labels, of those whose files have them; empty: the one, else 'label'"
    )
    alignment: str = Field("", description="file that `flower-vfl align` left here; empty: join this host's files")
    test_alignment: str = Field("", description="the same for test_files")
    join: Join = Field("strict", description='"strict": all files have the same IDs; "inner": keep the shared ones')
    test_fraction: float = Field(0.2, gt=0.0, lt=1.0, description="part of the IDs for the test")
    split_seed: int = Field(0, ge=0, description="another seed, another test set; the same for all parties")
    missing: Missing = Field("error", description='missing numbers: "error", or "mean" and an indicator column')
    positive: str = Field("", description="label that counts as positive")
    categorical: tuple[str, ...] = Field((), description="columns of numbers that are categories")
    numeric: tuple[str, ...] = Field((), description="columns that must be numbers")
    ignore: tuple[str, ...] = Field((), description="columns to leave out")
    dtype: dict[str, str] = Field(
        default_factory=dict,
        description='column to "number", "category", "boolean", "date", "date:%d.%m.%Y" or "ignore"; of the ID '
        '"integer": 1.0 and 001 are 1',
    )
    decimal: dict[str, str] | str = Field(
        "auto", description='before fractions, in all files or in each party\'s: ".", ","; "auto": as columns say'
    )
    missing_values: tuple[str, ...] = Field((), description="what else stands for a missing value, as in -999,unknown")
    delimiter: dict[str, str] | str = Field(
        "", description='between the fields of all files, or of each party\'s: ";", "tab"; empty: tabs in .tsv, commas'
    )
    encoding: dict[str, str] | str = Field(
        "", description="of the text of all files, or of each party's, as in cp1252; empty: UTF-8"
    )
    unlabelled: Literal["error", "drop"] = Field("error", description='rows without a label: "error" or "drop"')
    min_count: int = Field(1, ge=1, description="values that occur less often share the bucket of unseen values")
    image_size: tuple[int, ...] = Field(
        (), description="height and width to which images in folders are scaled; none: all have one size"
    )

    @field_validator("image_size")
    @classmethod
    def _size(cls, size: tuple[int, ...]) -> tuple[int, ...]:
        if size and (len(size) != 2 or not all(1 <= side <= 4096 for side in size)):
            raise ValueError("give a height and a width, 1 to 4096 each")
        return size

    @field_validator("decimal")
    @classmethod
    def _decimal(cls, given: dict[str, str] | str) -> dict[str, str] | str:
        for mark in given.values() if isinstance(given, dict) else (given,):
            if mark not in ("auto", ".", ","):
                raise ValueError(f"""must be "auto", "." or ",", given {mark!r}""")
        return given

    @model_validator(mode="after")
    def _consistent(self) -> FilesOptions:
        if not self.files and not self.labels_file:
            raise ValueError("name a file for at least one party: --set files.a=a.csv, in TOML files = {a = 'a.csv'}")
        if self.label == self.id:
            raise ValueError(f"{self.id!r} is the column of the ID, which cannot be the label; name another in label")
        for column, given in self.dtype.items():
            kind, _, text = given.partition(":")
            if kind not in (*COLUMN_KINDS, *(["integer"] if column == self.id else [])) or (text and kind != "date"):
                raise ValueError(
                    f"dtype of column {column!r} is one of {', '.join(COLUMN_KINDS)}, or date:FORMAT, or for the ID "
                    f"integer; given {given!r}"
                )
            DateFormat(text)
        self._check_dialects()
        for one, other in combinations(("numeric", "categorical", "ignore", "dtype"), 2):
            if both := sorted(set(getattr(self, one)) & set(getattr(self, other))):
                raise ValueError(f"column {both[0]!r} is in {one} and in {other}; leave it out of one")
        if self.has_test_files and set(self.test_files) != set(self.files):
            raise ValueError(f"test_files must name the parties of files, {', '.join(sorted(self.files)) or 'none'}")
        if self.has_test_files and bool(self.test_labels_file) != bool(self.labels_file):
            raise ValueError("labels_file and test_labels_file go together when there are test files")
        if bool(self.test_alignment) != bool(self.alignment and self.has_test_files):
            raise ValueError("alignment and test_files need a test_alignment too; without them there is none")
        return self

    def _check_dialects(self) -> None:
        """Refuse delimiters and encodings of parties without a file, and those that do not exist."""
        known = [*self.files, *([LABELS] if self.labels_file else [])]
        given = {"delimiter": self.delimiter, "encoding": self.encoding, "decimal": self.decimal}
        for option, by_party in given.items():
            for party in by_party if isinstance(by_party, dict) else ():
                if party not in known:
                    raise ValueError(f"{option}.{party}: no file is that of {party!r}; {suggestion(party, known)}")
        for key in known:
            self.dialect(key)

    @property
    def has_test_files(self) -> bool:
        """True if the test set is in files of its own."""
        return bool(self.test_files or self.test_labels_file)

    @property
    def whole_ids(self) -> bool:
        """True if 1.0 and 001 are read as the ID 1."""
        return self.dtype.get(self.id) == "integer"

    def dialect(self, key: str) -> Dialect:
        """Return the dialect of a party's file, or of the labels' file under "labels"."""
        return dialect_of({"delimiter": self.delimiter, "encoding": self.encoding}, key)

    def rules(self, columns: Sequence[str], party: str) -> Rules:
        """Return the user's rules for these columns of a party."""
        decimal = self.decimal.get(party, "auto") if isinstance(self.decimal, dict) else self.decimal
        named = {"number": self.numeric, "category": self.categorical, "ignore": self.ignore}
        dtype = {name: kind for kind, names in named.items() for name in names} | self.dtype
        return Rules({name: dtype[name] for name in columns if name in dtype}, decimal, self.missing_values)

    def paths(self, part: Part) -> dict[str, str]:
        """Return the files that hold a part, by party; the labels' file under "labels"."""
        files, labels = (self.files, self.labels_file)
        if part == "test" and self.has_test_files:
            files, labels = (self.test_files, self.test_labels_file)
        return {**files, **({LABELS: labels} if labels else {})}

    def alignments(self) -> dict[Part, str]:
        """Return the alignment of each part that has one."""
        given: dict[Part, str] = {"train": self.alignment, "test": self.test_alignment}
        return {part: name for part, name in given.items() if name}
