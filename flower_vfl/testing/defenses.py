"""`check_defense`: the checks that every defense must pass."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flower_vfl.checkpoint import load_state, save_state
from flower_vfl.errors import ConfigError, InputError
from flower_vfl.parties.hooks import Log, StepView
from flower_vfl.protocol.schedule import Rows
from flower_vfl.registry import METHOD_NAME
from flower_vfl.strategies import DEFENSE_METHODS
from flower_vfl.strategies.base import Defense, HookedStrategy
from flower_vfl.strategies.gradients.base import GradientDefense
from flower_vfl.testing import promises, protection
from flower_vfl.testing.common import borrowed_name, name_problems, parameter_problems, run_checks
from flower_vfl.testing.protection import PROTECTION
from flower_vfl.testing.runs import runs
from flower_vfl.testing.subject import (
    FEATURE_MAP,
    PARTIES,
    Subject,
    batch,
    labels_of,
    log_problems,
    play,
    promised,
    same,
    send,
    step_of,
    strategy,
)
from flower_vfl.training.assembly import build_defenses

_SETTLING_STEPS = 100


def check_defense(defense_class: type[Defense], *, waive: Sequence[str] = (), **params: Any) -> None:
    """Check a defense of your own: run it in your tests, once for each set of parameters that matters.

    The checks: name, documentation and `read_by` are declared; parameters go into ``result.json`` and make the
    same defense again; gradients keep shape and number format, for one party and several, joint and per-party, vectors
    and flattened feature maps, on every device of this machine; noise follows from the label party's secret and from
    nothing else, is never drawn twice, and is zero on average where the class declares ``unbiased``; a restored state
    continues exactly, noise included; batches of one class, one row, no row, of zeros, with a zero row, with values
    that are not finite or of 1e-30 and 1e30 are changed, withheld as zeros or refused with an error of this package,
    never sent unchanged; logged values are numbers, also at the end of an epoch; `bound` is a leak AUC then; embeddings
    and losses can be differentiated; a private loss reaches the modules of its class and nothing else; where an epsilon
    is promised by a draw that is kept, other true labels with the same draw change no gradient of two epochs, and none
    decides when training ends; it delegates to the strategy that it wraps. Where all of these pass and a run can import
    the class by its name, a run with it is interrupted and resumed: the weights must be those of an uninterrupted run,
    and predictions must have the test AUC of that run.

    Parameters
    ----------
    defense_class : type[Defense]
        Class of the defense.
    waive : Sequence[str]
        Findings that are accepted, by the name of the check that a message gives in brackets, as in "zero rows".
    **params
        Parameters of the defense.

    Raises
    ------
    CheckError
        When a check finds a problem; the message lists all of them.
    """
    subject = Subject(defense_class, params)
    protects = getattr(defense_class, "protect", Defense.protect) is not Defense.protect
    hooks = (*(PROTECTION if protects else ()), _labels, _embeddings, _losses, _epochs)
    promised_of_labels = (promises.private_losses, promises.kept_draws, promises.ends)
    checks = (_parameters, _number_of_classes, *hooks, *promised_of_labels, _repeatable, _state, _nesting)
    with _as_in_a_run():
        run_checks("a defense", subject.title, params, subject, ((_declarations,), checks, (runs,)), waive=waive)


@contextlib.contextmanager
def _as_in_a_run() -> Iterator[None]:
    """Use one thread, keep the caller's random state, and silence warnings about hostile batches."""
    logger = logging.getLogger("flower_vfl")
    threads, level = torch.get_num_threads(), logger.level
    torch.set_num_threads(1)
    logger.setLevel(logging.ERROR)
    try:
        with torch.random.fork_rng():
            yield
    finally:
        torch.set_num_threads(threads)
        logger.setLevel(level)


def _declarations(subject: Subject) -> Iterator[str]:
    cls: Any = subject.defense_class
    if not isinstance(cls, type) or not issubclass(cls, Defense):
        yield "it is no subclass of flower_vfl.strategies.Defense"
        return
    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    if missing:
        yield f"it is abstract: it does not define {', '.join(missing)}"
        return
    yield from name_problems(getattr(cls, "name", None))
    yield from _read_by_problems(getattr(cls, "read_by", None))
    if not (cls.__doc__ or "").strip():
        yield "the class has no docstring"
    if cls.start is not HookedStrategy.start:
        yield "it overrides `start`, which belongs to the outermost strategy: the hooks of others would not run"
    written = [hook for hook in subject.hooks if getattr(cls, hook) is not getattr(GradientDefense, hook)]
    written += ["perturb"] if subject.perturbs else []
    if not written:
        named = "prepare_labels, embed, loss, private_loss or protect, or perturb of GradientDefense"
        yield f"it overrides no hook: {named}"
    for hook in written:
        if not (getattr(cls, hook).__doc__ or "").strip():
            yield f"`{hook}` has no docstring"


