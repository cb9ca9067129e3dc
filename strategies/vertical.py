"""`VerticalStrategy`: the label party's Flower strategy. It holds the top model, the loss and the labels."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray
from torch import Tensor, nn

from flower_vfl.attacks import Attack, InferenceAttack, make_attacks
from flower_vfl.config import Config
from flower_vfl.data.dataset import Labels, PartyTable
from flower_vfl.data.source import FeatureSource
from flower_vfl.errors import ConfigError, DataError
from flower_vfl.metrics import Embeddings, compact, sample_rows
from flower_vfl.metrics.embeddings import READ, RECEIVED
from flower_vfl.nn.fusion import fused_shape
from flower_vfl.nn.initialise import seeded_initialisation
from flower_vfl.nn.optim import Optimizers, OwnOptimizer
from flower_vfl.parties.feature import embed, embedding_shape
from flower_vfl.parties.inference import check_trained_attacks
from flower_vfl.parties.label import LabelParty, Log
from flower_vfl.parties.monitor import LeakageMonitor
from flower_vfl.parties.scoring import AuditLabels, Oracle, check_side_information
from flower_vfl.protocol.frame import Frame
from flower_vfl.protocol.schedule import Rows, Schedule
from flower_vfl.rng import Secret
from flower_vfl.strategies.arrivals import check_fit, read_report, send_audit
from flower_vfl.strategies.base import Defense, HookedStrategy
from flower_vfl.strategies.checkpointing import MODEL, Checkpointing, Ledger, Stateful
from flower_vfl.strategies.limit import LeakLimit
from flower_vfl.strategies.observer import Observer
from flower_vfl.strategies.pace import agree, tell
from flower_vfl.strategies.rejoining import Rejoining
from flower_vfl.strategies.training import Outcome, Training
from flower_vfl.transport.base import Link
from flower_vfl.transport.sessions import Sessions

_log = logging.getLogger(__name__)

OptimizerFactory = Callable[[nn.Module, Config], torch.optim.Optimizer]
"""Makes a party's optimizer, instead of the configuration's."""

TopFactory = Callable[[tuple[int, ...]], nn.Module]
"""Makes the top model for the shape of one row of the fused embedding."""


@dataclass
class VerticalResult(Result):
    """Flower's result, with what a vertical training measured."""

    outcome: Outcome = field(default_factory=Outcome)


