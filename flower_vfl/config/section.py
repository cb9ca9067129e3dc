"""The base of all sections of a run configuration: strict types, plain values, and numbers that may be "auto"."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer

from flower_vfl.config.parsing import Value

AUTO: Any = "auto"
"""Value in place of a number: a number that fits the data is chosen."""


def automatic(mark: int) -> tuple[BeforeValidator, PlainSerializer]:
    """Return the validator and the serializer of a number that may be "auto", for which `mark` stands internally."""

    def read(value: Any) -> Any:
        word = isinstance(value, str) and value != AUTO and not _is_number(value)
        if word or (type(value) in (int, float) and value == mark):
            raise ValueError(f"give a number above {mark}, or {AUTO!r}")
        return mark if value == AUTO else value

    return BeforeValidator(read), PlainSerializer(lambda value: AUTO if value == mark else value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def require_plain(value: Any) -> None:
    """Refuse a value that TOML or JSON cannot hold."""
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise ValueError("keys must be text")
        value = list(value.values())
    if isinstance(value, list):
        for entry in value:
            require_plain(entry)
    elif not isinstance(value, Value) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"{value!r} is neither text nor a finite number, true, false, a list or a table")


class Section(BaseModel):
    """Base of all sections: known keys only, of exactly the right type, finite, and never changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True, allow_inf_nan=False)
