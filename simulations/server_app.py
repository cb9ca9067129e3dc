"""The label party's ServerApp of the presets, for `flwr run`."""

import logging

from flower_vfl.apps import RunResult, make_server_app
from flower_vfl.reports import render

# Flower shows its own logger; ours goes the same way.
_flower = logging.getLogger("flwr")
_ours = logging.getLogger("flower_vfl")
_ours.handlers = list(_flower.handlers)
_ours.setLevel(logging.INFO)
_ours.propagate = False


def _report(result: RunResult) -> None:
    if result.folder is not None and (result.folder / "result.json").is_file():
        logging.getLogger("flower_vfl").info("report: %s", render([result.folder]))


app = make_server_app(on_result=_report)
