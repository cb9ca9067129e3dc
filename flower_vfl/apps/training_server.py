"""The label party's side of a training in a Flower run.

In a deployment it offers its sessions before anything imports torch: idle SuperNodes ask each 3 s, and the import takes
2 s (docs/decisions/0020). What needs torch is imported where it is used.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid

from flower_vfl.apps.factories import BottomFactory, DataFactory, TopFactory, check_device, party_names
from flower_vfl.apps.folder import RunFolder, has_ended
from flower_vfl.apps.journal import EpochLog, Journal
from flower_vfl.apps.live import followed
from flower_vfl.apps.local_grid import LocalGrid
from flower_vfl.apps.metrics import serve_metrics
from flower_vfl.apps.node import with_data_of_this_host
from flower_vfl.apps.result_schema import OWN_DATA
from flower_vfl.apps.run_state import LABEL, PartyStorage, ended_error
from flower_vfl.apps.workers import wait_for_workers
from flower_vfl.config import Config
from flower_vfl.errors import ConfigError
from flower_vfl.lazy import nothing_collected
from flower_vfl.rng import FILE, NOISE_KEY_FILE_VARIABLE, SECRET_FILE_VARIABLE, Secret
from flower_vfl.training.factories import OptimizerFactory, schedule_of
from flower_vfl.training.grids import is_simulation
from flower_vfl.training.observer import Observer
from flower_vfl.training.outcome import Outcome
from flower_vfl.training.privacy import ledger_of
from flower_vfl.transport.sessions import TRAINING, Sessions
from flower_vfl.transport.signing import Signer, signer_of_this_host

if TYPE_CHECKING:
    from flower_vfl.apps.result import ResultCallback
    from flower_vfl.data import Labels, VerticalData
    from flower_vfl.strategies.base import HookedStrategy

_log = logging.getLogger(__name__)

FEW_STEPS = 200
"""Steps of a run below which there is a warning, if the rows allow many more: most networks need more to learn."""


@dataclass(frozen=True, kw_only=True)
class TrainingServer:
    """The label party's side of training; the parameters are those of `make_server_app`."""

    top: TopFactory
    bottom: BottomFactory
    data: DataFactory
    optimizer: OptimizerFactory | None
    observers: tuple[Observer, ...]
    on_result: ResultCallback | None

    def train(self, grid: Grid, context: Context, settings: Config, out: Path | None, *, resume: bool) -> None:
        """Train, and leave the results in a folder.

        Parameters
        ----------
        grid : Grid
            Flower's grid, or that of a local run.
        context : Context
            Flower's context of the run; its run config is part of a signed offer.
        settings : Config
            The configuration, with "auto" where the rows decide.
        out : Path, optional
            Folder of the results; without it nothing is written.
        resume : bool
            True if a run that was interrupted in that folder is resumed.
        """
        simulation = is_simulation(grid)
        _check_settings(settings, out, simulation=simulation)
        sign = None if simulation else signer_of_this_host(context.run_config)
        dataset = self.data(settings if simulation else with_data_of_this_host(settings))
        labels, parties = dataset.labels(), party_names(settings, dataset)
        settings = _fitted_settings(settings, dataset, labels)
        storage = None if out is None else _storage_of(out, resume=resume, simulation=simulation)
        secret = _secret(settings, storage, simulation=simulation)
        if (ledger := ledger_of(settings, simulation=simulation)) is not None:
            ledger.read()  # an unusable ledger is found before a party is contacted
        with (
            serve_metrics(settings.metrics_port) as metrics,
            nullcontext() if out is None else RunFolder(out, settings, resume=resume) as folder,
            followed(None if folder is None else folder.path) as live,
            ExitStack() as undo,
        ):
            journal, offer = Journal((EpochLog(), live, *metrics, *self.observers)), dict[str, str]()
            if folder is not None and storage is not None:
                undo.callback(folder.discard)
                undo.callback(journal.close)
                journal.open(folder.path, settings.sinks)
                secret.keep(storage.secret)
                offer = {TRAINING: storage.training, **({"out": str(folder.path)} if simulation else {})}
            with _offered(grid, parties, settings, offer, sign) as sessions:
                strategy = self._build(settings, dataset, labels, secret, journal)
                if simulation and not isinstance(grid, LocalGrid):
                    wait_for_workers(len(parties), at_once=settings.transport.kind == "stream")
                undo.pop_all()  # from now on the measurements are kept
                from flower_vfl.apps.training import WrittenTraining

                WrittenTraining(
                    grid=grid,
                    strategy=strategy,
                    dataset=dataset,
                    folder=folder,
                    storage=storage,
                    journal=journal,
                    on_result=self.on_result,
                    factories={"top": self.top, "bottom": self.bottom},
                ).execute(sessions, offer)

    def _build(
        self, settings: Config, dataset: VerticalData, labels: Labels, secret: Secret, journal: Journal
    ) -> HookedStrategy:
        """Build the strategy; torch is imported here first."""
        with nothing_collected():
            from flower_vfl.apps.label_party import build_strategy

        check_device(settings)
        return build_strategy(
            settings,
            dataset,
            labels,
            top=self.top,
            bottom=self.bottom,
            optimizer=self.optimizer,
            secret=secret,
            observer=journal,
            outcome=Outcome(),
        )


