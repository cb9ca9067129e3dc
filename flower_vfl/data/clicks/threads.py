"""Work that several threads share, results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from flower_vfl.machine import cores

T = TypeVar("T")
R = TypeVar("R")

WORKERS = min(4, cores())
"""Arrow's parser and numpy's sorting let go of Python's lock, so that threads use as many cores; each holds a piece."""


def in_order(work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield `work(item)` for each item in order; no more items are taken than are worked at, and one.

    Examples
    --------
    >>> list(in_order(lambda number: number * number, range(4)))
    [0, 1, 4, 9]
    """
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(WORKERS) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > WORKERS:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
