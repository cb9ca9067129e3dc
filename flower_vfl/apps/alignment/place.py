"""The file of a result, and the folder beside it with the state of an alignment that is under way."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flower_vfl.errors import DataError, OutputExistsError


def state_folder(target: Path) -> Path:
    """Return the folder with the state of an alignment that is under way."""
    return target.parent / f".{target.name}.state"


def new_state(target: Path) -> Path:
    """Make the state folder, open to its owner only, in place of an earlier alignment's, and return it.

    Raises
    ------
    OutputExistsError
        When there is a result already: each alignment lets the label party try IDs, so another needs consent.
    DataError
        When the folder cannot be made.
    """
    check_target(target)
    discard(target)
    folder = state_folder(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise DataError(f"the alignment {target} cannot be written: {error.strerror}; name another place") from None
    return folder


def discard(target: Path) -> None:
    """Remove the state of an alignment, including its keys."""
    shutil.rmtree(state_folder(target), ignore_errors=True)


def check_target(target: Path) -> None:
    """Refuse to align when there is a result.

    Raises
    ------
    OutputExistsError
        When the file exists.
    """
    if target.exists():
        raise OutputExistsError(
            f"{target} exists; each alignment lets the label party try IDs, so move the file away to allow another"
        )


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """Yield a path in a new state folder; once the block has ended well, the file written there becomes the result.

    A path that cannot be written is found before anything is computed, not at the end of the block.

    Raises
    ------
    OutputExistsError, DataError
        As for `new_state`.
    """
    path = new_state(target) / target.name
    try:
        yield path
        os.replace(path, target)
    finally:
        discard(target)


def remove_unfinished(targets: Iterable[Path]) -> None:
    """Remove the keys, IDs and results that an unfinished alignment on one machine has left."""
    for target in targets:
        discard(target)
        target.unlink(missing_ok=True)


def remove_empty(out: Path) -> None:
    """Remove the parties' folders in which there is no result, and `out` when there is none at all."""
    for folder in [*(out.iterdir() if out.is_dir() else ()), out]:
        with suppress(OSError):
            folder.rmdir()
