"""The outcome of a training run and the names of its endings; nothing here needs torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

LIMITS = {"leak": "leak limit", "bound": "bound limit"}
"""Names of the endings of a training run by `attack.max_leak` or `attack.max_bound`."""

OF_MANY_CLASSES = {"none": "validation_accuracy", "balanced": "validation_macro_auc"}
"""The measure that compares epochs where there are more than two classes, by `training.class_weights`: with balanced
weights each class counts the same (docs/decisions/0025-best-model.md)."""

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
"""Fields of an outcome that are measured step by step."""

Epoch = dict[str, float]
"""Metrics of a finished epoch."""


@dataclass(slots=True)
class Outcome:
    """The outcome of a training run.

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
        Log entries of the defenses' hooks, such as "marvell.fallback", summed over the steps.
    together : int
        Runs that were trained in one stack, this one included; the time is its share.
    stopped : str
        Why training ended: "finished", "early stopping", "leak limit" or "bound limit".
    kept : int or None
        Step of the model that all parties keep, where it is not the last step; None after one of the limits: nobody
        keeps a model.
    kept_epoch : int
        The epoch that ended with step `kept`.
    chosen_by : str
        The measure of the validation part that chose this model; empty where none did.
    refit : dict[str, Any]
        The passes of `training.refit`, the one whose weights stay (0: those from before), and the validation measure
        before and after each; empty without any.
    of_many_classes : str
        The measure that compares epochs where there are more than two classes.
    confusion : list[list[int]]
        (C, C) test rows of the model that stays: a row a true class, a column a predicted one; empty where it was not
        evaluated.
    leakage : list[dict[str, Any]]
        Entries of `result.json`.
    epsilon : dict[str, Any]
        The measured lower bounds on epsilon, as in `result.json`; empty where none was measured.
    reports : dict[str, dict[str, Any]]
        Reports of the feature parties at the end.
    weights : str
        Digest of the label party's weights.
    hosts : dict[str, dict[str, str]]
        The software of each feature party's host.
    account : dict[str, float]
        Epsilon of each label that all trainings on the ledger have spent, and its limit; empty without a ledger.
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
    kept_epoch: int = 0
    chosen_by: str = ""
    refit: dict[str, Any] = field(default_factory=dict)
    of_many_classes: str = OF_MANY_CLASSES["none"]
    confusion: list[list[int]] = field(default_factory=list)
    leakage: list[dict[str, Any]] = field(default_factory=list)
    epsilon: dict[str, Any] = field(default_factory=dict)
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)
    weights: str = ""
    hosts: dict[str, dict[str, str]] = field(default_factory=dict)
    account: dict[str, float] = field(default_factory=dict)

    @property
    def model_step(self) -> int | None:
        """The step of the model that stays; None for none."""
        return self.kept if self.limited or self.kept is not None else self.steps

    @property
    def limited(self) -> bool:
        """True if a limit ended the run, `attack.max_leak` or `attack.max_bound`."""
        return self.stopped in LIMITS.values()

    @property
    def model_epochs(self) -> list[Epoch]:
        """The finished epochs with a model that may be kept: those within the limits, none where no model stays."""
        if not self.limited:
            return self.epochs
        return [] if self.kept is None else self.epochs[:-1]

    @property
    def model_epoch(self) -> int:
        """The last finished epoch of the model that stays; 0 for none."""
        return len(self.model_epochs) if self.kept is None else self.kept_epoch

    @property
    def of_model(self) -> Epoch:
        """The metrics of the model that stays; empty for none."""
        return next((epoch for epoch in self.model_epochs if epoch["epoch"] == self.model_epoch), {})

    @property
    def best(self) -> Epoch:
        """The epoch of these with the best validation, see `score_of`; the last one where validation compares none."""
        return max(self.model_epochs, key=self.score_of, default={})

    @property
    def best_by(self) -> str | None:
        """The measure that chose `best`; None where there is no validation part, or its rows are all of one class."""
        return self.measure_of(self.best)

    def measure_of(self, epoch: Epoch) -> str | None:
        """Return the measure by which an epoch is compared with others; None where it has none."""
        return validation_measure(epoch, of_many_classes=self.of_many_classes)

    def score_of(self, epoch: Epoch) -> tuple[bool, float, float]:
        """Return what makes an epoch better than another: its measure and, of equal ones, the smaller validation loss.

        Few validation rows are soon all ranked right, long before the predicted classes are.
        """
        name = self.measure_of(epoch)
        return (False, epoch["epoch"], 0.0) if name is None else (True, epoch[name], -epoch["validation_loss"])


def measured(outcome: Outcome) -> dict[str, Any]:
    """Return the fields of an outcome that are measured step by step, as the state of a `Training` holds them."""
    return {name: getattr(outcome, name) for name in MEASURED}


def validation_measure(epoch: Epoch, *, of_many_classes: str = OF_MANY_CLASSES["none"]) -> str | None:
    """Return the measure of the validation part by which epochs are compared: the AUC, or that of many classes.

    None without a validation part, and where its rows are all of one class, so that no AUC is known there.

    Examples
    --------
    >>> validation_measure({"epoch": 1, "validation_auc": 0.7, "validation_accuracy": 0.6})
    'validation_auc'
    >>> validation_measure({"epoch": 1, "validation_auc": math.nan, "validation_accuracy": 0.9})  # one class only
    """
    for auc, measure in (("validation_auc", "validation_auc"), ("validation_macro_auc", of_many_classes)):
        if auc in epoch:
            return None if math.isnan(epoch[auc]) else measure
    return None
