"""What happens when this process ends, whatever ends it, a kill too: a shell of a session of its own waits for it."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "fvfl-"
_REMOVE = 'read _; for _ in $(seq 60); do rm -rf -- "$0" && exit; sleep 1; done'
"""Processes that write into it may end a little later than the one that made it."""

_END = 'read _ || kill "$0"'

_SAY = 'read _ || printf "%s\\n" "$0" >&2'


@contextlib.contextmanager
def passing_folder(parent: Path | None = None) -> Iterator[Path]:
    """Make a folder for temporary files, by default where these usually go, and remove it afterwards."""
    folder = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
    with _waiting(_REMOVE, folder):
        yield Path(folder)


@contextlib.contextmanager
def ending_with_this(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Have a process terminated where this one ends within the block; how it ends else is the block's business."""
    with _waiting(_END, str(process.pid)):
        yield


@contextlib.contextmanager
def last_words(words: str) -> Iterator[None]:
    """Have words said on standard error where this process ends within the block and cannot say any itself."""
    with _waiting(_SAY, words):
        yield


@contextlib.contextmanager
def _waiting(script: str, word: str) -> Iterator[None]:
    """Start a shell that reads a line at the end of the block, or the end of its input where this process has gone."""
    command = ["/bin/sh", "-c", script, word]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as shell:
        try:
            yield
        finally:
            shell.communicate(b"\n")