def _read_by_problems(names: object) -> Iterator[str]:
    if not isinstance(names, tuple) or not all(isinstance(name, str) and METHOD_NAME.fullmatch(name) for name in names):
        yield f"its `read_by` is {names!r}; give a tuple of names of attacks that are known to read it"


def _parameters(subject: Subject) -> Iterator[str]:
    def make(**params: Any) -> Defense:
        return subject.defense_class(strategy(), **params)

    yield from borrowed_name(subject.defense_class, DEFENSE_METHODS)
    yield from parameter_problems(make, subject.defense_class, subject.params)
    for scope in subject.scopes():
        for key, value in scope.items():
            if subject.make(**scope).params.get(key) != value:
                yield f"made with {key}={value!r}, its `params` does not say so"


def _number_of_classes(subject: Subject) -> Iterator[str]:
    only_two = getattr(subject.defense_class, "two_classes_only", False)
    try:
        defense = subject.make(classes=3)
    except InputError as error:
        if not only_two:
            yield f"it refuses three classes ({error}); declare `two_classes_only`"
        return
    if only_two:
        yield "it declares `two_classes_only` and takes three; call `super().__init__(strategy)`"
        return
    if "protect" in subject.hooks:
        g = batch(8)
        yield from protection.sent_problems(send(defense, g, labels_of(64, 3))[0], g, "three classes")
    play(defense, [0], classes=3)


def _labels(subject: Subject) -> Iterator[str]:
    for rows in (64, 1):
        given = labels_of(rows)
        prepared, log = subject.make().prepare_labels(given)
        yield from log_problems(log, "prepare_labels", subject)
        if not isinstance(prepared, Tensor) or prepared.shape != given.shape or prepared.dtype != given.dtype:
            yield f"prepare_labels: labels are {given.dtype} ({rows},); it must return as many of that kind"
        elif not bool(((prepared >= 0) & (prepared < 2)).all()):
            yield "prepare_labels: it returns labels of classes that there are not"


def _embeddings(subject: Subject) -> Iterator[str]:
    if "embed" not in subject.hooks:
        return
    vectors = batch(8) * 64
    maps = (batch(48) * 64).view(64, *FEATURE_MAP)
    several = {"vectors": vectors, "feature maps": maps, "one row": vectors[:1], "zeros": torch.zeros_like(vectors)}
    for what, given in {**several, "equal rows": vectors[:1].repeat(64, 1)}.items():
        z = given.clone().requires_grad_()
        defense = subject.make(widths={"a": z[0].numel()})
        defense.prepare_labels(labels_of(64))
        for one in defense.hook_targets:
            one.begin_batch(np.arange(len(z)))
        out, log = defense.embed(z, party="a")
        yield from log_problems(log, f"embed, {what}", subject)
        if not isinstance(out, Tensor) or out.shape[:1] != z.shape[:1] or not out.is_floating_point():
            yield f"embed, {what}: a floating point tensor with one row for each of the {len(z)} is needed"
            continue
        back = _input_gradient(defense, z, out)
        if back is None:
            yield f"embed, {what}: no gradient flows back through it or `loss`, so that bottom models could not learn"
        elif not bool(torch.isfinite(out).all() and torch.isfinite(back).all()):
            yield f"embed, {what}: it returns values that are not finite, or has such a gradient"
        if not torch.equal(z, given):
            yield f"embed, {what}: it changes the embeddings in place"


def _input_gradient(defense: Defense, z: Tensor, out: Tensor) -> Tensor | None:
    """Return the gradient of the loss by the received embeddings (B, ...); None where there is none."""
    flat = out.flatten(1)
    loss, _ = defense.loss(flat.sum(dim=1), labels_of(len(z)), flat)
    return torch.autograd.grad(loss, z, allow_unused=True)[0] if loss.requires_grad else None