class VerticalStrategy(HookedStrategy):
    """The label party's strategy without any defense; wrap it to defend.

    Parameters
    ----------
    top : nn.Module or Callable[[tuple[int, ...]], nn.Module]
        Top model, or a factory that is called with the shape of one row of the fused embedding.
    labels : Labels, Tensor or NDArray
        True labels of the training table and, with `Labels`, of the test table.
    parties : Sequence[str]
        Feature parties, in the order in which their embeddings are joined.
    config : Config
        Training, transport and attack settings.
    bottom, table : Callable[[], nn.Module], PartyTable, optional
        Factory of the label party's own bottom model, and its columns.
    alignment : str
        Digest of the ordered IDs; each party must have the same.
    optimizer : Callable[[nn.Module, Config], torch.optim.Optimizer], optional
        Makes the label party's optimizer, instead of the configuration's.
    secret : Secret, optional
        The label party's root of randomness; by default of this host, in a simulation from the seed.
    observer : Observer, optional
        Is told how training goes.
    outcome : Outcome, optional
        Filled while training goes on.

    Examples
    --------
    >>> strategy = VerticalStrategy(top=nn.Linear(4, 1), labels=torch.tensor([0, 1, 1]))
    >>> strategy.protect(torch.ones(2, 4), torch.tensor([0, 1]))[0].shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        top: nn.Module | TopFactory,
        labels: Labels | Tensor | NDArray[Any],
        *,
        parties: Sequence[str] = ("a",),
        config: Config | None = None,
        bottom: Callable[[], nn.Module] | None = None,
        table: PartyTable | None = None,
        alignment: str = "",
        optimizer: OptimizerFactory | None = None,
        secret: Secret | None = None,
        observer: Observer | None = None,
        outcome: Outcome | None = None,
    ) -> None:
        self.config = config or Config()
        self.parties = tuple(parties)
        self.labels = labels if isinstance(labels, Labels) else _wrap_labels(labels)
        self.top, self.bottom, self.table = top, bottom, table
        self.alignment = alignment
        self.optimizer = optimizer
        self.observer = observer or Observer()
        self.outcome = outcome or Outcome()
        self.widths: dict[str, int] = {}
        self.label_party: LabelParty | None = None
        for key, named in self.config.parties.named.items():
            for name in set(named) - set(self.parties):
                raise ConfigError(f"{key} names {name!r}; feature parties are {', '.join(self.parties)}")
        self.attacks = make_attacks(self.config.attack.calls)
        self._check_attacks()
        self.offer: dict[str, str] = {}
        self.session = ""
        self.ledger: Ledger | None = None
        self.resume = False
        self._secret = secret
        self._class_weights: Tensor | None = None

    def _check_attacks(self) -> None:
        """Refuse attacks that this data cannot be attacked with."""
        classes = self.labels.classes
        binary = [attack.label for attack in self.watching]
        if binary and classes != 2:
            raise ConfigError(
                f"{', '.join(binary)} read two classes, this data has {classes}; attack.names may hold clustering and "
                "model_completion, or be []"
            )
        if self.attacks and classes > AuditLabels.CLASSES:
            raise ConfigError(f"attacks read {AuditLabels.CLASSES} classes at most, this data has {classes}")
        if self.config.attack.max_leak < 1.0 and not binary:
            raise ConfigError("attack.max_leak is measured by attacks that look while training: name one, such as norm")
        check_side_information(
            self.watching,
            positives=int(np.count_nonzero(self.labels.train)),
            batch_size=self.config.training.batch_size,
        )
        check_trained_attacks(
            [attack for attack in self.attacks if not isinstance(attack, Attack)],
            self.labels.train,
            classes=classes,
            test_rows=len(self.labels.test),
        )

    @property
    def watching(self) -> list[Attack]:
        """The attacks that look while the network is trained."""
        return [attack for attack in self.attacks if isinstance(attack, Attack)]

    @property
    def base(self) -> VerticalStrategy:
        """The strategy itself."""
        return self

    @property
    def secret(self) -> Secret:
        """The label party's root of randomness."""
        if self._secret is None:
            self._secret = Secret.of_this_host()
        return self._secret

    def chain(self) -> list[Defense]:
        """No defense is in force here."""
        return []

    def prepare_labels(self, labels: Tensor) -> tuple[Tensor, Log]:
        """Leave the labels as they are and learn the weights of the classes from them."""
        if self.config.training.class_weights == "balanced":
            counts = torch.bincount(labels.long(), minlength=self.labels.classes).clamp(min=1)
            self._class_weights = len(labels) / (self.labels.classes * counts.float())
        return labels, {}

    def embed(self, z: Tensor) -> tuple[Tensor, Log]:
        """Leave the embedding as it is."""
        return z, {}

    def loss(self, logits: Tensor, labels: Tensor, z: Tensor) -> tuple[Tensor, Log]:
        """Return the mean cross-entropy of the batch."""
        weights = None if self._class_weights is None else self._class_weights.to(logits)
        if self.labels.classes > 2:
            return nn.functional.cross_entropy(logits, labels, weight=weights), {}
        weight = None if weights is None else weights[labels]
        target = labels.to(logits.dtype)
        return nn.functional.binary_cross_entropy_with_logits(logits.view(-1), target, weight=weight), {}

    def protect(self, grads: Tensor, labels: Tensor) -> tuple[Tensor, Log]:
        """Leave the gradients as they are."""
        return grads, {}

    def __repr__(self) -> str:
        top = self.top if isinstance(self.top, nn.Module) else getattr(self.top, "__name__", "factory")
        name = type(top).__name__ if isinstance(top, nn.Module) else top
        return f"VerticalStrategy(top={name}, parties={list(self.parties)}, classes={self.labels.classes})"


def _wrap_labels(labels: Tensor | NDArray[Any]) -> Labels:
    values = labels.numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if values.ndim != 1 or not (np.issubdtype(values.dtype, np.integer) or values.dtype == bool):
        raise DataError(f"labels must be whole numbers (N,), given {values.dtype} {values.shape}")
    return Labels(values, values[:0], max(2, int(values.max(initial=0)) + 1))


def is_simulation(grid: Grid) -> bool:
    """Say whether all parties of this grid run on one side of one trust boundary.

    The label party decides this by itself, from the grid in its own process: nothing that comes from a node or from
    the run config may, because in a simulation secrets derive from the seed.
    """
    return getattr(grid, "simulation", False) or type(grid).__name__ == "InMemoryGrid"


def replaces_nodes(grid: Grid) -> bool:
    """Say whether a node that died can come back: Flower's simulation runtime does not replace its process."""
    return getattr(grid, "simulation", False) or not is_simulation(grid)


def schedule_of(config: Config, rows: int, test_rows: int, epochs: int = 0) -> Schedule:
    """Return the schedule that a configuration means for tables of these lengths."""
    training = config.training
    return Schedule(
        config.shared_seed,
        rows,
        test_rows,
        training.batch_size,
        training.eval_batch_size,
        epochs or training.epochs,
        training.validation,
    )


