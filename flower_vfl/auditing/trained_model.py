"""The last phase of a session: attacks on the trained model, measured by the labels of the test rows."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from flower_vfl.attacks.base import AttackMethod
from flower_vfl.attacks.embedding.inference import InferenceAttack, Leaked, TrainedView
from flower_vfl.auditing.audit_labels import draw_examples
from flower_vfl.auditing.read_only import WriteError, ask
from flower_vfl.auditing.recorder import NoRecorder, Recorder
from flower_vfl.auditing.trained_model_metrics import ACCURACY, AUC, chance, measured, sample_interval
from flower_vfl.data.store.dataset import PartyTable
from flower_vfl.data.store.source import FeatureSource
from flower_vfl.errors import ConfigError
from flower_vfl.metrics import LeakSummary, mean_interval
from flower_vfl.nn.dropout import bind_dropout
from flower_vfl.nn.initialise import new_model
from flower_vfl.nn.placement import Placement, widened
from flower_vfl.protocol.printable import reason_of
from flower_vfl.protocol.schedule import Rows
from flower_vfl.registry import from_elsewhere

_log = logging.getLogger(__name__)

BATCH = 4096
"""Number of rows of one pass through the trained model."""


def check_trained_attacks(
    attacks: Iterable[AttackMethod], labels: NDArray[Any], *, classes: int, test_rows: int
) -> None:
    """Refuse attacks on the trained model that have nothing to attack, or lack their side information.

    Parameters
    ----------
    attacks : Iterable[AttackMethod]
        The attacks that are run on the trained model only.
    labels : NDArray
        (N,) true labels of the training table.
    classes : int
        Number of classes.
    test_rows : int
        Number of rows of the test table.

    Raises
    ------
    ConfigError
        When a class has fewer training rows than are to leak, or there are fewer test rows than classes.
    """
    for attack in attacks:
        if test_rows < classes:
            raise ConfigError(
                f"the attack {attack.label!r} reads the test rows once the model is trained; this data has "
                f"{test_rows or 'none'} for {classes} classes"
            )
        if isinstance(attack, InferenceAttack) and attack.leaks:
            draw_examples(labels, 0, classes=classes, count=attack.leaks)


@dataclass(frozen=True, slots=True, eq=False)
class _Reading:
    """An attack's answer on the attacked rows and its value in every measure, or the reason why there is none."""

    values: Mapping[str, float] = field(default_factory=dict)
    answer: Tensor | None = None
    why: str = ""


DrawValues = Sequence[Mapping[str, float]]
"""Values of an attack, one draw after the other, by measure; empty where it could not be measured."""


