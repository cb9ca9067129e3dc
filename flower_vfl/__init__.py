"""Vertical federated learning for Flower in which label privacy is measured.

Importing this package loads neither torch nor flwr; its names load what they need when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flower_vfl.lazy import lazy_names
from flower_vfl.version import VERSION

if TYPE_CHECKING:
    from flower_vfl.apps import RunResult, align, make_client_app, make_server_app, predict, run
    from flower_vfl.config import Config, build_config, load_config

__version__ = VERSION

__all__ = [
    "Config",
    "RunResult",
    "align",
    "build_config",
    "load_config",
    "make_client_app",
    "make_server_app",
    "predict",
    "run",
]

_HOMES = {
    **dict.fromkeys(("Config", "build_config", "load_config"), "flower_vfl.config"),
    **dict.fromkeys(("RunResult", "align", "make_client_app", "make_server_app", "predict", "run"), "flower_vfl.apps"),
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
