"""A feature party of a finished training, which returns the embeddings of requested rows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from flower_vfl.data.store.source import FeatureSource
from flower_vfl.errors import ProtocolError
from flower_vfl.nn.placement import IN_MEMORY, Placement
from flower_vfl.parties.feature import batch_limit, embed, embedding_shape, greeting
from flower_vfl.protocol.frame import Frame, Kind
from flower_vfl.protocol.schedule import Rows


class Predictor:
    """The state machine of a feature party during predictions of a finished training.

    Rows are requested by their positions in an order that all parties share, so this party learns which rows are
    predicted. It receives neither gradients nor scores.

    Parameters
    ----------
    name : str
        Name of the party.
    bottom : nn.Module
        The trained bottom model, on the device of `placement`.
    source : FeatureSource
        The party's columns of the rows that may be requested.
    rows : str
        Digest of the ordered IDs of these rows; the label party compares it with its own.
    weights : str
        Digest of the bottom model's weights; the label party compares it with the one that was reported after training.
    batch_size : int
        Largest number of rows of one request.
    permit : Callable[[int], None]
        Function that is called with the number of rows before they are read; it raises when the party's owner does not
        allow them.
    placement : Placement
        Device and precision of the bottom model.
    """

    def __init__(
        self,
        name: str,
        bottom: nn.Module,
        source: FeatureSource,
        *,
        rows: str,
        weights: str,
        batch_size: int,
        permit: Callable[[int], None],
        placement: Placement = IN_MEMORY,
    ) -> None:
        self.name = name
        self.finished = False
        self._bottom, self._source, self._rows, self._weights = bottom, source, rows, weights
        self._batch_size, self._permit, self._placement = batch_size, permit, placement
        output = embed(bottom, source, torch.arange(min(2, len(source))).numpy(), placement)
        self._shape, self._dtype = embedding_shape(output, f"party {name!r}"), output.dtype

    @property
    def frame_limit(self) -> int:
        """Largest size of a frame to or from this party, in bytes."""
        return batch_limit(self._batch_size, self._shape)

    def hello(self) -> Frame:
        """Return the party's greeting: the shape of its embeddings, and the digests of its weights and rows."""
        return greeting(
            self.name, self._shape, self._dtype, count=len(self._source), rows=self._rows, weights=self._weights
        )

    def handle(self, frame: Frame) -> Frame | None:
        """Return the answer to one frame from the label party.

        Raises
        ------
        ProtocolError
            When it requests anything but embeddings of existing rows.
        PermissionDeniedError
            When the party's owner does not allow that many rows.
        """
        if frame.kind is Kind.PREDICT:
            rows = self._requested_rows(frame)
            self._permit(len(rows))
            output = embed(self._bottom, self._source, rows, self._placement)
            return Frame(Kind.EMBEDDING, frame.step, tensors={"embedding": output})
        if frame.kind is Kind.FINISH:
            self.finished = True
            return Frame(Kind.REPORT)
        raise ProtocolError(f"party {self.name!r} predicts and does not take {frame.kind} frames")

    def _requested_rows(self, frame: Frame) -> Rows:
        """Return the positions (B,) of the rows that a frame requests."""
        count, available = frame.integer("count"), len(self._source)
        if not 0 < count <= self._batch_size:
            raise ProtocolError(f"{count} rows were asked for at once; allowed are 1 to {self._batch_size}")
        rows = frame.tensor("rows", shape=(count,), dtype=torch.int64).numpy()
        if not 0 <= int(rows.min()) <= int(rows.max()) < available:
            raise ProtocolError(f"rows {rows.min()} to {rows.max()} were asked for; there are 0 to {available - 1}")
        return rows
