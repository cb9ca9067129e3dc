"""Pre-training of a bottom model on rows of its own party alone, in time slices between two progress reports."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from flower_vfl.data.store.source import FeatureSource, JoinedRows, SomeRows
from flower_vfl.errors import TrainingError
from flower_vfl.nn.optim import Optimizers
from flower_vfl.nn.placement import Placement
from flower_vfl.nn.pretraining import Objective
from flower_vfl.parties.loading import Loader
from flower_vfl.protocol.schedule import Schedule

LEARNING_RATE = 1e-3

SLICE = 10.0
"""Approximate limit on the seconds of work between two answers."""


class Pretraining:
    """The pre-training of a bottom model; nothing of it leaves the party but the number of its steps.

    The batches are those of the first epochs of the schedule, so rows for validation are left out. Unaligned rows are
    mixed with them, in an order of the same seed. The reported progress is scaled to the number of steps without
    unaligned rows, so that it does not depend on their number.

    Parameters
    ----------
    bottom : nn.Module
        The bottom model, on the device of `placement`.
    objective : Objective
        Objective with its decoder or head, on the same device.
    source : FeatureSource
        The training rows.
    schedule : Schedule
        Schedule of the training.
    epochs : int
        Passes over the training rows, and over the unaligned ones.
    generator : torch.Generator
        Generator for the corruption of the inputs; it follows from the party's own secret.
    placement : Placement
        The device of the models.
    patience : float
        Seconds that the label party waits for one answer.
    unaligned : FeatureSource, optional
        Rows of the party that not all other parties have.

    Attributes
    ----------
    steps : int
        Number of steps in progress reports: that of the schedule.
    """

    def __init__(
        self,
        bottom: nn.Module,
        objective: Objective,
        source: FeatureSource,
        schedule: Schedule,
        epochs: int,
        *,
        generator: torch.Generator,
        placement: Placement,
        patience: float,
        unaligned: FeatureSource | None = None,
    ) -> None:
        schedule = replace(schedule, epochs=epochs)
        self.steps = schedule.steps
        if unaligned is not None:
            trained = np.setdiff1d(np.arange(schedule.rows), schedule.held_out)
            source = JoinedRows(SomeRows(source, trained), unaligned)
            schedule = replace(schedule, rows=len(source), validation=0.0)
        self._steps, self._done = schedule.steps, 0
        self._bottom, self._objective, self._generator = bottom, objective, generator
        self._placement, self._loader = placement, Loader(source, schedule, placement)
        self._slice_seconds = min(SLICE, patience / 4)
        modules = nn.ModuleDict({"bottom": bottom, "objective": objective})
        self._optimizers = Optimizers(modules, learning_rate=LEARNING_RATE, schedule="cosine", steps=self._steps)

    @property
    def done(self) -> int:
        """The number of `steps` that are done."""
        return self._done * self.steps // self._steps

    def work(self) -> None:
        """Do steps until all are done, or until the time slice has passed and `done` has grown.

        Raises
        ------
        TrainingError
            When the loss is not finite.
        """
        started, before = time.perf_counter(), self.done
        self._bottom.train()
        while self._done < self._steps:
            self._step()
            self._done += 1
            if self.done > before and time.perf_counter() - started > self._slice_seconds:
                break
        self._optimizers.zero_grad()

    def _step(self) -> None:
        inputs = self._loader.batch(self._done)
        corrupted = self._objective.corrupt(inputs, self._generator)
        embedding = self._placement.forward(self._bottom, *corrupted)
        loss = self._objective.loss(embedding, inputs)
        if not bool(torch.isfinite(loss)):
            raise TrainingError(
                f"pre-training diverged: the loss of step {self._done} is {loss.item()}; are columns of this party "
                "without scale? Prepare the data again, or set training.pretrain to 0"
            )
        self._optimizers.zero_grad()
        torch.autograd.backward(loss)
        self._optimizers.step()

    def state(self) -> dict[str, Any]:
        """Return everything but the bottom model that changes, as plain values and tensors."""
        return {
            "done": self._done,
            "objective": dict(self._objective.state_dict()),
            "optimizers": self._optimizers.state_dict(),
            "generator": self._generator.get_state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned."""
        self._done = state["done"]
        self._objective.load_state_dict(state["objective"])
        self._optimizers.load_state_dict(state["optimizers"])
        self._generator.set_state(state["generator"])
