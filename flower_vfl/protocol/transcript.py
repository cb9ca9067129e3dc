"""The transcript of a feature party: the only input of an attack beside declared side information."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flower_vfl.errors import ConfigError, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
        self._traces.append(trace)

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