class TrainedModelEvaluator:
    """An evaluator that compares the answers of attacks on a trained model with the true labels of the attacked rows.

    Parameters
    ----------
    labels : NDArray
        (N,) true class numbers of the attacked rows; no attack ever sees them.
    classes : int
        Number of classes.
    party : str
        The feature party with the attacked model.
    source : str
        "attacker" or "monitor".
    defended : bool
        True if any defense was in force.
    recorder : Recorder, optional
        Recorder of each draw's values, as "inference_accuracy" and the like.
    step, epoch : int
        Step and epoch of the values in the log; draw d has ``step`` + d. The steps of training count from 0, so that
        their number is the first free one.
    """

    def __init__(
        self,
        labels: NDArray[Any],
        classes: int,
        *,
        party: str,
        source: str,
        defended: bool,
        recorder: Recorder | None = None,
        step: int = 0,
        epoch: int = 0,
    ) -> None:
        self._labels, self._classes = labels.astype(np.int64, copy=False), classes
        self._party, self._source, self._defended = party, source, defended
        self._recorder, self._step, self._epoch = recorder or NoRecorder(), step, epoch

    def baselines(self, attack: InferenceAttack, views: Iterable[TrainedView]) -> list[Mapping[str, float]]:
        """Return an attack's values in each view without the trained model, by measure."""
        found = []
        for draw, view in enumerate(views):
            found.append(self._read(attack, "without the model", partial(attack.baseline, view)).values)
            self._record(attack, "", "baseline", draw, found[-1])
        return found

    def entry(
        self, attack: InferenceAttack, layer: str, views: Iterable[TrainedView], baselines: DrawValues = ()
    ) -> dict[str, Any]:
        """Attack each view and return the entry for `result.json`.

        Parameters
        ----------
        attack : InferenceAttack
            The attack that is run.
        layer : str
            The attacked layer.
        views : Iterable[TrainedView]
            The attack's inputs, one view for each draw.
        baselines : Sequence[Mapping[str, float]]
            The values of the same draws without the trained model, by measure; empty where they are unknown.
        """
        attack, readings = attack.fresh(), []  # its state belongs to this party and layer alone
        for draw, view in enumerate(views):
            readings.append(self._read(attack, f"at layer {layer!r}", partial(attack.infer, view), _shown(view)))
            self._record(attack, layer, "inference", draw, readings[-1].values)
        metric = AUC if attack.reads == "scores" else ACCURACY
        counts = np.bincount(self._labels, minlength=self._classes)
        summary = LeakSummary(
            *(attack.name, self._party, layer, attack.params),
            metric=metric,
            phase="inference",
            source=self._source,
            defended=self._defended,
        )
        for reading in readings:
            summary.add(reading.values.get(metric, math.nan), int(counts[0]), int(counts[1]))
        names = dict.fromkeys([metric, *(name for reading in readings for name in reading.values)])
        measures = {name: self._measure(name, attack, readings, baselines) for name in names}
        first = measures[metric]
        why = next((reading.why for reading in readings if reading.why), "")
        return {
            **summary.result(baseline=first["baseline"], advantage=first["advantage"]),
            "label": attack.label,
            "known": attack.leaks,
            **{key: first[key] for key in ("interval95", "advantage_interval95", "chance")},
            "perfect_protection": None if first["advantage"] is None or metric == AUC else first["advantage"] <= 0,
            "measures": measures,
            **({"unavailable": why} if why else {}),
        }

    def _read(
        self, attack: InferenceAttack, where: str, run: Callable[[], Tensor | None], shown: Sequence[Tensor] = ()
    ) -> _Reading:
        """Run an attack and measure its answer.

        Unreadable layers, for instance one that a user's own top model does not fit on, and errors in a user's own
        attack, must not end the run; an attack that writes into what others read does.
        """
        try:
            answer = ask(attack, run, shown, copies=bool(from_elsewhere(type(attack))))
            if answer is None:
                return _Reading()
            return _Reading(measured(attack.reads, answer, self._labels, self._classes), answer)
        except WriteError:
            raise
        except Exception as error:  # noqa: BLE001 - training is done, and an attack may be a user's own
            why = reason_of(error)
            _log.warning("trained model of party %r: %s %s cannot be run: %s", self._party, attack.label, where, why)
            return _Reading(why=why)

    def _measure(
        self, name: str, attack: InferenceAttack, readings: Sequence[_Reading], baselines: DrawValues
    ) -> dict[str, Any]:
        """Return the fields of one measure over the draws; unknown ones are None."""
        values = [reading.values.get(name, math.nan) for reading in readings]
        alone = [baseline.get(name, math.nan) for baseline in baselines]
        gains = [value - baseline for value, baseline in zip(values, alone, strict=False)]
        advantage = _mean(gains)
        answer = next((reading.answer for reading in readings if reading.answer is not None), None)
        return {
            "mean": _mean([value for value in values if not math.isnan(value)]),
            "interval95": self._interval(name, attack, readings, values),
            "baseline": _mean(alone),
            "baseline_interval95": _listed(mean_interval(alone)) if _mean(alone) is not None else None,
            "advantage": advantage,
            "advantage_interval95": None if advantage is None else _listed(mean_interval(gains)),
            "chance": chance(name, attack.reads, answer, self._labels, self._classes),
        }

    def _interval(
        self, name: str, attack: InferenceAttack, readings: Sequence[_Reading], values: Sequence[float]
    ) -> list[float] | None:
        """Return the interval of the mean over draws; for a single draw, with the attacked rows as a sample."""
        answer = readings[0].answer
        if answer is None or any(map(math.isnan, values)):
            return None
        if len(values) > 1:
            return _listed(mean_interval(values))
        return _listed(sample_interval(name, values[0], attack.reads, answer, self._labels, self._classes))

    def _record(self, attack: InferenceAttack, layer: str, kind: str, draw: int, values: Mapping[str, float]) -> None:
        prefix = "monitor_" if self._source == "monitor" else ""
        for name, value in values.items():
            self._recorder.add(
                step=self._step + draw,
                epoch=self._epoch,
                party=self._party,
                layer=layer,
                attack=attack.label,
                metric=f"{prefix}{kind}_{name}",
                value=value,
            )


def _shown(view: TrainedView) -> list[Tensor]:
    """Return the tensors of a view that other attacks read too."""
    leaked = [] if view.leaked is None else [view.leaked.embeddings, *view.leaked.inputs, view.leaked.labels]
    return [view.embeddings, *view.inputs, *leaked]


