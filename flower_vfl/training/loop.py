"""The training loop of the label party: steps across the cut, evaluation, and stopping."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flower_vfl.auditing.attacker import AUDIT_REFERENCE, AUDIT_ROW
from flower_vfl.auditing.evaluator import Oracle, Reference
from flower_vfl.auditing.monitor import LeakageMonitor
from flower_vfl.config import Config
from flower_vfl.errors import NotFiniteError, ProtocolError, TrainingError
from flower_vfl.metrics import snapshot
from flower_vfl.metrics.utility import predicted_classes, utility
from flower_vfl.parties.best import BestModel
from flower_vfl.parties.label import LabelParty, Step, remedy
from flower_vfl.protocol.frame import Frame, Kind
from flower_vfl.protocol.schedule import EVALUATED_PARTS, Rows, RowsPart, Schedule, is_scored
from flower_vfl.training.conditional_oracle import ConditionalAudit
from flower_vfl.training.kept import KeptEmbeddings
from flower_vfl.training.observer import Observer
from flower_vfl.training.outcome import LIMITS, MEASURED, OF_MANY_CLASSES, Epoch, Outcome, measured
from flower_vfl.training.replay_guard import ReplayGuard
from flower_vfl.transport.base import Link, expect

_logger = logging.getLogger(__name__)

EVALUATIONS_UNDER_WAY = 4
"""Number of evaluation batches that are requested before the first answer is awaited."""

_EPOCH_PREFIXED = ("train_loss", *LIMITS)


class TrainingLoop:
    """The loop that trains a label party and the feature parties behind its links by a schedule.

    Parameters
    ----------
    label : LabelParty
        The state machine of the label party.
    links : Mapping[str, Link]
        Link to each feature party.
    schedule : Schedule
        The rows of each step.
    labels : tuple of NDArray
        (N,) and (M,) true labels of the training and test table, for metrics.
    classes : int
        Number of classes.
    config : Config
        Batch sizes, limits, patience.
    monitor : LeakageMonitor, optional
        Monitor of the gradients that are sent.
    oracle : Oracle, optional
        Chooses the side information of oracle attacks.
    audited : Collection[str]
        In a simulation, the parties whose attack evaluators receive it; empty in a deployment.
    sample : Rows, optional
        (n,) sorted test rows whose embeddings are kept; by default none.
    guard : ReplayGuard, optional
        Receives the embeddings of a step before a gradient of it is sent.
    conditional : ConditionalAudit, optional
        Measures, in a simulation, the leak to a reader that has all information on a row but its label.
    observer : Observer
        Receives the progress of the run.
    outcome : Outcome
        Filled during training, so that an interruption keeps the measurements.
    """

    def __init__(
        self,
        label: LabelParty,
        links: Mapping[str, Link],
        schedule: Schedule,
        labels: tuple[NDArray[Any], NDArray[Any]],
        classes: int,
        config: Config,
        *,
        monitor: LeakageMonitor | None,
        observer: Observer,
        outcome: Outcome,
        oracle: Oracle | None = None,
        audited: Collection[str] = (),
        sample: Rows | None = None,
        guard: ReplayGuard | None = None,
        conditional: ConditionalAudit | None = None,
    ) -> None:
        self._label, self._links, self._schedule = label, links, schedule
        self._labels, self._classes, self._config = labels, classes, config
        self._monitor, self._observer, self.outcome = monitor, observer, outcome
        outcome.of_many_classes = OF_MANY_CLASSES[config.training.class_weights]
        self._loss = math.nan
        self._oracle, self._audited = oracle, frozenset(audited)
        self.test_embeddings: dict[str, Tensor] = {}
        """Each party's embeddings of the test rows at the last evaluation, (M, ...), kept for a monitor."""
        self.sample = np.zeros(0, dtype=np.int64) if sample is None else sample
        self.sampled: dict[str, Tensor] = {}
        """Each party's embeddings of the rows in `sample`, (n, ...)."""
        self._guard, self._conditional = guard, conditional
        self._kept: KeptEmbeddings | None = None
        self._losses: list[float] = []
        self._before, self._started = Outcome(), time.perf_counter()

    def run(self, after_epoch: Callable[[int], None], save: Callable[[int], None] | None = None) -> None:
        """Train until the schedule, early stopping or a limit ends it; start after the restored step, if any.

        Parameters
        ----------
        after_epoch : Callable[[int], None]
            Called with the number of each epoch that is done and evaluated.
        save : Callable[[int], None], optional
            Called with the number of finished steps whenever all parties should save their states.
        """
        self._observer.on_links(self._links)
        self._observer.on_start(self._schedule.steps, self._schedule.epochs, tuple(self._links))
        self._started = time.perf_counter()
        try:
            if not self._config.training.gradients and self._kept is None:
                self.keep_embeddings()
            if self._stopped():
                self.evaluate_again()  # results of the last evaluation are no part of a checkpoint
            for epoch, steps in self._segments():
                if self._stopped():
                    return
                self._train(epoch, steps)
                if steps.stop == self._schedule.steps_of(epoch).stop:
                    self.outcome.epochs.append(self._evaluate(epoch))
                    self._copy_best(epoch)
                    if epoch == 1:
                        self._warn_of_validation()
                    after_epoch(epoch)
                if save is not None:
                    save(self.outcome.steps)
            self._stopped()
        finally:
            self._update_cost()

    def evaluate_again(self) -> None:
        """Evaluate the present model on the test table, and replace the kept embeddings and class counts."""
        batches = range(self._schedule.batches("test"))
        if batches:
            self._count_classes(self._predict("test", batches), self._labels_of("test", batches))

    def _copy_best(self, epoch: int) -> None:
        """Let all parties copy their weights if the epoch is the best so far and early stopping may return to it."""
        outcome = self.outcome
        better = outcome.best_by is not None and outcome.best["epoch"] == epoch
        if self._config.training.patience and better and not self._limits_passed():
            self._label.best = BestModel.of(self._label.module, outcome.steps)
            self._send_all(Frame(Kind.BEST, outcome.steps))

    def discard_model(self) -> None:
        """Drop the results of the last evaluation, because no model is kept."""
        self.test_embeddings, self.sampled, self.outcome.confusion = {}, {}, []

    def _segments(self) -> Iterator[tuple[int, range]]:
        """Yield the remaining steps in segments within an epoch, each with its epoch; between two none is in flight."""
        every = self._config.checkpoint.every
        for epoch in range(1, self._schedule.epochs + 1):
            steps = self._schedule.steps_of(epoch)
            low = max(steps.start, self.outcome.steps)
            while low < steps.stop:
                high = min(steps.stop, (low // every + 1) * every) if every > 0 else steps.stop
                yield epoch, range(low, high)
                low = high

    def _stopped(self) -> bool:
        """Return True if training ends after the last epoch, and record the reason."""
        epoch = len(self.outcome.epochs)
        if epoch and self.outcome.steps == self._schedule.steps_of(epoch).stop:
            last = epoch == self._schedule.epochs
            self.outcome.stopped = self._reason_to_stop(epoch) or ("finished" if last else "")
        return bool(self.outcome.stopped)

    def _update_cost(self) -> None:
        """Update the outcome's time and bytes."""
        down, up = self._bytes()
        self.outcome.seconds = self._before.seconds + time.perf_counter() - self._started
        self.outcome.bytes_down, self.outcome.bytes_up = self._before.bytes_down + down, self._before.bytes_up + up

    def _bytes(self) -> tuple[int, int]:
        """Return the bytes that the links in use have carried, down and up."""
        links = self._links.values()
        return sum(link.bytes_down for link in links), sum(link.bytes_up for link in links)

    def state(self) -> dict[str, Any]:
        """Return the measurements so far, as plain values."""
        self._update_cost()
        audit = {} if self._conditional is None else {"conditional": self._conditional.oracle.state()}
        return {"losses": list(self._losses), "outcome": measured(self.outcome), **audit}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned."""
        self._losses = list(state["losses"])
        self.outcome.stopped, self.outcome.kept, self.outcome.chosen_by, self.outcome.refit = "", None, "", {}
        self._kept = None if self._config.training.gradients else self._kept
        if self._conditional is not None:  # stacked training has no such measurement
            self._conditional.oracle.restore(state.get("conditional", {}))
        for name in MEASURED:
            setattr(self.outcome, name, state["outcome"][name])
        down, up = self._bytes()
        self._before = replace(
            self.outcome, bytes_down=self.outcome.bytes_down - down, bytes_up=self.outcome.bytes_up - up
        )

    def _train(self, epoch: int, steps: range) -> None:
        """Train some steps of an epoch; the pipeline fills at their start and drains at their end."""
        ahead = self.outcome.in_flight
        for step in steps[:ahead]:
            self._send_all(Frame(Kind.STEP, step, {"gradient_of": -1}))
        if steps.start == self._schedule.steps_of(epoch).start:
            self._losses = []
        for step in steps:
            embeddings = self._embeddings("train", step, self._schedule.train_batch(step))
            started = time.perf_counter()
            if self._guard is not None:
                self._guard.note(step, embeddings)
            done = self._label.train_step(step, embeddings)
            request = step + ahead if step + ahead in steps else -1
            self.outcome.seconds_compute += time.perf_counter() - started
            references = self._oracle.references(step, done.rows, done.clean) if self._oracle is not None else {}
            for party, link in self._active_links.items():
                link.send(self._answer(party, step, request, done, references))
            started = time.perf_counter()
            self._label.learn()  # the parties compute meanwhile
            if step + 1 in steps:
                self._label.prepare(step + 1)
            self.outcome.seconds_compute += time.perf_counter() - started
            self._record(step, epoch, done, embeddings, references)
            self._losses.append(done.loss)
            self._loss, self.outcome.steps = done.loss, step + 1

    def _answer(self, party: str, step: int, request: int, done: Step, references: Mapping[str, Reference]) -> Frame:
        """Return the frame with the gradient of one step, and for an audited party with its side information."""
        fields, tensors = {"gradient_of": step}, {"gradient": done.gradients[party]}
        if party in self._audited and party in references:
            fields[AUDIT_ROW] = references[party].row
            tensors[AUDIT_REFERENCE] = references[party].gradients["cut"]
        return Frame(Kind.STEP, request, fields, tensors)

    def _record(
        self,
        step: int,
        epoch: int,
        done: Step,
        embeddings: Mapping[str, Tensor],
        references: Mapping[str, Reference],
    ) -> None:
        """Measure and log a step while its gradients are in transit."""
        leak = math.nan
        if self._monitor is not None:
            self._monitor.observe(
                step, epoch, done.rows, embeddings, done.gradients, clean=done.clean, references=references
            )
            leak = self._monitor.latest
        for metric, value in done.log.items():
            self.outcome.logged[metric] = self.outcome.logged.get(metric, 0.0) + value
        for metric, value in {"train_loss": done.loss, **done.log, **self._class_counts(step, done)}.items():
            self._log(step, epoch, metric, value)
        if (
            self._conditional is not None
            and done.inside is not None
            and is_scored(step, self._conditional.oracle.every)
        ):
            self._conditional(step, epoch, done, done.inside)
        if done.inside is not None and step in self._config.attack.snapshots:
            inside, generator = done.inside, np.random.default_rng(step)
            values = snapshot(inside.labels, inside.logits, inside.slopes, inside.gradients, generator=generator)
            self._observer.on_snapshot(step, values)
        self._observer.on_step(step, epoch, done.loss, leak)

    def _class_counts(self, step: int, done: Step) -> dict[str, float]:
        """Return the counts that determine the chance level: the rows of the batch, and those of the detected class."""
        if self._oracle is None:
            return {}
        positives = self._oracle.positives_in(step, done.rows)
        return {"batch_rows": positives.size, "batch_positives": int(np.count_nonzero(positives))}

    def _log(self, step: int, epoch: int, metric: str, value: float) -> None:
        self._observer.add(step=step, epoch=epoch, party="label", layer="", attack="", metric=metric, value=value)

    @property
    def _active_links(self) -> Mapping[str, Link]:
        """The links to parties that take part in steps and evaluations: none once all embeddings are kept."""
        return self._links if self._kept is None else {}

    def _send_all(self, frame: Frame) -> None:
        for link in self._active_links.values():
            link.send(frame)

    def _embeddings(self, part: RowsPart, step: int, rows: Rows) -> dict[str, Tensor]:
        """Return the embeddings (B, ...) of all parties for a step or an evaluation batch."""
        return self._receive_all(step, rows.size) if self._kept is None else self._kept.of(part, rows)

    def keep_embeddings(self) -> KeptEmbeddings:
        """Request the embeddings of all rows of both tables once, in batches, and return them.

        Afterwards no embedding is requested, and no gradient is sent.
        """
        kept = KeptEmbeddings(self._links, self._schedule)
        for part in ("train", "test"):
            for _, rows, embeddings in self._evaluation_batches(part, range(self._schedule.batches(part))):
                kept.put(part, rows, embeddings)
        self._kept = kept
        return kept

    def _receive_all(self, step: int, rows: int) -> dict[str, Tensor]:
        """Return the checked embeddings (B, ...) of all parties."""
        started = time.perf_counter()
        embeddings, timeout = {}, self._config.transport.step_timeout
        for link, frame in receive_answers(self._links, Kind.EMBEDDING, step, timeout):
            try:
                embeddings[link.party] = embedding_in(frame, link, rows)
            except NotFiniteError as error:
                raise TrainingError(f"training diverged at {error}{self._remedy()}") from error
        self.outcome.seconds_wait += time.perf_counter() - started
        return embeddings

    def _remedy(self) -> str:
        """Return the last loss and advice on a diverged training, for an error message."""
        loss = f", after a loss of {self._loss:.6g}" if self.outcome.steps else ""
        return f"{loss}; {remedy(self.outcome.logged)}"

    def _evaluate(self, epoch: int) -> Epoch:
        """Evaluate after an epoch, let the defenses end it, and return and log the metrics."""
        metrics: Epoch = {"epoch": epoch, "train_loss": float(np.mean(self._losses)), **self.metrics(epoch)}
        log = self._label.end_epoch()
        metrics |= self._limited_values()
        step = self._schedule.steps_of(epoch)[-1]
        for metric, value in metrics.items():
            if metric != "epoch":
                self._log(step, epoch, f"epoch_{metric}" if metric in _EPOCH_PREFIXED else metric, value)
        for metric, value in log.items():
            self._log(step, epoch, metric, value)
        self._observer.on_epoch(step, epoch, metrics)
        return metrics

    def metrics(self, epoch: int) -> Epoch:
        """Evaluate on the validation part or the next period, and on the test table.

        Raises
        ------
        TrainingError
            When a prediction is not finite.
        """
        metrics: Epoch = {}
        for part in EVALUATED_PARTS:
            batches = self._schedule.batches_after(part, epoch)
            if not batches:
                continue
            logits = self._predict(part, batches)
            self._check_predictions(logits, part, epoch)
            labels = self._labels_of(part, batches)
            metrics |= {f"{part}_{name}": value for name, value in utility(logits, labels, self._classes).items()}
            if part == "test":
                self._count_classes(logits, labels)
        return metrics

    def _labels_of(self, part: RowsPart, batches: range) -> NDArray[Any]:
        """Return the true labels (N,) of evaluation batches."""
        rows = [self._schedule.eval_batch(part, index) for index in batches]
        return self._labels[1 if part == "test" else 0][np.concatenate(rows)]

    def _count_classes(self, logits: Tensor, labels: NDArray[Any]) -> None:
        """Count the test rows by true and predicted class; the counts stay at the label party."""
        pairs = labels.astype(np.int64) * self._classes + predicted_classes(logits).numpy()
        counts = np.bincount(pairs, minlength=self._classes**2)
        self.outcome.confusion = counts.reshape(self._classes, self._classes).tolist()

    def _warn_of_validation(self) -> None:
        """Warn once if the validation part should compare epochs and cannot."""
        training = self._config.training
        if self._schedule.batches("validation") and self.outcome.best_by is None:
            _logger.warning(
                "all rows of the validation part are of one class, so that no AUC is known there: nothing is chosen by "
                "it, the last epoch counts as the best%s. Raise training.validation (%s), or take another "
                "schedule_seed, which draws other rows",
                f", and training.patience = {training.patience} ends nothing" if training.patience else "",
                training.validation,
            )

    def _check_predictions(self, logits: Tensor, part: RowsPart, epoch: int) -> None:
        broken = ~(logits < math.inf)  # a user's top model may exclude a class by -inf
        count = int(broken.reshape(len(logits), -1).any(dim=1).sum())
        if count:
            rows = "rows of the next period" if part == "next" else f"{part} rows"
            raise TrainingError(
                f"training diverged: the predictions for {count} of {len(logits)} {rows} after epoch {epoch} are not "
                f"finite{self._remedy()}"
            )

    def _limited_values(self) -> dict[str, float]:
        """Return the leak AUC and the bound after an epoch, where they are limited."""
        attack, spent = self._config.attack, dict[str, float]()
        if attack.max_leak < 1.0 and self._monitor is not None:
            spent["leak"] = self._monitor.epoch_leak
        if attack.max_bound < 1.0:
            spent["bound"] = self._label.bound()
        return spent

    def _predict(self, part: RowsPart, batches: range) -> Tensor:
        kept = part == "test" and self._monitor is not None and self._monitor.reads_trained_models
        logits, received, sampled = [], list[dict[str, Tensor]](), list[dict[str, Tensor]]()
        for index, rows, embeddings in self._evaluation_batches(part, batches):
            received += [embeddings] if kept else []
            if part == "test" and self.sample.size:
                chosen = torch.from_numpy(np.flatnonzero(np.isin(rows, self.sample)))
                sampled.append({party: z[chosen.to(z.device)] for party, z in embeddings.items()})
            started = time.perf_counter()
            logits.append(self._label.predict(part, index, embeddings).cpu())
            self.outcome.seconds_compute += time.perf_counter() - started
        if kept:
            self.test_embeddings = self._joined(received)
        if sampled:
            self.sampled = self._joined(sampled)
        return torch.cat(logits)

    def _evaluation_batches(self, part: RowsPart, batches: range) -> Iterator[tuple[int, Rows, dict[str, Tensor]]]:
        """Yield evaluation batches: their numbers, rows (B,) and embeddings (B, ...)."""
        under_way = max(EVALUATIONS_UNDER_WAY, self.outcome.in_flight)
        for index in range(batches.start - under_way, batches.stop):
            ahead = index + under_way
            if ahead in batches:
                self._send_all(Frame(Kind.EVALUATE, ahead, {"part": part}))
            if index in batches:
                rows = self._schedule.eval_batch(part, index)
                yield index, rows, self._embeddings(part, index, rows)

    def _joined(self, batches: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        return {party: torch.cat([batch[party] for batch in batches]) for party in self._links}

    def _reason_to_stop(self, epoch: int) -> str:
        attack, patience, spent = self._config.attack, self._config.training.patience, self.outcome.epochs[-1]
        words = {
            "leak": f"the largest leak AUC that was measured of epoch {epoch}",
            "bound": f"the bound on the leak AUC of all gradients sent until the end of epoch {epoch}",
        }
        for key in LIMITS:
            reached, limit = spent.get(key, 0.0), getattr(attack, f"max_{key}")
            if reached > limit:
                _logger.warning("%s is %.3f; the limit attack.max_%s is %s", words[key], reached, key, limit)
            elif math.isnan(reached):
                _logger.warning("%s is not known: attack.max_%s limits nothing there", words[key], key)
        passed = self._limits_passed()
        if passed:
            return passed[0]
        if patience and epoch - self.outcome.improved >= patience:
            return "early stopping"
        return ""

    def _limits_passed(self) -> list[str]:
        """Return the limits that the last epoch has passed and that end the run."""
        attack, spent = self._config.attack, self.outcome.epochs[-1]
        passed = [status for key, status in LIMITS.items() if spent.get(key, 0.0) > getattr(attack, f"max_{key}")]
        return passed if attack.on_leak == "stop" else []


def receive_answers(links: Mapping[str, Link], kind: Kind, step: int, timeout: float) -> Iterator[tuple[Link, Frame]]:
    """Put all sent frames on their way, then yield each link with its party's answer, as `expect` returns it."""
    for link in links.values():
        link.flush()
    for party, link in links.items():
        yield link, expect(link.receive(timeout), kind, step, party)


def embedding_in(frame: Frame, link: Link, rows: int) -> Tensor:
    """Return the embeddings (B, ...) of `rows` rows in a party's answer.

    Raises
    ------
    ProtocolError, NotFiniteError
        When they are others than agreed, or not finite; the message begins with the party.
    """
    try:
        return frame.tensor("embedding", shape=(rows, *link.shape), dtype=link.dtype)
    except ProtocolError as error:
        raise type(error)(f"party {link.party!r}: {error}") from error
