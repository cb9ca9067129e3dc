"""Composition: a run configuration becomes parties and an engine.

Importing this package loads no torch: a ServerApp offers its sessions before it does (docs/decisions/0020).
"""

from typing import TYPE_CHECKING

from flower_vfl.lazy import lazy_names

if TYPE_CHECKING:
    from flower_vfl.apps.client_app import make_client_app
    from flower_vfl.apps.local import align, run
    from flower_vfl.apps.prediction import predict
    from flower_vfl.apps.result import RunResult
    from flower_vfl.apps.server_app import make_server_app

__all__ = ["RunResult", "align", "make_client_app", "make_server_app", "predict", "run"]

_HOMES = {
    "RunResult": "flower_vfl.apps.result",
    "align": "flower_vfl.apps.local",
    "make_client_app": "flower_vfl.apps.client_app",
    "make_server_app": "flower_vfl.apps.server_app",
    "predict": "flower_vfl.apps.prediction",
    "run": "flower_vfl.apps.local",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
