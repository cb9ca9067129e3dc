"""The ServerApp: the label party.

In a deployment it offers its sessions before anything imports torch: idle SuperNodes ask each 3 s, and the import takes
2 s (docs/decisions/0020). What needs torch is imported where it is used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flower_vfl.apps.factories import (
    BottomFactory,
    DataFactory,
    TopFactory,
    check_device,
    default_bottom,
    default_top,
    open_data,
    party_names,
)
from flower_vfl.apps.flower_log import log_as_flower_does
from flower_vfl.apps.folder import RunFolder, has_ended
from flower_vfl.apps.journal import EpochLog, Journal
from flower_vfl.apps.local_grid import LocalGrid
from flower_vfl.apps.metrics import serve_metrics
from flower_vfl.apps.node import with_data_of_this_host
from flower_vfl.apps.run_state import LABEL, Keeping, ended_error
from flower_vfl.apps.workers import wait_for_workers
from flower_vfl.config import Config, from_run_config
from flower_vfl.config.parsing import Value
from flower_vfl.errors import ConfigError
from flower_vfl.files import keep_private
from flower_vfl.lazy import nothing_collected
from flower_vfl.protocol.printable import words_of
from flower_vfl.rng import FILE, NOISE_KEY_FILE_VARIABLE, SECRET_FILE_VARIABLE, Secret
from flower_vfl.training.factories import OptimizerFactory, schedule_of
from flower_vfl.training.grids import is_simulation
from flower_vfl.training.observer import Observer
from flower_vfl.training.outcome import Outcome
from flower_vfl.transport.sessions import TRAINING, Sessions
from flower_vfl.transport.signing import Signer, signer_of_this_host

if TYPE_CHECKING:
    from flower_vfl.apps.result import ResultCallback
    from flower_vfl.data import Labels, VerticalData

_log = logging.getLogger(__name__)

JOBS = ("train", "predict", "align")
"""What `job` in Flower's run config can be."""

FEW_STEPS = 200
"""Fewer steps of a run, where the rows allow many more, deserve a warning: most networks have not learned by then."""


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
        Instead of Flower's run config.
    out : Path, optional
        Folder of the results; in Flower's run config: `out`.
    resume : bool
        Whether a run that was interrupted in that folder goes on; in Flower's run config: `resume`.
    observers : tuple of Observer
        Are told how training goes.
    on_result : Callable[[RunResult], None], optional
        Gets the result, whole or interrupted.
    on_error : Callable[[str], None], optional
        Gets the words of what ends the run, before Flower does.

    Returns
    -------
    ServerApp
        It trains, or does what `job` in Flower's run config says: predict with a finished run, or align IDs.
    """
    app = ServerApp()
    predict = partial(_predict, top=top, bottom=bottom, data=data, observers=observers)

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        _settle_in(grid)
        try:
            job = _job(context.run_config)
            if job == "predict":
                predict(grid, context.run_config)
                return
            settings = config or from_run_config(context.run_config)
            given = out or (Path(str(context.run_config["out"])) if context.run_config.get("out") else None)
            if job == "align":
                from flower_vfl.apps.alignment.start import align_as_label

                align_as_label(grid, settings, given)
            else:
                train(
                    grid,
                    settings,
                    given,
                    _signer(grid, context),
                    goes_on=resume or context.run_config.get("resume") is True,
                )
        except Exception as error:
            if on_error is not None:
                on_error(words_of(error))
            raise

    def train(grid: Grid, settings: Config, given: Path | None, sign: Signer | None, *, goes_on: bool) -> None:
        if settings.sinks and given is None:
            raise ConfigError("sinks need a folder: set `out`")
        simulation = is_simulation(grid)
        dataset = data(settings if simulation else with_data_of_this_host(settings))
        labels, parties = dataset.labels(), party_names(settings, dataset)
        settings = _planned(settings, dataset, labels)
        keeping = None if given is None else _place(given, goes_on=goes_on, simulation=simulation)
        secret = _secret(settings, keeping, simulation=simulation)
        with (
            serve_metrics(settings.metrics_port) as metrics,
            nullcontext() if given is None else RunFolder(given, settings, resume=goes_on) as folder,
            ExitStack() as undo,
        ):
            journal, offer = Journal((EpochLog(), *metrics, *observers)), dict[str, str]()
            if folder is not None and keeping is not None:
                undo.callback(folder.discard)
                undo.callback(journal.close)
                journal.open(folder.path, settings.sinks)
                secret.keep(keeping.secret)
                offer = {TRAINING: keeping.training, **({"out": str(folder.path)} if simulation else {})}
            with _offered(grid, parties, settings, offer, sign) as sessions:
                with nothing_collected():
                    from flower_vfl.apps.label_party import build_strategy
                    from flower_vfl.apps.training import train_and_write

                check_device(settings)
                strategy = build_strategy(
                    settings,
                    dataset,
                    labels,
                    top=top,
                    bottom=bottom,
                    optimizer=optimizer,
                    secret=secret,
                    observer=journal,
                    outcome=Outcome(),
                )
                if simulation and not isinstance(grid, LocalGrid):
                    wait_for_workers(len(parties), at_once=settings.transport.kind == "stream")
                strategy.base.sessions, strategy.base.offer = sessions, offer
                undo.pop_all()  # from now on what was measured is kept
                train_and_write(
                    grid, strategy, dataset, folder, keeping, journal, on_result, {"top": top, "bottom": bottom}
                )

    return app


def _signer(grid: Grid, context: Context) -> Signer | None:
    """Return what signs the offers of a deployed label party that has a key for it."""
    return None if is_simulation(grid) else signer_of_this_host(context.run_config)


def _place(out: Path, *, goes_on: bool, simulation: bool) -> Keeping:
    """Return where the label party keeps its states; a deployed run that has ended cannot be resumed."""
    if goes_on and not simulation and has_ended(out):
        raise ended_error(f"the run in {out}")
    return Keeping.of_label_party(out, resume=goes_on)


def _settle_in(grid: Grid) -> None:
    """Show the log where Flower shows its own, and let a deployment's files be this user's alone."""
    if not is_simulation(grid):
        keep_private()
    if not isinstance(grid, LocalGrid):
        log_as_flower_does()


@contextmanager
def _offered(
    grid: Grid, parties: Sequence[str], config: Config, offer: Mapping[str, str], sign: Signer | None
) -> Generator[Sessions | None]:
    """Offer sessions to the hosts of a deployment; a simulation's parties are there at once, after their workers."""
    if is_simulation(grid):
        yield None
        return
    with Sessions(grid, parties, config.transport, simulation=False, offer=offer, sign=sign) as sessions:
        sessions.invite()
        yield sessions