def _losses(subject: Subject) -> Iterator[str]:
    if "loss" not in subject.hooks:
        return
    given, y = batch(8) * 64, labels_of(64)
    cases = {
        "a usual batch": (given, y),
        "one class": (given, torch.zeros_like(y)),
        "one row": (given[:1], y[:1]),
        "zeros": (torch.zeros_like(given), y),
        "equal rows": (given[:1].repeat(64, 1), y),
    }
    for what, (rows, labels) in cases.items():
        z = rows.clone().requires_grad_()
        logits = z.sum(dim=1)
        logits.retain_grad()
        before, known = logits.detach().clone(), labels.clone()
        value, log = subject.make().loss(logits, labels, z)
        yield from log_problems(log, f"loss, {what}", subject)
        if not (torch.equal(z, rows) and torch.equal(logits, before) and torch.equal(labels, known)):
            yield f"loss, {what}: it changes embeddings, logits or labels in place; others still read them"
            return
        if not isinstance(value, Tensor) or value.dim() or not value.requires_grad:
            yield f"loss, {what}: a differentiable number is needed, a tensor without dimensions"
            continue
        value.backward()  # type: ignore[no-untyped-call]
        found = [tensor for tensor in (value, logits.grad, z.grad) if tensor is not None]
        if not all(bool(torch.isfinite(tensor).all()) for tensor in found):
            yield f"loss, {what}: the loss or its gradient is not finite"


def _repeatable(subject: Subject) -> Iterator[str]:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = play(subject.make(), range(3))
    if not torch.equal(before, torch.get_rng_state()):
        yield "it draws from torch's global generator, or seeds it; draw from self.generator(device)"
    torch.manual_seed(2)
    if not same(first, play(subject.make(), range(3))):
        yield "the same secret gives other results the second time: draw from self.generator(device) and nothing else"
        return
    secret_matters = not same(first, play(subject.make(secret=2), range(3)))
    yield from _noise(subject, secret_matters=secret_matters)
    g, y = batch(8), labels_of(64)
    given, labels = g.clone(), y.clone()
    defense = subject.make()
    defense.prepare_labels(labels)
    send(defense, given, labels)
    if not (torch.equal(g, given) and torch.equal(y, labels)):
        yield "it changes gradients or labels in place; others still read them"


def _noise(subject: Subject, *, secret_matters: bool) -> Iterator[str]:
    """Check the noise on one batch, which is sent repeatedly until a defense with a memory of batches has settled."""
    if "protect" not in subject.hooks:
        return
    g, y, defense = batch(8), labels_of(64), subject.make()
    for _ in range(_SETTLING_STEPS):
        send(defense, g, y)
    one, other = (send(defense, g, y, first=first)[0] for first in (64, 128))
    unrelated = send(subject.make(secret=2), g, y)[0]
    if not secret_matters and not torch.allclose(one, other, rtol=1e-2, atol=1e-2 * float(g.abs().max())):
        yield (
            "its noise is the same whatever the secret, so that a party can make it too and subtract it; draw from "
            "self.generator(device)"
        )
    if not secret_matters and torch.equal(one, other) and _adds_the_same(subject, g, y):
        yield "it adds the same to other gradients, so that a party can subtract it; draw from self.generator(device)"
    if secret_matters and torch.equal(one, other) and not torch.equal(one, unrelated):
        yield "its noise is the same in every step, so that a party can subtract it; draw fresh noise"


def _adds_the_same(subject: Subject, g: Tensor, y: Tensor) -> bool:
    """Return True if the difference of sent and given gradients is not zero, and the same for other gradients."""
    other = g.flip(-1)
    added, added_to_other = (send(subject.make(), given, y)[0] - given for given in (g, other))
    most = float(g.abs().max())
    same_difference = torch.allclose(added, added_to_other, rtol=1e-3, atol=1e-3 * most)
    return same_difference and float(added.abs().max()) > 1e-2 * most


def _state(subject: Subject) -> Iterator[str]:
    for scope in subject.scopes():
        defense = subject.make(widths=PARTIES[1], **scope)
        play(defense, range(3))
        defense.end_epoch()
        play(defense, range(3, 4), prepare=False)
        state = {"own": defense.state(), "modules": deepcopy(dict(defense.modules.state_dict()))}
        expected = _to_the_end(defense)
        with tempfile.TemporaryDirectory() as folder:
            try:
                save_state(Path(folder) / "state", state)
            except TypeError as error:
                yield f"its `state` cannot be saved: {error}"
                return
            state = load_state(Path(folder) / "state")
        again = subject.make(widths=PARTIES[1], **scope)
        play(again, [])
        again.restore(state["own"])
        again.modules.load_state_dict(state["modules"])
        if not same(expected, _to_the_end(again)):
            yield (
                "restored from its `state`, it goes on otherwise than without a break: add its memory to "
                "`super().state()`, as copies, and let `restore` call `super().restore(state)`"
            )
            return


def _to_the_end(defense: Defense) -> list[Tensor]:
    """Return the tensors of the rest of the second epoch, and of its end."""
    seen = play(defense, range(4, 6), prepare=False)
    return [*seen, *promised(defense, defense.end_epoch())]


