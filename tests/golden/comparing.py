"""Compare two recordings, value by value."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tests.golden.recording import FACTS, GoldenError

_MISSING = "nothing"


@dataclass
class Meant:
    """Differences that are intended.

    Attributes
    ----------
    patterns
        Number of differences that fit each pattern, which is one of a run's name and one of a key.
    renamed
        Words of the first recording with their replacements in the second.
    """

    patterns: dict[tuple[str, str], int] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Meant:
        """Read a file of patterns and renamed fields."""
        meant = cls()
        for number, line in enumerate(path.read_text(encoding="utf8").splitlines(), 1):
            fields = line.partition("#")[0].split()
            if len(fields) == 3 and fields[0] == "rename":
                meant.renamed[fields[1]] = fields[2]
            elif len(fields) == 2:
                meant.patterns[fields[0], fields[1]] = 0
            elif fields:
                raise GoldenError(f"{path}, line {number}: {line!r} is neither `RUN KEY` nor `rename OLD NEW`")
        return meant

    def allows(self, run: str, key: str) -> bool:
        """Return True if a difference is intended, and count it."""
        fits = [pattern for pattern in self.patterns if fnmatchcase(run, pattern[0]) and fnmatchcase(key, pattern[1])]
        for pattern in fits:
            self.patterns[pattern] += 1
        return bool(fits)

    def rename(self, text: str) -> str:
        """Return a text of the first recording as the second has it."""
        for old, new in self.renamed.items():
            text = text.replace(old, new)
        return text

    def unused(self) -> list[str]:
        """Return the patterns that fitted nothing."""
        return [" ".join(pattern) for pattern, fitted in self.patterns.items() if not fitted]


def differences(before: Path, after: Path, meant: Meant) -> Iterator[str]:
    """Yield a line for each difference that is not meant; the folders are those of two recordings.

    Raises
    ------
    GoldenError
        When a folder holds no recording.
    """
    facts = [_read(folder / FACTS) for folder in (before, after)]
    for name in sorted(facts[0].keys() | facts[1].keys()):
        if facts[0].get(name) != facts[1].get(name):
            yield f"environment {name}: {facts[0].get(name)} -> {facts[1].get(name)}; record both on one machine"
    names = {file.stem for folder in (before, after) for file in folder.glob("*.json")} - {Path(FACTS).stem}
    if not names:
        raise GoldenError(f"{before} and {after} hold no runs")
    for name in sorted(names):
        files = [folder / f"{name}.json" for folder in (before, after)]
        absent = [str(file.parent) for file in files if not file.is_file()]
        if absent:
            yield f"{name}: not recorded in {absent[0]}"
        else:
            yield from _run_differences(name, *map(_read, files), meant)


def _run_differences(name: str, before: Mapping[str, Any], after: Mapping[str, Any], meant: Meant) -> Iterator[str]:
    for side, record in (("first", before), ("second", after)):
        if record["failure"]:
            yield f"{name}: failed in the {side} recording: {record['failure']}"
    if before["failure"] or after["failure"]:
        return
    if before["definition"] != after["definition"]:
        yield f"{name}: recorded with different settings; record both with the same tests/golden"
    old = {meant.rename(key): meant.rename(_text(value)) for key, value in before["values"].items()}
    new = {key: _text(value) for key, value in after["values"].items()}
    if len(old) < len(before["values"]):
        yield f"{name}: renaming makes keys of the first recording equal"
    for key in sorted(old.keys() | new.keys()):
        one, other = old.get(key, _MISSING), new.get(key, _MISSING)
        if one != other and not meant.allows(name, key):
            yield f"{name} {key}: {one} -> {other}"


def _text(value: Any) -> str:
    """Return a value as JSON: floats are written so that they are read back bit for bit, and 1 is not 1.0."""
    return json.dumps(value, sort_keys=True)


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf8"))
    except (OSError, ValueError) as error:
        raise GoldenError(f"{path} is no part of a recording: {error}") from None
    if not isinstance(value, dict):
        raise GoldenError(f"{path} is no part of a recording")
    return value
