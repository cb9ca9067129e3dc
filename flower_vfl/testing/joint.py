"""What `check_attack` checks of joint attacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flower_vfl.attacks import ATTACK_METHODS
from flower_vfl.attacks.embedding.inference import LEAKED
from flower_vfl.attacks.joint import JointAttack, JointScores, JointView, OwnRows
from flower_vfl.attacks.longitudinal.base import NOBODY, KnownRows, centred_in_batch_units
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

_TEST_ROWS = 30


@dataclass(frozen=True)
class JointSubject:
    """What is checked, and what it is shown."""

    attack_class: Callable[..., Any]
    params: dict[str, Any] = field(default_factory=dict)

    def make(self) -> JointAttack:
        """Make the attack."""
        attack: JointAttack = self.attack_class(**self.params)
        return attack

    def view(self, g: Tensor, *, test_rows: int = _TEST_ROWS) -> JointView:
        """Return a view of rows with these mean gradients (B, D), and the labels that the attack declares to know."""
        attack, rows = self.make(), len(g)
        known = NOBODY
        if LEAKED in attack.needs:
            chosen = np.arange(2 * attack.leaks) % rows
            known = KnownRows(chosen, np.arange(len(chosen)) % 2)
        return JointView(centred_in_batch_units(g), _own(rows, 1), _own(test_rows, 2), known, seed=3)

    def read(self, view: JointView) -> Any:
        """Return what a fresh attack says of a view."""
        return self.make().read(view)


def _own(rows: int, seed: int) -> OwnRows:
    ids = torch.arange(2 * rows).reshape(rows, 2) % 5
    return OwnRows((gradients((rows, 3), seed=seed), ids), gradients((rows, 4), seed=seed + 10))


def _problems_of(said: Any, view: JointView, what: str) -> Iterator[str]:
    """Say what is wrong with what is said of a view."""
    if not isinstance(said, JointScores):
        yield f"{what}: it returns {type(said).__name__}; JointScores(train, test) is needed"
        return
    yield from score_problems(said.train, len(view.train), f"{what}, training rows")
    yield from score_problems(said.test, len(view.test), f"{what}, test rows")
    if said.without_own is not None:
        yield from score_problems(said.without_own, len(view.train), f"{what}, without the row's own gradient")


def _declarations(subject: JointSubject) -> Iterator[str]:
    cls: Any = subject.attack_class
    yield from name_problems(getattr(cls, "name", None))
    if not isinstance(cls.needs, frozenset) or not cls.needs <= {LEAKED}:
        yield f"its `needs` is {cls.needs!r}; a frozenset of {LEAKED!r} or nothing is allowed"
    if not isinstance(cls.reads_own, bool):
        yield f"its `reads_own` is {cls.reads_own!r}; true or false is needed"
    for name, thing in (("the class", cls), ("`read`", cls.read)):
        if not (thing.__doc__ or "").strip():
            yield f"{name} has no docstring"


def _parameters(subject: JointSubject) -> Iterator[str]:
    yield from borrowed_name(subject.attack_class, ATTACK_METHODS)
    yield from parameter_problems(subject.attack_class, subject.attack_class, subject.params)
    leaks, needs = subject.make().leaks, subject.make().needs
    if not isinstance(leaks, int) or (LEAKED in needs) != (leaks > 0):
        yield f"`leaks` is {leaks!r} and `needs` {set(needs)}; an attack that knows labels says both"


def _views(subject: JointSubject) -> Iterator[str]:
    rows = max(160, 4 * subject.make().leaks)
    g = gradients((rows, 8))
    batches = {f"gradients ({rows}, {width})": gradients((rows, width)) for width in (8, 1)}
    batches |= {"zeros only": torch.zeros_like(g), "equal rows": g[:1].expand(rows, 8).clone(), **scaled(g)}
    views = {what: subject.view(batch) for what, batch in batches.items()}
    usual = subject.view(g)
    views["no test rows"] = subject.view(g, test_rows=0)
    views["no columns, embeddings alone"] = replace(usual, train=_bare(usual.train), test=_bare(usual.test))
    equal = OwnRows(tuple(tensor[:1].expand_as(tensor) for tensor in usual.train.inputs), torch.zeros(rows, 4))
    views["equal columns and embeddings"] = replace(usual, train=equal)
    for what, view in views.items():
        yield from _problems_of(subject.read(view), view, what)
        for name, said in subject.make().baselines(view).items():
            yield from _problems_of(said, view, f"{what}, baseline {name!r}")


def _bare(rows: OwnRows) -> OwnRows:
    return OwnRows((), rows.embeddings)


def _repeatable(subject: JointSubject) -> Iterator[str]:
    view, attack = subject.view(gradients((max(160, 4 * subject.make().leaks), 8))), subject.make()
    seen = (view.gradients, view.train.embeddings, view.test.embeddings, *view.train.inputs, *view.test.inputs)
    before = [tensor.clone() for tensor in seen]
    first = attack.read(view)
    if not all(map(torch.equal, seen, before)):
        yield "it changes the view that it looks at; others look at it after it"
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
    if not attack.needs:
        return
    try:
        attack.read(replace(subject.view(gradients((4 * attack.leaks + 160, 8))), known=NOBODY))
    except InputError:
        return
    yield "it needs known rows, and scores without them; use view.known.require(...), which refuses with a message"


JOINT: tuple[Check[JointSubject], ...] = (_declarations, _parameters, _views, _repeatable, _known)
"""The checks, declarations first."""
