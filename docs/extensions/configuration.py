"""Every key of a configuration, from the schema."""

from __future__ import annotations

import json
import math
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from flower_vfl.config import Config, build_config
from flower_vfl.config.schema import AUTO
from flower_vfl.errors import ConfigError

_KINDS = {str: "text", int: "whole number", float: "number", bool: "true or false", Any: "any value"}
_BOUNDS = {Ge: ("ge", "at least {}"), Gt: ("gt", "above {}"), Le: ("le", "at most {}"), Lt: ("lt", "below {}")}


def fields(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Return each key with its dots and its field, in the order of the schema."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from fields(kind, f"{prefix}{name}.")
        else:
            yield prefix + name, field


def kind_of(annotation: Any) -> str:
    """Return a type in words."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return kind_of(inside[0])
    if origin is Literal:
        return f"one of {', '.join(json.dumps(value) for value in inside)}"
    if origin in (Union, types.UnionType):
        return " or ".join(kind_of(one) for one in inside)
    if origin is list:
        return f"list of {kind_of(inside[0])}"
    if origin is dict:
        return "table"
    return _KINDS[annotation]


def _refused(key: str, value: Any) -> bool:
    try:
        build_config({}, {key: value})
    except ConfigError:
        return True
    return False


def _number(value: float) -> str:
    """Return a bound as people write it."""
    if value < 1e9:
        return f"{value:,}"
    power = math.log2(value)
    return f"2^{power:.0f}" if power.is_integer() else f"{value:g}"


def bounds_of(key: str, field: FieldInfo) -> list[str]:
    """Return what a value must fulfil, in words."""
    found = []
    for rule in field.metadata:
        if isinstance(rule, MinLen):
            found.append("not empty")
        for kind, (attribute, words) in _BOUNDS.items():
            if isinstance(rule, kind):
                bound = getattr(rule, attribute)
                # What stands for "auto" inside is no value that can be given.
                strict = field.default == AUTO and kind is Ge and _refused(key, bound)
                found.append(("above {}" if strict else words).format(_number(bound)))
    return found


def entry(key: str, field: FieldInfo) -> str:
    """Return the entry of a key."""
    default = field.get_default(call_default_factory=True)
    kind = kind_of(field.annotation)
    automatic = default == AUTO and field.annotation is not str and kind in ("number", "whole number")
    if automatic:
        kind += f" or {json.dumps(AUTO)}"
    what = field.description or ""
    bounds = ", ".join(bounds_of(key, field))
    lines = [f"````{{confval}} {key}", f":type: {kind}", f":default: '`{json.dumps(default)}`'", ""]
    lines += [f"{what[:1].upper()}{what[1:]}.", ""]
    lines += [f"Allowed: {bounds}.", ""] if bounds else []
    return "\n".join([*lines, "````", ""])


def keys() -> str:
    """Return all keys, a section of the configuration each."""
    lines: list[str] = ["## Top level", ""]
    section = ""
    for key, field in sorted(fields(), key=lambda one: "." in one[0]):
        here = key.rpartition(".")[0]
        if here != section:
            section = here
            model = Config.model_fields[section].annotation
            lines += [f"## `[{section}]`", "", (model.__doc__ or "").strip().splitlines()[0], ""]
        lines.append(entry(key, field))
    return "\n".join(lines)
