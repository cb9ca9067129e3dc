"""The label party's ServerApp of the presets, for `flwr run`."""

import logging
import os
from pathlib import Path

from flower_vfl.apps import RunResult, make_server_app
from flower_vfl.reports import render
from flower_vfl.simulations.flower_engine import ERROR_FILE_VARIABLE


def _report(result: RunResult) -> None:
    if result.folder is not None and (result.folder / "result.json").is_file():
        logging.getLogger("flower_vfl").info("report: %s", render([result.folder]))


def _tell(error: str) -> None:
    if os.environ.get(ERROR_FILE_VARIABLE):
        Path(os.environ[ERROR_FILE_VARIABLE]).write_text(error, encoding="utf8")


app = make_server_app(on_result=_report, on_error=_tell)
