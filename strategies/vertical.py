"""`VerticalStrategy`: the label party's Flower strategy. It holds the top model, the loss and the labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flower_vfl.attacks import Attack, InferenceAttack, JointAttack, MemoryAttack, make_attacks
from flower_vfl.auditing.audit_labels import AuditLabels
from flower_vfl.auditing.canaries import NO_CANARIES, Canaries
from flower_vfl.auditing.evaluator import check_side_information
from flower_vfl.auditing.joint import check_joint_attacks
from flower_vfl.auditing.longitudinal import check_memory_attacks
from flower_vfl.auditing.trained_model import check_trained_attacks
from flower_vfl.config import Config
from flower_vfl.data.encoding.ids import id_numbers
from flower_vfl.data.encoding.labels import whole_labels
from flower_vfl.data.store.dataset import Labels, PartyTable
from flower_vfl.data.store.periods import Periods
from flower_vfl.errors import ConfigError
from flower_vfl.parties.hooks import Cut, Log, StepView
from flower_vfl.protocol.schedule import Rows
from flower_vfl.rng import Secret
from flower_vfl.strategies.base import Defense, HookedStrategy
from flower_vfl.training.factories import OptimizerFactory
from flower_vfl.training.observer import Observer
from flower_vfl.training.outcome import Outcome

FusedTopFactory = Callable[[tuple[int, ...]], nn.Module]
"""Function that makes the top model for the shape of one row of the fused embedding."""


class VerticalStrategy(HookedStrategy):
    """The label party's strategy without any defense; defenses wrap it.

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
    periods : Periods, optional
        The days of the rows, for `training.order = "time"`; each party must have the same.
    ids : Iterable[str], optional
        The IDs of the training rows in their order, all different, which persistent noise follows; read once,
        before training, and only if there is such noise. Without them it follows the number of the row.
    optimizer : Callable[[nn.Module, Config], torch.optim.Optimizer], optional
        Function that makes the label party's optimizer, in place of the configured one.
    secret : Secret, optional
        The label party's root of randomness; by default that of this host, in a simulation one from the seed.
    observer : Observer, optional
        Receives the progress of training.
    outcome : Outcome, optional
        The outcome, which training fills.

    Examples
    --------
    >>> strategy = VerticalStrategy(top=nn.Linear(4, 1), labels=torch.tensor([0, 1, 1]))
    >>> strategy.protect(torch.ones(2, 4), torch.tensor([0, 1]))[0].shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        top: nn.Module | FusedTopFactory,
        labels: Labels | Tensor | NDArray[Any],
        *,
        parties: Sequence[str] = ("a",),
        config: Config | None = None,
        bottom: Callable[[], nn.Module] | None = None,
        table: PartyTable | None = None,
        alignment: str = "",
        periods: Periods | None = None,
        ids: Iterable[str] | None = None,
        optimizer: OptimizerFactory | None = None,
        secret: Secret | None = None,
        observer: Observer | None = None,
        outcome: Outcome | None = None,
    ) -> None:
        self.labels = labels if isinstance(labels, Labels) else _wrap_labels(labels)
        self.config = (config or Config()).fitted(len(self.labels.train))
        self.parties = tuple(parties)
        self.top, self.bottom, self.table = top, bottom, table
        self.alignment, self.periods = alignment, periods
        self.optimizer = optimizer
        self.observer = observer or Observer()
        self.outcome = outcome or Outcome()
        self.cut: Cut = {}
        self._rows: Rows | None = None
        for key, named in self.config.parties.named.items():
            for name in set(named) - set(self.parties):
                raise ConfigError(f"{key} names {name!r}; feature parties are {', '.join(self.parties)}")
        self.attacks = make_attacks(self.config.attack.calls)
        self._check_attacks()
        self._secret = secret
        self._claimed = False
        self._ids = ids
        self._class_weights: Tensor | None = None
        self._prepared: NDArray[Any] | None = None
        self.canaries = NO_CANARIES

    def _check_attacks(self) -> None:
        """Refuse attacks that do not apply to this data."""
        classes = self.labels.classes
        binary = [a.label for a in self.attacks if isinstance(a, InferenceAttack) and a.reads == "scores"]
        if binary and classes != 2:
            raise ConfigError(
                f"{', '.join(binary)} can tell two classes in embeddings, this data has {classes}; take clustering and "
                "model_completion, and any attack on gradients"
            )
        positives = self.config.attack.positives
        if not all(positive < classes for positive in positives):
            raise ConfigError(f"attack.positives is {positives}; classes of this data are 0 to {classes - 1}")
        if self.attacks and classes > AuditLabels.CLASSES:
            raise ConfigError(f"attacks read {AuditLabels.CLASSES} classes at most, this data has {classes}")
        scores = [*self.longitudinal_attacks, *(attack for attack in self.step_attacks if attack.reads == "scores")]
        if self.config.attack.max_leak < 1.0 and not scores:
            raise ConfigError(
                "attack.max_leak is measured by attacks on the gradients of training: name one, such as norm"
            )
        audit, counts = self.audit_labels, np.bincount(self.labels.train.astype(np.int64), minlength=classes)
        check_memory_attacks(self.longitudinal_attacks, audit, repeats=self.config.training.order != "time")
        check_joint_attacks(self.attacks, audit.numbers == audit.positive(0), audit.positives)
        check_side_information(
            self.step_attacks,
            positives=min(int(counts[audit.positive(turn)]) for turn in range(classes)),
            batch_size=self.config.training.batch_size,
        )
        check_trained_attacks(
            [attack for attack in self.attacks if not isinstance(attack, Attack | MemoryAttack | JointAttack)],
            self.labels.train,
            classes=classes,
            test_rows=len(self.labels.test),
        )

    @property
    def prepared(self) -> NDArray[Any]:
        """The training labels (N,): the prepared ones, or before their preparation the true ones."""
        return self.labels.train if self._prepared is None else self._prepared

    @property
    def audit_labels(self) -> AuditLabels:
        """The true labels, for measuring attacks."""
        return AuditLabels.of(self.labels.train, classes=self.labels.classes, positives=self.config.attack.positives)

    @property
    def step_attacks(self) -> list[Attack]:
        """The attacks that score gradients during training."""
        return [attack for attack in self.attacks if isinstance(attack, Attack)]

    @property
    def longitudinal_attacks(self) -> list[MemoryAttack]:
        """The longitudinal attacks, which score after each epoch."""
        return [attack for attack in self.attacks if isinstance(attack, MemoryAttack)]

    @property
    def periods_in_order(self) -> Periods | None:
        """The periods, if training is in time order; otherwise None."""
        return self.periods if self.config.training.order == "time" else None

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

    def claim(self, secret: Secret | None) -> None:
        """Take the strategy for its only training run; `secret` is its root of randomness if none was given or used.

        Raises
        ------
        ConfigError
            When it was taken before: defenses, with their noise and accounts, and the outcome would go on with those of
            the earlier run.
        """
        if self._claimed:
            raise ConfigError(
                "this strategy was trained before, and its outcome and defenses would go on with what they have from "
                "that run: make a new VerticalStrategy, with new defenses, for each run"
            )
        self._claimed = True
        self._secret = self._secret or secret

    def plant_canaries(self, rows: Rows) -> None:
        """Replace labels of some of the training rows (n,) by random ones (canaries), in the configured number.

        Afterwards these are the labels, for training and for every measurement.

        Raises
        ------
        ConfigError
            When there are too few rows for this number.
        """
        count, classes = self.config.attack.canaries, self.labels.classes
        if count:
            self.canaries = Canaries.draw(rows, count, classes, self.secret)
            self.labels = Labels(self.canaries.into(self.labels.train), self.labels.test, classes)

    @property
    def follows_ids(self) -> bool:
        """True if persistent noise follows the IDs of rows; otherwise it follows their numbers in the table."""
        return self._ids is not None

    @cached_property
    def _numbers(self) -> NDArray[np.uint64] | None:
        """Numbers that identify the training rows, (N,), derived from their IDs."""
        if self._ids is None:
            return None
        return id_numbers(self._ids, len(self.labels.train), self.secret.key("ids"))

    def identities(self, rows: Rows) -> NDArray[np.uint64]:
        """Return the numbers (B,) that identify rows for persistent noise: from their IDs, or else their row numbers.

        Raises
        ------
        DataError
            At the first call, when there are more or fewer IDs than training rows, or one occurs twice.
        """
        return rows.astype(np.uint64) if self._numbers is None else self._numbers[rows]

    def chain(self) -> list[Defense]:
        """Return an empty list: no defense is in force."""
        return []

    @property
    def widths(self) -> dict[str, int]:
        """The width of each feature party's part of the cut; empty until `build` has received its shape."""
        return {party: math.prod(shape) for party, shape in self.cut.items()}

    @property
    def step(self) -> StepView:
        """The view of a step with its rows and the cut only."""
        return StepView(self._rows, self.widths)

    def build(self, cut: Cut, device: torch.device) -> None:
        """Record the shapes of the embeddings."""
        self.cut = dict(cut)

    def begin_batch(self, rows: Rows) -> None:
        """Record the rows (B,) of the next batch."""
        self._rows = rows

    def prepare_labels(self, labels: Tensor) -> tuple[Tensor, Log]:
        """Return the labels unchanged, and record them and the weights of the classes."""
        self._prepared = labels.cpu().numpy()
        if self.config.training.class_weights == "balanced":
            self._class_weights = balanced_weights(labels, self.labels.classes)
        return labels, {}

    def embed(self, z: Tensor, *, party: str = "", train: bool = True) -> tuple[Tensor, Log]:
        """Return the embedding unchanged."""
        return z, {}

    def loss(self, logits: Tensor, labels: Tensor, z: Tensor) -> tuple[Tensor, Log]:
        """Return the mean cross-entropy of the batch; of an ensemble's members, (B, M) or (B, M, C), their mean."""
        outputs, members = () if self.labels.classes == 2 else (self.labels.classes,), self.config.model.ensemble
        shape = (*labels.shape, *outputs)
        if members > 1 and logits.shape == (*labels.shape, members, *outputs):
            logits, labels = logits.flatten(0, 1), labels[:, None].expand(-1, members).flatten()
        elif logits.shape != shape:
            raise ConfigError(
                f"the top model gives logits {tuple(logits.shape)} for {len(labels)} rows of {self.labels.classes} "
                f"classes; {shape} is needed"
            )
        return label_loss(logits, labels, self._class_weights), {}

    def predict(self, z: Tensor) -> Tensor | None:
        """Return None, to use the shared top model."""
        return None

    def protect(self, grads: Tensor, labels: Tensor, step: StepView | None = None) -> tuple[Tensor, Log]:
        """Return the gradients unchanged."""
        return grads, {}

    def __repr__(self) -> str:
        top = self.top if isinstance(self.top, nn.Module) else getattr(self.top, "__name__", "factory")
        name = type(top).__name__ if isinstance(top, nn.Module) else top
        return f"VerticalStrategy(top={name}, parties={list(self.parties)}, classes={self.labels.classes})"


def balanced_weights(labels: Tensor, classes: int) -> Tensor:
    """Return the weights (C,) of classes with which each counts the same among labels (N,)."""
    counts = torch.bincount(labels.long(), minlength=classes).clamp(min=1)
    return len(labels) / (classes * counts.float())


def label_loss(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean cross-entropy of logits (B,) or (B, C) with labels (B,), and weights (C,) of classes."""
    weight = None if weights is None else weights.to(logits)[labels]
    if logits.dim() > 1:
        losses = nn.functional.cross_entropy(logits, labels, reduction="none")
        # Not divided by the weights of the batch: in a small one a rare class would then count no more than another.
        return (losses if weight is None else weight * losses).mean()
    return nn.functional.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), weight=weight)


def _wrap_labels(labels: Tensor | NDArray[Any]) -> Labels:
    values = whole_labels(labels)
    return Labels(values, values[:0], max(2, int(values.max(initial=0)) + 1))
