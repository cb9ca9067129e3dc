"""The evaluator of attacks on training steps: it compares their scores with the true labels."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from flower_vfl.attacks.base import HINTS, KINDS, LABELS, REFERENCE, Attack, AttackMethod, SideInformation
from flower_vfl.attacks.embedding.clustering import matched
from flower_vfl.attacks.gradient.principal_direction import fresh_together
from flower_vfl.auditing.audit_labels import AuditLabels, draw_examples, draw_positives
from flower_vfl.auditing.batched_scoring import MOST_PENDING_BYTES, PendingStep, answer
from flower_vfl.auditing.recorder import Recorder
from flower_vfl.auditing.shared_state import SharedStateCheck
from flower_vfl.auditing.summaries import StepLeaks, StepResults
from flower_vfl.errors import ConfigError
from flower_vfl.metrics import ArgumentError, separation
from flower_vfl.metrics.summary import nearest_rank
from flower_vfl.protocol.schedule import Rows, is_scored
from flower_vfl.protocol.transcript import Transcript

_log = logging.getLogger(__name__)
_NO_ROWS: Rows = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """The clean gradient of one positive of the batch, for oracle attacks.

    Attributes
    ----------
    row
        Position of that positive in the batch; it is left out of the measurement.
    gradients
        (D,) the clean gradient, for each layer at which it is known.
    """

    row: int
    gradients: Mapping[str, torch.Tensor]


def check_side_information(attacks: Iterable[Attack], *, positives: int, batch_size: int) -> None:
    """Refuse attacks whose side information no batch can supply.

    Parameters
    ----------
    attacks : Iterable[Attack]
        The attacks that are run.
    positives : int
        Number of positives among the training rows.
    batch_size : int
        Number of rows of one step.

    Raises
    ------
    ConfigError
        When side information does not exist, or leaves no positive to detect.
    """
    for attack in attacks:
        unknown = attack.needs - KINDS.keys()
        if unknown:
            raise ConfigError(f"the attack {attack.label!r} needs {sorted(unknown)}; there is only {', '.join(KINDS)}")
        most = min(positives, batch_size) - 1
        if HINTS in attack.needs and attack.hints > most:
            raise ConfigError(
                f"the attack {attack.label!r} knows {attack.hints} positives of each batch and detects others; "
                f"{positives} of the training rows are positive and a batch has {batch_size} rows, so that it can know "
                f"{max(most, 0)} at most: lower k"
            )
        if LABELS in attack.needs and not 0 < attack.leaks < positives:
            raise ConfigError(
                f"the attack {attack.label!r} knows the labels of {attack.leaks} rows of each class; from 1 to "
                f"{positives - 1} are possible with this data"
            )


@contextmanager
def naming(attack: AttackMethod) -> Iterator[None]:
    """Prefix an error about an attack's scores with the attack's name."""
    try:
        yield
    except ArgumentError as error:
        raise ArgumentError(f"the attack {attack.label!r}: {error}") from error


class Oracle:
    """A source of the clean gradient of one positive of each batch, for oracle attacks.

    Parameters
    ----------
    attacks : Sequence[Attack]
        The attacks that are run; where none needs a reference, none is made.
    labels : AuditLabels
        The true labels.
    every : int
        Number of steps from one scored step to the next.
    """

    def __init__(self, attacks: Sequence[Attack], labels: AuditLabels, every: int) -> None:
        self._needed = any(REFERENCE in attack.needs for attack in attacks)
        self._labels, self._every = labels, every

    def positives_in(self, step: int, rows: Rows) -> NDArray[np.bool_]:
        """Return a mask (B,) of the rows of a step's batch with the class that is detected in it."""
        found: NDArray[np.bool_] = self._labels.at(rows) == self._labels.positive(step // self._every)
        return found

    def references(self, step: int, rows: Rows, clean: Mapping[str, torch.Tensor]) -> dict[str, Reference]:
        """Return each party's reference at the cut, none for a step that is not scored or has no positive.

        Parameters
        ----------
        step : int
            The step.
        rows : Rows
            (B,) rows of the step.
        clean : Mapping[str, Tensor]
            (B, ...) cut gradients before any defense, by party.
        """
        if not self._needed or not is_scored(step, self._every):
            return {}
        positives = draw_positives(self.positives_in(step, rows), step, REFERENCE)
        if not positives.size:
            return {}
        row = int(positives[0])
        return {party: Reference(row, {"cut": g[row].flatten().clone()}) for party, g in clean.items()}


class AttackEvaluator:
    """An evaluator that runs attacks on a transcript's last step and records their accuracy.

    It also gives attacks the side information that they declare, and does not measure the examples that supplied it:
    the reference comes from an `Oracle`, hints are the gradients of positives that it draws from the true labels. A
    batch with too few positives for that is counted with the batches of one class.

    Parameters
    ----------
    attacks : Sequence[Attack]
        The attacks that are run; each layer gets an instance of its own.
    layers : Sequence[str]
        Layers with gradients that are attacked.
    labels : AuditLabels
        The true labels.
    party : str
        The feature party with the attacked view.
    source : str
        "attacker" or "monitor".
    defended : bool
        True if any defense is in force.
    recorder : Recorder
        Recorder of all values.
    every : int
        Number of steps from one scored step to the next.
    together : int
        Number of steps that are scored in a row, which takes half of the time: between two steps of training the
        processor's caches have none of the needed data.
    held_out : Rows, optional
        Rows that no step has: those of the validation part.
    view : str
        Prefix of the metrics' names in `recorder`, as in "monitor_auc" and "monitor_detection_error"; by default empty
        for an attacker, "monitor" for the monitor.
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
        together: int = 1,
        held_out: Rows = _NO_ROWS,
        view: str = "",
    ) -> None:
        self._held_out = held_out
        self._labels, self._recorder, self._every, self._party = labels, recorder, every, party
        self._prefix = view or ("" if source == "attacker" else "monitor")
        self._warned: set[str] = set()
        by_layer = [[(layer, attack) for attack in fresh_together(attacks)] for layer in layers]
        self._leaks = [
            StepLeaks(attack, party, layer, source=source, defended=defended)
            for of_attack in zip(*by_layer, strict=True)
            for layer, attack in of_attack
        ]
        self._shared_state = SharedStateCheck([leaks.attack for leaks in self._leaks])
        self._epoch: tuple[int, list[list[float]]] = (-1, [])
        self._needs_hints = any(HINTS in attack.needs for attack in attacks)
        self._leaked: dict[int, NDArray[np.int64]] = {}
        self._together, self._pending = together, list[PendingStep]()
        self.latest = math.nan
        """The largest leak of the last compared step, of scores as they are or turned around, without pending steps."""

    def scores(self, step: int) -> bool:
        """Return True if a step is scored."""
        return is_scored(step, self._every)

    def score(self, transcript: Transcript, reference: Reference | None = None) -> None:
        """Attack the last step; `reference` is the side information of oracle attacks, where there is one.

        Raises
        ------
        ConfigError
            When an attack writes into its inputs, or its instances share state.
        """
        trace = transcript.last
        if not self.scores(trace.step):
            return
        labels, positive = self._labels.at(trace.rows), self._labels.positive(trace.step // self._every)
        nothing = SideInformation(classes=self._labels.classes)
        # An attack with k hints knows the first k positives, at every layer the same.
        hinted = draw_positives(labels == positive, trace.step, HINTS) if self._needs_hints else nothing.left_out
        shown = [
            tensor for one in transcript for tensor in (one.embedding, *one.gradients.values(), *one.outputs.values())
        ]
        shown += [] if reference is None else reference.gradients.values()
        step = PendingStep(trace.step, trace.epoch, labels, positive)
        for place, leaks in enumerate(self._leaks):
            side = self._side_information(leaks, transcript, reference, hinted) if leaks.attack.needs else nothing
            seen = transcript.latest(leaks.attack.history)
            step.add((leaks.attack, leaks.layer), seen, side, shown)
            self._shared_state.compare(place, seen, leaks.layer, side, step.scores[-1])
        self._pending.append(step)
        if len(self._pending) >= self._together or sum(one.held for one in self._pending) > MOST_PENDING_BYTES:
            self.settle()

    def settle(self) -> None:
        """Score the pending steps, compare the scores with the true labels, and record the results."""
        pending, self._pending = self._pending, []
        answer([(leaks.attack, leaks.layer) for leaks in self._leaks], pending)
        for step in pending:
            self._compare(step)

    def _compare(self, scored: PendingStep) -> None:
        if scored.epoch != self._epoch[0]:
            self._epoch = (scored.epoch, [[] for _ in self._leaks])
        labels = scored.labels == scored.positive
        values = []
        for place, (leaks, seen) in enumerate(zip(self._leaks, self._epoch[1], strict=True)):
            found = scored.found(place)
            if leaks.attack.reads == "clusters":
                with naming(leaks.attack):
                    self._compare_groups(leaks, scored, found)
                continue
            with naming(leaks.attack):
                value, error = (math.nan, math.nan) if found is None else _measure(*found, labels)
            counted = labels if found is None else np.delete(labels, found[1])
            positives = int(np.count_nonzero(counted))
            leaks.add(scored.positive, value, len(counted) - positives, positives, error)
            self._record(leaks, scored, auc=value, detection_error=error)
            if not math.isnan(value):
                seen.append(value)
                values.append(max(value, 1.0 - value))
        self.latest = max(values, default=math.nan)

    def _compare_groups(
        self, leaks: StepLeaks, scored: PendingStep, found: tuple[NDArray[Any], NDArray[np.int64]] | None
    ) -> None:
        """Record the accuracy of groups without names, and that of the same groups in random order of the rows."""
        value = null = math.nan
        if found is not None and len(np.unique(scored.labels)) > 1:
            kept = np.setdiff1d(np.arange(len(scored.labels)), found[1])
            groups, labels = found[0][kept], scored.labels[kept]
            shuffled = np.random.default_rng(scored.step).permutation(groups)
            value, null = (matched(g, labels, classes=self._labels.classes)[0] for g in (groups, shuffled))
        counts = np.bincount(scored.labels.astype(np.int64))
        leaks.add(0, value, len(scored.labels) - int(counts.max()), int(counts.max()), null=null)
        self._record(leaks, scored, accuracy=value, accuracy_null=null)

    def _record(self, leaks: StepLeaks, scored: PendingStep, **values: float) -> None:
        for name, value in values.items():
            self._recorder.add(
                step=scored.step,
                epoch=scored.epoch,
                party=self._party,
                layer=leaks.layer,
                attack=leaks.attack.label,
                metric=f"{self._prefix}_{name}".lstrip("_"),
                value=value,
            )

    def _side_information(
        self, leaks: StepLeaks, transcript: Transcript, reference: Reference | None, hinted: NDArray[np.int64]
    ) -> SideInformation | None:
        """Return the side information that the attack declares; None where the batch lacks it."""
        attack, layer = leaks.attack, leaks.layer
        tensors: dict[str, torch.Tensor] = {}
        left_out: list[int] = []
        if HINTS in attack.needs and len(hinted) >= attack.hints:
            known = hinted[: attack.hints]
            gradients = transcript.last.gradients[layer]
            tensors[HINTS] = gradients[torch.from_numpy(known).to(gradients.device, non_blocking=True)]
            left_out += known.tolist()
        if REFERENCE in attack.needs and reference is not None and layer in reference.gradients:
            tensors[REFERENCE] = reference.gradients[layer]
            left_out.append(reference.row)
        if LABELS in attack.needs:
            known, tensors[LABELS] = self._known_labels(attack, transcript)
            left_out += known.tolist()
        if tensors.keys() >= attack.needs:
            return SideInformation(tensors, np.array(sorted(set(left_out)), dtype=np.int64), self._labels.classes)
        if attack.label not in self._warned:  # once is enough: the count is in the result
            self._warned.add(attack.label)
            _log.warning(
                "attack %s at layer %r of party %r: the batch of step %d has too few positives for its side "
                "information (%s); such steps are counted under one_class_steps",
                *(attack.label, layer, self._party, transcript.last.step, ", ".join(sorted(attack.needs))),
            )
        return None

    def _known_labels(self, attack: Attack, transcript: Transcript) -> tuple[NDArray[np.int64], torch.Tensor]:
        """Return the positions in the batch whose labels an attack knows, and its `LABELS` information, (B,)."""
        if attack.leaks not in self._leaked:
            count = {"classes": self._labels.classes, "count": attack.leaks}
            self._leaked[attack.leaks] = draw_examples(self._labels.numbers, 0, **count)
        trace = transcript.last
        known = np.flatnonzero(np.isin(trace.rows, self._leaked[attack.leaks]))
        values = np.full(len(trace.rows), -1, dtype=np.int64)
        positive = self._labels.positive(trace.step // self._every)
        values[known] = self._labels.at(np.asarray(trace.rows)[known]) == positive
        return known, torch.from_numpy(values).to(trace.embedding.device)

    @property
    def epoch_leak(self) -> float:
        """The largest 95 % quantile over the attacks and layers in the current epoch; NaN where nothing was scored.

        An attack with inverted scores also reads labels: the scores of an attack, all or none, may be turned around.
        """
        self.settle()
        seen = [np.array(values) for values in self._epoch[1] if values]
        return max((nearest_rank(side) for values in seen for side in (values, 1.0 - values)), default=math.nan)

    def entries(self) -> list[dict[str, Any]]:
        """Return one entry for each attack and layer, for `result.json`."""
        self.settle()
        counts = self._labels.class_counts(self._held_out)
        return [leaks.result(counts) for leaks in self._leaks]

    def state(self) -> dict[str, Any]:
        """Return the measurements so far, and the attacks' states, as plain values and tensors."""
        self.settle()
        return {
            "epoch": list(self._epoch),
            "latest": self.latest,
            "summaries": [leaks.state() for leaks in self._leaks],
            "attacks": [leaks.attack.state() for leaks in self._leaks],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`."""
        self._pending = []
        self._shared_state.stop()
        epoch, seen = state["epoch"]
        self._epoch, self.latest = (epoch, [list(values) for values in seen]), state["latest"]
        for leaks, entry, kept in zip(self._leaks, state["summaries"], state["attacks"], strict=True):
            leaks.restore(entry)
            leaks.attack.restore(kept)


def evaluator_state(measured: Sequence[StepResults]) -> dict[str, Any]:
    """Return the `state` of an `AttackEvaluator` with these results, one for each attack and layer."""
    epoch = int(measured[0].epochs[-1]) if measured and len(measured[0].epochs) else -1
    seen = [entry.values[(entry.epochs == epoch) & ~np.isnan(entry.values)].tolist() for entry in measured]
    last = [float(entry.values[-1]) for entry in measured if len(entry.values) and not np.isnan(entry.values[-1])]
    last = [max(value, 1.0 - value) for value in last]
    return {
        "epoch": [epoch, seen],
        "latest": max(last, default=math.nan),
        "summaries": [entry.state() for entry in measured],
        "attacks": [entry.attack for entry in measured],
    }


def _measure(scores: NDArray[Any], left_out: NDArray[np.int64], labels: NDArray[np.bool_]) -> tuple[float, float]:
    """Return leak AUC and detection error over the examples that did not supply the side information."""
    if not left_out.size:
        return separation(scores, labels)
    return separation(np.delete(scores, left_out), np.delete(labels, left_out))
