"""Generated tables of any length and vocabulary, written piece by piece: for benchmarks of scale and for experiments.

Values of a categorical column follow Zipf's law, as in click logs, or are uniform. The label depends on all columns.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from string import ascii_lowercase
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from flower_vfl.data.encoding.encoding import PartyEncoding
from flower_vfl.data.encoding.labels import EncodedLabels
from flower_vfl.data.sources.recipe import Options, Progress, Recipe
from flower_vfl.data.store.builder import Builder
from flower_vfl.data.store.dataset import PARTS, FeatureSpec, Part

_PIECE = 65_536


class SyntheticOptions(Options):
    """Options of synthetic."""

    rows: int = Field(100_000, ge=2, description="training rows")
    test_rows: int = Field(10_000, ge=2, description="test rows")
    parties: int = Field(2, ge=1, le=33, description="parties a, b, ..., z, aa, ab, ...; the last one holds the label")
    numeric: int = Field(4, ge=0, description="numeric columns of each party")
    categorical: int = Field(16, ge=0, description="categorical columns of each party")
    vocabulary: int = Field(1_000, ge=1, description="values of all categorical columns of a party together")
    frequencies: Literal["zipf", "uniform"] = Field("zipf", description="how often each value occurs")
    positives: float = Field(0.1, gt=0.0, lt=1.0, description="expected part of positives")
    seed: int = Field(0, ge=0, description="seed of the generator")

    @model_validator(mode="after")
    def _columns(self) -> SyntheticOptions:
        if not self.numeric and not self.categorical:
            raise ValueError("at least one numeric or categorical column is needed")
        if self.categorical and self.vocabulary < self.categorical:
            raise ValueError(f"vocabulary must be at least the number of categorical columns, {self.categorical}")
        return self

    @property
    def levels(self) -> tuple[int, ...]:
        """Number of values of each categorical column of a party."""
        share, more = divmod(self.vocabulary, self.categorical) if self.categorical else (0, 0)
        return tuple(share + (column < more) for column in range(self.categorical))


class Synthetic(Recipe):
    """Recipe of generated tables."""

    name: ClassVar[str] = "synthetic"
    description: ClassVar[str] = "generated tables of any length and vocabulary; for benchmarks"
    licence: ClassVar[str] = "none needed"
    rows: ClassVar[int | None] = 100_000
    pathless: ClassVar[str] = "is generated"
    options: ClassVar[type[Options]] = SyntheticOptions

    def write(self, builder: Builder, source: Path | None, options: SyntheticOptions, progress: Progress) -> None:
        """Generate the rows in pieces of bounded size, directly into the files."""
        counts: dict[Part, int] = {"train": options.rows, "test": options.test_rows}
        facts = f"synthetic {options.rows} {options.test_rows}"
        builder.align_numbered(counts, hashlib.sha256(facts.encode()).hexdigest())
        spec = FeatureSpec(options.numeric, tuple(level + 1 for level in options.levels))
        names = [*ascii_lowercase, *(f"a{letter}" for letter in ascii_lowercase)][: options.parties]
        scores = {part: np.zeros(counts[part], np.float32) for part in PARTS}
        for number, party in enumerate(names):
            for part in PARTS:
                arrays = builder.create_arrays(party, spec, part)
                for start in range(0, counts[part], _PIECE):
                    rows = slice(start, min(start + _PIECE, counts[part]))
                    rng = np.random.default_rng([options.seed, number, PARTS.index(part), start])
                    _fill(arrays, rows, scores[part], options, rng)
                    if part == "train":
                        progress((number + rows.stop / counts[part]) / (len(names) + 1))
            columns = [f"n{column}" for column in range(options.numeric)]
            columns += [f"c{column}" for column in range(options.categorical)]
            builder.finish_party(party, spec, columns, PartyEncoding((), ()))
        train, test = (_labels(scores[part], options, PARTS.index(part)) for part in PARTS)
        builder.add_labels(EncodedLabels(train, test, ("0", "1")))
        self.finish(builder, options, label_party=names[-1], source="generated")


def _fill(
    arrays: dict[str, NDArray[Any]],
    rows: slice,
    scores: NDArray[np.float32],
    options: SyntheticOptions,
    rng: np.random.Generator,
) -> None:
    """Draw and write one piece of rows, and add the effects of its columns to the scores."""
    count = rows.stop - rows.start
    if options.numeric:
        numeric = rng.standard_normal((count, options.numeric), np.float32)
        arrays["numeric.npy"][rows] = numeric
        scores[rows] += numeric @ np.cos(np.arange(options.numeric, dtype=np.float32))
    if options.categorical:
        levels = np.asarray(options.levels)
        drawn = rng.random((count, options.categorical), np.float32)
        # The part of values up to v is log(v) / log(n) under Zipf's law: its inverse is n to the power of a uniform.
        rank = levels * drawn if options.frequencies == "uniform" else np.exp(drawn * np.log(levels + 1.0)) - 1.0
        ids = np.minimum(rank.astype(np.int32), levels - 1).astype(np.int32) + 1
        arrays["categorical.npy"][rows] = ids
        # An irrational multiple gives each value an effect of its own without a table of effects.
        scores[rows] += np.sin(ids * 12.9898 + np.arange(options.categorical)).sum(axis=1, dtype=np.float32)


def _labels(scores: NDArray[np.float32], options: SyntheticOptions, part: int) -> NDArray[np.int64]:
    """Return labels whose log-odds follow the score, with about the requested part of positives."""
    rng = np.random.default_rng([options.seed, 1_000_003, part])
    spread = math.sqrt(options.parties * (options.numeric + options.categorical) / 2.0)
    threshold = float(np.quantile(scores[:_PIECE], 1.0 - options.positives))
    labels = np.empty(len(scores), np.int64)
    for start in range(0, len(scores), _PIECE):
        piece = scores[start : start + _PIECE]
        odds = (piece - threshold) / (0.2 * spread)
        labels[start : start + _PIECE] = rng.logistic(size=len(piece)) < odds
    # Both classes are in every part, however short.
    labels[int(scores.argmax())], labels[int(scores.argmin())] = 1, 0
    return labels
