"""Names and what they stand for: one lookup and one error text for data sets, attacks, defenses and config keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TypeVar

from flower_vfl.errors import ConfigError

T = TypeVar("T")


def suggestion(name: str, choices: Iterable[str]) -> str:
    """Say which of `choices` was probably meant, and list them all.

    Examples
    --------
    >>> suggestion("marvel", ["iso", "marvell"])
    "did you mean 'marvell'? Allowed: iso, marvell"
    """
    known = sorted(choices)
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}Allowed: {', '.join(known) if known else 'nothing'}"


def lookup(kind: str, name: str, table: Mapping[str, T]) -> T:
    """Return `table[name]`.

    Raises
    ------
    ConfigError
        When there is no such name; the message gives the nearest one and lists all.
    """
    try:
        return table[name]
    except KeyError:
        raise ConfigError(f"there is no {kind} named {name!r}; {suggestion(name, table)}") from None
