"""Strict reading of JSON from a peer: a text has one meaning, and no error but the stated ones is raised."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn


def loads(text: str | bytes | memoryview) -> Any:
    """Read JSON text in UTF-8.

    Raises
    ------
    ValueError
        When it is no JSON, nests too deeply, names a key twice, or holds a number that is not finite.
    """
    decoded = text if isinstance(text, str) else str(text, "utf-8")
    try:
        return json.loads(
            decoded, object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite_float
        )
    except RecursionError:
        raise ValueError("the text nests too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value
