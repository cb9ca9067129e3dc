"""Rules for the names of parties: the name of a party is that of its folder."""

from __future__ import annotations

from collections.abc import Iterable

from flower_vfl.config.parsing import feature_party_name, party_name
from flower_vfl.errors import DataError


def check_party_name(name: object) -> str:
    """Return `name` if it can be a party's (and its folder's) name.

    Raises
    ------
    DataError
        When it cannot.
    """
    try:
        return party_name(name)
    except ValueError as error:
        raise DataError(str(error)) from None


def check_parties(names: Iterable[object], label_party: object) -> tuple[str, ...]:
    """Return `names` if parties with features can be called so, where the label party is called `label_party`.

    Raises
    ------
    DataError
        When one cannot.
    """
    check_party_name(label_party)
    try:
        return tuple(party_name(name) if name == label_party else feature_party_name(name) for name in names)
    except ValueError as error:
        raise DataError(str(error)) from None
