"""Pre-training of a feature party's bottom model by its own columns alone, in slices between two signs of life."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from flower_vfl.data.store.source import FeatureSource
from flower_vfl.errors import TrainingError
from flower_vfl.nn.optim import Optimizers
from flower_vfl.nn.placement import Placement
from flower_vfl.nn.pretraining import Reconstruction
from flower_vfl.parties.loading import Loader
from flower_vfl.protocol.schedule import Schedule

LEARNING_RATE = 1e-3

SLICE = 10.0
"""Most seconds of work between two answers, about."""


class Pretraining:
    """Steps of pre-training; nothing of them leaves the party but their number.

    The batches are those of the first epochs of the schedule, so rows for validation are left out.

    Parameters
    ----------
    bottom : nn.Module
        The bottom model, on the device of `placement`.
    objective : Reconstruction
        With its decoder, on the same device.
    source : FeatureSource
        The training rows.
    schedule : Schedule
        That of the training.
    epochs : int
        Passes over the training rows.
    generator : torch.Generator
        Draws what is hidden; it follows from the party's own secret.
    placement : Placement
        The device of the models.
    patience : float
        Seconds that the label party waits for one answer.
    """

    def __init__(
        self,
        bottom: nn.Module,
        objective: Reconstruction,
        source: FeatureSource,
        schedule: Schedule,
        epochs: int,
        *,
        generator: torch.Generator,
        placement: Placement,
        patience: float,
    ) -> None:
        schedule = replace(schedule, epochs=epochs)
        self.steps, self.done = schedule.steps, 0
        self._bottom, self._objective, self._generator = bottom, objective, generator
        self._placement, self._loader = placement, Loader(source, schedule, placement)
        self._slice = min(SLICE, patience / 4)
        modules = nn.ModuleDict({"bottom": bottom, "objective": objective})
        self._optimizers = Optimizers(modules, learning_rate=LEARNING_RATE, schedule="cosine", steps=self.steps)

    def work(self) -> None:
        """Do steps until all are done or it is time for a sign of life; one at least, where one is left.

        Raises
        ------
        TrainingError
            When the loss is not finite.
        """
        started = time.perf_counter()
        self._bottom.train()
        while self.done < self.steps:
            self._step()
            self.done += 1
            if time.perf_counter() - started > self._slice:
                break
        self._optimizers.zero_grad()

    def _step(self) -> None:
        inputs = self._loader.batch(self.done)
        corrupted = self._objective.corrupt(inputs, self._generator)
        embedding = self._placement.forward(self._bottom, *corrupted)
        loss = self._objective.loss(embedding, inputs)
        if not bool(torch.isfinite(loss)):
            raise TrainingError(
                f"pre-training diverged: the loss of step {self.done} is {loss.item()}; are columns of this party "
                "without scale? Prepare the data again, or set training.pretrain to 0"
            )
        self._optimizers.zero_grad()
        torch.autograd.backward(loss)
        self._optimizers.step()

    def state(self) -> dict[str, Any]:
        """Return everything but the bottom model that changes, as plain values and tensors."""
        return {
            "done": self.done,
            "objective": dict(self._objective.state_dict()),
            "optimizers": self._optimizers.state_dict(),
            "generator": self._generator.get_state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self.done = state["done"]
        self._objective.load_state_dict(state["objective"])
        self._optimizers.load_state_dict(state["optimizers"])
        self._generator.set_state(state["generator"])
