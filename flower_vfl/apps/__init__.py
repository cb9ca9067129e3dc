"""Composition: a run configuration becomes parties and an engine."""

from flower_vfl.apps.client import make_client_app
from flower_vfl.apps.local import run
from flower_vfl.apps.prediction import predict
from flower_vfl.apps.result import RunResult
from flower_vfl.apps.server import make_server_app

__all__ = ["RunResult", "make_client_app", "make_server_app", "predict", "run"]
