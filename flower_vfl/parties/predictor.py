"""A feature party of a finished training: it answers with the embeddings of the rows that it is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable

import torch
from torch import nn

from flower_vfl.data.store.source import FeatureSource
from flower_vfl.errors import ProtocolError
from flower_vfl.nn.placement import IN_MEMORY, Placement
from flower_vfl.parties.feature import batch_limit, embed, embedding_shape
from flower_vfl.protocol.frame import Frame, Kind
from flower_vfl.protocol.schedule import Rows
from flower_vfl.version import software


class Predictor:
    """The state machine of a feature party while a finished training predicts.

    Rows are asked for by their positions in an order that all parties share, so this party learns which rows those are.
    Nothing comes down: no gradient, no score.

    Parameters
    ----------
    name : str
        Name of the party.
    bottom : nn.Module
        The trained bottom model, on the device of `placement`.
    source : FeatureSource
        The party's columns of the rows that may be asked for.
    rows : str
        Digest of the ordered IDs of these rows; the label party compares it with its own.
    weights : str
        Digest of the bottom model's weights; the label party compares it with what was reported after training.
    batch_size : int
        Most rows of one request.
    permit : Callable[[int], None]
        Called with the number of rows before they are read; it raises when the party's owner does not want that.
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
        """Most bytes of a frame to or from this party."""
        return batch_limit(self._batch_size, self._shape)

    def hello(self) -> Frame:
        """Introduce the party: the shape of its embeddings, and which weights and rows it has."""
        return Frame(
            Kind.HELLO,
            fields={
                "party": self.name,
                "shape": json.dumps(self._shape),
                "dtype": str(self._dtype).removeprefix("torch."),
                "count": len(self._source),
                "rows": self._rows,
                "weights": self._weights,
                **software(),
            },
        )

    def handle(self, frame: Frame) -> Frame | None:
        """Take one frame from the label party and return the answer.

        Raises
        ------
        ProtocolError
            When it asks for something else than embeddings of rows that there are.
        PermissionDeniedError
            When the party's owner does not allow that many rows.
        """
        if frame.kind is Kind.PREDICT:
            rows = self._asked(frame)
            self._permit(len(rows))
            output = embed(self._bottom, self._source, rows, self._placement)
            return Frame(Kind.EMBEDDING, frame.step, tensors={"embedding": output})
        if frame.kind is Kind.FINISH:
            self.finished = True
            return Frame(Kind.REPORT)
        raise ProtocolError(f"party {self.name!r} predicts and does not take {frame.kind} frames")

    def _asked(self, frame: Frame) -> Rows:
        """Return the positions (B,) that a frame asks for."""
        count, available = frame.integer("count"), len(self._source)
        if not 0 < count <= self._batch_size:
            raise ProtocolError(f"{count} rows were asked for at once; allowed are 1 to {self._batch_size}")
        rows = frame.tensor("rows", shape=(count,), dtype=torch.int64).numpy()
        if not 0 <= int(rows.min()) <= int(rows.max()) < available:
            raise ProtocolError(f"rows {rows.min()} to {rows.max()} were asked for; there are 0 to {available - 1}")
        return rows
