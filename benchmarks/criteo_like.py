"""Writes a text with the layout, the vocabulary sizes and about the frequencies of Criteo's train.txt; nothing is real.

    python benchmarks/criteo_like.py OUT [--rows 45840617] [--seed 0]

From four times as many rows as a column has values on, every value occurs. A tenth of the rows with a tenth of each
vocabulary: `--scale 0.1`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from numpy.typing import NDArray

from flower_vfl.data.clicks.fields import key_texts

ROWS = 45_840_617
SIZES = (
    *(1_460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5_683, 8_351_593, 3_194, 27, 14_992),
    *(5_461_306, 10, 5_652, 2_173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572),
)
"""Numbers of distinct values of C1 to C26 in the published file, missing ones included."""

_MISSING = {3: 0.03, 4: 0.03, 6: 0.12, 12: 0.03, 16: 0.03, 19: 0.44, 20: 0.44, 21: 0.03, 22: 0.76, 24: 0.03, 25: 0.44}
_PIECE = 100_000


def sizes(scale: float) -> list[int]:
    """Return the numbers of values of C1 to C26."""
    return [max(2, round(size * scale)) for size in SIZES]


def write(path: Path, rows: int, *, scale: float = 1.0, seed: int = 0) -> None:
    """Write the text."""
    options = pa_csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    with path.open("wb") as file:
        for start in range(0, rows, _PIECE):
            rng = np.random.default_rng([seed, start])
            numbers = np.arange(start, min(start + _PIECE, rows))
            pa_csv.write_csv(_piece(numbers, sizes(scale), rng), file, options)


def _piece(rows: NDArray[np.int64], values: list[int], rng: np.random.Generator) -> pa.Table:
    columns, score = {}, np.full(len(rows), -1.3)
    for number in range(1, 14):
        counts = rng.geometric(0.5 ** (1 + number % 8), len(rows)) - 1 - (number == 2)
        columns[f"I{number}"] = pa.array(counts, mask=rng.random(len(rows)) < 0.06 * (number % 8))
    for number, size in enumerate(values, start=1):
        # Three rows of four follow Zipf's law; the fourth goes through all values in turn, so that none is absent.
        zipf = np.exp(rng.random(len(rows)) * np.log(size + 1.0)).astype(np.int64) - 1
        ranks = np.where(rows % 4 == 0, rows // 4 % size, np.minimum(zipf, size - 1))
        keys = (ranks.astype(np.uint32) + np.uint32(number << 24)) * np.uint32(0x9E3779B1)
        absent = (rng.random(len(rows)) < _MISSING.get(number, 0.0)) & (rows % 4 != 0)
        columns[f"C{number}"] = pc.if_else(pa.array(absent), None, key_texts("hex", keys))
        score += 0.3 * np.sin(ranks * 12.9898 + number)
    label = (rng.random(len(rows)) < 1.0 / (1.0 + np.exp(-score))).astype(np.int8)
    return pa.table({"label": pa.array(label), **columns})


def main() -> None:
    """Write the text by the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--scale", type=float, default=1.0, help="of the vocabularies")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    write(given.out, given.rows, scale=given.scale, seed=given.seed)


if __name__ == "__main__":
    main()
