"""The folder of a demo: its lock, and the check that it holds nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from flower_vfl.apps.folder import CONFIG, check_folder, check_free, has_ended
from flower_vfl.config import Config
from flower_vfl.errors import InputError, OutputExistsError
from flower_vfl.files import LEFTOVERS, FolderLock, writing_to

SUMMARY, ERRORS, REPORT = "summary.json", "errors.log", "report.html"


@contextmanager
def demo_folder(out: Path, configs: Mapping[str, Config], *, resume: bool) -> Iterator[None]:
    """Check the folder of the results, keep other processes out of it, and remove a new one after bad input."""
    if resume and out.is_dir():
        _check_demo(out, configs)
    else:
        check_free_for_demo(out, configs)
    with writing_to(out):
        out.mkdir(mode=0o700, parents=True, exist_ok=True)
    with FolderLock(out):
        (out / ERRORS).unlink(missing_ok=True)
        for name, config in configs.items():
            check_folder(out / name, config, resume=resume)
        try:
            yield
        except InputError:
            if not resume and not any(has_ended(out / name) for name in configs):
                shutil.rmtree(out, ignore_errors=True)
            raise


def check_free_for_demo(out: Path, configs: Iterable[str], *, resume: bool = False) -> None:
    """Refuse a folder of a new demo where something is already, as `check_free`; a demo there can go on.

    With `resume`, a folder where a demo was begun is not refused.

    Raises
    ------
    OutputExistsError, DataError
        When the folder is not free.
    """
    with writing_to(out):
        begun = any((out / name / CONFIG).is_file() for name in configs)
    if not (resume and begun):
        check_free(out, "a demo already" if begun else "")


def _check_demo(out: Path, configs: Mapping[str, Config]) -> None:
    """Refuse to resume in a folder that holds something else than a demo."""
    known = {*configs, SUMMARY, ERRORS, REPORT, FolderLock.NAME}
    with writing_to(out):
        other = sorted(entry.name for entry in out.iterdir() if entry.name not in known and not entry.match(LEFTOVERS))
    if other:
        raise OutputExistsError(f"{out} holds something else than a demo, {other[0]!r} for instance; name its folder")