def _epochs(subject: Subject) -> Iterator[str]:
    for scope in subject.scopes():
        defense = subject.make(widths=PARTIES[1], **scope)
        for epoch in range(2):
            play(defense, range(3 * epoch, 3 * epoch + 3), prepare=not epoch)
            yield from log_problems(defense.end_epoch(), "end_epoch", subject)
            bound: object = defense.bound()
            if not isinstance(bound, int | float) or not 0.5 <= bound <= 1.0:
                yield f"its `bound` is {bound!r}; a leak AUC from 0.5 to 1 is needed, where 1 is no promise"
        with contextlib.suppress(ConfigError):
            defense.check_bound(2)


class _Inner(Defense):
    """A wrapped defense that records the calls of its hooks."""

    name = "inner"

    def __init__(self, wrapped: HookedStrategy) -> None:
        super().__init__(wrapped)
        self.called: list[tuple[str, Tensor]] = []
        self.notified: list[str] = []

    @property
    def params(self) -> dict[str, Any]:
        return {}

    def begin(self) -> None:
        self.notified.append("begin")

    def begin_batch(self, rows: Rows) -> None:
        self.notified.append("begin_batch")

    def end_epoch(self) -> Log:
        self.notified.append("end_epoch")
        return {}

    def prepare_labels(self, labels: Tensor) -> tuple[Tensor, Log]:
        return self._record("prepare_labels", labels), {"inner.seen": 1.0}

    def embed(self, z: Tensor, *, party: str = "", train: bool = True) -> tuple[Tensor, Log]:
        return self._record("embed", z), {"inner.seen": 1.0}

    def loss(self, logits: Tensor, labels: Tensor, z: Tensor) -> tuple[Tensor, Log]:
        return self.strategy.loss(self._record("loss", logits), labels, z)[0], {"inner.seen": 1.0}

    def protect(self, grads: Tensor, labels: Tensor, step: StepView | None = None) -> tuple[Tensor, Log]:
        return self._record("protect", grads), {"inner.seen": 1.0}

    def _record(self, hook: str, given: Tensor) -> Tensor:
        self.called.append((hook, given.clone()))
        return given


def _nesting(subject: Subject) -> Iterator[str]:
    if getattr(subject.defense_class, "alone", False):
        return  # it wraps no other defense
    for scope in subject.scopes():
        inner = _Inner(strategy(PARTIES[1]))
        defense = subject.defense_class(inner, **{**subject.params, **scope})
        build_defenses(defense, inner.base.cut)
        y = labels_of(64)
        g = batch(56)
        z = batch(5)
        calls: dict[str, tuple[tuple[Tensor, ...], dict[str, Any]]] = {
            "prepare_labels": ((y,), {}),
            "embed": ((z,), {"party": "a"}),
            "loss": ((g.sum(dim=1), y, g), {}),  # embeddings of all parties have the shape of the gradients
            "protect": ((g, y), {"step": step_of(defense, g, y, np.arange(64))}),
        }
        for hook, (given, named) in calls.items():
            inner.called.clear()
            found, log = getattr(defense, hook)(*(tensor.clone() for tensor in given), **named)
            # Labels may be randomised first, so that no inner strategy receives a true one.
            may_pass = [given[0], found] if hook == "prepare_labels" else [given[0]]
            asked = [name for name, _ in inner.called]
            once = asked == [hook] or (hook == "loss" and set(asked) == {hook})  # other labels have a loss each
            if not once or not any(torch.equal(inner.called[0][1], one) for one in may_pass):
                times = "" if hook == "loss" else ", once"
                yield f"`{hook}` does not ask the strategy that it wraps first{times} and with what it was given"
            elif "inner.seen" not in log:
                yield f"`{hook}` loses the log of the strategy that it wraps"
        defense.begin()
        defense.begin_batch(np.arange(64))
        defense.end_epoch()
        for hook in inner.notified:
            yield f"`{hook}` calls the strategy that it wraps, which is called by itself, and would be called twice"
        if defense.base is not inner.base or defense.chain() != [defense, inner]:
            yield "it does not show the strategy that it wraps: call `super().__init__(strategy)`"
        yield from _twice(subject, defense, scope, (g, y))


def _twice(subject: Subject, defense: Defense, scope: dict[str, Any], batch: tuple[Tensor, Tensor]) -> Iterator[str]:
    """Yield the problems of a defense around one of its own kind, which `Defense.twice` may refuse."""
    try:
        outer = subject.defense_class(defense, **{**subject.params, **scope})
    except ConfigError as error:
        if not defense.twice or defense.twice not in str(error):
            yield f"it cannot wrap another of its kind: {error}; if that is wrong, name the alternative in `twice`"
        return
    g, y = batch
    sent, _ = outer.protect(g.clone(), y.clone(), step_of(outer, g, y, np.arange(len(g))))
    yield from protection.sent_problems(sent, g, "wrapped by another of its kind")
