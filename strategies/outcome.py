"""What a training gave, and how it is said to have ended; nothing here needs torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

LIMITS = {"leak": "leak limit", "bound": "bound limit"}
"""How a training is said to have ended that `attack.max_leak` or `attack.max_bound` stopped."""

MEASURED = (
    "epochs",
    "steps",
    "in_flight",
    "seconds",
    "seconds_compute",
    "seconds_wait",
    "bytes_up",
    "bytes_down",
    "logged",
    "together",
)
"""What of an outcome is measured step by step."""

Epoch = dict[str, float]
"""Metrics of a finished epoch."""


@dataclass(slots=True)
class Outcome:
    """What a training gave.

    Attributes
    ----------
    epochs : list[dict[str, float]]
        Metrics of each finished epoch; the key "epoch" counts from 1.
    steps : int
        Steps that were done.
    in_flight : int
        Steps that were under way at once.
    seconds, seconds_compute, seconds_wait : float
        Time in all, computing at the label party, and waiting for answers.
    bytes_up, bytes_down : int
        Bytes of frames handed to the transport.
    logged : dict[str, float]
        What the defenses' hooks logged, such as "marvell.fallback", summed over the steps.
    together : int
        Runs that were trained in one stack, this one included; the time is its share.
    stopped : str
        Why training ended: "finished", "early stopping", "leak limit" or "bound limit".
    kept : int or None
        After one of the limits: of which step the model is that everybody keeps; None for none.
    leakage : list[dict[str, Any]]
        Entries of `result.json`.
    reports : dict[str, dict[str, Any]]
        What each feature party reported at the end.
    weights : str
        Digest of the label party's weights.
    """

    epochs: list[Epoch] = field(default_factory=list)
    steps: int = 0
    in_flight: int = 1
    seconds: float = 0.0
    seconds_compute: float = 0.0
    seconds_wait: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    logged: dict[str, float] = field(default_factory=dict)
    together: int = 1
    stopped: str = ""
    kept: int | None = None
    leakage: list[dict[str, Any]] = field(default_factory=list)
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)
    weights: str = ""

    @property
    def model_step(self) -> int | None:
        """Of which step the model is that stays; None for none."""
        return self.kept if self.limited else self.steps

    @property
    def limited(self) -> bool:
        """Whether a limit ended it, `attack.max_leak` or `attack.max_bound`."""
        return self.stopped in LIMITS.values()

    @property
    def model_epochs(self) -> list[Epoch]:
        """The finished epochs that made the model that stays."""
        if not self.limited:
            return self.epochs
        return [] if self.kept is None else self.epochs[:-1]

    @property
    def best(self) -> Epoch:
        """The epoch of that model with the best validation; the last one where there is no validation part."""
        return max(self.model_epochs, key=_validation_score, default={})


def measured(outcome: Outcome) -> dict[str, Any]:
    """Return what of an outcome is measured step by step, as the state of a `Training` holds it."""
    return {name: getattr(outcome, name) for name in MEASURED}


def _validation_score(epoch: Epoch) -> float:
    score = epoch.get("validation_auc", epoch.get("validation_accuracy", epoch["epoch"]))
    return -math.inf if math.isnan(score) else score
