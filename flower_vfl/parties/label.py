"""The label party: the top model, the loss, the labels and, if it has columns of its own, a bottom model for them."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flower_vfl.data.store.dataset import PartyTable
from flower_vfl.data.store.source import FeatureSource
from flower_vfl.errors import ConfigError, TrainingError, UnprotectedBatchError
from flower_vfl.nn.dropout import bound_generators
from flower_vfl.nn.optim import Optimizers, OwnOptimizer
from flower_vfl.nn.placement import IN_MEMORY, Placement
from flower_vfl.parties.best import BestModel
from flower_vfl.parties.feature import set_mode
from flower_vfl.parties.hooks import Hooks, Log, StepView, checked_log, checked_pair
from flower_vfl.parties.loading import Loader
from flower_vfl.parties.network import NOTHING_LEARNED, JoinedEmbeddings, LabelModel, joined, side_by_side
from flower_vfl.protocol.schedule import Rows, RowsPart, Schedule, is_scored
from flower_vfl.protocol.tensors import is_finite

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Inside:
    """The parts of the gradients of one step; they reveal the labels and never leave the label party.

    Attributes
    ----------
    labels, logits : Tensor
        (B,) prepared labels, and the logits.
    slopes, gradients : Tensor
        (B, D) derivatives of each row's logit by the embeddings of all feature parties, and the gradients before any
        defense.
    clipping : Tensor
        The factor, a scalar, by which clipping has made these gradients shorter; 1 without it.
    """

    labels: Tensor
    logits: Tensor
    slopes: Tensor
    gradients: Tensor
    clipping: Tensor


@dataclass(frozen=True, slots=True)
class Step:
    """The result of one training step."""

    rows: Rows
    loss: float
    gradients: Mapping[str, Tensor]
    log: Log = field(default_factory=dict)
    clean: Mapping[str, Tensor] = field(default_factory=dict)
    """The gradients before any defense, by party; empty unless they are kept for measuring."""
    inside: Inside | None = None
    """The parts of the gradients; None except in the steps of a snapshot, and those of `keep_inside`."""


class LabelParty(LabelModel):
    """The state machine of the label party.

    Parameters
    ----------
    top : nn.Module
        Top model; takes the fused embedding, returns logits (B,) for two classes or (B, C).
    optimizers : Optimizers
        Optimizers of the top model, and of `bottom` where there is one.
    labels : NDArray
        (N,) *prepared* labels of the training table.
    hooks : Hooks
        The defenses.
    schedule : Schedule
        The rows of each step.
    parties : Sequence[str]
        Feature parties, in the order in which their embeddings are joined.
    true_labels : NDArray, optional
        (N,) labels as they were before defenses prepared them, for `private_loss`; by default the prepared ones.
    bottom, table : nn.Module, PartyTable, optional
        The label party's own bottom model and columns; its embedding comes last.
    fusion : str
        "concat", "sum" or "mean".
    learned, learners : Mapping[str, nn.Module], Sequence[Optimizers | OwnOptimizer]
        The defenses' trainable modules, by defense, and the optimizer of each.
    clip_norm : float
        Largest Frobenius norm of the batch's cut gradient over all feature parties, applied before `protect`, of the
        gradient of the label party's own weights, and of that of each defense's modules; 0 for none.
    keep_clean : bool
        True if each step keeps the gradients as they were before `protect`, for measuring.
    snapshots : Collection[int]
        Steps that also return the parts of their gradients, where there are two classes.
    placement : Placement
        The device of the models.

    Attributes
    ----------
    best : BestModel or None
        A copy of the weights after the best epoch, where one is kept.
    """

    def __init__(
        self,
        top: nn.Module,
        optimizers: Optimizers | OwnOptimizer,
        labels: NDArray[Any],
        hooks: Hooks,
        schedule: Schedule,
        parties: Sequence[str],
        *,
        true_labels: NDArray[Any] | None = None,
        bottom: nn.Module | None = None,
        table: PartyTable | None = None,
        fusion: str = "concat",
        learned: Mapping[str, nn.Module] = NOTHING_LEARNED,
        learners: Sequence[Optimizers | OwnOptimizer] = (),
        clip_norm: float = 0.0,
        keep_clean: bool = False,
        snapshots: Collection[int] = (),
        placement: Placement = IN_MEMORY,
    ) -> None:
        super().__init__(top, hooks, parties, bottom=bottom, fusion=fusion, learned=learned, placement=placement)
        self.optimizers, self._learners = optimizers, tuple(learners)
        self._labels, self._schedule, self._table, self._clip_norm = labels, schedule, table, clip_norm
        self._true_labels = labels if true_labels is None else true_labels
        self._keep_clean, self._snapshots, self._inside_every = keep_clean, frozenset(snapshots), 0
        has_own = bottom is not None and table is not None
        self._loader = Loader(table.train, schedule, placement) if table is not None and has_own else None
        self._prepared: dict[int, list[Tensor]] = {}
        self.best: BestModel | None = None
        for module in (top, bottom, *learned.values()):
            if module is not None:
                module.train()

    def keep_inside(self, every: int) -> None:
        """Return the parts of the gradients in every `every`-th step, too, not only in those of `snapshots`."""
        self._inside_every = every

    def train_step(self, step: int, embeddings: Mapping[str, Tensor]) -> Step:
        """Do the forward and backward pass of one batch, and return the protected cut gradient of each feature party.

        The label party's own weights do not change until `learn`, which may run while the gradients are sent.

        Parameters
        ----------
        step : int
            Number of the step.
        embeddings : Mapping[str, Tensor]
            (B, ...) embedding of each feature party.

        Raises
        ------
        TrainingError
            When the loss is not finite, or its gradients are not.
        UnprotectedBatchError
            When a defense returned gradients that must not be sent.
        """
        rows = self._schedule.train_batch(step)
        for hooks in self._hooks.hook_targets:
            hooks.begin_batch(rows)
        labels = self._batch_labels(self._labels, rows)
        self._set_mode(train=True)
        received = JoinedEmbeddings(
            {party: embeddings[party].to(self._placement.device) for party in self._parties}, labels
        )
        parts, log = self._embed(received.parts)
        unchanged = all(part is given for part, given in zip(parts, received.parts.values(), strict=True))
        z = received.leaf if unchanged else joined(parts, labels)
        prepared = self._prepared.pop(step, None)
        own = self._own(self._inputs(step), train=True) if prepared is None else prepared
        fused = parts and self._fusion == "concat" and all(part.dim() == 2 for part in parts)
        logits = self.join([z] if fused else parts, own, apart=True)
        version = labels._version
        loss, more = checked_pair(self._hooks.loss(logits, labels, z), "loss")
        if labels._version != version:
            raise ConfigError("loss of a defense writes into the labels, which others use after it; clone them first")
        if loss.numel() != 1:
            raise ConfigError(f"loss of a defense returned a tensor {tuple(loss.shape)}; return a single number")
        for optimizers in (self.optimizers, *self._learners):
            optimizers.zero_grad()
        wanted = step in self._snapshots or (self._inside_every and is_scored(step, self._inside_every))
        slopes = received.slopes(logits) if wanted and received.parts and logits.dim() == 1 else None  # no ensemble
        relabel = self._relabel(logits, z, received.leaf) if self._hooks.other_labels else None
        joint, clipping = self._clipped(received.backward(loss, keep_graph=relabel is not None))
        value = _finite(step, loss, joint, more)
        more |= self._learn_privately(step, [*parts, *own], rows)
        inside = None if slopes is None else Inside(labels, logits.detach(), slopes, joint.clone(), clipping)
        clean = received.split(joint.clone()) if self._keep_clean else {}
        seen = {party: part.detach() for party, part in received.parts.items()}
        view = StepView(rows, received.widths, self.mixed(logits.detach()), seen, relabel=relabel)
        protected, protection = self._protect(joint, labels, view)
        log |= {**more, **protection, **self._end_batch()}
        return Step(rows, value, received.split(protected), log, clean, inside)

    def _learn_privately(self, step: int, parts: Sequence[Tensor], rows: Rows) -> Log:
        """Set the gradients of defenses' modules from their private losses, which reach no other weights."""
        log: Log = {}
        for hooks in self._hooks.hook_targets if self.learned else ():
            parameters = list(hooks.modules.parameters())
            if not parameters:
                continue
            loss = hooks.private_loss(side_by_side(parts), self._batch_labels(self._true_labels, rows), rows)
            if loss is None:
                continue
            if any(parameter.grad is not None for parameter in parameters):
                raise ConfigError(
                    f"the `loss` of the defenses reaches modules of {hooks!r}, which has a `private_loss`: gradients "
                    "that leave would depend on true labels; make the private modules in a defense of their own"
                )
            if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
                raise ConfigError(
                    f"`private_loss` of {hooks!r} returned {loss!r}; return None, or a single number that depends on "
                    "its modules"
                )
            log[f"{getattr(hooks, 'name', 'defense')}.private_loss"] = _finite(step, loss, loss.detach(), log)
            grads = torch.autograd.grad(loss, parameters, allow_unused=True)
            for parameter, grad in zip(parameters, grads, strict=True):
                parameter.grad = grad
        return log

    def _end_batch(self) -> Log:
        log: Log = {}
        for hooks in self._hooks.hook_targets:
            log |= checked_log(hooks.end_batch(), "end_batch")
        return log

    def _relabel(self, logits: Tensor, z: Tensor, leaf: Tensor) -> Callable[[Tensor], Tensor]:
        """Return a function that computes the cut gradients (B, D) of this step for other labels (B,)."""

        def gradients(labels: Tensor) -> Tensor:
            loss, _ = self._hooks.loss(logits, labels, z)
            return self._clipped(*torch.autograd.grad(loss, leaf, retain_graph=True, materialize_grads=True))[0]

        return gradients

    def end_epoch(self) -> Log:
        """Call `end_epoch` of the defenses, and return their log entries."""
        log: Log = {}
        for hooks in self._hooks.hook_targets:
            log |= checked_log(hooks.end_epoch(), "end_epoch")
        return log

    def bound(self) -> float:
        """Return the defenses' bound, under their model, on the leak AUC of all gradients sent so far.

        A value that is no leak AUC bounds nothing, and counts as 1.
        """
        found: object = self._hooks.bound()
        if isinstance(found, int | float | np.floating) and 0.5 <= found <= 1.0:
            return float(found)
        _logger.warning("a defense's `bound` is %r, no leak AUC from 0.5 to 1: it counts as 1, no promise", found)
        return 1.0

    def learn(self) -> None:
        """Update the label party's own weights by the gradients of the last `train_step`."""
        for optimizers in (self.optimizers, *self._learners):
            if self._clip_norm > 0.0:
                optimizers.clip_grad(self._clip_norm)
            optimizers.step()

    def refit_step(
        self,
        rows: Rows,
        inputs: Sequence[Tensor],
        embeddings: Mapping[str, Tensor],
        optimizers: Optimizers | OwnOptimizer,
    ) -> float:
        """Update the top model and the label party's own bottom model from fixed embeddings.

        Defenses change the embeddings as in a prediction, and return the loss; no gradient is sent, so none is
        protected.

        Parameters
        ----------
        rows : Rows
            (B,) rows of the training table.
        inputs : Sequence[Tensor]
            The label party's own columns of these rows; empty where it has none.
        embeddings : Mapping[str, Tensor]
            (B, ...) embedding of each feature party.
        optimizers : Optimizers or OwnOptimizer
            Optimizers of the two models.

        Returns
        -------
        float
            The loss.

        Raises
        ------
        TrainingError
            When the loss is not finite.
        """
        for hooks in self._hooks.hook_targets:
            hooks.begin_batch(rows)
        self._set_mode(train=False)
        set_mode(self.top, train=True)
        parts = [part.detach() for part in self._evaluated(embeddings)]
        labels = self._batch_labels(self._labels, rows)
        logits = self.join(parts, self._own(inputs, train=True), apart=True)
        loss, log = self._hooks.loss(logits, labels, joined(parts, labels))
        value = _finite(-1, loss, loss.detach(), log)
        optimizers.zero_grad()
        torch.autograd.backward(loss)
        if self._clip_norm > 0.0:
            optimizers.clip_grad(self._clip_norm)
        optimizers.step()
        return value

    def prepare(self, step: int) -> None:
        """Run the label party's own bottom model for the next step, which needs no embeddings of other parties."""
        self._prepared = {step: self._own(self._inputs(step), train=True)}

    def dry_run(self, embeddings: Mapping[str, Tensor]) -> None:
        """Do the network's part of the first step on copies of the models, to measure its time; nothing changes."""
        trial = copy.copy(self)
        trial.top, trial.bottom = copy.deepcopy((self.top, self.bottom))
        set_mode(trial.top, train=True)
        received = [embeddings[party].to(self._placement.device).requires_grad_() for party in self._parties]
        torch.autograd.backward(trial.join(received, trial._own(self._inputs(0), train=True)).sum())

    def _batch_labels(self, labels: NDArray[Any], rows: Rows) -> Tensor:
        batch = torch.from_numpy(labels.take(rows).astype(np.int64, copy=False))
        return batch.to(self._placement.device, non_blocking=True)

    def _embed(self, received: Mapping[str, Tensor]) -> tuple[list[Tensor], Log]:
        log: Log = {}
        parts = []
        for party, given in received.items():
            part, more = checked_pair(self._hooks.embed(given, party=party), "embed")
            parts.append(part)
            log |= more
        return parts, log

    def _inputs(self, step: int) -> list[Tensor]:
        return [] if self._loader is None else self._loader.batch(step)

    def _source(self, part: str) -> FeatureSource | None:
        if self._table is None:
            return None
        return self._table.test if part == "test" else self._table.train

    def _clipped(self, joint: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cut gradients of all feature parties, (B, D), after clipping, and the factor of the clipping."""
        clipping = torch.ones(())
        if self._clip_norm > 0.0:
            clipping = torch.clamp(self._clip_norm / (joint.norm() + 1e-12), max=1.0)
            joint = joint * clipping
        return joint, clipping

    def _protect(self, joint: Tensor, labels: Tensor, view: StepView) -> tuple[Tensor, Log]:
        if not joint.shape[1]:
            return joint, {}
        protected, log = checked_pair(self._hooks.protect(joint, labels, view), "protect")
        if protected.shape != joint.shape or protected.dtype != joint.dtype:
            raise UnprotectedBatchError(
                f"a defense returned {protected.dtype} {tuple(protected.shape)} "
                f"for gradients of {joint.dtype} {tuple(joint.shape)}"
            )
        if not is_finite(protected):
            raise UnprotectedBatchError("a defense returned gradients that are not finite; they were not sent")
        return protected, log

    def predict(self, part: RowsPart, index: int, embeddings: Mapping[str, Tensor]) -> Tensor:
        """Return the logits of one evaluation batch."""
        return self.logits(embeddings, self._source(part), self._schedule.eval_batch(part, index))

    def state(self) -> dict[str, Any]:
        """Return everything that changes while training, as plain values and tensors."""
        return {
            "modules": dict(self.module.state_dict()),
            "optimizers": self.optimizers.state_dict(),
            "learners": [learner.state_dict() for learner in self._learners],
            "dropout": [generator.get_state() for generator in bound_generators(self.module)],
            "best": None if self.best is None else self.best.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned."""
        self._prepared = {}
        self.module.load_state_dict(state["modules"])
        self.optimizers.load_state_dict(state["optimizers"])
        for learner, learner_state in zip(self._learners, state["learners"], strict=True):
            learner.load_state_dict(learner_state)
        self.best = BestModel.from_state(state["best"])
        for generator, bits in zip(bound_generators(self.module), state["dropout"], strict=True):
            generator.set_state(bits)


def _finite(step: int, loss: Tensor, joint: Tensor, log: Log) -> float:
    """Return the loss after a check that it and the cut gradients are finite; a GPU is read once for both.

    Raises
    ------
    TrainingError
        When the loss or a cut gradient is not finite.
    """
    if loss.device.type == "cpu":
        value, total = loss.item(), joint.sum().item()
    else:
        value, total = torch.stack([loss.detach().double().reshape(()), joint.sum().double()]).tolist()
    if not math.isfinite(value):
        raise TrainingError(f"training diverged: the loss of step {step} is {value}; {remedy(log)}")
    if not (math.isfinite(total) or is_finite(joint)):
        raise TrainingError(
            f"training diverged: the cut gradients of step {step} are not finite at a loss of {value:.6g}; "
            f"{remedy(log)}"
        )
    return float(value)


def remedy(log: Iterable[str]) -> str:
    """Return advice on how to keep a loss finite, from the names of the defenses' log entries.

    Examples
    --------
    >>> remedy(["potential_energy.term", "iso.noise_power"])
    'try a smaller training.learning_rate or a smaller alpha of potential_energy'
    """
    terms = [name.removesuffix(".term") for name in log if name.endswith(".term")]
    return " or ".join(["try a smaller training.learning_rate", *(f"a smaller alpha of {term}" for term in terms)])
