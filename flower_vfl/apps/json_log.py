"""Start of a Flower program with each line that it and its apps write as one JSON object.

``python -m flower_vfl.apps.json_log flower-superlink ...`` becomes that program, so that its signals and its exit code
are those of the process that a service manager started; a process beside it reads its output. Without
``FLOWER_VFL_LOG=json`` nothing is changed. Flower has no such option, and some of its lines come from gRPC, from web
servers and from apps in other processes: all of them are converted here.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import BinaryIO, TextIO

VARIABLE = "FLOWER_VFL_LOG"
_FORMS = ("text", "json")
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_LEVEL = re.compile(r"(?:\d\d:\d\d:\d\d )?(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b[ \t]*:?[ \t]*")
_GRPC = re.compile(r"([IWEF])\d{4} [\d:.]+ +\d+ ")
_GRPC_LEVELS = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}
_LONGEST = 65_536
"""Largest number of bytes of one object's line; a longer line is cut into several."""


def now() -> str:
    """Return the present time of day in UTC, in the form of RFC 3339."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def records(lines: Iterable[bytes], clock: Callable[[], str] = now) -> Iterator[str]:
    r"""Yield a JSON object for each line that is not empty: its time, its level and its text, without colour codes.

    A line without a level of its own, as in a traceback, has that of the line before.

    Examples
    --------
    >>> for record in records([b"\x1b[92mINFO \x1b[0m:      Start"], lambda: "2026-01-01T00:00:00.000+00:00"):
    ...     print(record)
    {"time": "2026-01-01T00:00:00.000+00:00", "level": "INFO", "message": "Start"}
    """
    level = "INFO"
    for line in lines:
        text = _COLOUR.sub("", line.decode("utf-8", errors="replace")).rstrip()
        found, grpc = _LEVEL.match(text), _GRPC.match(text)
        if found:
            level, text = found[1], text[found.end() :]
        elif grpc:
            level = _GRPC_LEVELS[grpc[1]]
        if text:
            yield json.dumps({"time": clock(), "level": level, "message": text})


def convert(source: BinaryIO, target: TextIO) -> None:
    """Write the records of all lines; go on reading if they cannot be written, so that the program is not blocked."""
    for record in records(iter(lambda: source.readline(_LONGEST), b"")):
        with suppress(OSError):
            target.write(record + "\n")
            target.flush()


def _convert_detached(source: int, target: int) -> None:
    """Convert in a detached process, which ends when the last writer has closed the pipe."""
    if os.fork():
        return
    if os.fork() == 0:
        os.close(target)  # else the pipe would stay open
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # these are for the program
            signal.signal(number, signal.SIG_IGN)
        with os.fdopen(source, "rb") as lines:
            convert(lines, sys.stdout)
    os._exit(0)


def main(command: Sequence[str]) -> str:
    """Replace this process by a program; return the reason if that is not possible."""
    form = os.environ.get(VARIABLE) or _FORMS[0]
    if not command or form not in _FORMS:
        return (
            f"{VARIABLE} is {form!r}; allowed are {', '.join(_FORMS)}"
            if command
            else "name a program and its arguments: python -m flower_vfl.apps.json_log flower-superlink ..."
        )
    if form == "json":
        source, target = os.pipe()
        _convert_detached(source, target)
        os.close(source)
        os.wait()  # the intermediate process has ended
        for number in (sys.stdout.fileno(), sys.stderr.fileno()):
            os.dup2(target, number)
        os.close(target)
    os.environ["PYTHONUNBUFFERED"] = "1"
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        return f"ERROR: {command[0]} cannot be started: {error.strerror}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
