"""Checks of attacks that are called on consecutive steps, for `check_attack`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import torch
from torch import Tensor

from flower_vfl.attacks.base import HINTS, REFERENCE, Attack, RowAttack
from flower_vfl.checkpoint import load_state, save_state
from flower_vfl.testing.common import gradients

_STEPS = 6
_KEPT = "keep what an instance keeps in `self`, set it in `__init__`, and let `fresh` return one that shares none of it"
_DECLARED = "declare `sequential = True`, and return what it keeps from `state`"


class ScoredSubject(Protocol):
    """A checked attack: its construction and its call."""

    def make(self) -> Attack:
        """Return a new instance."""

    def score(self, attack: Attack, g: Tensor) -> Any:
        """Return the scores of a batch of gradients."""

    def score_steps(self, attack: Attack, steps: list[Tensor]) -> Any:
        """Return the scores of the last of these batches, with the steps before it that the attack reads."""

    def problems_of(self, scores: Any, g: Tensor, what: str) -> Iterator[str]:
        """Yield the problems of the scores of gradients (B, ...)."""


def sequence(subject: ScoredSubject) -> Iterator[str]:
    """Yield the problems of an attack that scores several steps, alone and beside another instance."""
    mine, others = ([gradients((64, 8), seed=seed) for seed in range(low, low + _STEPS)] for low in (10, 50))
    expected = _scores(subject, subject.make(), mine)
    original = subject.make()
    attack, other = original.fresh(), original.fresh()
    if type(attack) is not type(original) or attack is original or attack is other or attack.label != original.label:
        yield "`fresh` must return a new instance of the same class with the same parameters"
        return
    beside = []
    for g, unlike in zip(mine, others, strict=True):
        beside.append(subject.score(attack, g))
        subject.score(other, unlike)
    if not _equal(beside, expected):
        yield f"an instance scores otherwise while another one is in use: it shares state between instances; {_KEPT}"
        return
    yield from _resumed(subject, mine, expected)


def _resumed(subject: ScoredSubject, steps: list[Tensor], expected: list[Tensor]) -> Iterator[str]:
    """Yield the problems of an attack's state over a checkpoint."""
    attack, half = subject.make(), len(steps) // 2
    _scores(subject, attack, steps[:half])
    with TemporaryDirectory() as folder:
        path = Path(folder) / "state"
        try:
            save_state(path, attack.state())
        except (TypeError, ValueError) as error:
            yield f"a checkpoint cannot hold its `state`: {error}"
            return
        resumed = subject.make().fresh()
        resumed.restore(load_state(path))
    if not _equal(_scores(subject, resumed, steps[half:]), expected[half:]):
        yield (
            "after `state` and `restore` it gives other scores than without an interruption: return all that it keeps "
            "between calls"
        )


def first_steps(subject: ScoredSubject) -> Iterator[str]:
    """Yield the problems of an attack that reads several steps, where a run has fewer, or a batch of another size."""
    attack = subject.make()
    if attack.history == 1:
        return
    sizes = [64] * attack.history + [16]  # the last batch of an epoch is shorter
    for count in range(1, len(sizes) + 1):
        steps = [gradients((rows, 8), seed=rows + step) for step, rows in enumerate(sizes[:count])]
        known = f"{min(count, attack.history)} of {attack.history} steps"
        what = f"{known} in the transcript, the last one of {len(steps[-1])} rows"
        try:
            scores = subject.score_steps(subject.make(), steps)
        except Exception as error:  # noqa: BLE001 - a finding
            yield f"{what}: it fails with {type(error).__name__}: {error}"
            return
        yield from subject.problems_of(scores, steps[-1], what)
    # Groups of separate classes are the same after any steps; those of noise are not.
    rows = _noise if attack.reads == "clusters" else gradients
    now, ways = rows((64, 8)), ((10, 11), (20, 21))
    found = [
        subject.score_steps(
            subject.make(), [rows((64, 8), seed=seeds[step % 2]) for step in range(1, attack.history)] + [now]
        )
        for seeds in ways
    ]
    if torch.equal(*found):
        yield f"its scores do not depend on the steps before, although its `history` is {attack.history}"


def _noise(shape: tuple[int, ...], *, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def repeated(subject: ScoredSubject) -> Iterator[str]:
    """Yield the problems of an instance that scores the same transcript twice."""
    g, attack = gradients((64, 8)), subject.make()
    first = subject.score(attack, g)
    if not attack.sequential and not torch.equal(first, subject.score(attack, g.clone())):
        yield f"the same transcript gives other scores the second time; if that is intended, {_DECLARED}"


def stacked(attack: RowAttack, make: Callable[[], RowAttack]) -> Iterator[str]:
    """Yield the problems of a sequential `RowAttack` that rates several runs at once, step by step."""
    if not attack.sequential:
        return
    alone = [make() for _ in range(3)]
    for step in range(_STEPS):
        rows = torch.stack([gradients((64, 8), seed=10 * step + run) for run in range(3)])
        known = side_rows(attack, rows)
        found = attack.rate(rows, known)
        for run, single in enumerate(alone):
            expected = single.rate(rows[run], None if known is None else known[run])
            if not _near(found[run], expected):
                yield f"`rate` of three runs at once differs from that of each alone, at step {step} of a sequence"
                return
    kept = {name: value for name, value in attack.state().items() if isinstance(value, Tensor)}
    if any(value.dim() == 0 or len(value) != 3 for value in kept.values()):
        yield "after `rate` of three runs the tensors of `state` must have their leading dimension, 3"


def side_rows(attack: RowAttack, rows: Tensor) -> Tensor | None:
    """Return the side information (R, k, D) that an attack needs on gradients (R, 64, D) of R runs."""
    side = {REFERENCE: rows[:, :1], HINTS: rows[:, torch.arange(attack.hints) % 64]}
    return next((side[name] for name in attack.needs), None)


def _near(found: Tensor, expected: Tensor) -> bool:
    size = float(expected.double().abs().max())
    return torch.allclose(found.double(), expected.double(), rtol=1e-4, atol=1e-5 * size)


def _scores(subject: ScoredSubject, attack: Attack, steps: list[Tensor]) -> list[Tensor]:
    return [subject.score(attack, g) for g in steps]


def _equal(found: list[Tensor], expected: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
