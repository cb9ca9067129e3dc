"""All values that a run left, each under a key that does not depend on any order."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from safetensors.numpy import load_file

LEFT_OUT = re.compile(r"(^|/)(result/environment|(result|trials)/cost/seconds\w*)$")
"""Keys of results, and columns of a sweep's table, that differ from run to run."""

ABOUT = ("label", "layer", "party", "source", "phase", "metric", "span", "rows_of", "positive_class")
"""Keys that say what an entry about an attack is about."""


def values_of(out: Path) -> dict[str, Any]:
    """Return the values in a run's folder, in those of a sweep, or of an alignment.

    Raises
    ------
    ValueError
        When there is nothing.
    """
    found: dict[str, Any] = {}
    for file in sorted(out.rglob("*")):
        where = file.relative_to(out)
        if "checkpoints" in where.parts:
            continue
        key = where.with_suffix("").as_posix()
        if file.name == "result.json":
            found |= dict(_flat(json.loads(file.read_text(encoding="utf8")), key))
        elif file.suffix == ".parquet":
            found |= _table(file, key)
        elif file.suffix == ".safetensors":
            found |= {f"{key}/{name}": _digest(tensor) for name, tensor in load_file(file).items()}
    if not found:
        raise ValueError(f"nothing was left in {out.name}/")
    return found


def _digest(tensor: Any) -> str:
    facts = f"{tensor.dtype} {tensor.shape} "
    return facts + hashlib.sha256(tensor.tobytes()).hexdigest()[:24]


def _flat(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yield each leaf of nested tables and lists; an empty one is a leaf itself."""
    if isinstance(value, dict) and value:
        for name, entry in value.items():
            if not LEFT_OUT.search(f"{key}/{name}"):
                yield from _flat(entry, f"{key}/{name}")
    elif isinstance(value, list) and value:
        for name, entry in _entries(value):
            yield from _flat(entry, f"{key}/{name}")
    else:
        yield key, value


def _entries(values: list[Any]) -> Iterator[tuple[str, Any]]:
    """Name the entries of a list: those about attacks by what they are about, others by their places."""
    if all(isinstance(entry, dict) and "attack" in entry for entry in values):
        yield from _numbered([(_about(entry), entry) for entry in values])
    else:
        yield from ((str(place), entry) for place, entry in enumerate(values))


def _about(entry: Mapping[str, Any]) -> str:
    """Return the name of an entry about an attack: what was attacked, and by what."""
    about = {"label": entry["attack"], **entry}
    facts = [str(about[name]) for name in ABOUT if about.get(name) not in (None, "")]
    return ",".join([*facts, *(["defended"] if entry.get("defended") is True else [])])


def _numbered(entries: list[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Tell apart entries of one name, in the order of their contents."""
    entries = sorted(entries, key=lambda entry: (entry[0], json.dumps(entry[1], sort_keys=True)))
    numbers: dict[str, count[int]] = {}
    for name, entry in entries:
        number = next(numbers.setdefault(name, count(1)))
        yield (name if number == 1 else f"{name},no={number}"), entry


def _table(file: Path, key: str) -> dict[str, Any]:
    """Return what a Parquet file holds: of a long table the values by what they are about, of another its columns."""
    table = pq.read_table(file)
    columns = [name for name in sorted(table.column_names) if not LEFT_OUT.search(f"{key}/{name}")]
    if "value" in columns:
        about = [name for name in columns if name != "value"]
        found: dict[str, list[Any]] = {}
        for row in table.select([*about, "value"]).to_pylist():
            name = ",".join(f"{column}={row[column]}" for column in about)
            found.setdefault(f"{key}/{name}", []).append(row["value"])
        return {name: one[0] if len(one) == 1 else _listed(sorted(one, key=repr)) for name, one in found.items()}
    return {f"{key}/{name}": _listed(table[name].to_pylist()) for name in columns}


def _listed(values: list[Any]) -> str:
    """Return a digest of many values."""
    text = json.dumps(values, default=repr)
    return f"{len(values)} values {hashlib.sha256(text.encode()).hexdigest()[:24]}"
