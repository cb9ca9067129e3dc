"""The tree of errors that this package raises, and words of their messages.

Every message names the given value, the allowed ones and the cure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher, get_close_matches
from typing import TypeVar

T = TypeVar("T")


class FlowerVflError(Exception):
    """Base class of every error that flower-vfl raises on purpose."""


class InputError(FlowerVflError):
    """A wrong input of the user; the command line ends with exit code 2."""


class ConfigError(InputError):
    """A configuration value, or a combination of values, that is unknown or impossible."""


class NotRestoredError(ConfigError):
    """A rebuilt model computes other outputs than the trained one: something that it learned was not saved."""


class ArgumentError(InputError, ValueError):
    """An argument of a function has a shape or a value that the function does not allow."""


class DataError(InputError):
    """A file, a column, an ID or a label that cannot be used."""


class OutputExistsError(InputError):
    """The output folder has content that would be overwritten."""


class FolderInUseError(OutputExistsError):
    """Another process works in the folder; the operating system releases the lock when that process ends."""


class ProtocolError(InputError):
    """The other side sent something that the protocol does not allow; nothing of it was used."""


class NotFiniteError(ProtocolError):
    """A received tensor has values that are not finite: if both sides follow the protocol, training has diverged."""


class PermissionDeniedError(InputError):
    """The owner of a party does not allow a request to it."""


class WithheldError(FlowerVflError):
    """The redacted error of a deployed party; the text of the original stays in the log of its own host."""


class StorageError(FlowerVflError, OSError):
    """A file could not be written: the disk is full or fails. What was there before is whole."""


class SessionError(FlowerVflError):
    """A session could not be opened, or it broke."""


class RunStoppedError(SessionError):
    """A run of Flower was stopped on purpose."""


class UnreachableError(SessionError):
    """The label party's session endpoint did not answer; nothing of the session was used yet."""


class SetupError(InputError, SessionError):
    """The machine or the network is not set up as the run needs it; the message names the setting."""


class PartyError(SessionError):
    """A party died, refused or reported an error; the message names the party and the reason."""


class PartyLostError(PartyError):
    """A party died or lost its connection, without giving a reason; it may come back.

    Attributes
    ----------
    party : str
        The party's name.
    """

    def __init__(self, message: str, party: str = "") -> None:
        super().__init__(message)
        self.party = party


class UnprotectedBatchError(FlowerVflError):
    """A defense could not protect a batch; the batch must not be sent as it is."""


class TrainingError(FlowerVflError):
    """Training cannot go on: the loss is not finite, or a model does not fit its data."""


class CheckError(FlowerVflError, AssertionError):
    """A user's own method fails the checks for every method; the message lists all problems."""


MOST_NAMES = 12
"""Largest number of names in a message."""

_MOST_NEAR = 3
"""Largest number of names in a suggestion."""

_SURE_RATIO = 0.9
"""Similarity from which the nearest name is suggested alone."""

_PLAIN = {
    "greater than or equal to": "at least",
    "greater than": "above",
    "less than or equal to": "at most",
    "less than": "below",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid string": "text",
    "a valid boolean": "true or false",
    "a valid list": "a list",
    "a valid dictionary": "a table",
}


def plain_reason(message: str) -> str:
    """Return the reason in a message of pydantic, without its jargon."""
    jargon, found, reason = message.partition("Input should be")
    if jargon or not found:
        return message.removeprefix("Value error, ")
    for theirs, ours in _PLAIN.items():
        reason = reason.replace(theirs, ours)
    return "must be" + reason.partition(", unable to")[0]


def suggestion(name: str, choices: Iterable[str], *, other: str = "") -> str:
    """Return the nearest of `choices` and the allowed ones, as a sentence; of many choices only the nearest.

    `other` describes the alternative to one of them.

    Examples
    --------
    >>> suggestion("marvel", ["iso", "marvell"])
    "did you mean 'marvell'? Allowed: iso, marvell"
    >>> suggestion("epoch", ["epochs", *(f"x{i}" for i in range(40))])
    "did you mean 'epochs'?"
    >>> suggestion("marvel", ["iso", "marvell"], other="module:Class")
    "did you mean 'marvell'? Allowed: iso, marvell, or module:Class"
    """
    known = sorted(choices)
    near = nearest(name, known)
    if near and len(known) > MOST_NAMES:
        *first, last = map(repr, near)
        meant = " or ".join([*([", ".join(first)] if first else []), last])
        return f"did you mean {meant}?{other and f' Or give {other}'}"
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}Allowed: {named(known) if known else 'nothing'}{other and f', or {other}'}"


def nearest(name: str, choices: Iterable[str]) -> list[str]:
    """Return up to three of `choices` that are similar to a name behind the last dot, else in their whole spelling.

    Where none is similar, they are those that begin with the name, or with which the name begins.

    Examples
    --------
    >>> nearest("epoch", ["training.epochs", "training.order", "seed"]), nearest("logarithm", ["dcor", "log"])
    (['training.epochs'], ['log'])
    """
    known = sorted(choices)
    ends: dict[str, list[str]] = {}
    for choice in known:
        ends.setdefault(choice.rpartition(".")[2], []).append(choice)
    similar_ends = get_close_matches(name.rpartition(".")[2], ends, n=_MOST_NEAR, cutoff=0.75)
    found = [choice for end in similar_ends for choice in ends[end]]
    near = get_close_matches(name, found or known, n=_MOST_NEAR, cutoff=0.0 if found else 0.55)
    if near and SequenceMatcher(None, near[0], name).ratio() >= _SURE_RATIO:
        return near[:1]
    begun = [choice for choice in known if name.startswith(choice) or (name and choice.startswith(name))]
    return near or begun[:_MOST_NEAR]


def named(names: Sequence[str]) -> str:
    """Return names as text; of many, the first ones and the number of the others.

    Examples
    --------
    >>> named(["a", "b"]), named([f"x{i}" for i in range(30)])[-14:]
    ('a, b', 'x11, 18 others')
    """
    shown = names[:MOST_NAMES]
    others = len(names) - len(shown)
    return ", ".join([*shown, *([f"{others} other{'s' * (others > 1)}"] if others else [])])


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
