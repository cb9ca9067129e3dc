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
        """Sessions are open: these are their ends at the label party, also after one was lost and came back."""

    def on_pretraining(self, done: int, steps: int) -> None:
        """So many steps of pre-training are done at all parties."""

    def on_start(self, steps: int, epochs: int, parties: tuple[str, ...]) -> None:
        """Sessions are open; training of at most so many steps begins."""

    def on_step(self, step: int, epoch: int, loss: float, leak: float) -> None:
        """A step is done; `leak` is the monitor's largest leak AUC of one of the last 16 steps, NaN for none."""

    def on_snapshot(self, step: int, values: Values) -> None:
        """Take the parts of the gradients of a step; they reveal labels and must stay with the label party."""

    def on_embeddings(self, samples: Sequence[Embeddings]) -> None:
        """Take embeddings of test rows with their labels, once training has ended; the same is true of them."""

    def on_epoch(self, step: int, epoch: int, metrics: Mapping[str, float]) -> None:
        """An epoch is done and evaluated."""

    def on_scores(self, done: int, total: int) -> None:
        """Take the number of scored rows of a prediction."""
