"""The label party's ServerApp of the presets, for `flwr run`; importing it loads no torch."""

import os
from pathlib import Path

from flower_vfl.apps import make_server_app
from flower_vfl.reports import log_report
from flower_vfl.simulations.variables import ERROR_FILE_VARIABLE, STARTER_VARIABLE
from flower_vfl.strategies import Observer


def _write_error(error: str) -> None:
    if os.environ.get(ERROR_FILE_VARIABLE):
        Path(os.environ[ERROR_FILE_VARIABLE]).write_text(error, encoding="utf8")


class _StarterObserver(Observer):
    """Observer that ends a run of `--engine flower` when that was interrupted or has ended, such as by a signal."""

    def on_step(self, step: int, epoch: int, loss: float, leak: float) -> None:
        starter = os.environ.get(STARTER_VARIABLE)
        if starter and not os.path.exists(starter):
            raise SystemExit("what had started this run was interrupted, or has ended")


app = make_server_app(observers=(_StarterObserver(),), on_result=log_report, on_error=_write_error)
