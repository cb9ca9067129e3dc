"""The values in the files of a run, each under a key that does not depend on any order."""

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
"""Keys that identify an entry about an attack."""


def values_of(out: Path) -> dict[str, Any]:
    """Return the values in the folder of a run, a sweep or an alignment.

    Raises
    ------
    ValueError
        When the folder has no values.
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
    """Yield the entries of a list with names: those about attacks by their identifying keys, others by position."""
    if all(isinstance(entry, dict) and "attack" in entry for entry in values):
        yield from _numbered([(_attack_name(entry), entry) for entry in values])
    else:
        yield from ((str(position), entry) for position, entry in enumerate(values))


def _attack_name(entry: Mapping[str, Any]) -> str:
    """Return the name of an entry about an attack: the values of its identifying keys."""
    about = {"label": entry["attack"], **entry}
    facts = [str(about[name]) for name in ABOUT if about.get(name) not in (None, "")]
    return ",".join([*facts, *(["defended"] if entry.get("defended") is True else [])])


def _numbered(entries: list[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the entries with a number after a repeated name, in the order of their contents."""
    entries = sorted(entries, key=lambda entry: (entry[0], json.dumps(entry[1], sort_keys=True)))
    numbers: dict[str, count[int]] = {}
    for name, entry in entries:
        number = next(numbers.setdefault(name, count(1)))
        yield (name if number == 1 else f"{name},no={number}"), entry


def _table(file: Path, key: str) -> dict[str, Any]:
    """Return the content of a Parquet file: of a long table the values by the other columns, of another its columns."""
    table = pq.read_table(file)
    columns = [name for name in sorted(table.column_names) if not LEFT_OUT.search(f"{key}/{name}")]
    if "value" in columns:
        about = [name for name in columns if name != "value"]
        found: dict[str, list[Any]] = {}
        for row in table.select([*about, "value"]).to_pylist():
            name = ",".join(f"{column}={row[column]}" for column in about)
            found.setdefault(f"{key}/{name}", []).append(row["value"])
        return {name: one[0] if len(one) == 1 else _list_digest(sorted(one, key=repr)) for name, one in found.items()}
    return {f"{key}/{name}": _list_digest(table[name].to_pylist()) for name in columns}


def _list_digest(values: list[Any]) -> str:
    """Return a digest of many values."""
    text = json.dumps(values, default=repr)
    return f"{len(values)} values {hashlib.sha256(text.encode()).hexdigest()[:24]}"
