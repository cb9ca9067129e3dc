"""The interface of observers of a training run: a journal, a progress display, live trackers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from flower_vfl.auditing.recorder import NoRecorder
from flower_vfl.metrics import Embeddings, Values

if TYPE_CHECKING:
    from flower_vfl.transport.base import Link


class Observer(NoRecorder):
    """An observer that does nothing; override the methods of interest."""

    def on_links(self, links: Mapping[str, Link]) -> None:
        """Take the label party's links, once sessions are open and after a lost party has reconnected."""

    def on_pretraining(self, done: int, steps: int) -> None:
        """Take the number of pre-training steps that all parties have done."""

    def on_start(self, steps: int, epochs: int, parties: tuple[str, ...]) -> None:
        """Take the start of training, which has at most this number of steps."""

    def on_step(self, step: int, epoch: int, loss: float, leak: float) -> None:
        """Take a finished step; `leak` is the monitor's largest leak AUC of one of the last 16 steps, NaN for none."""

    def on_snapshot(self, step: int, values: Values) -> None:
        """Take the parts of the gradients of a step; they reveal labels and must stay with the label party."""

    def on_embeddings(self, samples: Sequence[Embeddings]) -> None:
        """Take embeddings of test rows with their labels after training; they too must stay with the label party."""

    def on_epoch(self, step: int, epoch: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of a finished epoch."""

    def on_scores(self, done: int, total: int) -> None:
        """Take the number of scored rows of a prediction."""
