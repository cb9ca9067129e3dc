"""The evaluator of longitudinal attacks: it runs them after each epoch and compares their scores with true labels."""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from flower_vfl.attacks.base import HINTS
from flower_vfl.attacks.embedding.inference import LEAKED
from flower_vfl.attacks.longitudinal.base import (
    NO_KNOWN_ROWS,
    Kept,
    KnownRows,
    Memory,
    MemoryAttack,
    statistic_of_batch,
)
from flower_vfl.auditing.audit_labels import UNSEEN_ROW, AuditLabels, draw_known, draw_positives
from flower_vfl.auditing.batched_scoring import checked_scores
from flower_vfl.auditing.entries import REMEMBERED
from flower_vfl.auditing.evaluator import naming
from flower_vfl.auditing.read_only import ask
from flower_vfl.auditing.recorder import Recorder
from flower_vfl.auditing.row_memory import RowMemory
from flower_vfl.auditing.selection import ranks_within
from flower_vfl.auditing.summary_state import restore_summary, summary_state
from flower_vfl.errors import ArgumentError, ConfigError, DataError
from flower_vfl.files import boot
from flower_vfl.metrics import LeakSummary, auc_interval, separation
from flower_vfl.protocol.schedule import Rows, Schedule
from flower_vfl.registry import from_elsewhere

_log = logging.getLogger(__name__)

WIDEST_MEMORY = 4096
"""Largest width of a layer in the row memory: a direction takes a square matrix of this size."""


Take: TypeAlias = Callable[[str, int, Memory], None]

MEANS, BATCHES, SCALES, HISTORY = "means", "batches", "scales", "history"
"""Kinds of row memory: with centred batches, for attacks that read means alone; of the batches' own means; of their
scales; and for attacks that read epochs, too."""


def check_memory_attacks(attacks: Iterable[MemoryAttack], labels: AuditLabels, *, repeats: bool) -> None:
    """Refuse longitudinal attacks if their side information is missing, or if they would find nothing to read.

    Parameters
    ----------
    attacks : Iterable[MemoryAttack]
        The attacks that are run.
    labels : AuditLabels
        The true labels of the training table.
    repeats : bool
        True if rows occur more than once.

    Raises
    ------
    ConfigError
        When an attack knows too many rows, or needs side information that does not exist; when rows must recur and do
        not; and when there is not exactly one class to detect.
    """
    positive = labels.numbers == labels.positive(0)
    for attack in attacks:
        try:
            statistic_of_batch(attack.keeps)
        except ArgumentError as error:
            raise ConfigError(f"the attack {attack.label!r} cannot be run: {error}") from None
        if len(labels.positives) != 1:
            raise ConfigError(
                f"the attack {attack.label!r} detects one class in all epochs; here {len(labels.positives)} take "
                f"turns ({', '.join(map(str, labels.positives))}): name one in attack.positives"
            )
        if not attack.needs <= {HINTS, LEAKED}:
            raise ConfigError(f"the attack {attack.label!r} needs {sorted(attack.needs)}; there is {HINTS}, {LEAKED}")
        positives = int(np.count_nonzero(positive))
        if attack.hints >= positives and HINTS in attack.needs:
            raise ConfigError(
                f"the attack {attack.label!r} knows {attack.hints} positives and detects others; {positives} of the "
                f"training rows are positive, so that it can know {max(positives - 1, 0)} at most: lower k"
            )
        fewest = min(positives, len(positive) - positives)
        if attack.leaks >= fewest and LEAKED in attack.needs:
            raise ConfigError(
                f"the attack {attack.label!r} knows {attack.leaks} rows of each class and reads others; class "
                f"{labels.positive(0)} has {positives} of the {len(positive)} training rows, so that it can know "
                f"{max(fewest - 1, 0)} of each at most: lower k"
            )
        if attack.first_epoch > 1 and not repeats:
            raise ConfigError(
                f'the attack {attack.label!r} compares epochs, but with training.order "time" each row comes once'
            )


def _kind(keeps: frozenset[Kept]) -> str:
    for kept, kind in {"mean": MEANS, "batches": BATCHES, "scales": SCALES}.items():
        if keeps == {kept}:
            return kind
    return HISTORY


def _memories(schedule: Schedule, keeps: Iterable[frozenset[Kept]], folder: Path | None) -> dict[str, RowMemory]:
    """Return the memories that are needed; the input of one attack does not depend on the needs of others."""
    needed: dict[str, frozenset[Kept]] = {}
    for each in filter(None, keeps):
        needed[_kind(each)] = needed.get(_kind(each), frozenset()) | each
    return {
        kind: RowMemory(schedule, each, folder=None if folder is None else folder / kind)
        for kind, each in needed.items()
    }


