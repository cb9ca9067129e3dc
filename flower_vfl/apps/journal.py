"""The label party's records during training: its run's journal, and a line an epoch in the log."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from flower_vfl.metrics import Embeddings, Values
from flower_vfl.tracking import StepLog, add_snapshot, make_sink, write_embeddings
from flower_vfl.training.observer import Observer
from flower_vfl.transport.base import Link

_log = logging.getLogger(__name__)


class Journal(Observer):
    """An observer that writes every value into the run's journal, once it has one, and passes all calls on."""

    def __init__(self, others: tuple[Observer, ...]) -> None:
        self.log: StepLog | None = None
        self._others = others

    def open(self, folder: Path, sinks: Sequence[str]) -> None:
        """Begin the journal in a run's folder, or go on with it, and send its values to live sinks too."""
        self.log = StepLog(folder, name="label", sinks=[make_sink(name, folder) for name in sinks])

    def close(self) -> None:
        """Write the pending values, and close the journal."""
        if self.log is not None:
            self.log.close()

    def add(self, *, step: int, epoch: int, party: str, layer: str, attack: str, metric: str, value: float) -> None:  # noqa: D102
        if self.log is not None:
            self.log.add(step=step, epoch=epoch, party=party, layer=layer, attack=attack, metric=metric, value=value)
        for other in self._others:
            other.add(step=step, epoch=epoch, party=party, layer=layer, attack=attack, metric=metric, value=value)

    def flush(self) -> None:  # noqa: D102
        if self.log is not None:
            self.log.flush()
        for other in self._others:
            other.flush()

    def on_links(self, links: Mapping[str, Link]) -> None:  # noqa: D102
        for other in self._others:
            other.on_links(links)

    def on_pretraining(self, done: int, steps: int) -> None:  # noqa: D102
        for other in self._others:
            other.on_pretraining(done, steps)

    def on_start(self, steps: int, epochs: int, parties: tuple[str, ...]) -> None:  # noqa: D102
        if self.log is not None:
            _log.info("results go to %s", self.log.path.parent)
        for other in self._others:
            other.on_start(steps, epochs, parties)

    def on_step(self, step: int, epoch: int, loss: float, leak: float) -> None:  # noqa: D102
        for other in self._others:
            other.on_step(step, epoch, loss, leak)

    def on_snapshot(self, step: int, values: Values) -> None:  # noqa: D102
        if self.log is not None:
            add_snapshot(self.log.path.parent, step, values)
        for other in self._others:
            other.on_snapshot(step, values)

    def on_embeddings(self, samples: Sequence[Embeddings]) -> None:  # noqa: D102
        if self.log is not None:
            write_embeddings(self.log.path.parent, samples)
        for other in self._others:
            other.on_embeddings(samples)

    def on_epoch(self, step: int, epoch: int, metrics: Mapping[str, float]) -> None:  # noqa: D102
        self.flush()
        for other in self._others:
            other.on_epoch(step, epoch, metrics)


class EpochLog(Observer):
    """An observer that logs one line an epoch."""

    def on_start(self, steps: int, epochs: int, parties: tuple[str, ...]) -> None:  # noqa: D102
        _log.info("training: epochs: %d, steps: %d, with %s", epochs, steps, ", ".join(parties) or "nobody else")

    def on_epoch(self, step: int, epoch: int, metrics: Mapping[str, float]) -> None:  # noqa: D102
        of_many = ["validation_macro_auc", "validation_accuracy"]
        validation = ["validation_auc"] if "validation_auc" in metrics else of_many
        shown = ["train_loss", *validation, "next_auc", "test_auc", "test_loss", "test_accuracy", "leak", "bound"]
        _log.info("epoch %d: %s", epoch, ", ".join(f"{name} {metrics[name]:.4f}" for name in shown if name in metrics))
