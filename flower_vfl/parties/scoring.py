"""From attack scores to a measured leak: the only place where attacks meet true labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from flower_vfl.attacks.base import Attack
from flower_vfl.errors import ProtocolError
from flower_vfl.metrics import leak_auc
from flower_vfl.metrics.summary import LeakSummary, nearest_rank
from flower_vfl.protocol.transcript import Transcript


class Recorder(Protocol):
    """Where measured values go, one at a time."""

    def add(self, *, step: int, epoch: int, party: str, layer: str, attack: str, metric: str, value: float) -> None:
        """Take one value."""

    def flush(self) -> None:
        """Make sure that what was taken is not lost."""


class NoRecorder:
    """Forgets everything."""

    def add(self, *, step: int, epoch: int, party: str, layer: str, attack: str, metric: str, value: float) -> None:
        """Take one value and forget it."""

    def flush(self) -> None:
        """Do nothing: there is nothing to lose."""


class AuditLabels:
    """True labels for scoring in a simulation, handed over in pieces; no attack ever sees them.

    Parameters
    ----------
    rows : int
        Rows of the training table.
    """

    PIECE = 32_768
    """Labels in one frame."""

    def __init__(self, rows: int) -> None:
        self._labels = np.zeros(rows, dtype=np.uint8)
        self._filled = 0

    @classmethod
    def of(cls, labels: NDArray[Any]) -> AuditLabels:
        """Wrap labels that are at hand."""
        audit = cls(0)
        audit._labels, audit._filled = labels, len(labels)
        return audit

    def fill(self, offset: int, piece: torch.Tensor) -> None:
        """Put in one piece; pieces come in their order.

        Raises
        ------
        ProtocolError
            When it does not follow the last piece.
        """
        if offset != self._filled or offset + len(piece) > len(self._labels):
            raise ProtocolError(f"audit labels from row {offset} came, row {self._filled} was next")
        self._labels[offset : offset + len(piece)] = piece.numpy()
        self._filled += len(piece)

    @property
    def complete(self) -> bool:
        """Whether all labels are there."""
        return self._filled == len(self._labels)

    def at(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the labels (B,) of a batch."""
        labels: NDArray[Any] = self._labels[rows]
        return labels


class Scorer:
    """Runs attacks on a transcript's last step and writes down how well they read the labels.

    Parameters
    ----------
    attacks : Sequence[Attack]
        What is run.
    layers : Sequence[str]
        Layers whose gradients are attacked.
    labels : AuditLabels
        The true labels.
    party : str
        The feature party whose view is attacked.
    source : str
        "attacker" or "monitor".
    defended : bool
        Whether any defense is in force.
    recorder : Recorder
        Where each value goes.
    every : int
        Score each so many steps.
    """

    def __init__(
        self,
        attacks: Sequence[Attack],
        layers: Sequence[str],
        labels: AuditLabels,
        *,
        party: str,
        source: str,
        defended: bool,
        recorder: Recorder,
        every: int = 1,
    ) -> None:
        self._labels, self._recorder, self._every, self._party = labels, recorder, every, party
        self._metric = "auc" if source == "attacker" else "monitor_auc"
        self._summaries = [
            (attack, LeakSummary(attack.name, party, layer, attack.params, source=source, defended=defended))
            for attack in attacks
            for layer in layers
        ]
        self._epoch: tuple[int, list[list[float]]] = (0, [])
        self.last = math.nan
        """The largest leak of the last step that was scored."""

    def score(self, transcript: Transcript) -> None:
        """Attack the last step."""
        trace = transcript.last
        if trace.step % self._every:
            return
        if trace.epoch != self._epoch[0]:
            self._epoch = (trace.epoch, [[] for _ in self._summaries])
        labels = self._labels.at(trace.rows)
        positives = int(np.count_nonzero(labels))
        negatives = len(labels) - positives
        values = []
        for (attack, summary), seen in zip(self._summaries, self._epoch[1], strict=True):
            value = leak_auc(attack.score(transcript, summary.layer), labels)
            summary.add(value, negatives, positives)
            self._recorder.add(
                step=trace.step,
                epoch=trace.epoch,
                party=self._party,
                layer=summary.layer,
                attack=attack.name,
                metric=self._metric,
                value=value,
            )
            if not math.isnan(value):
                seen.append(value)
                values.append(value)
        self.last = max(values, default=math.nan)

    @property
    def epoch_q95(self) -> float:
        """The largest 95 % quantile over the attacks and layers in the current epoch; NaN where nothing was scored."""
        return max((nearest_rank(values) for values in self._epoch[1] if values), default=math.nan)

    def entries(self) -> list[dict[str, Any]]:
        """Return one entry an attack and layer for `result.json`."""
        return [summary.result() for _, summary in self._summaries]

    def state(self) -> list[dict[str, Any]]:
        """Return what was measured so far, as plain values."""
        return [
            {
                "values": list(summary.values),
                "one_class_steps": summary.one_class_steps,
                "class_counts": [[n, p, times] for (n, p), times in summary.class_counts.items()],
            }
            for _, summary in self._summaries
        ]

    def restore(self, state: Sequence[dict[str, Any]]) -> None:
        """Go on from what `state` returned."""
        for (_, summary), entry in zip(self._summaries, state, strict=True):
            summary.values.extend(entry["values"])
            summary.one_class_steps = entry["one_class_steps"]
            summary.class_counts.update({(n, p): times for n, p, times in entry["class_counts"]})
