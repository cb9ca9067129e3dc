"""A feature party: a bottom model, its optimizer and its columns. It never learns labels, losses or metrics."""

from __future__ import annotations

import copy
import json
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from flower_vfl.data.store.dataset import PartyTable
from flower_vfl.data.store.source import FeatureSource
from flower_vfl.errors import ProtocolError, TrainingError
from flower_vfl.nn.backward import backward
from flower_vfl.nn.digest import weights_digest
from flower_vfl.nn.optim import Optimizers, OwnOptimizer
from flower_vfl.nn.placement import IN_MEMORY, Placement
from flower_vfl.parties.best import BestModel
from flower_vfl.parties.loading import Loader, gather
from flower_vfl.parties.observation import Observation, ObservationPoint, PartyObserver
from flower_vfl.parties.pretraining import Pretraining
from flower_vfl.protocol.frame import OVERHEAD, Frame, Kind
from flower_vfl.protocol.schedule import Rows, Schedule, is_part
from flower_vfl.version import software

MOST_IN_FLIGHT = 64
"""Largest number of steps in flight."""


@dataclass(slots=True)
class _Pending:
    """A pending step, which waits for its gradient."""

    step: int
    rows: Rows
    inputs: list[Tensor]
    output: Tensor | None
    dropout: Tensor | None


class Store(Protocol):
    """A party's store of states, on its own disk."""

    def save(self, step: int, state: Any, *, hold: int) -> None:
        """Save the state after `step` steps; do not delete the one after `hold` steps."""

    def load(self, step: int) -> Any:
        """Return the state after `step` steps; `DataError` where it is missing or belongs to another run."""


