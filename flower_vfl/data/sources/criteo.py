"""Criteo's display advertising challenge: 45,840,617 ads in time order, each with 13 counts and 26 categories.

`train.txt` has no header and separates fields by tabs; an older CSV has the header `Id,Label,I1..I13,C1..C26`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from flower_vfl.data.clicks.fields import Click, Field, Hex, Number, NumberedRow
from flower_vfl.data.clicks.parse import Format, check_header
from flower_vfl.data.clicks.recipe import ClickRecipe
from flower_vfl.errors import DataError

NUMBERS = tuple(f"I{number}" for number in range(1, 14))
CATEGORIES = tuple(f"C{number}" for number in range(1, 27))
_FEATURES: tuple[Field, ...] = (*map(Number, NUMBERS), *map(Hex, CATEGORIES))
_FIELDS = 1 + len(_FEATURES)
_SEPARATORS = {"\t": "tabs", ",": "commas", ";": "semicolons", "|": "bars", " ": "spaces"}


class Criteo(ClickRecipe):
    """Recipe of the published training file; the published test file has no labels."""

    name: ClassVar[str] = "criteo"
    description: ClassVar[str] = "ads clicked or not: 13 counts and 26 categories of the display advertising challenge"
    licence: ClassVar[str] = "Criteo's terms of the challenge: non-commercial; not distributed with this package"
    rows: ClassVar[int | None] = 41_257_185
    published: ClassVar[dict[str, Any]] = {"sample": 0.1, "min_count": 1, "fit": "all", "scaling": "min-max"}
    files: ClassVar[tuple[str, ...]] = (
        *("train.txt", "train.txt.gz", "dac/train.txt", "dac/train.txt.gz"),
        *("train.tsv", "train.tsv.gz", "train.csv", "train.csv.gz"),
    )
    origin: ClassVar[str] = "get train.txt of the Criteo display advertising challenge (Criteo AI Lab, or Kaggle)"

    def recognise(self, path: Path, line: str) -> Format:
        """Return the format of one of the two layouts, from the first line."""
        separator = max(_SEPARATORS, key=line.count)
        count = line.count(separator) + 1
        if "Label" in line or "Id" in line:
            if separator not in ",\t":
                raise DataError(f"{path}: fields are separated by {_SEPARATORS[separator]}; commas or tabs are needed")
            fields = (NumberedRow("Id"), Click("Label"), *_FEATURES)
            return check_header(path, line, separator, fields, "The published test file has no labels.")
        if count == _FIELDS and separator != "\t":
            raise DataError(
                f"{path}: fields are separated by {_SEPARATORS[separator]}; without a header, tabs are needed, as in "
                "the published train.txt"
            )
        if count == _FIELDS - 1 and separator == "\t":
            raise DataError(f"{path}: line 1 has {count} fields, as in the published test file, which has no labels")
        if count != _FIELDS:
            raise DataError(
                f"{path}: line 1 has {line.count(chr(9)) + 1} fields separated by tabs, {_FIELDS} are needed: label, "
                "I1 to I13, C1 to C26. A CSV file begins with the header Id,Label,I1,...,C26"
            )
        fields = (Click("label"), *_FEATURES)
        return Format(tuple(field.name for field in fields), separator, fields, header=False)
