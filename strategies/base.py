"""The base classes of the label party's strategies: the hooks of a defense, and `start` that drives them.

A defense wraps a strategy, overrides one or more hooks and delegates the rest. `start` is called on the
outermost strategy and drives its hooks; a wrapper never delegates it, or the outer hooks would not run. The hooks of
starts and ends are called on every strategy, so that no wrapper can withhold them from an inner one.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor, nn

from flower_vfl.accounting import Guarantee
from flower_vfl.auditing.verdict import UNDEFENDED
from flower_vfl.errors import ConfigError
from flower_vfl.parties.hooks import Cut, Log, StepView
from flower_vfl.protocol.schedule import Rows
from flower_vfl.rng import Keystream

if TYPE_CHECKING:
    from flower_vfl.auditing.noise import NoiseModel
    from flower_vfl.strategies.vertical import VerticalStrategy

_log = logging.getLogger(__name__)


class HookedStrategy(Strategy):
    """A label party's strategy: the hooks that defenses override, and Flower's interface."""

    @property
    @abstractmethod
    def base(self) -> VerticalStrategy:
        """The innermost strategy, which holds model, loss and labels."""

    @property
    def hook_targets(self) -> list[HookedStrategy]:
        """All strategies, innermost first: `begin`, `build`, `begin_batch` and the hooks that end call each of them."""
        return [self.base, *reversed(self.chain())]

    @cached_property
    def modules(self) -> nn.ModuleDict:
        """The modules that the defense trains; empty until `build` adds some."""
        return nn.ModuleDict()

    @property
    def other_labels(self) -> bool:
        """True if a defense uses the gradients that other labels would give (`StepView.gradients_of`)."""
        return any(type(defense).asks_other_labels for defense in self.chain())

    @property
    def changes_gradients(self) -> bool:
        """True if a defense changes gradients before they are sent (`protect`), not only labels or losses."""
        return any(defense.writes("protect") for defense in self.chain())

    def begin(self) -> None:
        """Do slow preparations once, before any party is admitted: no party waits for them in the first step."""

    def build(self, cut: Cut, device: torch.device) -> None:
        """Make the parts that need the shapes of the embeddings; `cut` gives the shape of one row of each party's.

        It is called when the parties have reported their shapes, before the first step and before a prediction.
        """

    def begin_batch(self, rows: Rows) -> None:
        """Record the rows (B,) of the training table for the next calls of the other hooks."""

    @abstractmethod
    def prepare_labels(self, labels: Tensor) -> tuple[Tensor, Log]:
        """Change the training labels (N,), once, before training."""

    @abstractmethod
    def embed(self, z: Tensor, *, party: str = "", train: bool = True) -> tuple[Tensor, Log]:
        """Change the received embedding of one party, (B, ...), in training or in a prediction."""

    @abstractmethod
    def loss(self, logits: Tensor, labels: Tensor, z: Tensor) -> tuple[Tensor, Log]:
        """Return the loss of a batch; `z` is (B, D), all feature parties' embeddings side by side.

        Logits are (B,) for two classes and (B, C) for more; of an ensemble those of each member, (B, M) or (B, M, C).
        """

    def private_loss(self, z: Tensor, true_labels: Tensor, rows: Rows) -> Tensor | None:
        """Return a loss of true labels that trains this defense's `modules` and nothing else; None by default.

        A class with such a loss has modules for it alone: a training ends with an error if the loss of the hook `loss`
        reaches them, since outgoing gradients would then depend on true labels. They have an optimizer and clipping of
        their own. This hook is called on each defense by itself, and is not delegated.

        Parameters
        ----------
        z : Tensor
            (B, D) embeddings of all feature parties and of the label party's own bottom model side by side, each as
            `embed` returned it, without their graph.
        true_labels, rows : Tensor, Rows
            (B,) labels as they were before `prepare_labels`, and rows of the training table.
        """
        return None

    @abstractmethod
    def predict(self, z: Tensor) -> Tensor | None:
        """Return the logits (B,) or (B, C) of a prediction; None to use those of the shared top model.

        `z` is (B, D), as in `private_loss`, of any rows.
        """

    @abstractmethod
    def protect(self, grads: Tensor, labels: Tensor, step: StepView | None = None) -> tuple[Tensor, Log]:
        """Change the cut gradients of all feature parties, (B, D), before they are sent.

        Parameters
        ----------
        grads, labels : Tensor
            (B, D) gradients of all parties side by side, and (B,) prepared labels.
        step : StepView, optional
            The label party's view of the step; without it the shapes of `build` and the rows of `begin_batch` are used.
        """

    def end_batch(self) -> Log:
        """End a batch, whose gradients are final; return its log entries."""
        return {}

    def end_epoch(self) -> Log:
        """End an epoch; return the log entries on the epochs so far."""
        return {}

    def bound(self) -> float:
        """Return the bound, by the defense's model, on the leak AUC of all gradients sent in the epochs so far.

        It covers each step by itself and all releases of a row together, all colluding parties, and attacks without
        other information on a row; 1 means that there is none.
        """
        return 1.0

    def guarantee(self) -> Guarantee | None:
        """Return the proven privacy of everything sent in a training of this configuration; None without a proof."""
        return None

    def check_bound(self, epochs: int) -> None:
        """Refuse a run for which `bound` would give no bound until its end; called again when `widths` are known.

        Raises
        ------
        ConfigError
            Always, unless a defense overrides this method; the message names the alternatives.
        """
        raise ConfigError(
            "attack.max_bound is a limit of what a defense promises of all epochs, and none here promises that: take "
            "one that does, such as marvell, or attack.max_leak, a limit of what attacks measure"
        )

    @abstractmethod
    def chain(self) -> list[Defense]:
        """Return the defenses, outermost first."""

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 0,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Train with every feature party that `grid` reaches; a strategy is for one run.

        Parameters
        ----------
        grid : Grid
            Flower's grid.
        initial_arrays : ArrayRecord, optional
            Weights of the top model to start from; refused where a defense has a proof.
        num_rounds : int
            Number of epochs; 0 for the configured one.
        timeout : float
            Seconds to wait for the parties' last reports.
        train_config, evaluate_config : ConfigRecord, optional
            Must be empty: the parties' configuration is the run config.
        evaluate_fn : Callable, optional
            Called with the epoch and the top model's weights after each epoch.

        Returns
        -------
        Result
            Flower's result; `outcome` holds utility, leakage and cost.

        Raises
        ------
        ConfigError
            When the strategy was trained before, does not fit the data or the parties, or is given weights that its
            defense's proof excludes.
        """
        from flower_vfl.training.run import TrainingRun

        if train_config or evaluate_config:
            raise ConfigError("train_config and evaluate_config must be empty; parties read Flower's run config")
        return TrainingRun(self, grid).execute(initial_arrays, num_rounds, timeout, evaluate_fn)

    def summary(self) -> None:
        """Log the strategy and its defenses as a tree, outermost first."""
        defenses = self.chain()
        _log.info("strategy:")
        for depth, defense in enumerate(defenses):
            _log.info("  %s└─ %r", "   " * depth, defense)
        _log.info("  %s└─ %r", "   " * len(defenses), self.base)
        if not self.base.config.training.gradients:
            _log.info("no gradient is sent: nothing that depends on labels leaves the label party")
        elif not defenses:
            _log.warning("no defense is in force: cut gradients go out as they are, and they leak labels")

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return no message: training happens in sessions, not in Flower's rounds."""
        return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate nothing: there is one model, and its parts stay where they are."""
        return None, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return no message: evaluation happens in sessions."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Aggregate nothing."""
        return None


