"""The interfaces of strategies and defenses on which a training run depends, instead of their classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flower_vfl.accounting import Guarantee
from flower_vfl.attacks import Attack, MemoryAttack
from flower_vfl.attacks.base import AttackMethod
from flower_vfl.auditing.audit_labels import AuditLabels
from flower_vfl.auditing.canaries import Canaries
from flower_vfl.auditing.noise import NoiseModel
from flower_vfl.config import Config
from flower_vfl.data.store.dataset import Labels, PartyTable
from flower_vfl.data.store.periods import Periods
from flower_vfl.parties.hooks import Cut, Hooks, Log
from flower_vfl.protocol.schedule import Rows
from flower_vfl.rng import Secret
from flower_vfl.training.factories import OptimizerFactory
from flower_vfl.training.observer import Observer
from flower_vfl.training.outcome import Outcome


class TrainedStrategy(Hooks, Protocol):
    """A strategy that can be trained: the hooks of each step, and those of the start and the end."""

    @property
    def base(self) -> StrategySettings:
        """The innermost strategy."""

    @property
    def hook_targets(self) -> Sequence[TrainedStrategy]:
        """All strategies, innermost first."""

    @property
    def changes_gradients(self) -> bool:
        """True if a defense changes gradients before they are sent."""

    def chain(self) -> Sequence[TrainedDefense]:
        """Return the defenses, outermost first."""

    def begin(self) -> None:
        """Do slow preparations."""

    def build(self, cut: Cut, device: torch.device) -> None:
        """Make the parts that need the shapes of the embeddings."""

    def prepare_labels(self, labels: Tensor) -> tuple[Tensor, Log]:
        """Change the training labels (N,)."""

    def check_bound(self, epochs: int) -> None:
        """Refuse a run for which `bound` would give no bound until its end."""

    def summary(self) -> None:
        """Log the strategy and its defenses."""


class TrainedDefense(TrainedStrategy, Protocol):
    """A defense of a strategy that can be trained."""

    name: ClassVar[str]
    read_by: ClassVar[tuple[str, ...]]
    scope: str

    @property
    def params(self) -> dict[str, Any]:
        """Its parameters."""

    @property
    def counts_steps(self) -> bool:
        """True if its proof counts each step once."""

    def guarantee(self) -> Guarantee | None:
        """Return the proven privacy of everything that is sent; None without a proof."""

    def writes(self, hook: str) -> bool:
        """Return True if its class overrides the hook; otherwise it delegates."""

    def noise_model(self, part: int = 0) -> NoiseModel | None:
        """Return the distribution of the noise in the last batch; None if it is unknown."""

    def drawing_from(self, generator: torch.Generator) -> AbstractContextManager[None]:
        """Draw from another generator within the context."""

    def reseed(self, *purpose: str | int) -> None:
        """Derive all further draws from the secret and this purpose."""

    def void_bound(self) -> None:
        """Record that a step has sent two different gradients."""

    def state(self) -> dict[str, Any]:
        """Return the state that a resumed run needs."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned."""


class StrategySettings(TrainedStrategy, Protocol):
    """The innermost strategy, which holds the user's model, labels and configuration."""

    labels: Labels
    config: Config
    parties: tuple[str, ...]
    top: nn.Module | Callable[[tuple[int, ...]], nn.Module]
    bottom: Callable[[], nn.Module] | None
    table: PartyTable | None
    alignment: str
    periods: Periods | None
    optimizer: OptimizerFactory | None
    observer: Observer
    outcome: Outcome
    canaries: Canaries

    def plant_canaries(self, rows: Rows) -> None:
        """Replace labels of some of the training rows (n,) by random ones (canaries)."""

    @property
    def attacks(self) -> Sequence[AttackMethod]:
        """All attacks of the run."""

    @property
    def step_attacks(self) -> list[Attack]:
        """The attacks that score gradients during training."""

    @property
    def longitudinal_attacks(self) -> list[MemoryAttack]:
        """The attacks that score after each epoch."""

    @property
    def audit_labels(self) -> AuditLabels:
        """The true labels, for measuring attacks."""

    @property
    def widths(self) -> dict[str, int]:
        """The width of each feature party's part of the cut."""

    @property
    def secret(self) -> Secret:
        """The label party's root of randomness."""

    def claim(self, secret: Secret | None) -> None:
        """Take the strategy for its only training run; `secret` is its root of randomness if none was given or used."""

    @property
    def prepared(self) -> NDArray[np.int64]:
        """The training labels (N,)."""