def _listed(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else list(interval)


def _mean(values: Sequence[float]) -> float | None:
    mean = float(np.mean(values)) if values else math.nan
    return None if math.isnan(mean) else mean


@dataclass(frozen=True)
class FreshModels:
    """The factories of an attacker's own models.

    Attributes
    ----------
    bottom : Callable[[], nn.Module]
        Function that makes an untrained bottom model like the attacker's own.
    top : Callable[[tuple[int, ...], int], nn.Module]
        Function that makes a top model like the label party's, for the shape of a row and the number of classes.
    seed : Callable[..., int]
        Function that derives a seed for a purpose from the party's secret.
    """

    bottom: Callable[[], nn.Module]
    top: Callable[[tuple[int, ...], int], nn.Module]
    seed: Callable[..., int]


class _Network(nn.Module):
    """A bottom model with a top model on it."""

    def __init__(self, bottom: nn.Module, top: nn.Module) -> None:
        super().__init__()
        self.bottom, self.top = bottom, top

    def forward(self, *inputs: Tensor) -> Tensor:
        logits: Tensor = self.top(self.bottom(*inputs))
        return logits


class TrainedModel:
    """An attacker's own trained bottom model, as the target of attacks.

    An attack changes nothing: the model runs in evaluation mode, on copies of its buffers.

    Parameters
    ----------
    bottom : nn.Module
        The trained bottom model.
    table : PartyTable
        The party's columns; the test rows are attacked, labels of training rows leak.
    labels : NDArray
        True labels of the training table, from which examples leak; an attack receives those that are drawn.
    classes : int
        Number of classes.
    fresh : FreshModels
        The factories of models.
    placement : Placement
        The device of the models.
    """

    def __init__(
        self,
        bottom: nn.Module,
        table: PartyTable,
        labels: NDArray[Any],
        classes: int,
        fresh: FreshModels,
        *,
        placement: Placement,
    ) -> None:
        self._bottom, self._table, self._labels = bottom, table, labels
        self._classes, self._fresh, self._placement = classes, fresh, placement
        self._attacked = np.arange(len(table.test))
        self._inputs = self._gather(table.test, self._attacked)
        self._cut_shape = tuple(self._outputs(None, table.test, self._attacked[:2]).shape[1:])

    def entries(
        self, attacks: Sequence[InferenceAttack], layers: Mapping[str, nn.Module | None], scorer: TrainedModelEvaluator
    ) -> list[dict[str, Any]]:
        """Run every attack at every layer and return one entry for each, for `result.json`.

        Parameters
        ----------
        attacks : Sequence[InferenceAttack]
            The attacks that are run.
        layers : Mapping[str, nn.Module | None]
            The attacked parts of the bottom model by name; None stands for all of it, with the cut as its output.
        scorer : TrainedModelEvaluator
            The evaluator that compares answers with the true labels.
        """
        entries, baselines = [], dict[str, DrawValues]()
        for layer, module in layers.items():
            z = self._outputs(module, self._table.test, self._attacked)  # of one layer at a time: they may be large
            for attack in attacks:
                if attack.label not in baselines:
                    baselines[attack.label] = scorer.baselines(attack, self._views(attack, module, z))
                entry = scorer.entry(attack, layer, self._views(attack, module, z), baselines[attack.label])
                entries.append(entry)
                shown = ["unknown" if entry[key] is None else f"{entry[key]:.3f}" for key in ("mean", "baseline")]
                _log.info(
                    "trained model of party %r: %s at layer %r reads with %s %s; without the model: %s",
                    *(self._table.name, attack.label, layer, entry["metric"], *shown),
                )
        return entries

    def _views(self, attack: InferenceAttack, module: nn.Module | None, z: Tensor) -> Iterator[TrainedView]:
        """Yield an attack's view of a layer for each draw."""
        shape = tuple(z.shape[1:])
        for draw in range(attack.draws):
            seed = self._fresh.seed(attack.label, draw)
            yield TrainedView(
                z,
                self._classes,
                seed,
                self._inputs,
                leaked=self._leaked(module, draw, attack.leaks) if attack.leaks else None,
                top=partial(self._make, seed, partial(self._fresh.top, shape, self._classes)),
                network=partial(self._make, seed, self._network),
            )

    def _leaked(self, module: nn.Module | None, draw: int, count: int) -> Leaked:
        rows = draw_examples(self._labels, draw, classes=self._classes, count=count)
        labels = torch.from_numpy(self._labels[rows].astype(np.int64)).to(self._placement.device)
        table = self._table.train
        return Leaked(self._outputs(module, table, rows), self._gather(table, rows), labels)

    @torch.no_grad()
    def _outputs(self, module: nn.Module | None, source: FeatureSource, rows: Rows) -> Tensor:
        """Return the outputs (N, ...) of a part of the trained model for rows of a table."""
        seen: list[Tensor] = []
        watched = self._bottom if module is None else module
        hook = watched.register_forward_hook(lambda _, __, output: seen.append(output.clone()))
        training, pieces = self._bottom.training, []
        self._bottom.eval()
        try:
            for low in range(0, len(rows), BATCH):
                copies = {name: buffer.clone() for name, buffer in self._bottom.named_buffers()}
                forward = partial(functional_call, self._bottom, copies)
                self._placement.forward(forward, self._gather(source, rows[low : low + BATCH]))
                pieces.append(widened(seen[-1]))
                seen.clear()
        finally:
            self._bottom.train(training)
            hook.remove()
        return torch.cat(pieces)

    def _gather(self, source: FeatureSource, rows: Rows) -> tuple[Tensor, ...]:
        return tuple(self._placement.bring_all(source.gather(rows)))

    def _network(self) -> nn.Module:
        return _Network(self._fresh.bottom(), self._fresh.top(self._cut_shape, self._classes))

    def _make(self, seed: int, factory: Callable[[], nn.Module]) -> nn.Module:
        """Make a fresh model; its weights and dropout come from the seed alone."""
        model = new_model(factory, seed, "what an attack takes for a fresh model")
        generator = torch.Generator(device=self._placement.device).manual_seed(seed)
        return self._placement.place(bind_dropout(model, generator))
