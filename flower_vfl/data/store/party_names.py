"""Rules for the names of parties: the name of a party is that of its folder."""

from __future__ import annotations

from collections.abc import Iterable

from flower_vfl.config.parsing import feature_party_name, party_name
from flower_vfl.errors import DataError


def check_party_name(name: object) -> str:
    """Return `name` if it is allowed as the name of a party and its folder.

    Raises
    ------
    DataError
        When the name is not allowed.
    """
    try:
        return party_name(name)
    except ValueError as error:
        raise DataError(str(error)) from None


def check_parties(names: Iterable[object], label_party: object) -> tuple[str, ...]:
    """Return `names` if they are allowed for parties with features, given the name of the label party.

    Raises
    ------
    DataError
        When a name is not allowed.
    """
    check_party_name(label_party)
    try:
        return tuple(party_name(name) if name == label_party else feature_party_name(name) for name in names)
    except ValueError as error:
        raise DataError(str(error)) from None
