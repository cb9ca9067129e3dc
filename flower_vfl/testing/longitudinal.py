"""What `check_attack` checks of attacks on what is remembered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flower_vfl.attacks import ATTACK_METHODS
from flower_vfl.attacks.base import HINTS
from flower_vfl.attacks.embedding.inference import LEAKED
from flower_vfl.attacks.longitudinal.base import DEPTH, NOBODY, KnownRows, Memory, MemoryAttack, in_batch_units
from flower_vfl.errors import InputError
from flower_vfl.testing.common import (
    Check,
    borrowed_name,
    gradients,
    name_problems,
    parameter_problems,
    scaled,
    score_problems,
)

_SHAPES = ((64, 8), (64, 1), (40, 3, 4))


@dataclass(frozen=True)
class MemorySubject:
    """What is checked, and what it is shown."""

    attack_class: Callable[..., Any]
    params: dict[str, Any] = field(default_factory=dict)

    def make(self) -> MemoryAttack:
        """Make the attack."""
        attack: MemoryAttack = self.attack_class(**self.params)
        return attack

    def memory(self, g: Tensor, times: int = 3) -> Memory:
        """Return what is remembered of rows that came so often, with what the attack declares; some never came."""
        x = in_batch_units(g).numpy()
        sums, total = [], np.zeros((2 * len(x), x.shape[1]), dtype=np.float32)
        for time in range(times):
            total = total.copy()
            total[::2] += x * np.float32(1 + time) + np.roll(x, time, axis=0)
            sums.append(total)
        depth = int(min(times, max(DEPTH[kept] for kept in self.make().keeps)))
        return Memory(np.arange(0, 2 * len(x), 2), times, tuple(sums[::-1][:depth]))

    def known(self, memory: Memory) -> KnownRows:
        """Return the rows that the attack declares to know."""
        attack, rows = self.make(), memory.order.astype(np.int64)
        if HINTS in attack.needs:
            known = rows[np.arange(attack.hints) * 5 % len(rows)]
            return KnownRows(known, np.ones(len(known), dtype=np.int64))
        if LEAKED in attack.needs:
            known = rows[np.arange(2 * attack.leaks) % len(rows)]
            return KnownRows(known, np.arange(len(known)) % 2)
        return NOBODY

    def score(self, memory: Memory) -> Any:
        """Return what a fresh attack says of a memory."""
        return self.make().score(memory, self.known(memory))


def _declarations(subject: MemorySubject) -> Iterator[str]:
    cls: Any = subject.attack_class
    yield from name_problems(getattr(cls, "name", None))
    if not isinstance(cls.needs, frozenset) or not cls.needs <= {HINTS, LEAKED}:
        yield f"its `needs` is {cls.needs!r}; a frozenset of {HINTS!r}, {LEAKED!r} or nothing is allowed"
    made = subject.make()  # parameters may say what it reads
    if not isinstance(made.keeps, frozenset) or not made.keeps or not made.keeps <= DEPTH.keys():
        yield f"its `keeps` is {made.keeps!r}; a frozenset of {', '.join(DEPTH)} is needed"
    if not isinstance(made.first_epoch, int) or made.first_epoch < 1:
        yield f"its `first_epoch` is {made.first_epoch!r}; epochs count from 1"
    for name, thing in (("the class", cls), ("`score`", cls.score)):
        if not (thing.__doc__ or "").strip():
            yield f"{name} has no docstring"


def _parameters(subject: MemorySubject) -> Iterator[str]:
    yield from borrowed_name(subject.attack_class, ATTACK_METHODS)
    yield from parameter_problems(subject.attack_class, subject.attack_class, subject.params)
    attack = subject.make()
    for need, name in ((HINTS, "hints"), (LEAKED, "leaks")):
        known = getattr(attack, name)
        if not isinstance(known, int) or (need in attack.needs) != (known > 0):
            yield f"`{name}` is {known!r} and `needs` {set(attack.needs)}; an attack that knows rows says both"


def _memories(subject: MemorySubject) -> Iterator[str]:
    g = gradients((64, 8))
    batches = {f"gradients {shape}": gradients(shape) for shape in _SHAPES}
    batches |= {"zeros only": torch.zeros_like(g), "equal rows": g[:1].expand(64, 8).clone(), **scaled(g)}
    for what, batch in batches.items():
        for times in range(subject.make().first_epoch, 5):
            memory = subject.memory(batch, times)
            yield from score_problems(subject.score(memory), memory.rows, f"{what}, {times} epochs")


def _repeatable(subject: MemorySubject) -> Iterator[str]:
    memory, attack = subject.memory(gradients((64, 8))), subject.make()
    before = [sums.copy() for sums in memory.sums]
    first = attack.score(memory, subject.known(memory))
    if not all(map(np.array_equal, memory.sums, before)):
        yield "it changes the memory that it looks at; others look at it after it"
    if not torch.equal(first, attack.score(memory, subject.known(memory))):
        yield "the same memory gives other scores the second time"
    if not torch.equal(first, subject.score(memory)):
        yield "two attacks with the same parameters give different scores: draw from a generator of its own, seeded"


def _known(subject: MemorySubject) -> Iterator[str]:
    attack = subject.make()
    if not attack.needs:
        return
    try:
        attack.score(subject.memory(gradients((64, 8))), NOBODY)
    except InputError:
        return
    yield "it needs known rows, and scores without them; use known.require(...), which refuses with a message"


MEMORIES: tuple[Check[MemorySubject], ...] = (_declarations, _parameters, _memories, _repeatable, _known)
"""The checks, declarations first."""
