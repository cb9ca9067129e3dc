"""Composition: a run configuration becomes parties and an engine."""

from flower_vfl.apps.client import make_client_app
from flower_vfl.apps.local import align, run
from flower_vfl.apps.prediction import predict
from flower_vfl.apps.result import RunResult
from flower_vfl.apps.server import make_server_app

__all__ = ["RunResult", "align", "make_client_app", "make_server_app", "predict", "run"]
