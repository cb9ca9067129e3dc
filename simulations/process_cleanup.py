"""Process cleanup when this process ends, even by a kill: a shell in a session of its own waits for that."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "fvfl-"
_REMOVE = 'read _; for _ in $(seq 60); do rm -rf -- "$0" && exit; sleep 1; done'
"""Script that removes a folder, with retries: processes that write into it may end a little later than this one."""

_END = 'read _ || kill "$0"'

_PRINT = 'read _ || printf "%s\\n" "$0" >&2'


@contextlib.contextmanager
def passing_folder(parent: Path | None = None) -> Iterator[Path]:
    """Make a folder for temporary files, by default in the system's folder for them, and remove it afterwards."""
    folder = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
    with _watchdog(_REMOVE, folder):
        yield Path(folder)


@contextlib.contextmanager
def ending_with_this(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Terminate a process if this one ends within the block; otherwise the block has to end it."""
    with _watchdog(_END, str(process.pid)):
        yield


@contextlib.contextmanager
def last_words(words: str) -> Iterator[None]:
    """Print a message on standard error if this process is killed within the block."""
    with _watchdog(_PRINT, words):
        yield


@contextlib.contextmanager
def _watchdog(script: str, argument: str) -> Iterator[None]:
    """Start a shell that reads a line at the end of the block, or the end of its input if this process has ended."""
    command = ["/bin/sh", "-c", script, argument]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as shell:
        try:
            yield
        finally:
            shell.communicate(b"\n")