def optimizers_of(
    config: Config, module: nn.Module, schedule: Schedule, factory: OptimizerFactory | None = None
) -> Optimizers | OwnOptimizer:
    """Return the optimizers of one party's model: those that the configuration means, or the user's own."""
    if factory is not None:
        return OwnOptimizer(module, factory(module, config))
    training = config.training
    return Optimizers(
        module,
        training.optimizer,
        learning_rate=training.learning_rate,
        weight_decay=training.weight_decay,
        schedule=training.schedule,
        steps=schedule.steps,
    )


def run_training(
    strategy: HookedStrategy,
    grid: Grid,
    initial_arrays: ArrayRecord | None,
    epochs: int,
    timeout: float,
    evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
) -> VerticalResult:
    """Open the sessions, train, evaluate, collect the reports; `strategy` is the outermost one and its hooks run."""
    base, simulation = strategy.base, is_simulation(grid)
    config = base.config
    if base._secret is None and simulation:
        base._secret = Secret.for_simulation(config.seed, "label")
    schedule = schedule_of(config, len(base.labels.train), len(base.labels.test), epochs)
    prepared, log = strategy.prepare_labels(torch.from_numpy(base.labels.train))
    strategy.summary()
    outcome, result = base.outcome, VerticalResult(outcome=base.outcome)
    with Sessions(grid, base.parties, config.transport, simulation=simulation, offer=base.offer) as sessions:
        base.session = sessions.session
        links = sessions.open(lambda link: check_fit(link, config, schedule, base.alignment))
        base.widths = {party: int(np.prod(link.shape)) for party, link in links.items()}
        label = base.label_party = _build_label_party(strategy, prepared.numpy(), schedule, links, initial_arrays)
        monitor = _build_monitor(strategy)
        audits = base.attacks and simulation and config.attack.audit
        audited = config.parties.attackers or list(links) if audits else []

        def after_epoch(epoch: int) -> None:
            result.evaluate_metrics_serverapp[epoch] = MetricRecord(dict(outcome.epochs[-1]))
            if evaluate_fn is not None:
                evaluate_fn(epoch, ArrayRecord(dict(label.top.state_dict())))

        training = Training(
            label,
            links,
            schedule,
            (base.labels.train, base.labels.test),
            base.labels.classes,
            config,
            monitor=monitor,
            observer=base.observer,
            outcome=outcome,
            oracle=Oracle(base.watching, AuditLabels.of(base.labels.train), config.attack.every),
            audited=audited,
            sample=_sample(base),
        )
        _log_preparation(base, log)
        checkpointing = _build_checkpointing(strategy, schedule, links, {MODEL: label, "training": training}, monitor)
        resumed = checkpointing is not None and base.resume and checkpointing.resume()
        if resumed:
            for done in outcome.epochs:
                result.evaluate_metrics_serverapp[int(done["epoch"])] = MetricRecord(dict(done))
        elif audited:
            test = any(isinstance(attack, InferenceAttack) for attack in base.attacks)
            send_audit({party: links[party] for party in audited}, base.labels, test=test)
        known = outcome.in_flight if resumed else 0
        outcome.in_flight = agree(label, links, schedule.batch_rows(0), config.transport, known=known)
        if checkpointing is not None and not resumed:
            checkpointing.save(0)
        rejoining = Rejoining(sessions, checkpointing if replaces_nodes(grid) else None)
        limit = LeakLimit(training, schedule, links, checkpointing, timeout=config.transport.step_timeout)
        try:
            rejoining.train(
                lambda: limit.train(after_epoch, None if checkpointing is None else checkpointing.save),
                lambda: tell(links, outcome.in_flight, config.transport),
            )
            if monitor is not None and training.test_embeddings:
                _read_trained(base, monitor, training)
        finally:
            outcome.leakage = monitor.entries() if monitor is not None else []
            outcome.weights = "" if outcome.model_step is None else label.weights
            if training.sampled:
                base.observer.on_embeddings(_labelled(strategy, training))
        rejoining.finish(timeout, limit.tell)
        for party in links:
            _add_report(outcome, party, sessions.reports[party])
    result.arrays = ArrayRecord() if outcome.model_step is None else ArrayRecord(dict(label.top.state_dict()))
    return result


def _add_report(outcome: Outcome, party: str, report: Frame) -> None:
    outcome.reports[party] = read_report(party, report)
    outcome.leakage = [*outcome.reports[party].get("leakage", []), *outcome.leakage]


def _log_preparation(base: VerticalStrategy, log: Log) -> None:
    for metric, value in log.items():
        base.observer.add(step=0, epoch=0, party="label", layer="", attack="", metric=metric, value=value)


