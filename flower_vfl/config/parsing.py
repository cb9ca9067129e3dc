"""Parsing of configuration values that are given as text: calls, lists, numbers, assignments and parties' names."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Annotated, Any, get_args, get_origin

from flower_vfl.errors import ConfigError

Value = str | int | float | bool
_PARTY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_FOLDERS = ("ids", "labels")

NO_DEFENSE = "none"
"""The value that stands for no defense."""


def party_name(name: object) -> str:
    """Return `name` if it is a valid party name: it names folders, files and entries of results.

    Raises
    ------
    ValueError
        When it is not valid.
    """
    if not isinstance(name, str) or not _PARTY_NAME.fullmatch(name) or name in _FOLDERS:
        raise ValueError(
            f"{name!r} is no party name: letters, digits, '-' and '_', 63 at most, and neither 'ids' nor 'labels'"
        )
    return name


def feature_party_name(name: object) -> str:
    """Return `name` if it is a valid name of a feature party.

    Raises
    ------
    ValueError
        When it is no valid party name, or names the label party in results and files, whatever that party's own name.
    """
    if party_name(name) == "label":
        raise ValueError("a feature party cannot be called 'label', as results and files of the label party are")
    return str(name)


def parse_defenses(text: str) -> list[dict[str, Any]]:
    """Parse `iso(t=5.0), label_dp(flip=0.02)`, outermost first; `NO_DEFENSE` or nothing is an empty list.

    Examples
    --------
    >>> parse_defenses("iso(t=5.0), max_norm"), parse_defenses("none")
    ([{'name': 'iso', 't': 5.0}, {'name': 'max_norm'}], [])
    """
    if text.strip() == NO_DEFENSE:
        return []
    return parse_calls(text, "defenses", 'e.g. "iso(t=5.0)"')


def parse_calls(text: str, key: str, example: str) -> list[dict[str, Any]]:
    """Parse names with parameters, in their order.

    Parameters
    ----------
    text : str
        Calls `name(key=value, ...)` with commas between them; the parentheses are optional.
    key, example : str
        Configuration key and an example of its value, for the message.

    Raises
    ------
    ConfigError
        When the text is something else, or gives a parameter twice.

    Examples
    --------
    >>> parse_calls("norm, hint(k=5, measure=inner)", "attack.names", "norm")
    [{'name': 'norm'}, {'name': 'hint', 'k': 5, 'measure': 'inner'}]
    """
    found: list[dict[str, Any]] = []
    pattern = re.compile(r"\s*([A-Za-z_][\w.:-]*)\s*+(?:\(([^()]*)\))?\s*(?:,|$)")
    position = 0
    while position < len(text.rstrip()):
        match = pattern.match(text, position)
        if match is None:
            raise ConfigError(f"{key}={text!r} is not understood at {text[position:]!r}; write {example}")
        entry: dict[str, Any] = {"name": match[1]}
        for part in filter(str.strip, (match[2] or "").split(",")):
            name, equals, value = part.partition("=")
            if not equals:
                raise ConfigError(f"{key}={text!r}: {part.strip()!r} is no key=value")
            if name.strip() in entry:
                raise ConfigError(f"{key}={text!r}: {name.strip()!r} is given twice")
            entry[name.strip()] = scalar(value.strip())
        found.append(entry)
        position = match.end()
    return found


def call(name: str, params: Mapping[str, Any]) -> str:
    """Return a name with parameters as text that `parse_calls` reads.

    Examples
    --------
    >>> call("marvell", {"s": 4.0, "scope": "joint"}), call("max_norm", {})
    ('marvell(s=4, scope=joint)', 'max_norm')
    """
    inside = ", ".join(f"{key}={written(value)}" for key, value in params.items())
    return f"{name}({inside})" if inside else name


def written(value: Any) -> str:
    """Return a value as text, in the form that users type.

    Examples
    --------
    >>> written([4.0, "a", {"b": 0.02}])
    '[4, a, {b: 0.02}]'
    """
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {written(entry)}' for name, entry in value.items())}}}"
    return str(value)


def scalar(text: str) -> Value:
    """Return the TOML value that a text holds; other text is returned unchanged."""
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, str | int | float | bool) else text


def read_json(path: str, text: str) -> Any:
    """Return the value of JSON text that is given for the key `path`."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} wants JSON, given {text!r}: {error}") from None


def read_list(kind: Any, text: str) -> Any:
    """Return a list from JSON, or from the form that users type: `128,64`, `[a, b]`, `norm,hint(k=5,measure=inner)`."""
    text = text.strip()
    if text.startswith("["):
        with suppress(ValueError, RecursionError):
            return json.loads(text)
    parts = re.split(r",(?![^()]*\))", text.removeprefix("[").removesuffix("]"))
    items = [item.strip().strip("\"'") for item in parts]
    return [typed(kind, item) for item in items if item]


def typed(kind: Any, text: str) -> Value:
    """Return a text as a value of this type; other text is returned unchanged, and its field refuses it."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if kind in (int, float):
        for number in (int, float):
            with suppress(ValueError):
                return number(text)
    return text


def parse_assignments(assignments: Iterable[str]) -> dict[str, str]:
    """Parse the `key=value` of the command line's `--set`."""
    parsed: dict[str, str] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set wants key=value, given {assignment!r}")
        parsed[key.strip()] = value.strip()
    return parsed
