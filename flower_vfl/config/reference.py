"""Descriptions of the keys of a configuration, from the schema: type, default, bounds and effect."""

from __future__ import annotations

import json
import math
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from flower_vfl.config.run import Config, build_config, canonical_key, leaf_fields
from flower_vfl.config.section import AUTO
from flower_vfl.errors import ConfigError

_KINDS = {str: "text", int: "whole number", float: "number", bool: "true or false", Any: "any value"}
_BOUNDS = {Ge: ("ge", "at least {}"), Gt: ("gt", "above {}"), Le: ("le", "at most {}"), Lt: ("lt", "below {}")}


@dataclass(frozen=True)
class ConfigKey:
    """One key of a configuration.

    Attributes
    ----------
    name
        Dotted name, such as "training.patience".
    kind
        Type of its values, in words.
    default
        Default value, as JSON.
    allowed
        Bounds of its values, in words; empty where there are none beyond the type.
    what
        Effect of the key, in words, without a full stop.
    """

    name: str
    kind: str
    default: str
    allowed: str
    what: str

    @property
    def section(self) -> str:
        """The section that it belongs to; empty at the top level."""
        return self.name.rpartition(".")[0]


def all_keys() -> list[ConfigKey]:
    """Return all keys: the top level first, then a section after the other, each in the order of the schema."""
    return [_key(name, field) for name, field in sorted(leaf_fields(), key=lambda one: "." in one[0])]


def sections() -> dict[str, str]:
    """Return the descriptions of the sections of a configuration, by name."""
    kinds = {name: field.annotation for name, field in Config.model_fields.items()}
    return {
        name: (kind.__doc__ or "").strip().splitlines()[0]
        for name, kind in kinds.items()
        if isinstance(kind, type) and issubclass(kind, BaseModel)
    }


def find_keys(name: str) -> list[ConfigKey]:
    """Return the key of this name, with dots or hyphens, or the keys of a section.

    Raises
    ------
    ConfigError
        When there is neither; the message gives the nearest keys.

    Examples
    --------
    >>> [key.default for key in find_keys("checkpoint")], find_keys("training-patience")[0].allowed
    (['0', '2'], 'at least 0')
    """
    known = all_keys()
    if name in sections():
        return [key for key in known if key.section == name]
    path = canonical_key(name)
    return [key for key in known if key.name == path or path.startswith(f"{key.name}.")]


def _key(name: str, field: FieldInfo) -> ConfigKey:
    default = field.get_default(call_default_factory=True)
    kind = _kind_of(field.annotation)
    if default == AUTO and kind in ("number", "whole number"):
        kind += f" or {json.dumps(AUTO)}"
    return ConfigKey(name, kind, json.dumps(default), ", ".join(_bounds_of(name, field)), field.description or "")


def _kind_of(annotation: Any) -> str:
    """Return a type in words."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind_of(inside[0])
    if origin is Literal:
        return f"one of {', '.join(json.dumps(value) for value in inside)}"
    if origin in (Union, types.UnionType):
        return " or ".join(_kind_of(one) for one in inside)
    if origin is list:
        return f"list of {_kind_of(inside[0])}"
    if origin is dict:
        return "table"
    return _KINDS[annotation]


def _bounds_of(key: str, field: FieldInfo) -> Iterator[str]:
    """Yield the bounds of a value, in words."""
    for rule in field.metadata:
        if isinstance(rule, MinLen):
            yield "not empty"
        for kind, (attribute, words) in _BOUNDS.items():
            if isinstance(rule, kind):
                bound = getattr(rule, attribute)
                # The number that stands for "auto" internally cannot be given.
                strict = field.default == AUTO and kind is Ge and _refused(key, bound)
                whole = isinstance(bound, int)
                yield ("above {}" if strict and not whole else words).format(_number(bound + (strict and whole)))


def _refused(key: str, value: Any) -> bool:
    try:
        build_config({}, {key: value})
    except ConfigError:
        return True
    return False


def _number(value: float) -> str:
    """Return a bound as text."""
    if value < 1e9:
        return f"{value:,}"
    power = math.log2(value)
    return f"2^{power:.0f}" if power.is_integer() else f"{value:g}"
