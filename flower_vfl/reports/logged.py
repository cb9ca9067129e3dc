"""The end of a run that Flower started: its verdict, and where its results are, in the log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flower_vfl.apps.result import RunResult

_log = logging.getLogger(__name__)


def log_report(result: RunResult) -> None:
    """Log the verdict of a run and the places of its results and its report, which is written.

    For `make_server_app(on_result=log_report)`; what makes the report is imported when it is made.

    Parameters
    ----------
    result : RunResult
        The result, whole or interrupted.
    """
    from flower_vfl.reports.headline import headline_of
    from flower_vfl.reports.page import render

    _log.info("%s", headline_of(result.summary).line)
    if result.folder is None:
        _log.info("nothing was written: name a folder by `out` in the run config")
    elif (result.folder / "result.json").is_file():
        _log.info("results: %s", result.folder)
        _log.info("report: %s", render([result.folder]))
