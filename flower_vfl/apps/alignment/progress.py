"""The progress of an alignment, for a progress bar or a log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

_log = logging.getLogger(__name__)
_LOG_SECONDS = 10.0

StageProgress = Callable[[str, float], None]
"""A function that is called with the current stage and the part of it that is done, 0 to 1."""


class LoggedProgress:
    """A log of progress: each stage when it begins, and every ten seconds.

    Parameters
    ----------
    party : str
        The party's name.
    """

    def __init__(self, party: str) -> None:
        self._party, self._stage, self._logged = party, "", 0.0

    def __call__(self, what: str, done: float) -> None:
        """Log the stage, if it is due."""
        now = time.monotonic()
        if what != self._stage or now - self._logged >= _LOG_SECONDS:
            self._stage, self._logged = what, now
            _log.info("alignment, party %s: %s, %.0f %%", self._party, what, 100 * done)


def counting(progress: StageProgress, what: str, total: int, *, done: int = 0) -> Callable[[int], None]:
    """Return a function to call with the number of further items done, of `total`; `done` are done already."""

    def advance(more: int) -> None:
        nonlocal done
        done += more
        progress(what, done / total)

    return advance
