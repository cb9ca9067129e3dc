"""Checks of `check_attack` for longitudinal attacks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flower_vfl.attacks.base import HINTS
from flower_vfl.attacks.embedding.inference import LEAKED
from flower_vfl.attacks.longitudinal.base import (
    DEPTH,
    NO_KNOWN_ROWS,
    KnownRows,
    Memory,
    MemoryAttack,
    statistic_of_batch,
)
from flower_vfl.testing.common import (
    AttackSubject,
    Check,
    attack_declaration_problems,
    attack_parameter_problems,
    gradients,
    missing_information_problems,
    score_problems,
    unusual,
)

_SHAPES = ((64, 8), (64, 1), (40, 3, 4))


@dataclass(frozen=True)
class MemorySubject(AttackSubject[MemoryAttack]):
    """A longitudinal attack under test, and the memories that it is given."""

    def memory(self, g: Tensor, times: int = 3) -> Memory:
        """Return a memory of rows that occurred `times` times, with the declared sums; other rows never occurred."""
        x = statistic_of_batch(self.make().keeps)(g).numpy()
        sums, total = [], np.zeros((2 * len(x), x.shape[1]), dtype=np.float32)
        for time in range(times):
            total = total.copy()
            total[::2] += x * np.float32(1 + time) + np.roll(x, time, axis=0)
            sums.append(total)
        depth = int(min(times, max(DEPTH[kept] for kept in self.make().keeps)))
        return Memory(np.arange(0, 2 * len(x), 2), times, tuple(sums[::-1][:depth]))

    def known(self, memory: Memory) -> KnownRows:
        """Return known rows, as many as the attack declares."""
        attack, rows = self.make(), memory.order.astype(np.int64)
        if HINTS in attack.needs:
            known = rows[np.arange(attack.hints) * 5 % len(rows)]
            return KnownRows(known, np.ones(len(known), dtype=np.int64))
        if LEAKED in attack.needs:
            known = rows[np.arange(2 * attack.leaks) % len(rows)]
            return KnownRows(known, np.arange(len(known)) % 2)
        return NO_KNOWN_ROWS

    def score(self, memory: Memory) -> Any:
        """Return a new attack's scores of a memory."""
        return self.make().score(memory, self.known(memory))


def _declarations(subject: MemorySubject) -> Iterator[str]:
    yield from attack_declaration_problems(subject.attack_class, allowed=[HINTS, LEAKED], method="score")
    made = subject.make()  # `keeps` may depend on parameters
    if not isinstance(made.keeps, frozenset) or not made.keeps or not made.keeps <= DEPTH.keys():
        yield f"its `keeps` is {made.keeps!r}; a frozenset of {', '.join(DEPTH)} is needed"
    if not isinstance(made.first_epoch, int) or made.first_epoch < 1:
        yield f"its `first_epoch` is {made.first_epoch!r}; epochs count from 1"


def _parameters(subject: MemorySubject) -> Iterator[str]:
    yield from attack_parameter_problems(subject, {HINTS: "hints", LEAKED: "leaks"})


def _memories(subject: MemorySubject) -> Iterator[str]:
    batches = {f"gradients {shape}": gradients(shape) for shape in _SHAPES}
    batches |= unusual(gradients((64, 8)))
    for what, batch in batches.items():
        for times in range(subject.make().first_epoch, 5):
            memory = subject.memory(batch, times)
            yield from score_problems(subject.score(memory), memory.rows, f"{what}, {times} epochs")


def _repeatable(subject: MemorySubject) -> Iterator[str]:
    memory, attack = subject.memory(gradients((64, 8))), subject.make()
    before = [sums.copy() for sums in memory.sums]
    first = attack.score(memory, subject.known(memory))
    if not all(map(np.array_equal, memory.sums, before)):
        yield "it changes the memory that it reads; others read it afterwards"
    if not torch.equal(first, attack.score(memory, subject.known(memory))):
        yield "the same memory gives other scores the second time"
    if not torch.equal(first, subject.score(memory)):
        yield "two attacks with the same parameters give different scores: draw from a generator of its own, seeded"


def _known(subject: MemorySubject) -> Iterator[str]:
    attack = subject.make()
    if attack.needs:
        memory = subject.memory(gradients((64, 8)))
        yield from missing_information_problems(
            lambda: attack.score(memory, NO_KNOWN_ROWS), instead="known.require(...)"
        )


MEMORIES: tuple[Check[MemorySubject], ...] = (_declarations, _parameters, _memories, _repeatable, _known)
"""The checks, declarations first."""
