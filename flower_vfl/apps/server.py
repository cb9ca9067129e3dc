"""The ServerApp: the label party."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flower_vfl.apps.alignment.start import align_as_label
from flower_vfl.apps.build import (
    BottomFactory,
    DataFactory,
    TopFactory,
    check_device,
    default_bottom,
    default_own,
    default_top,
    defend,
    open_data,
    party_names,
    torch_threads,
)
from flower_vfl.apps.flower_log import log_as_flower_does
from flower_vfl.apps.folder import RunFolder
from flower_vfl.apps.keeping import Keeping
from flower_vfl.apps.local_grid import LocalGrid
from flower_vfl.apps.model import LABEL, ModelCard, class_names, make_card, model_path, save_model
from flower_vfl.apps.node import with_data_of_this_host
from flower_vfl.apps.result import RunResult, describe_data, summarise
from flower_vfl.apps.workers import wait_for_workers
from flower_vfl.config import Config, from_run_config
from flower_vfl.data.dataset import Labels
from flower_vfl.data.memory import IdentifiedData, VerticalData
from flower_vfl.errors import ConfigError, InputError, StorageError
from flower_vfl.metrics import Embeddings, Values
from flower_vfl.nn.dropout import bind_dropout
from flower_vfl.nn.networks import network_of
from flower_vfl.parsing import Value
from flower_vfl.rng import FILE, NOISE_KEY_FILE_VARIABLE, SECRET_FILE_VARIABLE, Secret
from flower_vfl.strategies import HookedStrategy, Observer, Outcome, VerticalStrategy
from flower_vfl.strategies.configured import OptimizerFactory
from flower_vfl.strategies.grids import is_simulation
from flower_vfl.tracking import StepLog, add_snapshot, make_sink, write_embeddings
from flower_vfl.transport.sessions import TRAINING

_log = logging.getLogger(__name__)

ResultCallback = Callable[[RunResult], None]
JOBS = ("train", "predict", "align")
"""What `job` in Flower's run config can be."""


class _Journal(Observer):
    """Writes every value into the run's journal, once it has one, and passes everything on."""

    def __init__(self, others: tuple[Observer, ...]) -> None:
        self.log: StepLog | None = None
        self._others = others

    def add(self, *, step: int, epoch: int, party: str, layer: str, attack: str, metric: str, value: float) -> None:
        if self.log is not None:
            self.log.add(step=step, epoch=epoch, party=party, layer=layer, attack=attack, metric=metric, value=value)

    def flush(self) -> None:
        if self.log is not None:
            self.log.flush()

    def on_start(self, steps: int, epochs: int, parties: tuple[str, ...]) -> None:
        for other in self._others:
            other.on_start(steps, epochs, parties)

    def on_step(self, step: int, epoch: int, loss: float, leak: float) -> None:
        for other in self._others:
            other.on_step(step, epoch, loss, leak)

    def on_snapshot(self, step: int, values: Values) -> None:
        if self.log is not None:
            add_snapshot(self.log.path.parent, step, values)
        for other in self._others:
            other.on_snapshot(step, values)

    def on_embeddings(self, samples: Sequence[Embeddings]) -> None:
        if self.log is not None:
            write_embeddings(self.log.path.parent, samples)
        for other in self._others:
            other.on_embeddings(samples)

    def on_epoch(self, step: int, epoch: int, metrics: dict[str, float]) -> None:  # type: ignore[override]
        self.flush()
        for other in self._others:
            other.on_epoch(step, epoch, metrics)


class _EpochLog(Observer):
    """Logs one readable line an epoch."""

    def on_start(self, steps: int, epochs: int, parties: tuple[str, ...]) -> None:
        _log.info("training: %d epochs, %d steps, with %s", epochs, steps, ", ".join(parties) or "nobody else")

    def on_epoch(self, step: int, epoch: int, metrics: dict[str, float]) -> None:  # type: ignore[override]
        shown = ("train_loss", "validation_auc", "next_auc", "test_auc", "test_loss", "test_accuracy", "leak", "bound")
        _log.info("epoch %d: %s", epoch, ", ".join(f"{name} {metrics[name]:.4f}" for name in shown if name in metrics))