def _check_settings(settings: Config, out: Path | None, *, simulation: bool) -> None:
    """Refuse settings that need a folder, or that a deployment does not allow."""
    if settings.sinks and out is None:
        raise ConfigError("sinks need a folder: set `out`")
    if settings.baselines == "on" and not simulation:
        raise ConfigError(
            'baselines = "on" trains scikit-learn on the joined columns of all parties, which no host of a deployment '
            'has; leave it "auto", which is off there'
        )


def _storage_of(out: Path, *, resume: bool, simulation: bool) -> PartyStorage:
    """Return the storage of the label party's states; a deployed run that has ended cannot be resumed."""
    storage = PartyStorage.of_label_party(out, resume=resume)
    if resume and not simulation and has_ended(out):
        if storage.begun:
            storage.end()  # it was killed after its results were written, and before it could
        raise ended_error(f"the run in {out}")
    return storage


@contextmanager
def _offered(
    grid: Grid, parties: Sequence[str], config: Config, offer: Mapping[str, str], sign: Signer | None
) -> Generator[Sessions | None]:
    """Offer sessions to the hosts of a deployment; a simulation's parties are there once their workers are."""
    if is_simulation(grid):
        yield None
        return
    with Sessions(grid, parties, config.transport, simulation=False, offer=offer, sign=sign) as sessions:
        sessions.invite()
        yield sessions


def _fitted_settings(settings: Config, dataset: VerticalData, labels: Labels) -> Config:
    """Return the configuration with a number for each "auto"; log the number of rows, steps and epochs."""
    rows, periods = len(labels.train), dataset.alignment.periods
    fitted = settings.fitted(rows)
    schedule = schedule_of(fitted, rows, len(labels.test), periods=periods)
    trained = rows - schedule.validation_rows
    if dataset.name == OWN_DATA and settings.training.batch_size > trained:
        raise ConfigError(
            f"training.batch_size is {settings.training.batch_size:,}, and there are {trained:,} rows to train on, "
            f"beside {schedule.validation_rows:,} for validation; set it to {trained} at most, or leave it out: it "
            "fits the rows"
        )
    _log.info(
        "%s training rows, %s of them for validation; at most %s steps: %s of up to %s rows",
        *(f"{count:,}" for count in (rows, schedule.validation_rows, schedule.steps)),
        f"{schedule.epochs} epoch{'s' * (schedule.epochs > 1)}",
        f"{schedule.batch_size:,}",
    )
    tested = len(np.unique(labels.test))
    if dataset.name == OWN_DATA and tested < labels.classes:
        _log.warning(
            "rows of the test part: %d, of %d of the %d classes: no AUC is known for the others, and accuracy means "
            "little; more rows with labels are needed, or a larger data.options.test_fraction",
            *(len(labels.test), tested, labels.classes),
        )
    # The epochs of a preset are meant, also where somebody names few of them to try it out.
    keys = ["epochs", "batch_size"] if dataset.name == OWN_DATA else ["batch_size"]
    automatic = settings.training.model_copy(update=dict.fromkeys(keys, 0))
    free = settings.model_copy(update={"training": automatic}).fitted(rows).training
    most = schedule_of(settings.model_copy(update={"training": free}), rows, len(labels.test), periods=periods).steps
    if schedule.steps < min(FEW_STEPS, most // 4):
        _log.warning(
            '%s steps are few: with %s at "auto", there are up to %s (%s epochs, %s rows a step)',
            f"{schedule.steps:,}",
            " and ".join(f"training.{key}" for key in keys),
            *(f"{count:,}" for count in (most, free.epochs, free.batch_size)),
        )
    return fitted


def _secret(config: Config, storage: PartyStorage | None, *, simulation: bool) -> Secret:
    """Return the label party's secret, from which its randomness is derived."""
    if simulation:
        return Secret.for_simulation(config.seed, LABEL)
    secret = Secret.of_this_host(None if storage is None else storage.secret)
    if secret.origin == FILE:
        _log.warning(
            "%s fixes all noise: two training runs with it have the same, and a party of both can subtract it; "
            "for persistent noise that stays over trainings name a file in %s instead",
            SECRET_FILE_VARIABLE,
            NOISE_KEY_FILE_VARIABLE,
        )
    return secret
