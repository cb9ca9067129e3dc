"""Checks of `check_attack` for joint attacks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flower_vfl.attacks.embedding.inference import LEAKED
from flower_vfl.attacks.joint import JointAttack, JointScores, JointView, OwnRows
from flower_vfl.attacks.longitudinal.base import NO_KNOWN_ROWS, KnownRows, centred_in_batch_units
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

_TEST_ROWS = 30


@dataclass(frozen=True)
class JointSubject(AttackSubject[JointAttack]):
    """A joint attack under test, and the views that it is given."""

    def view(self, g: Tensor, *, test_rows: int = _TEST_ROWS) -> JointView:
        """Return a view of rows with these mean gradients (B, D), and the labels that the attack declares to know."""
        attack, rows = self.make(), len(g)
        known = NO_KNOWN_ROWS
        if LEAKED in attack.needs:
            chosen = np.arange(2 * attack.leaks) % rows
            known = KnownRows(chosen, np.arange(len(chosen)) % 2)
        return JointView(centred_in_batch_units(g), _own_rows(rows, 1), _own_rows(test_rows, 2), known, seed=3)

    def read(self, view: JointView) -> Any:
        """Return a new attack's scores of a view."""
        return self.make().read(view)


def _own_rows(rows: int, seed: int) -> OwnRows:
    ids = torch.arange(2 * rows).reshape(rows, 2) % 5
    return OwnRows((gradients((rows, 3), seed=seed), ids), gradients((rows, 4), seed=seed + 10))


def _problems_of(answer: Any, view: JointView, what: str) -> Iterator[str]:
    """Yield the problems of the scores of a view."""
    if not isinstance(answer, JointScores):
        yield f"{what}: it returns {type(answer).__name__}; JointScores(train, test) is needed"
        return
    yield from score_problems(answer.train, len(view.train), f"{what}, training rows")
    yield from score_problems(answer.test, len(view.test), f"{what}, test rows")
    if answer.without_own is not None:
        yield from score_problems(answer.without_own, len(view.train), f"{what}, without the row's own gradient")


def _declarations(subject: JointSubject) -> Iterator[str]:
    cls: Any = subject.attack_class
    yield from attack_declaration_problems(cls, allowed=[LEAKED], method="read")
    if not isinstance(cls.reads_own, bool):
        yield f"its `reads_own` is {cls.reads_own!r}; true or false is needed"


def _parameters(subject: JointSubject) -> Iterator[str]:
    yield from attack_parameter_problems(subject, {LEAKED: "leaks"})


def _views(subject: JointSubject) -> Iterator[str]:
    rows = max(160, 4 * subject.make().leaks)
    g = gradients((rows, 8))
    batches = {f"gradients ({rows}, {width})": gradients((rows, width)) for width in (8, 1)}
    batches |= unusual(g)
    views = {what: subject.view(batch) for what, batch in batches.items()}
    usual = subject.view(g)
    views["no test rows"] = subject.view(g, test_rows=0)
    views["no columns, embeddings alone"] = replace(
        usual, train=_without_columns(usual.train), test=_without_columns(usual.test)
    )
    equal = OwnRows(tuple(tensor[:1].expand_as(tensor) for tensor in usual.train.inputs), torch.zeros(rows, 4))
    views["equal columns and embeddings"] = replace(usual, train=equal)
    for what, view in views.items():
        yield from _problems_of(subject.read(view), view, what)
        for name, answer in subject.make().baselines(view).items():
            yield from _problems_of(answer, view, f"{what}, baseline {name!r}")


def _without_columns(rows: OwnRows) -> OwnRows:
    return OwnRows((), rows.embeddings)


def _repeatable(subject: JointSubject) -> Iterator[str]:
    view, attack = subject.view(gradients((max(160, 4 * subject.make().leaks), 8))), subject.make()
    seen = (view.gradients, view.train.embeddings, view.test.embeddings, *view.train.inputs, *view.test.inputs)
    before = [tensor.clone() for tensor in seen]
    first = attack.read(view)
    if not all(map(torch.equal, seen, before)):
        yield "it changes the view that it reads; others read it afterwards"
    for second in (attack.read(view), subject.read(view)):
        if not (torch.equal(first.train, second.train) and torch.equal(first.test, second.test)):
            yield "the same view gives other scores the second time: draw from a generator made with view.seed"
    if not attack.reads_own:
        others = replace(view, gradients=view.gradients.clone())
        others.gradients[0] = -3 * others.gradients[0]
        moved = (subject.read(others).train - first.train).abs()
        if bool(moved[0] > 0.5 * first.train.std()):
            yield "its `reads_own` is false, and a row's own gradient changes the row's score"


def _known(subject: JointSubject) -> Iterator[str]:
    attack = subject.make()
    if attack.needs:
        view = replace(subject.view(gradients((4 * attack.leaks + 160, 8))), known=NO_KNOWN_ROWS)
        yield from missing_information_problems(lambda: attack.read(view), instead="view.known.require(...)")


JOINT_CHECKS: tuple[Check[JointSubject], ...] = (_declarations, _parameters, _views, _repeatable, _known)
"""The checks, declarations first."""
