"""Score rows with a finished run, all parties in this process."""

from __future__ import annotations

from pathlib import Path

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from flower_vfl.apps.client_app import make_client_app
from flower_vfl.apps.factories import BottomFactory, DataFactory, TopFactory, default_bottom, default_top, open_data
from flower_vfl.apps.local_grid import LocalGrid
from flower_vfl.apps.prediction_server import Request, read_run
from flower_vfl.apps.scores import check_target
from flower_vfl.apps.server_app import make_server_app
from flower_vfl.training.observer import Observer


def predict(
    run: Path | str,
    out: Path | str,
    *,
    ids: Path | str | None = None,
    new_data: Path | str | None = None,
    overwrite: bool = False,
    top: TopFactory = default_top,
    bottom: BottomFactory = default_bottom,
    data: DataFactory = open_data,
    observers: tuple[Observer, ...] = (),
) -> None:
    """Score rows with the parties of a finished run, all in this process.

    Parameters
    ----------
    run : Path
        Folder of a finished `run`.
    out : Path
        File of the scores, .csv or .parquet; it appears whole or not at all.
    ids : Path, optional
        File that names the IDs; without it the test rows, or all rows of files of new data, are scored.
    new_data : Path, optional
        Rows that were not in training: see `flower_vfl.data.store.scoring.new_rows`.
    overwrite : bool
        True if a file at `out` may be replaced.
    top, bottom, data
        Factories that the run was trained with.
    observers : tuple of Observer
        Receive the progress.

    Raises
    ------
    FlowerVflError
        When an input is wrong or does not fit the run; no file is written then.
    """
    named, rows = (None if path is None else Path(path) for path in (ids, new_data))
    request = Request(Path(run), Path(out), named, rows, overwrite)
    server = make_server_app(top=top, bottom=bottom, data=data, observers=observers)
    predict_with(server, make_client_app(bottom=bottom, top=top, data=data), request)


def predict_with(server: ServerApp, client: ClientApp, request: Request) -> None:
    """Score rows as `predict` does, with the apps that trained the run."""
    check_target(request.out, overwrite=request.overwrite)
    parties = read_run(request.run).model.card.features
    with LocalGrid(client, len(parties), request.run_config()) as grid:
        grid.serve(server)
