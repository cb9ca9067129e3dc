"""`check_attack`: the checks that every attack must pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flower_vfl.attacks.base import (
    HINTS,
    KINDS,
    LABELS,
    NOTHING,
    REFERENCE,
    WHILE_TRAINING,
    Attack,
    AttackMethod,
    RowAttack,
    SideInformation,
    is_whole,
)
from flower_vfl.attacks.embedding.inference import InferenceAttack
from flower_vfl.attacks.joint import JointAttack
from flower_vfl.attacks.longitudinal.base import MemoryAttack
from flower_vfl.protocol.transcript import StepTrace, Transcript
from flower_vfl.testing.common import (
    GRADIENT_DTYPES,
    AttackSubject,
    Check,
    attack_declaration_problems,
    attack_parameter_problems,
    devices,
    gradients,
    missing_information_problems,
    run_checks,
    scaled,
    score_problems,
)
from flower_vfl.testing.joint import JOINT_CHECKS, JointSubject
from flower_vfl.testing.longitudinal import MEMORIES, MemorySubject
from flower_vfl.testing.sequences import first_steps, repeated, sequence, side_rows, stacked
from flower_vfl.testing.trained import TRAINED, TrainedSubject

_LAYERS = ("cut", "first")
_SHAPES = ((64, 8), (64, 1), (5, 2), (32, 3, 4, 4), (2, 8), (1, 8))


def check_attack(attack_class: type[AttackMethod], *, waive: Sequence[str] = (), **params: Any) -> None:
    """Check an attack of your own: run it in your tests, once for each set of parameters that matters.

    The checks: name, side information and documentation are declared; parameters go into ``result.json`` and make
    the same attack again; every batch gives one score per row, on vectors and feature maps, in every number format, on
    every device of this machine; no score is NaN, be the batch of one or two rows, of one class, of zeros, of equal
    rows, or of gradients of 1e-30 or 1e30; the same input gives the same scores and is not changed; side information
    that is missing is refused with a message. Instances share no state; one that is restored from `state` continues
    with the same scores. A `RowAttack` rates three batches at once as it scores each of them. An attack on the trained
    model returns one result per row in the same way, for two classes and for five, from the given seed and no other
    randomness. A longitudinal attack gives one score for each row that has occurred, after any number of epochs. A
    joint attack scores training rows and test rows of a view, with columns and without.

    Parameters
    ----------
    attack_class : type[AttackMethod]
        The class: an `Attack`, an `InferenceAttack`, a `MemoryAttack` or a `JointAttack`, or several.
    waive : Sequence[str]
        Findings that are accepted, by the name of the check that a message gives in brackets.
    **params
        Parameters of the attack.

    Raises
    ------
    CheckError
        When a check finds a problem; the message lists all of them.
    """
    title = str(getattr(attack_class, "__name__", attack_class))
    bases = (InferenceAttack, MemoryAttack, JointAttack)
    stepwise, *others = (isinstance(attack_class, type) and issubclass(attack_class, base) for base in (Attack, *bases))
    kinds: list[tuple[str, AttackSubject[Any], Sequence[Check[Any]]]] = [
        ("an attack", _Subject(attack_class, params), _STEPWISE),
        ("an attack on the trained model", TrainedSubject(attack_class, params), TRAINED),
        ("a longitudinal attack", MemorySubject(attack_class, params), MEMORIES),
        ("a joint attack", JointSubject(attack_class, params), JOINT_CHECKS),
    ]
    for applies, (kind, subject, checks) in zip((stepwise or not any(others), *others), kinds, strict=True):
        if applies:
            run_checks(kind, title, params, subject, (checks[:1], checks[1:]), waive=waive)


class _Subject(AttackSubject[Any]):
    """An attack on single steps under test, and the steps that it is given."""

    def score(self, attack: Attack, g: Tensor, *, layer: str = "cut") -> Tensor:
        """Return the scores of a batch of gradients, or of embeddings, (B, ...) after two other steps."""
        before = torch.flip(g, dims=[0])
        return self.score_steps(attack, [before, before, g], layer=layer)

    def score_steps(self, attack: Attack, steps: list[Tensor], *, layer: str = "cut") -> Tensor:
        """Return the scores of the last of these batches (B, ...), with the steps before it that the attack reads."""
        transcript = Transcript(attack.history)
        for step, now in enumerate(steps):
            other = now.flatten(1) + 1  # the tensor that the attack does not declare in `sees`
            seen, unseen = (other, now) if attack.sees == "gradients" else (now, other)
            gradients, outputs = dict.fromkeys(_LAYERS, unseen), dict.fromkeys(_LAYERS[1:], seen)
            transcript.record(StepTrace(step, 0, np.arange(len(now)), seen, gradients, outputs))
        return attack.score(transcript, layer, _side(attack, steps[-1]))

    def problems_of(self, scores: Any, g: Tensor, what: str) -> Iterator[str]:
        """Yield the problems of the scores of gradients (B, ...)."""
        wrong = list(score_problems(scores, len(g), what))
        yield from wrong
        if not wrong and self.attack_class.reads == "clusters" and not _are_groups(scores):
            yield f"{what}: it returned {sorted(set(scores.tolist()))[:5]}; whole numbers below side.classes are needed"


def _side(attack: Attack, g: Tensor) -> SideInformation:
    """Return the side information that the attack needs; a batch that is too small supplies examples repeatedly."""
    rows = np.arange(attack.hints) % len(g)
    labels = torch.full((len(g),), -1)
    labels[::10] = (torch.arange(len(labels[::10])) % 2).long()  # `gradients` has a positive in each five rows
    known = {REFERENCE: g[0].flatten(), HINTS: g[torch.from_numpy(rows)], LABELS: labels.to(g.device)}
    if not attack.needs:
        return NOTHING
    left_out = np.unique(rows) if HINTS in attack.needs else np.array([0])
    if LABELS in attack.needs:
        left_out = np.flatnonzero(labels >= 0)
    return SideInformation({name: known[name] for name in attack.needs}, left_out)


def _declarations(subject: _Subject) -> Iterator[str]:
    cls: Any = subject.attack_class
    if not isinstance(cls, type) or not issubclass(cls, Attack):
        yield "it is no subclass of flower_vfl.attacks.Attack, InferenceAttack, MemoryAttack or JointAttack"
        return
    yield from attack_declaration_problems(cls, allowed=KINDS, method="score")
    if cls.sees not in ("gradients", "embeddings"):
        yield f"its `sees` is {cls.sees!r}; 'gradients' or 'embeddings' is allowed"
    if cls.reads not in WHILE_TRAINING:
        yield f"its `reads` is {cls.reads!r}; {' or '.join(map(repr, WHILE_TRAINING))} is allowed"
    if not is_whole(cls.history):
        yield f"its `history` is {cls.history!r}; a whole number from 1 is needed"
        return
    alone = len(cls.needs) > 1 or LABELS in cls.needs
    if issubclass(cls, RowAttack) and (cls.sees != "gradients" or cls.reads != "scores" or alone or cls.history > 1):
        what = (
            f"a RowAttack scores gradients of one step (`history` is 1) and needs {REFERENCE!r} or {HINTS!r} or nothing"
        )
        yield f"{what}; derive it from Attack"


def _parameters(subject: _Subject) -> Iterator[str]:
    yield from attack_parameter_problems(subject, {LABELS: "leaks"})
    attack = subject.make()
    if HINTS in attack.needs and (not isinstance(attack.hints, int) or attack.hints < 1):
        yield f"`hints` is {attack.hints!r}; an attack that needs hints needs at least one"


def _are_groups(answer: Tensor) -> bool:
    return not answer.is_floating_point() and bool(((answer >= 0) & (answer < NOTHING.classes)).all())


def _shapes(subject: _Subject) -> Iterator[str]:
    for shape in _SHAPES:
        g = gradients(shape)
        for layer in _LAYERS:
            scores = subject.score(subject.make(), g, layer=layer)
            yield from subject.problems_of(scores, g, f"gradients {shape} at {layer!r}")
        if len(shape) > 2:
            flat = subject.score(subject.make(), g.flatten(1))
            if not torch.equal(scores, flat):
                yield f"feature maps {shape} are not scored as the same numbers in one row each"


def _number_formats(subject: _Subject) -> Iterator[str]:
    for dtype in GRADIENT_DTYPES:
        g = gradients((64, 8), dtype)
        yield from subject.problems_of(subject.score(subject.make(), g), g, f"gradients in {dtype}")


def _degenerate(subject: _Subject) -> Iterator[str]:
    g = gradients((64, 8))
    one_zero = g.clone()
    one_zero[[0, 7]] = 0.0
    batches = {
        "a row of zeros": one_zero,
        "zeros only": torch.zeros_like(g),
        "a batch of one zero row": torch.zeros(1, 8),
        "equal rows": g[:1].expand(64, 8).clone(),
        "positives only": -g.abs(),
        "negatives only": g.abs(),
        **scaled(g),
    }
    for what, batch in batches.items():
        yield from subject.problems_of(subject.score(subject.make(), batch), batch, what)


def _repeatable(subject: _Subject) -> Iterator[str]:
    g = gradients((64, 8))
    before = g.clone()
    first = subject.score(subject.make(), g)
    if not torch.equal(g, before):
        yield "it changes the gradients that it receives; others read them after it"
    if not torch.equal(first, subject.score(subject.make(), before.clone())):
        yield "two attacks with the same parameters give different scores: draw from a generator of its own, seeded"


def _side_information(subject: _Subject) -> Iterator[str]:
    attack, g = subject.make(), gradients((64, 8))
    if attack.needs:
        transcript = Transcript()
        transcript.record(StepTrace(0, 0, np.arange(64), g, {"cut": g}))
        yield from missing_information_problems(
            lambda: attack.score(transcript, "cut", NOTHING), instead="side.tensor(name)"
        )
    if LABELS in attack.needs:
        none = SideInformation({LABELS: torch.full((64,), -1)}, np.array([], dtype=np.int64))
        yield from subject.problems_of(attack.score(transcript, "cut", none), g, "a batch without a known row")


def _stack(subject: _Subject) -> Iterator[str]:
    attack = subject.make()
    if not isinstance(attack, RowAttack):
        return
    rows = torch.stack([gradients((64, 8), seed=seed) for seed in range(3)])
    found = attack.rate(rows.clone(), side_rows(attack, rows))
    expected = torch.stack([subject.score(subject.make(), g) for g in rows])
    if not isinstance(found, Tensor) or found.shape != expected.shape:
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        yield f"`rate` of three batches (3, 64, 8) returns {shape}; {tuple(expected.shape)} is needed"
    elif not torch.allclose(found.double(), expected.double(), rtol=1e-5, atol=1e-6 * float(expected.abs().max())):
        yield "`rate` of three batches at once differs from `score` of each"
    else:
        yield from stacked(subject.make(), subject.make)


def _devices(subject: _Subject) -> Iterator[str]:
    g = gradients((64, 8))
    expected = subject.score(subject.make(), g).double()
    for device in devices():
        scores = subject.score(subject.make(), g.to(device))
        yield from subject.problems_of(scores, g, f"gradients on {device}")
        if not torch.allclose(scores.double().cpu(), expected, rtol=1e-3, atol=1e-6 * float(expected.abs().max())):
            yield f"the scores on {device} are not those on the CPU"


_STEPWISE: tuple[Check[_Subject], ...] = (
    _declarations,
    _parameters,
    _shapes,
    _number_formats,
    _degenerate,
    _repeatable,
    _side_information,
    _stack,
    _devices,
    first_steps,
    repeated,
    sequence,
)
"""The checks of attacks on single steps, declarations first."""
