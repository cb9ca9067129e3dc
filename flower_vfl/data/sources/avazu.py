"""Avazu's click-through rate challenge: 40,428,967 mobile ads of ten days in October 2014, clicked or not.

The ID is a text and no feature. The hour becomes hour of day and weekday; rows are in time order.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from flower_vfl.data.clicks import fields as kinds
from flower_vfl.data.clicks.fields import Click, Code, Hex, Hour, NamedRow
from flower_vfl.data.clicks.parse import Format, check_header
from flower_vfl.data.clicks.recipe import ClickOptions, ClickRecipe
from flower_vfl.data.clicks.survey import TestSplit
from flower_vfl.data.sources.recipe import Options
from flower_vfl.errors import DataError

_HEX = (
    *("site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category"),
    *("device_id", "device_ip", "device_model"),
)
_CODES = ("C1", "banner_pos", "device_type", "device_conn_type", *(f"C{number}" for number in range(14, 22)))


class AvazuOptions(ClickOptions):
    """Options of avazu."""

    test_days: int = Field(0, ge=0, le=30, description="the last days are the test; 0: rows are drawn")


class Avazu(ClickRecipe):
    """Recipe of the published training file; the published test file has no clicks."""

    name: ClassVar[str] = "avazu"
    description: ClassVar[str] = "mobile ads clicked or not: 23 categories, hour of day and weekday among them"
    licence: ClassVar[str] = "Kaggle's rules of the Avazu competition; not distributed with this package"
    rows: ClassVar[int | None] = 36_386_328
    options: ClassVar[type[Options]] = AvazuOptions
    published: ClassVar[dict[str, Any]] = {"min_count": 1, "fit": "all"}
    files: ClassVar[tuple[str, ...]] = ("train.csv", "train.csv.gz", "train", "train.gz")
    origin: ClassVar[str] = "get train.gz of Kaggle's competition avazu-ctr-prediction"

    def split(self, options: AvazuOptions) -> TestSplit:
        """Return the selection of the rows that are kept and of the test rows, drawn or those of the last days."""
        return replace(super().split(options), test_days=options.test_days)

    def recognise(self, path: Path, line: str) -> Format:
        """Return the format after a check of the header."""
        if line.count(",") < max(line.count("\t"), line.count(";"), 1):
            raise DataError(
                f"{path}: fields must be separated by commas; the first line is not Avazu's header id,click,hour,..."
            )
        fields: list[kinds.Field] = [NamedRow("id"), Click("click"), Hour("hour")]
        fields += [*map(Code, _CODES), *map(Hex, _HEX)]
        return check_header(path, line, ",", fields, "The published test file has no clicks.")
