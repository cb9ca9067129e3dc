"""Checks of attacks on the trained model, for `check_attack`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor, nn

from flower_vfl.attacks.base import Reads
from flower_vfl.attacks.embedding.inference import LEAKED, InferenceAttack, Leaked, TrainedView
from flower_vfl.nn.initialise import seeded_initialisation
from flower_vfl.testing.common import (
    GRADIENT_DTYPES,
    AttackSubject,
    Check,
    attack_declaration_problems,
    attack_parameter_problems,
    devices,
    gradients,
    missing_information_problems,
    scaled,
)

_READS = get_args(Reads)
_SHAPES = ((64, 8), (64, 1), (20, 3, 4, 4))


class _TwoInputs(nn.Module):
    """A small network on numbers and category numbers."""

    def __init__(self, logits: int) -> None:
        super().__init__()
        self.embedding, self.last = nn.Embedding(5, 2), nn.Linear(5, logits)

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        logits: Tensor = self.last(torch.cat([numbers, self.embedding(ids).mean(dim=1)], dim=1))
        return logits


@dataclass(frozen=True)
class TrainedSubject(AttackSubject[InferenceAttack]):
    """A checked attack class on the trained model, with its parameters."""

    @property
    def classes(self) -> tuple[int, ...]:
        """Numbers of classes with which it is checked."""
        return (2,) if self.make().reads == "scores" else (2, 5)


def _view(attack: InferenceAttack, z: Tensor, classes: int = 2) -> TrainedView:
    """Return a view of embeddings (N, ...); the leaked examples have embeddings of their own."""
    width, logits = z[0].numel(), 1 if classes == 2 else classes
    labels = torch.arange(classes, device=z.device).repeat(attack.leaks)
    known = gradients((len(labels), *z.shape[1:]), z.dtype, seed=21).to(z.device) if len(labels) else z[:0]

    def fresh(make: Callable[[], nn.Module]) -> nn.Module:
        with seeded_initialisation(7):
            return make().to(z.device)

    def inputs(rows: int) -> tuple[Tensor, ...]:
        ids = torch.arange(2 * rows).reshape(rows, 2) % 5
        return gradients((rows, 3), seed=22).to(z.device), ids.to(z.device)

    return TrainedView(
        z,
        classes,
        3,
        inputs(len(z)),
        Leaked(known, inputs(len(labels)), labels) if LEAKED in attack.needs else None,
        top=lambda: fresh(lambda: nn.Sequential(nn.Flatten(), nn.Linear(width, logits))),
        network=lambda: fresh(lambda: _TwoInputs(logits)),
    )


def _declarations(subject: TrainedSubject) -> Iterator[str]:
    cls: Any = subject.attack_class
    yield from attack_declaration_problems(cls, allowed=[LEAKED], method="infer")
    if getattr(cls, "reads", None) not in _READS:
        yield f"its `reads` is {getattr(cls, 'reads', None)!r}; {', '.join(map(repr, _READS))} are allowed"


def _parameters(subject: TrainedSubject) -> Iterator[str]:
    yield from attack_parameter_problems(subject, {LEAKED: "leaks"})
    draws = subject.make().draws
    if not isinstance(draws, int) or draws < 1:
        yield f"`draws` is {draws!r}; it is run once at least"


def _problems_of(answer: Any, attack: InferenceAttack, view: TrainedView, what: str) -> Iterator[str]:
    rows = len(view.embeddings)
    shape = (rows, view.classes) if attack.reads == "logits" and view.classes > 2 else (rows,)
    if not isinstance(answer, Tensor) or answer.shape != shape:
        found = tuple(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
        needed = "one number a row" if len(shape) == 1 else "one number a row and class"
        yield f"{what}: it returned {found}, {needed} is needed: a tensor {shape}"
    elif answer.requires_grad:
        yield f"{what}: its answer keeps a graph; compute on detached tensors"
    elif attack.reads in ("scores", "logits"):
        if bool(torch.isnan(answer.double()).any()):
            yield f"{what}: some {attack.reads} are NaN; finite embeddings have numbers"
    elif answer.is_floating_point() or not bool(((answer >= 0) & (answer < view.classes)).all()):
        yield f"{what}: it returned {sorted(set(answer.tolist()))[:5]}; whole numbers below {view.classes} are needed"


def _answers(subject: TrainedSubject) -> Iterator[str]:
    attack, g = subject.make(), gradients((64, 8))
    batches = {f"embeddings {shape}": gradients(shape) for shape in _SHAPES}
    batches |= {f"embeddings in {dtype}": gradients((64, 8), dtype) for dtype in GRADIENT_DTYPES}
    batches |= {"zeros only": torch.zeros_like(g), "equal rows": g[:1].expand(64, 8).clone()}
    batches |= {what.replace("gradients", "embeddings"): z for what, z in scaled(g).items()}
    for classes in subject.classes:
        for what, z in batches.items():
            view = _view(attack, z, classes)
            yield from _problems_of(attack.infer(view), attack, view, f"{what}, {classes} classes")
        view = _view(attack, g, classes)
        answer = attack.baseline(view)
        if answer is not None:
            yield from _problems_of(answer, attack, view, f"the baseline, {classes} classes")


def _repeatable(subject: TrainedSubject) -> Iterator[str]:
    attack, z = subject.make(), gradients((64, 8))
    before, state = z.clone(), _global_state()
    first = attack.infer(_view(attack, z))
    if not torch.equal(z, before):
        yield "it changes the embeddings that it receives; others read them after it"
    if not torch.equal(first, subject.make().infer(_view(attack, z))):
        yield "the same view and seed give something else the second time"
    if _global_state() != state:
        yield "it draws from a global generator; start your own from view.seed"


def _global_state() -> tuple[bytes, str]:
    """Return the states of torch's and numpy's global generators."""
    return torch.get_rng_state().numpy().tobytes(), repr(np.random.get_state(legacy=False)["state"])  # noqa: NPY002


def _leaked(subject: TrainedSubject) -> Iterator[str]:
    attack = subject.make()
    if attack.needs:
        view = replace(_view(attack, gradients((64, 8))), leaked=None)
        yield from missing_information_problems(lambda: attack.infer(view), instead="view.examples()")


def _devices(subject: TrainedSubject) -> Iterator[str]:
    attack = subject.make()
    for device in devices():
        view = _view(attack, gradients((64, 8)).to(device))
        yield from _problems_of(attack.infer(view), attack, view, f"embeddings on {device}")


TRAINED: tuple[Check[TrainedSubject], ...] = (_declarations, _parameters, _answers, _repeatable, _leaked, _devices)
"""The checks, declarations first."""