@dataclass(slots=True)
class _Results:
    """The results of one attack at one layer, epoch by epoch."""

    attack: MemoryAttack
    summary: LeakSummary
    epochs: list[int] = field(default_factory=list)
    intervals: list[list[float] | None] = field(default_factory=list)


class LongitudinalEvaluator:
    """An evaluator that keeps a row memory, runs attacks on it after each epoch, and records their leak AUC.

    Parameters
    ----------
    attacks : Sequence[MemoryAttack]
        The attacks that are run; each layer gets an instance of its own. May be empty if something else uses the
        memory.
    layers : Sequence[str]
        Layers in the row memory.
    labels : AuditLabels
        The true labels.
    schedule : Schedule
        Gives the rows of each step, and the end of each epoch.
    party : str
        The feature party with the attacked view.
    source : str
        "attacker" or "monitor".
    defended : bool
        True if any defense is in force.
    recorder : Recorder
        Recorder of all values.
    folder : Path, optional
        Folder of the row memory, see `RowMemory`.
    view : str
        Prefix of the metrics' names in `recorder`, as in "monitor_remembered_auc"; empty for an attacker.
    keeps : Iterable[Kept]
        Statistics that are kept besides those of the attacks.
    take : Callable, optional
        Function that receives each layer, the epoch (from 1) and the memory of means at its end; ``keeps`` must have
        "mean".
    """

    def __init__(
        self,
        attacks: Sequence[MemoryAttack],
        layers: Sequence[str],
        labels: AuditLabels,
        schedule: Schedule,
        *,
        party: str,
        source: str,
        defended: bool,
        recorder: Recorder,
        folder: Path | None = None,
        view: str = "",
        keeps: Iterable[Kept] = (),
        take: Take | None = None,
    ) -> None:
        self._take = take
        self._labels, self._schedule, self._recorder, self._party = labels, schedule, recorder, party
        self._metrics = [f"{view}_{REMEMBERED}_{name}".lstrip("_") for name in ("auc", "detection_error")]
        self._folder = folder
        self._memories = _memories(schedule, [frozenset(keeps), *(attack.keeps for attack in attacks)], folder)
        self._layers = list(layers)
        self.unread: dict[str, str] = {}
        self._boot = boot()
        self._found = [
            _Results(
                attack.fresh(),
                LeakSummary(
                    *(attack.name, party, layer, attack.params), phase=REMEMBERED, source=source, defended=defended
                ),
            )
            for attack in attacks
            for layer in layers
        ]
        self.latest = math.nan
        """The largest leak after the last scored epoch, of scores as they are or turned around."""

    def observe(self, step: int, rows: Rows, gradients: Mapping[str, Tensor]) -> None:
        """Record the gradients of one step, which may not be left out; at an epoch's end, run and score the attacks.

        Parameters
        ----------
        step : int
            The step.
        rows : Rows
            (B,) rows of the step.
        gradients : Mapping[str, Tensor]
            (B, ...) gradients by layer.

        Raises
        ------
        ConfigError
            When an attack writes into the memory.
        """
        kept = {layer: gradients[layer] for layer in tuple(self._layers) if self._fits(layer, gradients[layer])}
        for memory in self._memories.values():
            memory.record(step, rows, kept)
        epoch = self._schedule.epoch_of(step)
        if step == self._schedule.steps_of(epoch)[-1]:
            self._score(step, epoch, list(kept))

    def _fits(self, layer: str, gradient: Tensor) -> bool:
        width = gradient[0].numel()
        if width > WIDEST_MEMORY:
            self._drop_layer(layer, f"it is {width} numbers wide; the row memory takes up to {WIDEST_MEMORY}")
        return width <= WIDEST_MEMORY

    def _drop_layer(self, layer: str, why: str) -> None:
        self._layers.remove(layer)
        self.unread[layer] = why
        _log.warning("party %r: longitudinal attacks do not go on at layer %r: %s", self._party, layer, why)

    def _score(self, step: int, epoch: int, layers: Sequence[str]) -> None:
        times, values = self._schedule.times_before(epoch) + 1, []
        for layer in layers:
            memories = {kind: memory.at(layer, epoch) for kind, memory in self._memories.items()}
            if self._take is not None:
                self._take(layer, epoch, memories[MEANS])
            order = next(iter(memories.values())).order
            labels = self._labels.at(order) == self._labels.positive(0)
            batches = self._schedule.batches_of(order)
            for found in self._found:
                if found.summary.layer == layer and found.attack.first_epoch <= times:
                    memory = memories[_kind(found.attack.keeps)]
                    values.append(self._run_attack(found, memory, labels, batches, step, epoch))
        self.latest = max((max(value, 1.0 - value) for value in values if not math.isnan(value)), default=math.nan)

    def _run_attack(
        self,
        found: _Results,
        memory: Memory,
        labels: NDArray[np.bool_],
        batches: NDArray[np.int64] | None,
        step: int,
        epoch: int,
    ) -> float:
        """Run one attack at one layer, record its values, and return its leak AUC."""
        known = self._known(found.attack, memory)
        values, interval, scored = (math.nan, math.nan), None, labels[:0]
        if known is not None:
            others = ~np.isin(memory.order, known.rows) if known.rows.size else slice(None)
            of_rows = checked_scores(
                found.attack, ask(found.attack, partial(found.attack.score, memory, known)), len(labels)
            )
            scored = labels[others]
            scores = of_rows[others] if batches is None else ranks_within(of_rows[others], batches[others])
            with naming(found.attack):
                values, interval = separation(scores, scored), auc_interval(scores, scored)
        positives = int(np.count_nonzero(scored))
        found.summary.add(values[0], len(scored) - positives, positives, values[1])
        if not math.isnan(values[0]):
            found.epochs.append(epoch)
            found.intervals.append(None if interval is None else list(interval))
        for metric, value in zip(self._metrics, values, strict=True):
            self._recorder.add(
                step=step,
                epoch=epoch,
                party=self._party,
                layer=found.summary.layer,
                attack=found.attack.label,
                metric=metric,
                value=value,
            )
        return values[0]

    def _known(self, attack: MemoryAttack, memory: Memory) -> KnownRows | None:
        """Return the rows that the attack knows, of those that have occurred; None where these are too few."""
        if not attack.needs:
            return NO_KNOWN_ROWS
        labels = np.full(len(self._labels.numbers), UNSEEN_ROW, dtype=np.uint8)
        labels[memory.order] = self._labels.at(memory.order) == self._labels.positive(0)
        if HINTS in attack.needs:
            positives = draw_positives(labels == 1, 0, HINTS)[: attack.hints]
            enough = len(positives) == attack.hints
            return KnownRows(np.sort(positives), np.ones(len(positives), dtype=np.int64)) if enough else None
        return draw_known(labels, attack.leaks)

    def entries(self) -> list[dict[str, Any]]:
        """Return one entry for each attack and layer, for `result.json`, with the value after each epoch."""
        return [
            {
                **found.summary.result(),
                "label": found.attack.label,
                "epochs": found.epochs,
                "values": list(found.summary.values),
                "interval95": found.intervals[-1] if found.intervals else None,
                **({"unavailable": why} if (why := self.unread.get(found.summary.layer)) else {}),
                **from_elsewhere(type(found.attack)),
            }
            for found in self._found
        ]

    def again(self, layer: str, epoch: int) -> Memory | None:
        """Return the memory of means of a layer at the end of the last whole epoch; None where there is none."""
        self.check()  # another process may have written it
        return self._memories[MEANS].at(layer, epoch) if layer in self._layers and epoch else None

    def forget(self) -> None:
        """Release the row memory, after the last step."""
        for memory in self._memories.values():
            memory.forget()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def state(self) -> dict[str, Any]:
        """Return the measurements so far, as plain values; the row memory is in files already."""
        return {
            "boot": boot(),
            "memory": {kind: memory.state() for kind, memory in self._memories.items()},
            "latest": self.latest,
            "layers": list(self._layers),
            "unread": dict(self.unread),
            "found": [
                {
                    "summary": summary_state(found.summary),
                    "epochs": found.epochs,
                    "intervals": found.intervals,
                    "attack": found.attack.state(),
                }
                for found in self._found
            ],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`."""
        self.latest, self._layers, self.unread = state["latest"], list(state["layers"]), dict(state["unread"])
        self._boot = state["boot"]
        for kind, memory in self._memories.items():
            memory.restore(state["memory"][kind])
        for found, entry in zip(self._found, state["found"], strict=True):
            restore_summary(found.summary, entry["summary"])
            found.epochs, found.intervals = list(entry["epochs"]), list(entry["intervals"])
            found.attack.restore(entry["attack"])

    def check(self) -> None:
        """Check that the row memory of a checkpoint is complete and unchanged.

        Writes to the disk are not synchronised: a restart of the machine may lose some, and ends the attacks at such a
        layer.

        Raises
        ------
        DataError
            When a file is damaged or gone, and the machine was not restarted.
        """
        for layer in tuple(self._layers):
            try:
                for memory in self._memories.values():
                    memory.check(layer)
            except DataError:
                if self._boot == boot():
                    raise
                self._drop_layer(layer, "this machine was restarted, and the row memory from before is incomplete")
