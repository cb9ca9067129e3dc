"""The command `flower-vfl predict`: in this process, with the user's own app, or in Flower's simulation runtime."""

from __future__ import annotations

import importlib
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from flower_vfl.apps import make_client_app, make_server_app
from flower_vfl.apps.model import load_card, model_path
from flower_vfl.apps.prediction import predict_with
from flower_vfl.apps.prediction_server import Request, read_run
from flower_vfl.apps.scores import check_target
from flower_vfl.config.parsing import Value
from flower_vfl.errors import ConfigError, SessionError
from flower_vfl.simulations.flower_engine import check_devices, cluster_for, flwr_run, in_processes, reachable
from flower_vfl.simulations.resources import read_resources
from flower_vfl.strategies import Observer
from flower_vfl.terminal import console


class ScoreProgress(Observer):
    """A bar of scored rows at a terminal."""

    def __init__(self) -> None:
        columns = (TextColumn("scores"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console(), transient=True, disable=not console().is_terminal)
        self._task = self._progress.add_task("scores", total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def on_scores(self, done: int, total: int) -> None:
        """Move the bar."""
        self._progress.update(self._task, completed=done, total=total)


def predict_here(request: Request, app: Path | None) -> None:
    """Score in this process; `app` is the folder of the Flower App that trained the run, if it was the user's own."""
    if app is not None:
        predict_with(*load_apps(app), request)
        return
    with ScoreProgress() as progress:
        predict_with(make_server_app(observers=(progress,)), make_client_app(), request)


def predict_flower(request: Request, *, resources: Sequence[str] = (), address: str = "") -> None:
    """Score in Flower's simulation runtime.

    Parameters
    ----------
    request : Request
        The request.
    resources, address
        As in `run_flower`.

    Raises
    ------
    ConfigError
        When the resources cannot be parsed, or do not fit the run's configuration.
    SetupError
        When the cluster cannot be joined, or has no room for all parties at once.
    SessionError
        When Flower could not be started, or the run failed.
    """
    check_target(request.out, overwrite=request.overwrite)
    run = read_run(request.run)
    card = run.model.card
    for party in card.features:
        load_card(model_path(run.folder, party))  # raises if a model is missing, before anything is started
    config = in_processes(card.config)
    given = read_resources(resources, card.features)
    check_devices(config, given)
    config = reachable(config, cluster_for(given, address, request.out.expanduser().absolute()))
    here: dict[str, Value] = {"transport-kind": config.transport.kind, "transport-host": config.transport.host}
    before = _inode(request.out)
    code = flwr_run({**request.run_config(), **here}, given, address)
    if _inode(request.out) == before:
        raise SessionError(f"the Flower run left no scores (flwr run ended with {code}); its log is above")


def _inode(path: Path) -> int:
    """Return the inode of a file, which changes when the file is replaced; 0 without a file."""
    return path.stat().st_ino if path.exists() else 0


def load_apps(folder: Path) -> tuple[ServerApp, ClientApp]:
    """Import and return the apps that a Flower App's pyproject.toml names, which executes their code.

    Raises
    ------
    ConfigError
        When the folder holds no Flower App.
    """
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf8"))
        components = project["tool"]["flwr"]["app"]["components"]
        names = [str(components[name]) for name in ("serverapp", "clientapp")]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"{folder} is no Flower App: its pyproject.toml names no components ({error})") from None
    sys.path.insert(0, str(folder.absolute()))
    try:
        server, client = (_named(name) for name in names)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the app in {folder} cannot be imported: {error}") from None
    finally:
        sys.path.remove(str(folder.absolute()))
    if not isinstance(server, ServerApp) or not isinstance(client, ClientApp):
        raise ConfigError(f"{folder}: {names[0]} is no ServerApp, or {names[1]} no ClientApp")
    return server, client


def _named(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)
