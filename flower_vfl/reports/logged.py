"""Log messages at the end of a run that Flower started: its verdict, and the places of its results."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flower_vfl.apps.result import RunResult

_log = logging.getLogger(__name__)


def log_report(result: RunResult) -> None:
    """Write the report of a run, and log its verdict and the places of its results and report.

    For `make_server_app(on_result=log_report)`; the modules that make the report are imported only when it is called.

    Parameters
    ----------
    result : RunResult
        Result of a run that finished, or of one that was interrupted.
    """
    from flower_vfl.reports.headline import headline_of
    from flower_vfl.reports.page import render

    _log.info("%s", headline_of(result.summary).line)
    if result.folder is None:
        _log.info("nothing was written: name a folder by `out` in the run config")
    elif (result.folder / "result.json").is_file():
        _log.info("results: %s", result.folder)
        _log.info("report: %s", render([result.folder]))
