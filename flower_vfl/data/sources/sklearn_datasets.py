"""Two small data sets that come with scikit-learn, for smoke tests: a table and images."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from flower_vfl.data.encoding.encoding import fit_party
from flower_vfl.data.encoding.labels import encode_labels
from flower_vfl.data.encoding.values import Place
from flower_vfl.data.sources.recipe import Options, Progress, Recipe, SplitOptions
from flower_vfl.data.store.builder import Builder
from flower_vfl.data.store.dataset import PARTS, Part

_LICENCE = "BSD-3-Clause (scikit-learn); UCI, CC BY 4.0"


class DigitsOptions(SplitOptions):
    """Options of digits."""

    positive: int = Field(-1, ge=-1, le=9, description="this digit against the rest; -1: all ten classes")


class BreastCancer(Recipe):
    """569 tumours, 30 measurements of cell nuclei; the second party holds the label."""

    name: ClassVar[str] = "breast-cancer"
    description: ClassVar[str] = "569 tumours, two parties of 15 measurements; for smoke tests"
    licence: ClassVar[str] = _LICENCE
    rows: ClassVar[int | None] = 462
    pathless: ClassVar[str] = "comes with scikit-learn"
    options: ClassVar[type[Options]] = SplitOptions

    def write(self, builder: Builder, source: Path | None, options: SplitOptions, progress: Progress) -> None:
        """Split by the number of the row and encode."""
        from sklearn.datasets import load_breast_cancer

        raw = load_breast_cancer()
        rows = _split(builder, len(raw.target), options)
        names = [str(name) for name in raw.feature_names]
        for party, columns in {"a": range(15), "b": range(15, 30)}.items():
            tables = {
                part: pa.table({names[column]: raw.data[rows[part], column] for column in columns}) for part in PARTS
            }
            encoding = fit_party(tables["train"], numeric=tables["train"].column_names, categorical=[], file=self.name)
            builder.add_table(party, encoding, tables, self.name)
        _add_labels(builder, raw.target == 0, rows, "")
        self.finish(builder, options, label_party="b", source="scikit-learn load_breast_cancer; 1 is malignant")


class Digits(Recipe):
    """1,797 handwritten digits of 8 x 8; one party holds the left half, another the right, a third the labels."""

    name: ClassVar[str] = "digits"
    description: ClassVar[str] = "1,797 images of digits, cut into a left and a right half; for smoke tests"
    licence: ClassVar[str] = _LICENCE
    rows: ClassVar[int | None] = 1_433
    pathless: ClassVar[str] = "comes with scikit-learn"
    options: ClassVar[type[Options]] = DigitsOptions

    def write(self, builder: Builder, source: Path | None, options: DigitsOptions, progress: Progress) -> None:
        """Split by the number of the row and scale to [0, 1]."""
        from sklearn.datasets import load_digits

        raw = load_digits()
        rows = _split(builder, len(raw.target), options)
        images = (raw.images[:, None] / 16.0).astype(np.float32)
        for party, columns in {"left": slice(0, 4), "right": slice(4, 8)}.items():
            builder.add_images(party, {part: images[rows[part], :, :, columns] for part in PARTS}, ("pixels",))
        _add_labels(builder, raw.target, rows, "" if options.positive < 0 else str(options.positive))
        self.finish(builder, options, label_party="label", source="scikit-learn load_digits")


def _split(builder: Builder, count: int, options: SplitOptions) -> dict[Part, NDArray[np.int64]]:
    ids = [str(row) for row in range(count)]
    rows = options.split(ids)
    builder.align({part: [ids[row] for row in rows[part]] for part in PARTS})
    return rows


def _add_labels(
    builder: Builder, target: NDArray[np.generic], rows: dict[Part, NDArray[np.int64]], positive: str
) -> None:
    train, test = (pa.chunked_array([target[rows[part]].astype(np.int64)]) for part in PARTS)
    builder.add_labels(encode_labels(train, test, Place("scikit-learn", "target"), positive))
