"""The transcript of a feature party: the only input of an attack beside declared side information."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from flower_vfl.errors import ConfigError, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class StepTrace:
    """The trace of one mini-batch at a feature party; tensors are detached and must not be written to.

    Attributes
    ----------
    step, epoch
        Numbers of the step and the epoch in the whole training run, by the party's own count.
    rows
        Positions of the batch in the training table, (B,); read-only.
    embedding
        The embeddings that the party sent, (B, ...).
    gradients
        The received gradients, (B, ...) for each layer: ``"cut"`` as received, ``"first"`` and others by further
        back-propagation in the party's own model.
    outputs
        Outputs of the party's own earlier layers for the batch, (B, ...) for each layer but the cut.
    """

    step: int
    epoch: int
    rows: NDArray[np.int64]
    embedding: Tensor
    gradients: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor] = field(default_factory=dict)

    def output(self, layer: str) -> Tensor:
        """Return the output of a layer for the batch, (B, ...): the embedding at the cut."""
        return self.embedding if layer == "cut" else self.outputs[layer]

    def to(self, device: torch.device) -> StepTrace:
        """Return the trace with all tensors on a device."""
        gradients, outputs = (
            {layer: tensor.to(device) for layer, tensor in tensors.items()}
            for tensors in (self.gradients, self.outputs)
        )
        return replace(self, embedding=self.embedding.to(device), gradients=gradients, outputs=outputs)


class Transcript:
    """The traces of a party's steps, oldest first.

    Parameters
    ----------
    history
        Number of latest steps that are kept; None keeps all of them.

    Examples
    --------
    >>> import numpy as np, torch
    >>> transcript = Transcript()
    >>> for step in range(3):
    ...     transcript.record(StepTrace(step, 0, np.arange(2), torch.zeros(2, 4), {"cut": torch.zeros(2, 4)}))
    >>> len(transcript), transcript.last.step
    (1, 2)
    """

    def __init__(self, history: int | None = 1) -> None:
        if history is not None and history < 1:
            raise ConfigError(f"A transcript's history is {history}; give at least 1, or None to keep every step.")
        self._traces: deque[StepTrace] = deque(maxlen=history)

    def record(self, trace: StepTrace) -> None:
        """Append one step; the oldest is dropped if the history is full."""
        device = trace.embedding.device
        if self._traces and self._traces[-1].embedding.device != device:  # those of a checkpoint, on another device
            self._traces = deque((one.to(device) for one in self._traces), self._traces.maxlen)
        self._traces.append(trace)

    def latest(self, steps: int) -> Transcript:
        """Return the transcript of the latest `steps` steps, or of fewer at the start of a run."""
        if len(self._traces) <= steps:
            return self
        kept = Transcript(steps)
        kept._traces.extend(self._traces)
        return kept

    def state(self) -> list[dict[str, Any]]:
        """Return the steps as plain values and tensors, for a checkpoint."""
        return [
            {
                "step": one.step,
                "epoch": one.epoch,
                "rows": torch.tensor(one.rows),
                "embedding": one.embedding,
                "gradients": dict(one.gradients),
                "outputs": dict(one.outputs),
            }
            for one in self._traces
        ]

    def restore(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Restore the result of `state`."""
        self._traces.clear()
        self._traces.extend(StepTrace(**{**one, "rows": one["rows"].numpy()}) for one in state)

    @property
    def last(self) -> StepTrace:
        """The latest step.

        Raises
        ------
        ProtocolError
            When no step has been recorded.
        """
        if not self._traces:
            raise ProtocolError("The transcript is empty: record a step before an attack reads it.")
        return self._traces[-1]

    def __len__(self) -> int:
        return len(self._traces)

    def __iter__(self) -> Iterator[StepTrace]:
        return iter(self._traces)