class FeatureParty:
    """The state machine of a feature party.

    Parameters
    ----------
    name : str
        Name of the party.
    bottom : nn.Module
        Bottom model, on the device of `placement`; called with the result of `table.train.gather`.
    optimizers : Optimizers
        Optimizers of the bottom model.
    table : PartyTable
        The party's columns of the training and test rows.
    schedule : Schedule
        The rows of each step.
    alignment : str
        Digest of the ordered IDs; the label party compares it with its own.
    in_flight : int
        Pipeline depth, the largest number of steps in flight. The gradient of step t is applied before the embedding of
        step t + in_flight is computed. With more than 1, weights change between a forward pass and its backward pass,
        so the forward pass is repeated with the current weights. With 0 the label party chooses the number.
    dropout : torch.Generator, optional
        The generator of the bottom model's dropout.
    placement : Placement
        The device of the bottom model.
    store : Store, optional
        Store of the party's states, used at the label party's request.
    pretraining : Pretraining, optional
        Pre-training of the bottom model, before the first step.
    gradients : bool
        True if the party receives gradients. Without any, there are no steps: the label party may request the embedding
        of each row instead, from the model in evaluation mode.
    refit : bool
        True if the label party may request these embeddings after a training with gradients, too.

    Attributes
    ----------
    on_finish : Callable[[FeatureParty], None]
        Function that is called with the party when training is finished, before it reports: its results must be on its
        disk by then, because they are not requested again.
    observer : PartyObserver
        Observer that reads each step from the observation `point`; that of an honest party does nothing.
    """

    def __init__(
        self,
        name: str,
        bottom: nn.Module,
        optimizers: Optimizers | OwnOptimizer,
        table: PartyTable,
        schedule: Schedule,
        *,
        alignment: str = "",
        in_flight: int = 1,
        dropout: torch.Generator | None = None,
        placement: Placement = IN_MEMORY,
        store: Store | None = None,
        pretraining: Pretraining | None = None,
        gradients: bool = True,
        refit: bool = False,
    ) -> None:
        self.name = name
        self.finished, self.discarded = False, False
        self.bottom = bottom
        self.optimizers = optimizers
        self.seconds_compute = 0.0
        self._table, self._schedule, self._alignment = table, schedule, alignment
        self._configured, self._in_flight, self._dropout = in_flight, in_flight or 1, dropout
        self._placement, self._loader = placement, Loader(table.train, schedule, placement)
        self._pending: deque[_Pending] = deque()
        self._next_step = 0
        self._store, self._pretraining, self._gradients, self._refit = store, pretraining, gradients, refit
        self._best: BestModel | None = None
        self.observer = PartyObserver()
        self.on_finish: Callable[[FeatureParty], None] = lambda _party: None
        self.on_exported: Callable[[FeatureParty], None] = lambda _party: None
        self.awaits_export = False
        """True if an `EXPORTED` frame follows once the results are written; until then the party may be restored."""
        self._refit_batches = 0  # those that were sent for a refit
        self._shape, self._dtype = self._probe()

    def _probe(self) -> tuple[tuple[int, ...], torch.dtype]:
        """Return the shape and the number format of one row's embedding."""
        output = embed(self.bottom, self._table.train, self._schedule.train_batch(0)[:2], self._placement)
        return embedding_shape(output, f"party {self.name!r}"), output.dtype

    @property
    def point(self) -> ObservationPoint:
        """The observation point, for an observer of this party."""
        return ObservationPoint(self.name, self.bottom, self._table, self._schedule, self._placement, self._dropout)

    @property
    def frame_limit(self) -> int:
        """Largest size of a frame to or from this party, in bytes."""
        return batch_limit(max(self._schedule.batch_size, self._schedule.eval_batch_size), self._shape)

    def hello(self) -> Frame:
        """Return the party's greeting: the shape of its embeddings, its rows, and the digests of IDs and schedule."""
        return greeting(
            self.name,
            self._shape,
            self._dtype,
            rows=len(self._table.train),
            test_rows=len(self._table.test),
            alignment=self._alignment,
            schedule=self._schedule.digest,
            in_flight=self._configured,
        )

    def handle(self, frame: Frame) -> Frame | None:
        """Handle one frame from the label party, and return the answer, if there is one.

        Raises
        ------
        ProtocolError
            When the frame is not the next one that the protocol allows; nothing of it was used then.
        """
        started = time.perf_counter()
        try:
            if frame.kind is Kind.STEP:
                return self._step(frame)
            if frame.kind is Kind.EVALUATE:
                return self._evaluate(frame)
            if frame.kind is Kind.FINISH:
                return self._finish()
            if frame.kind in (Kind.SAVE, Kind.RESTORE, Kind.KEEP, Kind.BEST, Kind.EXPORTED):
                return self._handle_state(frame)
            if frame.kind in (Kind.PROBE, Kind.IN_FLIGHT):
                return self._settle_depth(frame)
            return self._handle_other(frame)
        finally:
            self.seconds_compute += time.perf_counter() - started

    def _handle_other(self, frame: Frame) -> Frame:
        if frame.kind is Kind.PRETRAIN:
            return self._pretrain()
        answer = self.observer.answer(frame)
        if answer is None:
            raise ProtocolError(f"party {self.name!r} does not take {frame.kind} frames")
        return answer

    def _pretrain(self) -> Frame:
        """Pre-train on the party's own columns for one time slice, and return the progress."""
        if self._pretraining is None:
            raise ProtocolError(f"party {self.name!r} has no pre-training to do: there is none, or it is over")
        if self._next_step:
            raise ProtocolError("pre-training was asked for after the first step")
        self._pretraining.work()
        done, steps = self._pretraining.done, self._pretraining.steps
        if done == steps:
            self._pretraining = None  # frees its decoder and its optimizer's state
        return Frame(Kind.PRETRAINED, fields={"done": done, "steps": steps})

    def _step(self, frame: Frame) -> Frame | None:
        if not self._gradients:
            raise ProtocolError("a step was asked for, and here training.gradients is false")
        if self.finished or self._refit_batches:
            raise ProtocolError("a step was asked for after the end of the steps")
        gradient_of = frame.integer("gradient_of")
        if gradient_of >= 0:
            self._learn(gradient_of, frame)
        return self._embed(frame.step) if frame.step >= 0 else None

    def _embed(self, step: int) -> Frame:
        if step != self._next_step or step >= self._schedule.steps:
            raise ProtocolError(f"step {step} was asked for, the next one is {self._next_step}")
        if len(self._pending) >= self._in_flight:
            raise ProtocolError(f"step {step} was asked for while {len(self._pending)} steps wait for their gradient")
        rows = self._schedule.train_batch(step)
        exact = self._in_flight == 1
        state = None if self._dropout is None else self._dropout.get_state()
        set_mode(self.bottom, train=True)
        self.observer.begin_step(step)
        inputs = self._loader.batch(step)
        with torch.set_grad_enabled(exact):
            given = inputs if exact else map(torch.clone, inputs)  # a model may change its inputs in place
            output = self._placement.forward(self.bottom, *given)
        self._pending.append(_Pending(step, rows, inputs, output if exact else None, state))
        self._next_step += 1
        return Frame(Kind.EMBEDDING, step, tensors={"embedding": output.detach()})

    def _learn(self, step: int, frame: Frame) -> None:
        if not self._pending or self._pending[0].step != step:
            expected = self._pending[0].step if self._pending else "none"
            raise ProtocolError(f"received the gradient of step {step}, expected step {expected}")
        pending = self._pending[0]
        shape = (len(pending.rows), *self._shape)
        gradient = frame.tensor("gradient", shape=shape, dtype=self._dtype).to(self._placement.device)
        output = pending.output if pending.output is not None else self._repeat_forward(pending)
        observation = Observation(step, pending.rows, output, gradient, frame)
        self.observer.before_backward(observation)
        self._pending.popleft()
        self.optimizers.zero_grad()
        backward(output, gradient)
        self.observer.after_backward(observation)
        self.optimizers.step()

    def _repeat_forward(self, pending: _Pending) -> Tensor:
        """Repeat a forward pass, with the same dropout and without a second update of running statistics."""
        current = None
        if self._dropout is not None and pending.dropout is not None:
            current = self._dropout.get_state()
            self._dropout.set_state(pending.dropout)
        copies = {name: buffer.clone() for name, buffer in self.bottom.named_buffers()}
        set_mode(self.bottom, train=True)
        self.observer.begin_step(pending.step)
        output = self._placement.forward(partial(functional_call, self.bottom, copies), tuple(pending.inputs))
        if self._dropout is not None and current is not None:
            self._dropout.set_state(current)
        return output

    def _evaluate(self, frame: Frame) -> Frame:
        part = frame.text("part")
        if not is_part(part) or not 0 <= frame.step < self._schedule.batches(part):
            raise ProtocolError(f"there is no evaluation batch {frame.step} of {part!r}")
        if part == "train" and self._gradients:
            self._check_refit(frame)
        rows = self._schedule.eval_batch(part, frame.step)
        source = self._table.test if part == "test" else self._table.train
        embedding = embed(self.bottom, source, rows, self._placement)
        return Frame(Kind.EMBEDDING, frame.step, tensors={"embedding": embedding})

    def _check_refit(self, frame: Frame) -> None:
        """Refuse a batch of all training rows unless it is the next one for a refit, once the steps are done."""
        if not self._refit:
            raise ProtocolError("the embeddings of all training rows were asked for, and here training.refit is 0")
        self._check_nothing_pending(frame)
        if not self._next_step or frame.step != self._refit_batches:
            raise ProtocolError(
                f"batch {frame.step} of all training rows was asked for, which are sent once, in order, after the steps"
            )
        self._refit_batches += 1

    def _handle_state(self, frame: Frame) -> Frame | None:
        """Handle a frame that saves or restores a state, chooses the model that is kept, or confirms the export."""
        if frame.kind is Kind.EXPORTED:
            if not self.finished:
                raise ProtocolError(f"an {frame.kind} frame came before training was finished")
            self.awaits_export = False
            self.on_exported(self)
            self.observer.forget()
            return None
        if frame.kind is Kind.KEEP:
            return self._choose_model(frame)
        if frame.kind is Kind.BEST:
            self._copy_best(frame)
            return None
        if self._store is None:
            raise ProtocolError(f"party {self.name!r} keeps no checkpoints")
        if frame.kind is Kind.RESTORE:
            count = frame.integer("count")  # distinguishes several restores of one step
            self.restore(self._store.load(frame.step))
            self.observer.check()
            return Frame(Kind.RESTORED, frame.step, {"count": count})
        self._check_between_steps(frame, "save the state")
        self.settle()
        self._store.save(frame.step, self.state(), hold=self._schedule.epoch_start(frame.step))
        return Frame(Kind.SAVED, frame.step)

    def _check_between_steps(self, frame: Frame, what: str) -> None:
        """Refuse a frame unless its step is done and the next one has not begun."""
        self._check_nothing_pending(frame)
        if frame.step != self._next_step:
            raise ProtocolError(f"asked to {what} after step {frame.step}, but this party is at step {self._next_step}")

    def _check_nothing_pending(self, frame: Frame) -> None:
        if self._pending:
            raise ProtocolError(f"a {frame.kind} frame came while {len(self._pending)} steps wait for their gradient")

    def _choose_model(self, frame: Frame) -> Frame:
        """Keep the model of an earlier step, or none; measurements do not change."""
        self._check_nothing_pending(frame)
        if self._best is not None and self._best.step == frame.step:
            self._best.load_into(self.bottom)
        elif frame.step >= 0:
            if self._store is None:
                raise ProtocolError(f"party {self.name!r} keeps no checkpoints")
            self.bottom.load_state_dict(self._store.load(frame.step)["bottom"])
        self.discarded = frame.step < 0
        return Frame(Kind.KEPT, frame.step)

    def _copy_best(self, frame: Frame) -> None:
        """Copy the weights as the best ones so far."""
        self._check_between_steps(frame, "keep the model")
        self._best = BestModel.of(self.bottom, frame.step)

    def _settle_depth(self, frame: Frame) -> Frame | None:
        """Do a trial step for the label party's measurement, or set the pipeline depth."""
        if self._configured:
            raise ProtocolError(f"a {frame.kind} frame came, but here transport.in_flight is {self._configured}")
        if self._pending:
            raise ProtocolError(f"a {frame.kind} frame comes before the first step, not between steps")
        if frame.kind is Kind.PROBE:
            return self._try_step(frame) if frame.tensors else Frame(Kind.PROBED)
        agreed = frame.integer("in_flight")
        if not 1 <= agreed <= MOST_IN_FLIGHT:
            raise ProtocolError(f"{agreed} steps in flight were asked for; 1 to {MOST_IN_FLIGHT} are possible")
        self._in_flight = agreed
        return None

    def _try_step(self, frame: Frame) -> Frame:
        """Do the work of the next step on a copy of the model: two forward passes and a backward pass."""
        started = time.perf_counter()
        shape = (self._schedule.batch_rows(self._next_step), *self._shape)
        gradient = frame.tensor("gradient", shape=shape, dtype=self._dtype).to(self._placement.device)
        model = copy.deepcopy(self.bottom)  # with it, the generator of its dropout
        set_mode(model, train=True)
        inputs = self._loader.batch(self._next_step)
        with torch.no_grad():
            embedding = self._placement.forward(model, *map(torch.clone, inputs))
        backward(self._placement.forward(model, *inputs), gradient)
        fields = {"seconds": time.perf_counter() - started}
        return Frame(Kind.PROBED, fields=fields, tensors={"embedding": embedding})

    def settle(self) -> None:
        """Write the observer's pending results to disk."""
        self.observer.settle()

    def report(self) -> dict[str, Any]:
        """Return the final report: the digest of the kept weights, the computing time and the observer's report."""
        weights = "" if self.discarded else weights_digest(self.bottom)
        seen = self.observer.report(self._next_step, trained=not self.discarded)
        return {"weights": weights, "seconds_compute": self.seconds_compute, **seen}

    def _finish(self) -> Frame:
        if self._pending:
            raise ProtocolError(f"training was finished while {len(self._pending)} steps wait for their gradient")
        self.finished = True
        text = bytearray(json.dumps(self.report()), "utf8")
        if not self.awaits_export:  # until then another party may be lost, and all return to their last state
            self.observer.forget()
        report = Frame(Kind.REPORT, tensors={"report": torch.frombuffer(text, dtype=torch.uint8)})
        self.on_finish(self)
        return report

    def state(self) -> dict[str, Any]:
        """Return everything that changes while training, as plain values and tensors."""
        return {
            "bottom": dict(self.bottom.state_dict()),
            "optimizers": self.optimizers.state_dict(),
            "next_step": self._next_step,
            "in_flight": self._in_flight,
            "pending": [{"step": pending.step, "dropout": pending.dropout} for pending in self._pending],
            "dropout": None if self._dropout is None else self._dropout.get_state(),
            "seconds_compute": self.seconds_compute,
            "finished": self.finished,
            "discarded": self.discarded,
            "best": None if self._best is None else self._best.state(),
            "observer": self.observer.state(),
            **({} if self._pretraining is None else {"pretraining": self._pretraining.state()}),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned; pending forward passes are repeated when their gradients arrive."""
        self.bottom.load_state_dict(state["bottom"])
        self.optimizers.load_state_dict(state["optimizers"])
        self._next_step, self.finished = state["next_step"], state["finished"]
        self._in_flight, self._refit_batches = state["in_flight"], 0
        self.discarded = state["discarded"]
        self._best = BestModel.from_state(state["best"])
        self.seconds_compute = state["seconds_compute"]
        self.observer.restore(state["observer"])
        if self._pretraining is not None and "pretraining" in state:
            self._pretraining.restore(state["pretraining"])
        else:
            self._pretraining = None
        self._pending.clear()
        for entry in state["pending"]:
            step = entry["step"]
            inputs = self._loader.batch(step)
            self._pending.append(_Pending(step, self._schedule.train_batch(step), inputs, None, entry["dropout"]))
        if self._dropout is not None:
            self._dropout.set_state(state["dropout"])


@torch.no_grad()
def embed(bottom: nn.Module, source: FeatureSource, rows: Rows, placement: Placement) -> Tensor:
    """Return the embedding (B, ...) of rows from the bottom model in evaluation mode."""
    set_mode(bottom, train=False)
    return placement.forward(bottom, *gather(source, rows, placement))


def greeting(party: str, shape: tuple[int, ...], dtype: torch.dtype, **fields: str | int) -> Frame:
    """Return a party's greeting: the shape and number format of a row's embedding, its software and other fields."""
    of_embedding = {"shape": json.dumps(shape), "dtype": str(dtype).removeprefix("torch.")}
    return Frame(Kind.HELLO, fields={"party": party, **of_embedding, **fields, **software()})


def embedding_shape(output: Any, owner: str) -> tuple[int, ...]:
    """Return the shape of one row of a bottom model's output (B, ...).

    Raises
    ------
    TrainingError
        When it is no floating point tensor with a row for each example; the message names the owner.
    """
    if not isinstance(output, Tensor) or output.dim() < 2 or not output.is_floating_point():
        given = f"{output.dtype} {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        raise TrainingError(
            f"the bottom model of {owner} must return a floating point tensor (B, ...) of real numbers, given {given}: "
            "let it end with a layer that has a differentiable output"
        )
    return tuple(output.shape[1:])


def set_mode(module: nn.Module, *, train: bool) -> None:
    """Switch a model to training or evaluation, unless it is in that mode: a switch visits all its parts."""
    if module.training is not train:
        module.train(train)


def batch_limit(rows: int, shape: tuple[int, ...]) -> int:
    """Return the largest size in bytes of a frame with `rows` embeddings of `shape`, 8 bytes a value.

    It includes a scale for each row, and one more row with a scale for each value: an oracle's clean gradient.
    """
    values = math.prod(shape)
    return OVERHEAD + 8 * (rows * (values + 1) + 2 * values)