def build_strategy(
    config: Config,
    dataset: VerticalData,
    labels: Labels,
    *,
    top: TopFactory,
    bottom: BottomFactory,
    optimizer: OptimizerFactory | None = None,
    secret: Secret,
    observer: Observer,
    outcome: Outcome,
) -> HookedStrategy:
    """Build the label party's strategy with the configured defenses around it."""
    if top is default_top:
        network_of(config.model)  # what does not fit it is found before anything is opened
    parties = party_names(config, dataset)
    own = dataset.label_party if config.parties.label_features and dataset.label_party in dataset.parties else ""
    table = dataset.party(own) if own and own not in parties else None
    if own in parties and config.parties.label_features and config.parties.features:
        _log.info("party %r takes part as a feature party; the label party uses no columns", own)
    dropout = secret.generator("dropout", device=config.device)

    def make_bottom():  # type: ignore[no-untyped-def] # noqa: ANN202
        spec = table.spec  # type: ignore[union-attr]
        model = default_own(spec, labels.classes, config) if bottom is default_bottom else bottom(spec, config)
        bind_dropout(model, dropout)
        return model

    def make_top(shape):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        model = top(shape, labels.classes, config)
        bind_dropout(model, secret.generator("dropout", "top", device=config.device))
        return model

    strategy = VerticalStrategy(
        make_top,
        labels,
        parties=parties,
        config=config,
        bottom=None if table is None else make_bottom,
        table=table,
        alignment=dataset.alignment.digest,
        periods=dataset.alignment.periods,
        ids=dataset.train_ids() if isinstance(dataset, IdentifiedData) else None,
        optimizer=optimizer,
        secret=secret,
        observer=observer,
        outcome=outcome,
    )
    return defend(strategy, config.defenses)


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
    data : Callable[[Config], Dataset]
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
        if not isinstance(grid, LocalGrid):
            log_as_flower_does()
        try:
            job = _job(context.run_config)
            if job == "predict":
                predict(grid, context.run_config)
                return
            settings = config or from_run_config(context.run_config)
            given = out or (Path(str(context.run_config["out"])) if context.run_config.get("out") else None)
            if job == "align":
                align_as_label(grid, settings, given)
            else:
                train(grid, settings, given, goes_on=resume or context.run_config.get("resume") is True)
        except Exception as error:
            if on_error is not None:
                on_error(f"{type(error).__name__}: {error}")
            raise

    def train(grid: Grid, settings: Config, given: Path | None, *, goes_on: bool) -> None:
        check_device(settings)
        if settings.sinks and given is None:
            raise ConfigError("sinks need a folder: set `out`")
        simulation = is_simulation(grid)
        dataset = data(settings if simulation else with_data_of_this_host(settings))
        labels = dataset.labels()
        keeping = None if given is None else Keeping.of_label_party(given, resume=goes_on)
        kept = None if keeping is None else keeping.secret
        secret = Secret.for_simulation(settings.seed, LABEL) if simulation else Secret.of_this_host(kept)
        if secret.origin == FILE:
            _log.warning(
                "%s fixes all noise: two trainings with it have the same, and who took part in both can subtract it; "
                "for persistent noise that stays over trainings name a file in %s instead",
                SECRET_FILE_VARIABLE,
                NOISE_KEY_FILE_VARIABLE,
            )
        journal = _Journal((_EpochLog(), *observers))
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
            wait_for_workers(len(strategy.base.parties), at_once=settings.transport.kind == "stream")
        with nullcontext() if given is None else RunFolder(given, settings, resume=goes_on) as folder:
            if folder is not None and keeping is not None:
                journal.log = _open_journal(folder, settings)
                secret.keep(keeping.secret)
                base = strategy.base
                base.ledger, base.resume = keeping.store(settings, dataset.alignment), keeping.begun
                base.memory = keeping.memory(settings)
                base.offer = {TRAINING: keeping.training, **({"out": str(folder.path)} if simulation else {})}
                _log.info("results go to %s", folder.path)
            with torch_threads(settings.threads):
                card = make_card(
                    LABEL,
                    "",
                    settings,
                    dataset,
                    {"top": top, "bottom": bottom},
                    table=strategy.base.table.name if strategy.base.table is not None else "",
                    classes=class_names(dataset, labels.classes),
                    features=strategy.base.parties,
                )
                _train(grid, strategy, describe_data(dataset, labels), folder, journal, on_result, card)

    return app


def _predict(grid: Grid, run_config: Mapping[str, Value], **more: Any) -> None:
    from flower_vfl.apps.prediction import score  # it builds its strategy with this module

    score(grid, run_config, **more)


def _job(run_config: Mapping[str, Value]) -> str:
    """Return what the run is to do; a wrong word must not train."""
    job = run_config.get("job") or JOBS[0]
    if job not in JOBS:
        raise ConfigError(f"job is {job!r} in the run config; allowed are {', '.join(JOBS)}")
    return str(job)


def _open_journal(folder: RunFolder, config: Config) -> StepLog:
    try:
        return StepLog(folder.path, name="label", sinks=[make_sink(name, folder.path) for name in config.sinks])
    except InputError:
        folder.discard()
        raise


def _train(
    grid: Grid,
    strategy: HookedStrategy,
    data: dict[str, Any],
    folder: RunFolder | None,
    journal: _Journal,
    on_result: ResultCallback | None,
    card: ModelCard,
) -> None:
    """Train and write the result, whatever ends the training; bad input leaves nothing behind."""
    base = strategy.base
    outcome, status = base.outcome, "failed"
    failure: BaseException | None = None
    try:
        strategy.start(grid)
        status = outcome.stopped
    except (KeyboardInterrupt, SystemExit) as error:  # Flower ends its processes with the latter
        status, failure = "interrupted", error
        raise
    except Exception as error:
        failure = error
        raise
    finally:
        words = "" if failure is None else f"{type(failure).__name__}: {failure}"
        summary = summarise(outcome, strategy, base.config, data, status=status, error=words)
        try:
            _write(strategy, summary, folder, journal, card, bad_input=isinstance(failure, InputError))
        except StorageError as error:
            if failure is None:
                raise
            _log.error("%s", error)  # what ended the run is told; what was measured since the last checkpoint is lost
        if on_result is not None:
            on_result(RunResult(status, summary, outcome, folder.path if folder is not None else None))


def _write(
    strategy: HookedStrategy,
    summary: dict[str, Any],
    folder: RunFolder | None,
    journal: _Journal,
    card: ModelCard,
    *,
    bad_input: bool,
) -> None:
    """Write what a run leaves, `result.json` last: a run that has one has all."""
    base = strategy.base
    if journal.log is not None:
        journal.log.close()
    if folder is None:
        return
    if bad_input and base.outcome.steps == 0:
        folder.discard()
        return
    if base.outcome.model_step is None:
        model_path(folder.path, LABEL).unlink(missing_ok=True)
    elif base.label_party is not None:
        save_model(folder.path, replace(card, session=base.session), base.label_party.module)
    folder.write_result(summary, base.periods_in_order)
