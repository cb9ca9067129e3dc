"""The folder of a running sweep: its lock, the check that it holds no other sweep, and its finished trials."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from flower_vfl.apps.folder import RESULT, check_folder, read_result
from flower_vfl.apps.sweeps import (
    DEFINITION,
    ERRORS,
    TrialEntry,
    check_free_for_sweep,
    is_sweep,
    read_record,
    write_record,
)
from flower_vfl.errors import ConfigError, InputError
from flower_vfl.files import FolderLock, append_private, remove_leftovers, write_text_atomic, writing_to
from flower_vfl.protocol.printable import printable
from flower_vfl.simulations.sweep.trials import Trial, unused_name

_SHOWN = 5

_log = logging.getLogger(__name__)


class SweepFolder:
    """The folder of a sweep: `sweep.toml`, `sweep.json`, and a folder for each trial; locked while it is open.

    Parameters
    ----------
    path : Path
        Folder of the sweep; it must not exist, or be empty, unless an interrupted sweep goes on in it.
    text : str
        Text of the sweep's file.
    trials : Sequence[Trial]
        Trials of the sweep. A sweep that goes on may have more trials than before, but no fewer.
    origin : Path, optional
        Folder to which paths in the file are relative; by default the sweep's own.
    resume : bool
        True if a sweep that was begun here goes on; where none was, it begins.

    Attributes
    ----------
    waiting : list[Trial]
        Trials that have not ended by themselves.
    attempts : dict[str, int]
        Number of times that each trial was begun, in this start and in earlier ones.

    Raises
    ------
    OutputExistsError
        When the folder is not empty, or another process uses it.
    ConfigError
        When the folder holds another sweep.
    """

    def __init__(
        self, path: Path, text: str, trials: Sequence[Trial], *, origin: Path | None = None, resume: bool = False
    ) -> None:
        self.path = path.expanduser().absolute()
        known: Mapping[str, TrialEntry] = {}
        if resume and is_sweep(self.path):
            known = {entry.digest: entry for entry in read_record(self.path)}
            _check_same(self.path, known, trials)
        else:
            check_free_for_sweep(self.path)
        self.trials = _renamed(trials, known)
        self.attempts = {entry.run: entry.attempts for entry in known.values()}
        self._origin = origin
        with writing_to(self.path):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = FolderLock(self.path)
        remove_leftovers(self.path)
        try:
            self.waiting = [trial for trial in self.trials if check_folder(self.of(trial), trial.config, resume=True)]
            for trial in self.waiting:
                _discard_damaged(self.of(trial))
            write_text_atomic(self.path / DEFINITION, text)
            self._record()
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def begun(self, run: str) -> None:
        """Count and record an attempt of a trial; the count survives a kill of the sweep."""
        self.attempts[run] = self.attempts.get(run, 0) + 1
        self._record()

    def failed(self, run: str, text: str) -> None:
        """Append the whole error of an attempt of a trial or of a stack to a file: a console shows one line of it."""
        lines = [printable(line, len(line)) for line in text.splitlines()]
        with writing_to(self.path / ERRORS), append_private(self.path / ERRORS) as log:
            log.write("\n".join([f"{run}:", *lines, "\n"]))

    def _record(self) -> None:
        entries = [TrialEntry(t.run, t.digest, t.values, self.attempts.get(t.run, 0)) for t in self.trials]
        write_record(self.path, entries, self._origin)

    def discard(self) -> None:
        """Remove the folder if no trial was begun in it, so that bad input leaves nothing."""
        if not any(self.of(trial).exists() for trial in self.trials):
            shutil.rmtree(self.path, ignore_errors=True)

    def of(self, trial: Trial) -> Path:
        """Return a trial's own folder."""
        return self.path / trial.run

    def named_result(self, run: str) -> dict[str, Any] | None:
        """Return the result of the trial of a name; None without one."""
        return next((self.result(trial) for trial in self.trials if trial.run == run), None)

    def result(self, trial: Trial) -> dict[str, Any] | None:
        """Return the result of a trial; None if there is none that can be read."""
        try:
            return read_result(self.of(trial))
        except InputError:
            return None


def _discard_damaged(place: Path) -> None:
    """Remove a result that cannot be read: a sweep's table and report are made of all results that are there."""
    if not (place / RESULT).is_file():
        return
    try:
        read_result(place)
    except InputError as error:
        _log.warning("%s It is removed, and the trial done again.", error)
        (place / RESULT).unlink()


def _check_same(path: Path, known: Mapping[str, TrialEntry], trials: Sequence[Trial]) -> None:
    digests = {trial.digest for trial in trials}
    missing = [entry.run for digest, entry in known.items() if digest not in digests]
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise ConfigError(
            f"{path} holds another sweep: this file has no trial like {', '.join(missing[:_SHOWN])}{more}. Go on with "
            f"{path / DEFINITION}, which may get trials more but none less, or name another folder with --out"
        )


def _renamed(trials: Sequence[Trial], known: Mapping[str, TrialEntry]) -> list[Trial]:
    """Return the trials, with the names in the folder's record for those that it contains."""
    taken = {entry.run for entry in known.values()}
    found = []
    for trial in trials:
        there = known.get(trial.digest)
        found.append(replace(trial, run=unused_name(trial.run, taken) if there is None else there.run))
    return found
