"""The folder of a run."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, Self

from flower_vfl.apps.periods import write_periods
from flower_vfl.apps.result_schema import checked_result
from flower_vfl.apps.run_state import differences
from flower_vfl.config import Config, load_config, to_toml
from flower_vfl.data.store.periods import Periods
from flower_vfl.errors import ConfigError, DataError, InputError, OutputExistsError
from flower_vfl.files import LEFTOVERS, FolderLock, remove_leftovers, write_json_atomic, write_text_atomic, writing_to
from flower_vfl.tracking import merge_steps
from flower_vfl.training.outcome import LIMITS

CONFIG, RESULT, WEIGHTS = "config.toml", "result.json", "weights"
ENDED = ("finished", "early stopping", *LIMITS.values())
"""Statuses of runs that have ended by themselves; a failed or interrupted run can go on."""


class RunFolder:
    """A folder with `config.toml`, the step journals, `result.json` and weights; locked as long as it is open.

    Parameters
    ----------
    path : Path
        Path that must not exist, or be empty, unless an interrupted run goes on in it.
    config : Config
        The configuration of the run.
    resume : bool
        True to resume the run that was begun here, or to begin one where there is none.

    Raises
    ------
    OutputExistsError
        When something is there already, which is not overwritten, or another process works in it.
    ConfigError
        When the run that was begun here has another configuration.
    StorageError, DataError
        When the folder cannot be made or written.
    """

    def __init__(self, path: Path, config: Config, *, resume: bool) -> None:
        self.path = path.expanduser().absolute()
        self.resumed = resume and _is_begun(self.path)
        if self.resumed:
            check_same(self.path, config)
        else:
            check_free_for_run(self.path)
            with writing_to(self.path):
                self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = FolderLock(self.path)
        self.remove_leftovers()
        if not self.resumed:
            write_text_atomic(self.path / CONFIG, to_toml(config))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def discard(self) -> None:
        """Remove the folder after bad input, unless an earlier part of the run has written files."""
        if not self.resumed:
            shutil.rmtree(self.path, ignore_errors=True)

    def remove_leftovers(self) -> None:
        """Remove the temporary files of killed processes; no process may be writing one now."""
        for folder in (self.path, self.path / WEIGHTS):
            remove_leftovers(folder)

    def write_result(self, summary: Mapping[str, Any], periods: Periods | None) -> None:
        """Merge the journals into `steps.parquet`, summarise them by period if there are some, write `result.json`."""
        merge_steps(self.path)
        if periods is not None:
            known_positives = {entry["label"]: entry["left_out"] for entry in summary["attacks"]}
            write_periods(self.path, periods, known_positives)
        write_json_atomic(self.path / RESULT, dict(summary))


def check_is_run(folder: Path) -> None:
    """Refuse a folder that does not belong to a run.

    Raises
    ------
    DataError
        When its configuration is missing.
    """
    if not (folder / CONFIG).is_file():
        raise DataError(f"{folder} is no run: there is no {CONFIG} in it; `flower-vfl run` makes one")


def how_to_resume(folder: Path) -> str:
    """Return advice on going on with a run that has not ended, for the end of a message."""
    command = shlex.join(["flower-vfl", "run", str(folder / CONFIG), "--out", str(folder), "--resume"])
    return f"if it was interrupted, go on with it: {command} (in a deployment: resume=true in --run-config)"


_ANOTHER = "another folder with --out (in a deployment: out='...' in --run-config)"


def check_free(path: Path, begun: str = "") -> None:
    """Refuse a path where something is already; `begun` is a term for what can go on there, empty for nothing.

    Raises
    ------
    OutputExistsError
        When `path` is a file or a folder that is not empty; leftovers of a run that was killed before it began do not
        count.
    DataError
        When this user may not read it, or the path is impossible.
    """
    if begun:
        raise OutputExistsError(f"{path} holds {begun}: go on with it by --resume, or name {_ANOTHER}")
    with writing_to(path):
        if path.is_file():
            raise OutputExistsError(f"{path} is a file; name a folder with --out")
        taken = path.is_dir() and any(not _is_leftover(entry) for entry in path.iterdir())
    if taken:
        raise OutputExistsError(f"{path} exists and is not empty; name {_ANOTHER}, or remove it")


def check_free_for_run(path: Path, *, resume: bool = False) -> None:
    """Refuse a folder of a new run where something is already, as `check_free`; a run that has not ended can go on.

    With `resume`, a folder where a run was begun is not refused.

    Raises
    ------
    OutputExistsError, DataError
        When the folder is not free.
    """
    begun = _is_begun(path)
    if not (resume and begun):
        check_free(path, "a run that has not ended" if begun and not has_ended(path) else "")


def _is_begun(path: Path) -> bool:
    with writing_to(path):
        return (path / CONFIG).is_file()


def _is_leftover(entry: Path) -> bool:
    return entry.name == FolderLock.NAME or entry.match(LEFTOVERS)


def check_folder(path: Path, config: Config, *, resume: bool) -> bool:
    """Return True if a folder's run is still to be done, False if it was begun and has ended by itself.

    Raises
    ------
    OutputExistsError
        When files are there and no run may go on with them.
    ConfigError
        When the run that was begun there has another configuration.
    """
    if not (resume and _is_begun(path)):
        check_free_for_run(path)
        return True
    check_same(path, config)
    return not has_ended(path)


def has_ended(path: Path) -> bool:
    """Return True if the run in a folder has ended by itself; one without a whole result can go on, as after a kill."""
    try:
        return read_result(path).get("status") in ENDED
    except InputError:
        return False


def read_result(folder: Path) -> dict[str, Any]:
    """Read the `result.json` in a run's folder.

    Raises
    ------
    InputError
        When there is none, or it is not whole: see `checked_result`.
    """
    return checked_result(folder / RESULT)


def check_same(path: Path, config: Config) -> None:
    """Refuse to go on in a folder with another configuration than the run in it was begun with.

    Raises
    ------
    ConfigError
        When settings differ; the message names them.
    """
    begun = load_config(str(path / CONFIG))
    different = differences(begun, config)
    if different:
        words = [f"{key} was {attrgetter(key)(begun)!r} and is {attrgetter(key)(config)!r}" for key in different]
        raise ConfigError(
            f"the run in {path} was begun with another configuration: {'; '.join(words)}. Go on with "
            f"{path / CONFIG}, or name another folder"
        )
