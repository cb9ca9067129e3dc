"""The outcome of a training run and the reasons for its end; the module does not import torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

LIMITS = {"leak": "leak limit", "bound": "bound limit"}
"""Values of `Outcome.stopped` after a run that `attack.max_leak` or `attack.max_bound` ended."""

OF_MANY_CLASSES = {"none": "validation_accuracy", "balanced": "validation_macro_auc"}
"""The measure that compares epochs where there are more than two classes, by `training.class_weights`: with balanced
weights each class counts the same (docs/decisions/0025-best-model.md)."""

LEAST_FALL = 0.001
"""Fall of the validation loss, in nats, above which it counts as an improvement where the measure is the same."""

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
        Number of finished steps.
    in_flight : int
        Number of steps in flight at once.
    seconds, seconds_compute, seconds_wait : float
        Total time, computing time of the label party, and time spent waiting for answers.
    bytes_up, bytes_down : int
        Bytes of frames handed to the transport.
    logged : dict[str, float]
        Log entries of the defenses' hooks, such as "marvell.fallback", summed over the steps.
    together : int
        Number of runs that were trained in one stack, this one included; the times are its share.
    stopped : str
        Reason for the end of training: "finished", "early stopping", "leak limit" or "bound limit".
    kept : int or None
        Step of the model that all parties keep, if it is not the last step; None after a limit means that no model is
        kept.
    kept_epoch : int
        The epoch that ended with step `kept`.
    chosen_by : str
        The measure of the validation part that chose this model; empty if none did.
    refit : dict[str, Any]
        Number of passes of `training.refit`, the pass whose weights are kept (0 for the weights before the refit), and
        the validation measure before the first and after each pass; empty without a refit.
    of_many_classes : str
        The measure that compares epochs where there are more than two classes.
    confusion : list[list[int]]
        (C, C) numbers of test rows by true class (rows) and class predicted by the kept model (columns); empty without
        an evaluation.
    leakage : list[dict[str, Any]]
        Leakage entries of `result.json`.
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
        """The step of the kept model; None if none is kept."""
        return self.kept if self.limited or self.kept is not None else self.steps

    @property
    def limited(self) -> bool:
        """True if a limit ended the run, `attack.max_leak` or `attack.max_bound`."""
        return self.stopped in LIMITS.values()

    @property
    def model_epochs(self) -> list[Epoch]:
        """The finished epochs with a model that may be kept: those within the limits, none if no model is kept."""
        if not self.limited:
            return self.epochs
        return [] if self.kept is None else self.epochs[:-1]

    @property
    def model_epoch(self) -> int:
        """The last finished epoch of the kept model; 0 if none is kept."""
        return len(self.model_epochs) if self.kept is None else self.kept_epoch

    @property
    def of_model(self) -> Epoch:
        """The metrics of the kept model; empty if none is kept."""
        return next((epoch for epoch in self.model_epochs if epoch["epoch"] == self.model_epoch), {})

    @property
    def best(self) -> Epoch:
        """The epoch of `model_epochs` with the largest `score_of`; the last one without a validation measure."""
        return max(self.model_epochs, key=self.score_of, default={})

    @property
    def best_by(self) -> str | None:
        """The measure that chose `best`; None where there is no validation part, or its rows are all of one class."""
        return self.measure_of(self.best)

    @property
    def improved(self) -> int:
        """The last epoch that improved the validation, from which patience counts; 0 without an epoch.

        Where the measure is the same, an AUC of 1 for instance, a fall of the loss counts if it is above `LEAST_FALL`:
        the loss of rows that are all predicted right falls in every epoch.
        """
        latest: Epoch = {}
        for epoch in self.model_epochs:
            known, measure, negative_loss = self.score_of(epoch)
            if not latest or (known, measure, negative_loss - LEAST_FALL * known) > self.score_of(latest):
                latest = epoch
        return int(latest.get("epoch", 0))

    def measure_of(self, epoch: Epoch) -> str | None:
        """Return the measure by which an epoch is compared with others; None where it has none."""
        return validation_measure(epoch, of_many_classes=self.of_many_classes)

    def score_of(self, epoch: Epoch) -> tuple[bool, float, float]:
        """Return the key by which epochs are compared: the measure and, if equal, the negative validation loss.

        Few validation rows reach an AUC of 1 long before all predicted classes are right.
        """
        name = self.measure_of(epoch)
        return (False, epoch["epoch"], 0.0) if name is None else (True, epoch[name], -epoch["validation_loss"])


def measured(outcome: Outcome) -> dict[str, Any]:
    """Return the fields of an outcome that are measured step by step, as the state of a `TrainingLoop` holds them."""
    return {name: getattr(outcome, name) for name in MEASURED}


def validation_measure(epoch: Epoch, *, of_many_classes: str = OF_MANY_CLASSES["none"]) -> str | None:
    """Return the measure of the validation part by which epochs are compared: the AUC, or `of_many_classes`.

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
