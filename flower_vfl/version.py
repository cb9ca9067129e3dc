"""The software of one host: the release and the build of this package, and the libraries that it computes with.

Two hosts of a session must run the same code. The release alone does not show that: many builds have the same one. So
the hosts compare a digest of the package's own source files, which needs no version control and no build tool.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

VERSION = "0.1.0"
"""The release that this code belongs to."""

FROM_SOURCE = "source"
"""Local version of a package that runs from a folder of sources, as an editable installation does."""

_CODE = (".py", ".toml")
_LIBRARIES = ("flwr", "torch")
_BUILT = re.compile(r"(?P<release>\d+(\.\d+)*)(\+(?P<date>\d{12})\.g[0-9a-f]+(\.dirty)?)?")
_READABLE = re.compile(r"[0-9A-Za-z.+_-]{1,64}")


@cache
def package_version(name: str) -> str:
    """Return the version of a package as it was installed when this process first asked, or an empty text."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


@cache
def installed_version() -> str:
    """Return the release and, where the package was built from a git repository, the commit and its date in UTC.

    Code outside the folder of an installation, as in an editable one, has no known commit.
    """
    try:
        found = distribution("flower-vfl")
    except PackageNotFoundError:
        return f"{VERSION}+{FROM_SOURCE}"
    here = Path(str(found.locate_file("flower_vfl/version.py"))).resolve() == Path(__file__).resolve()
    return found.version if here else f"{VERSION}+{FROM_SOURCE}"


@cache
def build_digest() -> str:
    """Return the SHA-256 of the package's own source files: the path and the text of each, in the order of paths.

    Line ends do not count, nor do compiled files, templates and other files without code.
    """
    digest = hashlib.sha256()
    for path, text in sorted(_sources(files("flower_vfl"), "")):
        digest.update(f"{path}\0{len(text)}\0".encode())
        digest.update(text)
    return digest.hexdigest()


def _sources(folder: Traversable, path: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _sources(entry, f"{path}{entry.name}/")
        elif entry.name.endswith(_CODE):
            yield path + entry.name, entry.read_bytes().replace(b"\r\n", b"\n")


def software() -> dict[str, str]:
    """Return the versions of this host's software that other hosts compare: fields of greetings and `result.json`."""
    return {
        "version": installed_version(),
        "build": build_digest(),
        **{name: package_version(name) for name in _LIBRARIES},
    }


def refusal(theirs: Mapping[str, object], host: str, *, asking: str) -> str:
    """Return the reason why two hosts cannot take part in one session, and the cure; empty where they can.

    Parameters
    ----------
    theirs : Mapping[str, object]
        The other host's `software`.
    host, asking : str
        Names of the other host and of this one, for the reason.
    """
    own = software()
    if theirs.get("build") == own["build"]:
        return ""
    words = f"{host} has flower-vfl {_build(theirs)}, {asking} has {_build(own)}: their code is not the same"
    older = _older(_readable(theirs.get("version")), own["version"])
    if older is None:
        change = "install one build on both hosts (`flower-vfl --version` shows which each has)"
    else:
        change = f"{host if older else asking} has the older one: install the other host's there"
    return f"{words}; {change}"


def unequal(theirs: Mapping[str, object], host: str, *, asking: str) -> str:
    """Return a text with the libraries of other versions on another host, so that bits may differ; else empty.

    A build for GPUs and one for processors count as one version.
    """
    own = software()
    pairs = [(name, _readable(theirs.get(name)), own[name]) for name in _LIBRARIES]
    return "; ".join(
        f"{host} has {name} {their}, {asking} has {mine}"
        for name, their, mine in pairs
        if their.partition("+")[0] != mine.partition("+")[0]
    )


def _readable(value: object) -> str:
    """Return the version that another host sent, or "unknown" if it is not well-formed: it is shown on this host."""
    return value if isinstance(value, str) and _READABLE.fullmatch(value) else "unknown"


def _build(found: Mapping[str, object]) -> str:
    return f"{_readable(found.get('version'))} (build {_readable(found.get('build'))[:12]})"


def _older(one: str, other: str) -> bool | None:
    """Return True if a version is older than another; None if neither the release nor the commit's date shows it."""
    found = (
        _BUILT.fullmatch(one.removesuffix(f"+{FROM_SOURCE}")),
        _BUILT.fullmatch(other.removesuffix(f"+{FROM_SOURCE}")),
    )
    if found[0] is None or found[1] is None:
        return None
    first, second = (tuple(map(int, match["release"].split("."))) for match in found if match)
    if first != second:
        return first < second
    dates = found[0]["date"], found[1]["date"]
    return None if None in dates or dates[0] == dates[1] else str(dates[0]) < str(dates[1])
