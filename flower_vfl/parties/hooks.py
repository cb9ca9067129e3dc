"""The hooks by which defenses change a training run, and their view of a step."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Protocol

from torch import Tensor, nn

from flower_vfl.errors import ConfigError
from flower_vfl.protocol.schedule import Rows

Log = dict[str, float]
Cut = Mapping[str, tuple[int, ...]]
"""The shape of one row of the embedding, by feature party."""


def checked_log(log: object, hook: str) -> Log:
    """Return the log entries of a defense's hook, as floats.

    Raises
    ------
    ConfigError
        If the log is no dictionary of numbers, or has a name of the training's own metrics.
    """
    if not isinstance(log, Mapping):
        raise ConfigError(f"a defense's `{hook}` wants {log!r} logged; a dictionary of numbers is needed")
    for name, value in log.items():
        if not isinstance(name, str) or isinstance(value, bool) or not isinstance(value, Real):
            raise ConfigError(
                f"a defense's `{hook}` wants {name!r} = {value!r} logged; a name and a number are needed: float(...) "
                "makes one"
            )
        if is_reserved(name):
            raise ConfigError(
                f"a defense's `{hook}` wants {name!r} logged, which is a name of the training's own metrics: log it "
                "under another one, as in 'my_defense.loss'"
            )
    return {name: float(value) for name, value in log.items()}


def is_reserved(name: str) -> bool:
    """Return True for names of the training's own metrics, which no defense may log."""
    return re.fullmatch(r"(epoch_)?(train|validation|next|test)_\w+|batch_(rows|positives)", name) is not None


def checked_pair(found: object, hook: str, of: str = "a defense") -> tuple[Tensor, Log]:
    """Return the tensor and the log that a hook of a defense returned.

    Raises
    ------
    ConfigError
        If it returned something else.
    """
    if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[0], Tensor):
        what = f"a tuple of {len(found)}" if isinstance(found, tuple) else f"a value of type {type(found).__name__}"
        first = f", the first of type {type(found[0]).__name__}" if isinstance(found, tuple) and found else ""
        raise ConfigError(
            f"{hook} of {of} returned {what}{first}; return a tensor and a dictionary of numbers to log, which "
            "may be empty"
        )
    tensor, log = found
    return tensor, checked_log(log, hook)


class Hooks(Protocol):
    """The hooks of a defense; each one also returns its log entries."""

    @property
    def hook_targets(self) -> Sequence[Hooks]:
        """All strategies, innermost first; each is called at the beginning and end of batches and epochs."""

    @property
    def other_labels(self) -> bool:
        """True if a defense uses, in `protect`, the gradients that other labels would give."""

    @property
    def modules(self) -> nn.ModuleDict:
        """The modules that a defense trains; empty where there are none."""

    def begin_batch(self, rows: Rows) -> None:
        """Set the rows (B,) of the training table for the next calls."""

    def embed(self, z: Tensor, *, party: str = "", train: bool = True) -> tuple[Tensor, Log]:
        """Change the received embedding of one party, (B, ...)."""

    def loss(self, logits: Tensor, labels: Tensor, z: Tensor) -> tuple[Tensor, Log]:
        """Return the loss; `z` is (B, D), all feature parties' embeddings side by side.

        The term that a defense adds is logged as ``<name of the defense>.term``.
        """

    def private_loss(self, z: Tensor, true_labels: Tensor, rows: Rows) -> Tensor | None:
        """Return the loss from which this defense's own modules learn; None where there is none."""

    def predict(self, z: Tensor) -> Tensor | None:
        """Return the logits of a prediction; None to use those of the shared top model."""

    def protect(self, grads: Tensor, labels: Tensor, step: StepView | None = None) -> tuple[Tensor, Log]:
        """Change the cut gradients of all feature parties, (B, D), before they leave."""

    def end_batch(self) -> Log:
        """Handle the end of a batch, whose gradients are final, and return its log entries."""

    def end_epoch(self) -> Log:
        """Handle the end of an epoch, and return the log entries of the epochs so far."""

    def bound(self) -> float:
        """Return the defenses' bound on the leak AUC of all gradients sent until the end of the last epoch."""


@dataclass(frozen=True, slots=True, eq=False)
class StepView:
    """One step at the label party, as the hooks of a defense see it; nothing of it leaves the label party.

    Attributes
    ----------
    rows : Rows or None
        (B,) rows of the training table; None where they are unknown.
    widths : Mapping[str, int]
        Width of each feature party's part of the cut, in the order in which gradients (B, D) lie side by side.
    logits : Tensor or None
        (B,) or (B, C) logits, detached.
    embeddings : Mapping[str, Tensor]
        (B, ...) received embedding of each feature party, detached.
    party : str
        The party with the gradients that a defense of scope "per-party" perturbs; empty where all are perturbed
        together.
    relabel : Callable[[Tensor], Tensor] or None
        Function that computes the result of `gradients_of`, for all parties.
    """

    rows: Rows | None = None
    widths: Mapping[str, int] = field(default_factory=dict)
    logits: Tensor | None = None
    embeddings: Mapping[str, Tensor] = field(default_factory=dict)
    party: str = ""
    relabel: Callable[[Tensor], Tensor] | None = None

    @property
    def part(self) -> int:
        """The number of the party that receives these gradients; 0 where they are perturbed together."""
        return list(self.widths).index(self.party) if self.party else 0

    def of(self, party: str) -> StepView:
        """Return the view of the same step for one party's gradients."""
        return replace(self, party=party)

    def gradients_of(self, labels: Tensor) -> Tensor:
        """Return the cut gradients (B, D) that other labels would give in this step, before any defense.

        They are clipped by the same rule as those of the batch's own labels: each by its own norm.

        Parameters
        ----------
        labels : Tensor
            (B,) class numbers, in the form of prepared labels.

        Raises
        ------
        ConfigError
            When the defense does not declare `asks_other_labels`, or there is no network behind this step.
        """
        if self.relabel is None:
            raise ConfigError(
                "step.gradients_of needs a class with `asks_other_labels = True`: the step then keeps what it takes to "
                "compute gradients once more; and it works within a training alone"
            )
        joint = self.relabel(labels)
        if not self.party:
            return joint
        low = sum(list(self.widths.values())[: self.part])
        return joint[:, low : low + self.widths[self.party]]
