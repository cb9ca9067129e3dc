"""DBpedia ontology classification: abstracts of Wikipedia articles, fourteen classes; and 5,000 of its rows."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from flower_vfl.data.encoding.ids import in_test_set
from flower_vfl.data.formats.archives import is_archive
from flower_vfl.data.formats.raw import find_file
from flower_vfl.data.sources.recipe import Options, SplitOptions
from flower_vfl.data.sources.text_recipe import TextOptions, TextRecipe, TextRow, lines, reading
from flower_vfl.data.store.dataset import PARTS, Part
from flower_vfl.errors import DataError

CLASSES = (
    *("Company", "EducationalInstitution", "Artist", "Athlete", "OfficeHolder", "MeanOfTransportation", "Building"),
    *("NaturalPlace", "Village", "Animal", "Plant", "Album", "Film", "WrittenWork"),
)
"""Names of classes 1, 2, ... of the published files."""

PERMUTED = (
    *("Artist", "Company", "OfficeHolder", "Building", "Village", "Plant", "EducationalInstitution", "Animal"),
    *("Album", "WrittenWork", "NaturalPlace", "MeanOfTransportation", "Athlete", "Film"),
)
"""Names of classes 1, 2, ... of the file of 5,000 rows."""

_LICENCE = "CC BY-SA 3.0 (DBpedia, Wikipedia)"


class DbpediaOptions(TextOptions):
    """Options of dbpedia."""

    titles: bool = Field(False, description="put the title of the article before its abstract")


class SampleOptions(TextOptions, SplitOptions):
    """Options of dbpedia-5000."""


class Dbpedia(TextRecipe):
    """The published 560,000 + 70,000 rows: class 1 to 14, title and abstract, quoted, without a header."""

    name: ClassVar[str] = "dbpedia"
    description: ClassVar[str] = "630,000 abstracts of Wikipedia articles, 14 classes; texts at one party"
    licence: ClassVar[str] = _LICENCE
    rows: ClassVar[int | None] = 560_000
    options: ClassVar[type[Options]] = DbpediaOptions
    class_names: ClassVar[tuple[str, ...]] = CLASSES

    def files_advice(self) -> str:
        """Return the step to name the files, which no package has."""
        return "name dbpedia_csv.tar.gz (Zhang et al., 2015), or unpack it and name its folder as data.path"

    def files(self, source: Path | None, options: DbpediaOptions) -> list[Path]:
        """Return train.csv and test.csv, gzipped or not, of a folder or of the archive as it is published."""
        if source is None or not (source.is_dir() or is_archive(source)):
            given = "" if source is None else f"; given {source}"
            raise DataError(
                f"no package ships dbpedia: {self.files_advice()}; it holds train.csv and test.csv, with or "
                f"without .gz{given}"
            )
        return [find_file(source, (f"{part}.csv", f"{part}.csv.gz")) for part in PARTS]

    def read(self, part: Part, source: Path | None, options: DbpediaOptions) -> Iterator[TextRow]:
        """Read the file of a part and yield its rows."""
        path = self.files(source, options)[0 if part == "train" else 1]
        for line, (label, title, content) in _records(path, ("class", "title", "content")):
            text = f"{title} {content}" if options.titles else content
            yield TextRow(_class(label, CLASSES, path, line), text)


class Dbpedia5000(TextRecipe):
    """5,000 of the rows in one file: class and abstract, quoted, without title and header, class ids permuted.

    The file has no test part; `in_test_set` draws one from the numbers of the lines by the public seed `split_seed`.
    """

    name: ClassVar[str] = "dbpedia-5000"
    description: ClassVar[str] = "5,000 of the rows of dbpedia, a fifth of them for the test"
    licence: ClassVar[str] = _LICENCE
    rows: ClassVar[int | None] = 3_964
    options: ClassVar[type[Options]] = SampleOptions
    class_names: ClassVar[tuple[str, ...]] = CLASSES

    def files_advice(self) -> str:
        """Return the step to name the files, which no package has."""
        return "name dbpedia_5000rows.csv.gz as data.path"

    def files(self, source: Path | None, options: SampleOptions) -> list[Path]:
        """Return the one file."""
        if source is None or not source.is_file():
            raise DataError(
                f'no package ships dbpedia-5000: {self.files_advice()}, a file with lines of "class","content"'
                + ("" if source is None else f"; given {source}")
            )
        return [source]

    def read(self, part: Part, source: Path | None, options: SampleOptions) -> Iterator[TextRow]:
        """Read the file and yield the rows of a part."""
        (path,) = self.files(source, options)
        for line, (label, content) in _records(path, ("class", "content")):
            tested = bool(in_test_set([str(line)], options.test_fraction, options.split_seed)[0])
            number = CLASSES.index(PERMUTED[_class(label, PERMUTED, path, line)])
            if tested == (part == "test"):
                yield TextRow(number, content)


def _records(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the last line and the fields of each record; fields may hold breaks and doubled quotes."""
    with reading(path) as file:
        records = csv.reader(lines(file, path), strict=True)
        while True:
            try:
                record = next(records, None)
            except csv.Error as error:
                raise DataError(f"{path}, line {records.line_num}: {error}") from None
            if record is None:
                break
            if len(record) != len(columns):
                raise DataError(
                    f"{path}, line {records.line_num}: {len(columns)} fields are needed ({', '.join(columns)}), given "
                    f"{len(record)}"
                )
            yield records.line_num, record
    if not records.line_num:
        raise DataError(f"{path} is empty")


def _class(label: str, classes: tuple[str, ...], path: Path, line: int) -> int:
    if not (label.isascii() and label.isdecimal() and 1 <= int(label) <= len(classes)):
        raise DataError(f"{path}, line {line}: the class is {label[:20]!r}, allowed are 1 to {len(classes)}")
    return int(label) - 1
