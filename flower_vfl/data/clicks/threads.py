"""Parallel work in threads, with results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from flower_vfl.machine import cores

T = TypeVar("T")
R = TypeVar("R")

WORKERS = min(4, cores())
"""Number of threads: Arrow's parser and numpy's sorting release Python's lock; each thread holds a piece in memory."""


def in_order(work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield `work(item)` for each item in order; at most `WORKERS` + 1 items are taken ahead.

    Examples
    --------
    >>> list(in_order(lambda number: number * number, range(4)))
    [0, 1, 4, 9]
    """
    pending: deque[Future[R]] = deque()
    with ThreadPoolExecutor(WORKERS) as pool:
        try:
            for item in items:
                pending.append(pool.submit(work, item))
                if len(pending) > WORKERS:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
