"""The version of this package, which both sides of a session must have, and those of others."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

VERSION = "0.1.0"


def package_version(name: str) -> str:
    """Return the version of an installed package, or an empty text."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