def _planned(settings: Config, dataset: VerticalData, labels: Labels) -> Config:
    """Return the configuration with a number for each "auto", once it was logged what it means for this data."""
    rows, periods = len(labels.train), dataset.alignment.periods
    fitted = settings.fitted(rows)
    schedule = schedule_of(fitted, rows, len(labels.test), periods=periods)
    _log.info(
        "%s training rows, %s of them for validation; at most %s steps: %s of up to %s rows",
        *(f"{count:,}" for count in (rows, schedule.validation_rows, schedule.steps)),
        f"{schedule.epochs} epoch{'s' * (schedule.epochs > 1)}",
        f"{schedule.batch_size:,}",
    )
    free = settings.training.model_copy(update={"epochs": 0, "batch_size": 0}).fitted(rows)
    enough = schedule_of(settings.model_copy(update={"training": free}), rows, len(labels.test), periods=periods).steps
    if schedule.steps < min(FEW_STEPS, enough // 4):
        _log.warning(
            "%s steps are few: without training.epochs and training.batch_size, there are up to %s (%s epochs, %s rows "
            "a step), and training ends when validation no longer improves",
            *(f"{count:,}" for count in (schedule.steps, enough, free.epochs, free.batch_size)),
        )
    return fitted


def _predict(grid: Grid, run_config: Mapping[str, Value], **more: Any) -> None:
    from flower_vfl.apps.prediction import score  # it builds its strategy with this module

    score(grid, run_config, **more)


def _secret(config: Config, keeping: Keeping | None, *, simulation: bool) -> Secret:
    """Return the label party's root of randomness."""
    if simulation:
        return Secret.for_simulation(config.seed, LABEL)
    secret = Secret.of_this_host(None if keeping is None else keeping.secret)
    if secret.origin == FILE:
        _log.warning(
            "%s fixes all noise: two trainings with it have the same, and who took part in both can subtract it; "
            "for persistent noise that stays over trainings name a file in %s instead",
            SECRET_FILE_VARIABLE,
            NOISE_KEY_FILE_VARIABLE,
        )
    return secret


def _job(run_config: Mapping[str, Value]) -> str:
    """Return what the run is to do; a wrong word must not train."""
    job = run_config.get("job") or JOBS[0]
    if job not in JOBS:
        raise ConfigError(f"job is {job!r} in the run config; allowed are {', '.join(JOBS)}")
    return str(job)
