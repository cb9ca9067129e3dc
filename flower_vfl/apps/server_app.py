"""The ServerApp of the label party, which does the job that a run asks for.

Importing it loads no torch: a deployment offers its sessions first (docs/decisions/0020).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flower_vfl.apps.factories import BottomFactory, DataFactory, TopFactory, default_bottom, default_top, open_data
from flower_vfl.apps.flower_log import log_as_flower_does
from flower_vfl.apps.local_grid import LocalGrid
from flower_vfl.apps.training_server import TrainingServer
from flower_vfl.config import Config, from_run_config
from flower_vfl.config.parsing import Value
from flower_vfl.errors import ConfigError
from flower_vfl.files import default_folder, keep_private
from flower_vfl.protocol.printable import words_of
from flower_vfl.training.factories import OptimizerFactory
from flower_vfl.training.grids import is_simulation
from flower_vfl.training.observer import Observer

if TYPE_CHECKING:
    from flower_vfl.apps.result import ResultCallback

JOBS = ("train", "predict", "align")
"""The values of `job` in Flower's run config."""
NEW_FOLDER = "auto"
"""The value of `out` for a new folder of its own."""


def make_server_app(
    *,
    top: TopFactory = default_top,
    bottom: BottomFactory = default_bottom,
    data: DataFactory = open_data,
    optimizer: OptimizerFactory | None = None,
    config: Config | None = None,
    out: Path | None = None,
    resume: bool = False,
    observers: tuple[Observer, ...] = (),
    on_result: ResultCallback | None = None,
    on_error: Callable[[str], None] | None = None,
) -> ServerApp:
    """Make the ServerApp of the label party.

    Parameters
    ----------
    top : Callable[[tuple[int, ...], int, Config], nn.Module]
        Makes the top model for the shape of one row of the fused embedding and the number of classes.
    bottom : Callable[[FeatureSpec, Config], nn.Module]
        Makes the label party's own bottom model, where it has columns.
    data : Callable[[Config], VerticalData]
        Opens the data; the label party loads the labels and its own columns.
    optimizer : Callable[[nn.Module, Config], torch.optim.Optimizer], optional
        Makes the label party's optimizer, instead of the configuration's.
    config : Config, optional
        Configuration instead of Flower's run config.
    out : Path, optional
        Folder of the results; in Flower's run config: `out`, where "auto" stands for a new one in `runs` of the working
        directory.
    resume : bool
        True to resume the run that was interrupted in that folder; in Flower's run config: `resume`.
    observers : tuple of Observer
        Receive the progress of training.
    on_result : Callable[[RunResult], None], optional
        Receives the result, also of an interrupted run.
    on_error : Callable[[str], None], optional
        Receives the text of the error that ends the run, before Flower does.

    Returns
    -------
    ServerApp
        App that trains, or does another `job` of Flower's run config: predict with a finished run, or align IDs.
    """
    app = ServerApp()
    server = TrainingServer(
        top=top, bottom=bottom, data=data, optimizer=optimizer, observers=observers, on_result=on_result
    )

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        _set_up_process(grid)
        try:
            _do_job(grid, context, server, config, out, resume=resume)
        except Exception as error:
            if on_error is not None:
                on_error(words_of(error))
            raise

    return app


def _do_job(
    grid: Grid, context: Context, server: TrainingServer, config: Config | None, out: Path | None, *, resume: bool
) -> None:
    """Do the `job` of Flower's run config; the modules of a job are imported here, when it is done."""
    run_config = context.run_config
    job = _job(run_config)
    if job == "predict":
        from flower_vfl.apps.prediction_server import score

        score(grid, run_config, top=server.top, bottom=server.bottom, data=server.data, observers=server.observers)
        return
    settings = config or from_run_config(run_config)
    folder = out or _folder(run_config)
    if job == "align":
        from flower_vfl.apps.alignment.start import align_as_label

        align_as_label(grid, settings, folder)
    else:
        server.train(grid, context, settings, folder, resume=resume or run_config.get("resume") is True)


def _folder(run_config: Mapping[str, Value]) -> Path | None:
    """Return the folder that `out` names, one of its own in `runs` for "auto", and None without it."""
    given = str(run_config.get("out") or "")
    if given != NEW_FOLDER:
        return Path(given) if given else None
    if run_config.get("resume") is True:
        raise ConfigError('resume needs the folder of the run that is to go on: name it by out, which is "auto"')
    return default_folder(str(run_config.get("preset") or "run")).absolute()


def _set_up_process(grid: Grid) -> None:
    """Show the log where Flower shows its own, and make a deployment's files readable by this user alone."""
    if not is_simulation(grid):
        keep_private()
    if not isinstance(grid, LocalGrid):
        log_as_flower_does()


def _job(run_config: Mapping[str, Value]) -> str:
    """Return the job of the run; an unknown one is refused, so that it starts no training."""
    job = run_config.get("job") or JOBS[0]
    if job not in JOBS:
        raise ConfigError(f"job is {job!r} in the run config; allowed are {', '.join(JOBS)}")
    return str(job)
