"""The folder of a sweep: the names of its files, and its record."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flower_vfl.apps.folder import CONFIG, RESULT, check_free
from flower_vfl.errors import InputError
from flower_vfl.files import write_json_atomic, writing_to

RECORD, DEFINITION, SUMMARY, TABLE = "sweep.json", "sweep.toml", "summary.json", "trials.parquet"
ERRORS = "errors.log"
_SCHEMA = 1


@dataclass(frozen=True)
class TrialEntry:
    """One trial as the record of a sweep names it.

    Attributes
    ----------
    run
        Name of the trial and of its folder.
    digest
        Digest of all settings that change the computation.
    values
        The keys that vary, with this trial's values.
    attempts
        Number of times that it was begun.
    """

    run: str
    digest: str
    values: Mapping[str, Any]
    attempts: int = 0


def write_record(folder: Path, entries: Sequence[TrialEntry], origin: Path | None = None) -> None:
    """Write to a sweep's folder the record of its trials, and of the folder of the file that it was begun from."""
    begun_from = str((origin or folder).absolute())
    trials = [asdict(entry) for entry in entries]
    write_json_atomic(folder / RECORD, {"schema": _SCHEMA, "origin": begun_from, "trials": trials})


def origin_of(folder: Path) -> Path:
    """Return the folder that paths in a sweep's file are relative to, as recorded; `folder` without a record."""
    try:
        return Path(json.loads((folder / RECORD).read_text(encoding="utf8"))["origin"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return folder


def read_record(folder: Path) -> list[TrialEntry]:
    """Return the trials of the sweep in a folder.

    Raises
    ------
    InputError
        When there is no sweep, or its record cannot be read.
    """
    path = folder / RECORD
    try:
        content = json.loads(path.read_text(encoding="utf8"))
        if content["schema"] != _SCHEMA:
            raise ValueError(f"schema {content['schema']!r}, known is {_SCHEMA}")
        entries = [
            TrialEntry(str(trial["run"]), str(trial["digest"]), dict(trial["values"]), int(trial.get("attempts", 0)))
            for trial in content["trials"]
        ]
    except FileNotFoundError:
        raise InputError(f"{folder} holds no sweep: there is no {RECORD} in it") from None
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as a sweep's record: {error}") from None
    _check_names(path, [entry.run for entry in entries])
    for entry in entries:
        for key, value in entry.values.items():
            if not isinstance(value, str | int | float):
                raise InputError(f"{path} gives {entry.run!r} {key} = {value!r}; a text, a number or a truth is needed")
    return entries


def is_sweep(folder: Path) -> bool:
    """Return True if a folder is one of a sweep."""
    return (folder / RECORD).is_file()


def check_free_for_sweep(folder: Path, *, resume: bool = False) -> None:
    """Refuse a folder of a new sweep where something is already, as `check_free`; a sweep there can go on.

    With `resume`, a folder where a sweep was begun is not refused.

    Raises
    ------
    OutputExistsError, DataError
        When the folder is not free.
    """
    with writing_to(folder):
        begun = is_sweep(folder)
    if not (resume and begun):
        check_free(folder, "a sweep already" if begun else "")


def runs_of(folder: Path) -> list[Path]:
    """Return the folders of a sweep's runs that have a result, in the order of the sweep."""
    folders = (folder / entry.run for entry in read_record(folder))
    return [path for path in folders if (path / CONFIG).is_file() and (path / RESULT).is_file()]


def summarised_runs(folder: Path) -> list[Path]:
    """Return the folders of the runs in a folder's summary, such as that of a demo; empty without a summary.

    Raises
    ------
    InputError
        When the summary cannot be read.
    """
    path = folder / SUMMARY
    if not path.is_file():
        return []
    try:
        names = [str(entry["run"]) for entry in json.loads(path.read_text(encoding="utf8"))]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as a summary of runs: {error}") from None
    _check_names(path, names)
    return [folder / name for name in names]


def _check_names(path: Path, names: Sequence[str]) -> None:
    for name in names:
        if Path(name).name != name or name in ("", ".", ".."):
            raise InputError(f"{path} names a run {name!r}, which is no name of a folder beside it")