class Defense(HookedStrategy):
    """A wrapper around a strategy; it delegates every hook that a subclass does not override.

    Parameters
    ----------
    strategy : HookedStrategy
        The wrapped strategy.

    Attributes
    ----------
    name
        Its name in configurations and results.
    two_classes_only
        True if it is for labels of two classes only; others are refused.
    twice
        The alternative to wrapping a strategy in this defense twice; empty if that is allowed.
    alone
        True if it is refused together with any other defense, which would break its guarantee.
    asks_other_labels
        True if it calls `step.gradients_of`: a step then keeps the graph to compute gradients once more.
    modules
        Its trainable modules, made in `build`, where weights derive from the label party's secret. They are moved to
        the device, trained by an optimizer of their own and clipped by themselves, saved in checkpoints and with the
        weights, and restored for a prediction.
    scope
        "per-party" if each party's gradients are perturbed by themselves, "joint" otherwise.
    read_by
        Names of attacks that are known to read labels in spite of this defense. The verdict on a run without them
        is "not tested", unless it found a leak anyway. By default the attacks on gradients without noise.
    """

    name: ClassVar[str]
    read_by: ClassVar[tuple[str, ...]] = UNDEFENDED
    two_classes_only: ClassVar[bool] = False
    twice: ClassVar[str] = ""
    asks_other_labels: ClassVar[bool] = False
    alone: ClassVar[bool] = False
    scope: str = "joint"

    def __init__(self, strategy: HookedStrategy) -> None:
        if not isinstance(strategy, HookedStrategy):
            raise ConfigError(f"{type(self).__name__} wraps a VerticalStrategy or another defense, given {strategy!r}")
        classes = strategy.base.labels.classes
        if self.two_classes_only and classes != 2:
            raise ConfigError(
                f"{self.name} hides two classes, this data has {classes}; these take any number: "
                f"{_for_many_classes(self)}"
            )
        others = [inner.name for inner in strategy.chain() if inner.alone or self.alone]
        if others and self.name not in others:
            raise ConfigError(
                f"{self.name} and {others[0]} do not go together: what one of them promises would no longer hold with "
                "the other; take one"
            )
        if self.twice and any(inner.name == self.name for inner in strategy.chain()):
            raise ConfigError(f"{self.name} is given twice: {self.twice}")
        self.strategy = strategy
        self._generator: torch.Generator | None = None
        self._purpose: tuple[str | int, ...] = ()

    @property
    def base(self) -> VerticalStrategy:
        """The innermost strategy."""
        return self.strategy.base

    @property
    @abstractmethod
    def params(self) -> dict[str, Any]:
        """The defense's parameters as written to `result.json`."""

    def writes(self, hook: str) -> bool:
        """Return True if the class overrides the hook, so that it is not delegated."""
        return getattr(type(self), hook) is not getattr(Defense, hook)

    def noise_model(self, part: int = 0) -> NoiseModel | None:
        """Return the distribution of the noise in the last batch of `protect`; None if it is unknown.

        With one, a defense is also measured, in a simulation, by a conditional oracle: a reader with all information on
        a row but its label (docs/methods/certificate.md).

        Parameters
        ----------
        part : int
            Number of the party, if each has noise of its own.
        """
        return None

    def generator(self, device: torch.device) -> torch.Generator:
        """Return the defense's own generator, which derives from the label party's secret."""
        if self._generator is None or self._generator.device != device:
            depth = len(self.strategy.chain())
            purpose = ("defense", self.name, depth, *self._purpose)
            self._generator = self.base.secret.generator(*purpose, device=str(device))
        return self._generator

    def keystream(self, labels: Tensor, *purpose: str) -> Keystream:
        """Return the random numbers of a draw on these labels (N,) that is made once, for `prepare_labels`.

        A training that is resumed, or repeated with the same secret, draws the same again. Other labels, or other
        people, get other numbers: with the same ones, two results would show which labels differ.

        Parameters
        ----------
        labels : Tensor
            (N,) the labels that are randomised.
        *purpose : str
            Settings that determine the draw, such as its strength.
        """
        given = labels.cpu().numpy().astype("<i8").tobytes()
        return self.base.secret.keystream("defense", self.name, *purpose, self.base.alignment).of(given)

    @contextmanager
    def drawing_from(self, generator: torch.Generator) -> Generator[None]:
        """Draw from another generator within the context; the defense's own one does not advance."""
        before, self._generator = self._generator, generator
        try:
            yield
        finally:
            self._generator = before

    @property
    def counts_steps(self) -> bool:
        """True if its proof counts each step once, so that a repeated step must not draw noise again."""
        guarantee = self.guarantee()
        return guarantee is not None and not guarantee.accounted.kept

    def reseed(self, *purpose: str | int) -> None:
        """Derive all further draws from the secret and this purpose, not from earlier draws."""
        self._generator, self._purpose = None, purpose

    def void_bound(self) -> None:
        """Record that a step has sent two different gradients: from then on `bound` must be 1."""

    def state(self) -> dict[str, Any]:
        """Return the state that a resumed run needs, as plain values and tensors; a subclass adds its own.

        It holds the state of the generator. A restarted generator would repeat the noise of earlier steps, and an
        attacker can subtract two gradients with the same noise. So a state is as secret as the noise itself.
        """
        purpose = {"purpose": list(self._purpose)} if self._purpose else {}
        if self._generator is None:
            return purpose
        return {**purpose, "device": str(self._generator.device), "generator": self._generator.get_state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned."""
        self.reseed(*state.get("purpose", ()))
        if "generator" in state:
            self.generator(torch.device(state["device"])).set_state(state["generator"])

    def prepare_labels(self, labels: Tensor) -> tuple[Tensor, Log]:  # noqa: D102
        return self.strategy.prepare_labels(labels)

    def embed(self, z: Tensor, *, party: str = "", train: bool = True) -> tuple[Tensor, Log]:  # noqa: D102
        return self.strategy.embed(z, party=party, train=train)

    def loss(self, logits: Tensor, labels: Tensor, z: Tensor) -> tuple[Tensor, Log]:  # noqa: D102
        return self.strategy.loss(logits, labels, z)

    def predict(self, z: Tensor) -> Tensor | None:  # noqa: D102
        return self.strategy.predict(z)

    def protect(self, grads: Tensor, labels: Tensor, step: StepView | None = None) -> tuple[Tensor, Log]:  # noqa: D102
        return self.strategy.protect(grads, labels, step)

    def bound(self) -> float:  # noqa: D102
        return self.strategy.bound()

    def check_bound(self, epochs: int) -> None:  # noqa: D102
        self.strategy.check_bound(epochs)

    def chain(self) -> list[Defense]:  # noqa: D102
        return [self, *self.strategy.chain()]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self.params.items())})"


def _for_many_classes(defense: Defense) -> str:
    """Return the names of the built-in defenses of the same kind that take any number of classes."""
    from flower_vfl.strategies import DEFENSES, GradientDefense

    kind = GradientDefense if isinstance(defense, GradientDefense) else Defense
    able = (name for name, other in DEFENSES.items() if issubclass(other, kind) and not other.two_classes_only)
    return ", ".join(sorted(able))
