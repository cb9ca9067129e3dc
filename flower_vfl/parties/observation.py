"""The observation point of a feature party: the data for an observer of a training run, and of each step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flower_vfl.data.store.dataset import PartyTable
from flower_vfl.nn.placement import Placement
from flower_vfl.protocol.frame import Frame
from flower_vfl.protocol.schedule import Rows, Schedule


@dataclass(frozen=True, slots=True, eq=False)
class ObservationPoint:
    """The view of a party over the whole training run: its model, its inputs and the rows of each step.

    Attributes
    ----------
    party
        The party's name.
    bottom
        The party's bottom model, which is being trained.
    table
        The party's columns.
    schedule
        The rows of each step.
    placement
        The device of the bottom model.
    dropout
        The generator of the bottom model's dropout; None where it has none.
    """

    party: str
    bottom: nn.Module
    table: PartyTable
    schedule: Schedule
    placement: Placement
    dropout: torch.Generator | None


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """One step at a feature party: the embedding that it sent, and the gradient that it received.

    Attributes
    ----------
    step
        Number of the step.
    rows
        (B,) rows of the step.
    output
        (B, ...) the output of the bottom model; it has its graph until the backward pass.
    gradient
        (B, ...) the received gradient.
    frame
        The frame with the gradient, and with the tensors of the audit channel, if it is open.
    """

    step: int
    rows: Rows
    output: Tensor
    gradient: Tensor
    frame: Frame


class PartyObserver:
    """An observer that does nothing; override the methods of interest.

    An observer changes neither the frames nor the weights of its party. The party's checkpoints hold its state.
    """

    def begin_step(self, step: int) -> None:
        """Handle the beginning of the forward pass of a step."""

    def before_backward(self, observation: Observation) -> None:
        """Read a step with its gradient, while its embedding has its graph.

        Raises
        ------
        ProtocolError
            When it refuses the frame; the party has used nothing of it then.
        """

    def after_backward(self, observation: Observation) -> None:
        """Read the same step once all layers have gradients; the weights have not changed yet."""

    def answer(self, frame: Frame) -> Frame | None:
        """Return the answer to a frame that the party does not handle; None if the observer does not handle it either.

        Raises
        ------
        ProtocolError
            When it refuses the frame.
        """
        return None

    def settle(self) -> None:
        """Write pending results to disk."""

    def report(self, steps: int, *, trained: bool) -> dict[str, Any]:
        """Return the observer's part of the party's final report.

        Parameters
        ----------
        steps : int
            Number of trained steps.
        trained : bool
            True if a trained model is kept.
        """
        return {}

    def forget(self) -> None:
        """Release data that only further steps need: the party will not return to an earlier state."""

    def check(self) -> None:
        """Check that its files fit the state that was restored."""

    def state(self) -> dict[str, Any]:
        """Return everything that changes while training, as plain values and tensors."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned."""
