"""Small files in the formats that runs read; the same bytes each time."""

from __future__ import annotations

import random
from pathlib import Path

from tests.data.clicks.click_files import avazu_rows, write_avazu
from tests.data.text_files import WORDS, glove_lines, write_dbpedia


def write_inputs(folder: Path) -> None:
    """Write all inputs into a new folder."""
    folder.mkdir(parents=True)
    write_avazu(folder / "clicks" / "train.csv", avazu_rows(1500))
    write_dbpedia(folder / "texts", train=280, test=56)
    (folder / "vectors.txt").write_text(glove_lines(["the", "of", "number", "is", "a", *WORDS], width=6))
    _write_tables(folder / "tables")


def _write_tables(folder: Path) -> None:
    """Write the tables of two parties and the labels, in different orders of the same people."""
    folder.mkdir()
    generator = random.Random(5)
    people = {f"p{number:04}": generator.gauss(0, 1) for number in range(600)}
    columns = {
        "a": ("x,kind", lambda value: f"{value + generator.gauss(0, 1):.4f},{generator.choice('uvw')}"),
        "b": ("z,w", lambda value: f"{value * generator.random():.4f},{generator.randrange(9)}"),
        "labels": ("y", lambda value: "yes" if value + generator.gauss(0, 0.5) > 0.5 else "no"),
    }
    for name, (header, row) in columns.items():
        order = list(people)
        generator.shuffle(order)
        rows = [f"{person},{row(people[person])}\n" for person in order]
        (folder / f"{name}.csv").write_text(f"id,{header}\n" + "".join(rows))
