"""Curve arithmetic in several processes: the library holds the interpreter's lock, so threads would take turns.

A worker is `python -m flower_vfl.alignment.workers`, which reads a job from its standard input and writes the points to
its standard output. Unlike `multiprocessing`, it neither imports the user's main module again nor forks a process
with threads of gRPC or Ray, and the key is never on a command line.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

from flower_vfl.alignment.group import POINT_BYTES, Key
from flower_vfl.errors import ProtocolError, SessionError
from flower_vfl.machine import cores

PointProgress = Callable[[int], None]
"""Function that is called with the number of further points that are done."""

_WORTHWHILE = 16384
"""Smallest number of points for which workers are started: fewer are done before a worker is up."""

_PIECE = 1024
_NO_POINT = 3
_MULTIPLY, _HASH = b"m", b"h"


def multiply_all(
    key: Key, blocks: bytes, *, hashed: bool, processes: int = 0, progress: PointProgress = lambda done: None
) -> bytes:
    """Multiply many points.

    Parameters
    ----------
    key : Key
        The multiplier.
    blocks : bytes
        Blocks of 32 bytes: points, or with `hashed` data that is hashed to points first.
    hashed : bool
        True if each block is hashed to a point first.
    processes : int
        Number of worker processes, at most one a core; 0 for as many.
    progress : Callable[[int], None]
        Called, from several threads, with the number of further points that are done.

    Returns
    -------
    bytes
        The points, in the order given.

    Raises
    ------
    ProtocolError
        When a block should be a point and is none.
    """
    if len(blocks) % POINT_BYTES:
        raise ProtocolError(f"points have {POINT_BYTES} bytes each, given {len(blocks)} bytes")
    number, most = len(blocks) // POINT_BYTES, cores()
    workers = min(processes or most, most)  # the number may come from another host
    if number < _WORTHWHILE or workers == 1:
        done = []
        for piece in _compute(key, blocks, hashed=hashed):
            done.append(piece)
            progress(len(piece) // POINT_BYTES)
        return b"".join(done)
    share = -(-number // workers) * POINT_BYTES
    parts = [blocks[start : start + share] for start in range(0, len(blocks), share)]
    job = (_HASH if hashed else _MULTIPLY) + key.to_bytes()
    running: list[subprocess.Popen[bytes]] = []
    lock = threading.Lock()

    def advance(points: int) -> None:
        with lock:
            progress(points)

    try:
        with ThreadPoolExecutor(len(parts)) as threads:
            started = [_start(running) for _ in parts]
            return b"".join(threads.map(lambda worker, part: _feed(worker, job + part, advance), started, parts))
    finally:
        for worker in running:
            worker.kill()
            worker.wait()


def _start(running: list[subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}
    command = [sys.executable, "-m", __name__]
    worker = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    running.append(worker)
    return worker


def _feed(worker: subprocess.Popen[bytes], job: bytes, progress: PointProgress) -> bytes:
    if worker.stdin is None or worker.stdout is None:
        raise SessionError("a worker of the alignment has no pipes")
    try:
        with worker.stdin:
            worker.stdin.write(job)
    except BrokenPipeError:
        raise SessionError("a worker of the alignment died; is there enough memory?") from None
    expected_bytes, pieces = len(job) - 1 - POINT_BYTES, []
    while piece := worker.stdout.read(_PIECE * POINT_BYTES):
        pieces.append(piece)
        progress(len(piece) // POINT_BYTES)
    worker.stdout.close()
    if worker.wait() == _NO_POINT:
        raise ProtocolError("the other side sent bytes that are no point of the curve")
    points = b"".join(pieces)
    if len(points) != expected_bytes:
        raise SessionError(f"a worker of the alignment died after {len(points) // POINT_BYTES} points")
    return points


def _compute(key: Key, blocks: bytes, *, hashed: bool) -> Iterator[bytes]:
    """Yield the products in pieces."""
    multiply = key.multiply_hashed if hashed else key.multiply
    size = _PIECE * POINT_BYTES
    for start in range(0, len(blocks), size):
        piece = blocks[start : start + size]
        yield b"".join(multiply(piece[at : at + POINT_BYTES]) for at in range(0, len(piece), POINT_BYTES))


def _work(source: BinaryIO, target: BinaryIO) -> int:
    """Do one job; this runs in the worker."""
    job = source.read()
    key = Key.from_bytes(job[1 : 1 + POINT_BYTES])
    try:
        for piece in _compute(key, job[1 + POINT_BYTES :], hashed=job[:1] == _HASH):
            target.write(piece)
            target.flush()
    except ProtocolError:
        return _NO_POINT
    return 0


if __name__ == "__main__":
    sys.exit(_work(sys.stdin.buffer, sys.stdout.buffer))