def _build_label_party(
    strategy: HookedStrategy,
    prepared: NDArray[Any],
    schedule: Schedule,
    links: dict[str, Link],
    initial_arrays: ArrayRecord | None,
) -> LabelParty:
    base, config = strategy.base, strategy.base.config
    probe = None if base.table is None else (base.table.train, schedule.train_batch(0)[:2])
    top, bottom = build_models(base, [link.shape for link in links.values()], probe)
    if initial_arrays is not None:
        top.load_state_dict(initial_arrays.to_torch_state_dict())
    modules = nn.ModuleDict({"top": top, **({} if bottom is None else {"bottom": bottom})})
    return LabelParty(
        top,
        optimizers_of(config, modules, schedule, base.optimizer),
        prepared,
        strategy,
        schedule,
        base.parties,
        bottom=bottom,
        table=base.table,
        fusion=config.model.fusion,
        clip_norm=config.training.clip_norm,
        keep_clean=bool(base.watching),
        snapshots=config.attack.snapshots,
        device=config.device,
    )


def build_models(
    base: VerticalStrategy, shapes: list[tuple[int, ...]], probe: tuple[FeatureSource, Rows] | None
) -> tuple[nn.Module, nn.Module | None]:
    """Build the label party's top model and, where it has columns, its bottom model.

    Parameters
    ----------
    base : VerticalStrategy
        What makes them.
    shapes : list of tuple
        Of one row of each feature party's embedding.
    probe : tuple, optional
        Columns of the label party, and rows of them that tell the shape of its own embedding.
    """
    config, bottom = base.config, None
    if base.bottom is not None and probe is not None:
        with seeded_initialisation(base.secret.seed("weights", "bottom")):
            bottom = base.bottom().to(config.device)
        shapes = [*shapes, embedding_shape(embed(bottom, *probe, config.device), "the label party")]
    if not shapes:
        raise ConfigError("nobody has features: name feature parties or let the label party use its own columns")
    top = base.top
    if not isinstance(top, nn.Module):
        with seeded_initialisation(base.secret.seed("weights", "top")):
            top = top(fused_shape(shapes, config.model.fusion))
    return top.to(config.device), bottom


def _build_monitor(strategy: HookedStrategy) -> LeakageMonitor | None:
    base, attack = strategy.base, strategy.base.config.attack
    if not base.attacks or not attack.monitor:
        return None
    return LeakageMonitor(
        [*base.parties, *base.config.parties.coalitions(base.parties)],
        base.attacks,
        AuditLabels.of(base.labels.train),
        defended=bool(strategy.chain()),
        recorder=base.observer,
        every=attack.every,
    )


def _read_trained(base: VerticalStrategy, monitor: LeakageMonitor, training: Training) -> None:
    """Let the monitor read labels from what the trained bottom models gave for the test rows."""
    outcome = training.outcome
    monitor.read_trained(
        training.test_embeddings,
        base.labels.test,
        base.labels.classes,
        partial(base.secret.seed, "attacks"),
        step=outcome.steps,
        epoch=len(outcome.epochs),
    )


def _build_checkpointing(
    strategy: HookedStrategy,
    schedule: Schedule,
    links: dict[str, Link],
    parts: dict[str, Stateful],
    monitor: LeakageMonitor | None,
) -> Checkpointing | None:
    base = strategy.base
    if base.ledger is None or base.config.checkpoint.every < 0:
        return None
    parts |= {f"defense {position}": defense for position, defense in enumerate(strategy.chain())}
    parts |= {} if monitor is None else {"monitor": monitor}
    timeout = base.config.transport.step_timeout
    return Checkpointing(base.ledger, links, parts, schedule=schedule, recorder=base.observer, timeout=timeout)


def _sample(base: VerticalStrategy) -> Rows:
    """Draw the test rows of which the label party keeps embeddings, for its own report."""
    generator = np.random.default_rng(base.secret.seed("embeddings"))
    return sample_rows(base.labels.test, base.config.attack.embeddings, generator=generator)


@torch.no_grad()
def _labelled(strategy: HookedStrategy, training: Training) -> list[Embeddings]:
    """Return the embeddings that were kept, with their labels; also as read, where a defense changes them before."""
    rows, labels = training.sample, strategy.base.labels.test[training.sample].astype(np.int64)
    found = []
    for party, z in training.sampled.items():
        read, _ = strategy.embed(z.to(strategy.base.config.device))
        views = {RECEIVED: z} if torch.equal(read.to(z), z) else {RECEIVED: z, READ: read}
        found += [Embeddings(party, view, rows, labels, compact(tensor)) for view, tensor in views.items()]
    return found
