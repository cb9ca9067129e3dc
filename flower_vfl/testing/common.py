"""Shared parts of the checks of attacks and of defenses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from flower_vfl.attacks import ATTACK_METHODS
from flower_vfl.errors import CheckError, InputError
from flower_vfl.protocol.printable import words_of
from flower_vfl.registry import METHOD_NAME, Methods

GRADIENT_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
"""The number formats that cut gradients can have."""

S = TypeVar("S")
Check = Callable[[S], Iterator[str]]
"""A function that yields the problems of a subject."""

A = TypeVar("A")


@dataclass(frozen=True)
class AttackSubject(Generic[A]):
    """A checked attack class with its parameters.

    Attributes
    ----------
    attack_class, params
        Class of the attack, and its parameters.
    """

    attack_class: Any
    params: dict[str, Any] = field(default_factory=dict)

    def make(self) -> A:
        """Return a new attack."""
        attack: A = self.attack_class(**self.params)
        return attack


def score_problems(scores: Any, rows: int, what: str) -> Iterator[str]:
    """Yield the problems of an attack's scores, which must be one number for each of `rows` rows."""
    if not isinstance(scores, Tensor) or scores.shape != (rows,):
        found = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        yield f"{what}: the score is {found}, one number a row is needed: a tensor ({rows},)"
    elif scores.dtype == torch.bool or scores.is_complex():
        yield f"{what}: the scores are {scores.dtype}, they cannot be ranked"
    elif scores.requires_grad:
        yield f"{what}: the scores keep a graph; compute on detached tensors"
    elif bool(torch.isnan(scores).any()):
        count = int(torch.isnan(scores).sum())
        yield f"{what}: {count} of {rows} scores are NaN; finite gradients have a score each"


def run_checks(
    kind: str,
    title: str,
    params: Mapping[str, Any],
    subject: S,
    stages: Iterable[Iterable[Check[S]]],
    *,
    waive: Iterable[str],
) -> None:
    """Run stages of checks, each only if the stage before it found nothing.

    Parameters
    ----------
    kind, title, params
        Kind, name and parameters of the checked method, for the message.
    subject
        The argument of the checks.
    stages : Iterable
        Groups of checks, in their order.
    waive : Iterable[str]
        Names of checks, as messages give them in brackets, with findings that are accepted.

    Raises
    ------
    CheckError
        When a check has a finding that is not waived, or a waived check has none; the message lists all of them.
    """
    waived, problems = dict.fromkeys(waive, False), list[str]()
    for checks in stages:
        for check in checks:
            name = check.__name__.strip("_").replace("_", " ")
            found = [f"{problem} [{name}]" for problem in _guarded(check, name, subject)]
            if found and name in waived:
                waived[name] = True
            else:
                problems += found
        if problems:
            break
    else:
        problems = [f"it waives {name!r}, which finds nothing" for name, used in waived.items() if not used]
    if problems:
        given = ", ".join(f"{key}={value!r}" for key, value in params.items())
        words = "\n".join(f"- {problem}" for problem in dict.fromkeys(problems))
        raise CheckError(f"{title}({given}) does not do what {kind} must:\n{words}")


def _guarded(check: Check[S], name: str, subject: S) -> Iterator[str]:
    """Yield the problems of a check; an exception of the method is a problem as well."""
    try:
        yield from check(subject)
    except Exception as error:  # noqa: BLE001 - any exception of a checked method is reported to its author
        where = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        yield f"{name}: it raised {words_of(error)}{where}"


@contextmanager
def given(what: str) -> Iterator[None]:
    """Note in an exception what a method was given, for the message of `run_checks`."""
    try:
        yield
    except Exception as error:
        error.add_note(what)
        raise


def name_problems(name: object) -> Iterator[str]:
    """Yield the problems of the `name` of a class."""
    if not isinstance(name, str) or not METHOD_NAME.fullmatch(name):
        yield f"its `name` is {name!r}; a config needs letters, digits, '_' and '-'"


def borrowed_name(method: Any, known: Methods[Any]) -> Iterator[str]:
    """Yield a problem if a method has the name of a built-in one of the same kind."""
    if known.builtin.get(method.name, method) is not method:
        yield f"its `name` is {method.name!r}, which is that of a built-in {known.kind}"


def parameter_problems(make: Callable[..., Any], method: Any, params: Mapping[str, Any]) -> Iterator[str]:
    """Yield the problems of a method's parameters.

    Parameters
    ----------
    make : Callable
        Function that makes the method from parameters.
    method : type
        Class of the method.
    params : Mapping[str, Any]
        The parameters that are checked.
    """
    shown = make(**params).params
    try:
        plain = json.loads(json.dumps(shown, allow_nan=False))
    except (TypeError, ValueError) as error:
        yield f"`params` cannot stand in result.json: {error}"
        return
    if not isinstance(shown, dict) or plain != shown:
        yield f"`params` is {shown!r} and comes back from JSON as {plain!r}"
    elif make(**plain).params != shown:
        yield f"made again with its own `params` {shown!r}, it has others"
    for key, value in params.items():
        if key not in shown or shown[key] != value:
            yield f"made with {key}={value!r}, its `params` is {shown!r}"
    for key in shown:
        if not re.search(rf"\b{re.escape(str(key))}\b", str(method.__doc__)):
            yield f"its docstring does not say what {key!r} is"
    try:
        make(**params, no_such_parameter=1)
    except (TypeError, InputError):
        return
    yield "it takes parameters that it does not have"


def attack_declaration_problems(attack_class: Any, *, allowed: Iterable[str], method: str) -> Iterator[str]:
    """Yield the problems of an attack's name, of its declared needs and of its docstrings.

    Parameters
    ----------
    attack_class : type
        Class of the attack.
    allowed : Iterable[str]
        Values that `needs` may hold.
    method : str
        Name of the method that returns the scores.
    """
    needs, allowed = attack_class.needs, list(allowed)
    yield from name_problems(getattr(attack_class, "name", None))
    if not isinstance(needs, frozenset) or not needs <= set(allowed):
        yield f"its `needs` is {needs!r}; a frozenset of {', '.join(map(repr, allowed))} or nothing is allowed"
    for name, thing in (("the class", attack_class), (f"`{method}`", getattr(attack_class, method))):
        if not (thing.__doc__ or "").strip():
            yield f"{name} has no docstring"


def attack_parameter_problems(subject: AttackSubject[Any], counts: Mapping[str, str]) -> Iterator[str]:
    """Yield the problems of an attack's parameters, and of its declared numbers of known rows.

    Parameters
    ----------
    subject : AttackSubject
        The attack.
    counts : Mapping[str, str]
        Name of the attribute with the number of known rows, by need.
    """
    yield from borrowed_name(subject.attack_class, ATTACK_METHODS)
    yield from parameter_problems(subject.attack_class, subject.attack_class, subject.params)
    attack = subject.make()
    for need, name in counts.items():
        count = getattr(attack, name)
        if not isinstance(count, int) or (need in attack.needs) != (count > 0):
            yield f"`{name}` is {count!r} and `needs` {set(attack.needs)}; an attack that knows rows says both"


def missing_information_problems(score_without: Callable[[], Any], *, instead: str) -> Iterator[str]:
    """Yield a problem if an attack scores without the side information that it needs.

    Parameters
    ----------
    score_without : Callable
        Function that runs the attack without it.
    instead : str
        Expression that refuses, for the message.
    """
    try:
        score_without()
    except InputError:
        return
    yield f"it scores without the side information that it needs; use {instead}, which refuses with a message"


def unusual(g: Tensor) -> dict[str, Tensor]:
    """Return batches by name: zeros only, equal rows, and gradients (B, D) at the limits of float32."""
    return {"zeros only": torch.zeros_like(g), "equal rows": g[:1].expand_as(g).clone(), **scaled(g)}


def gradients(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, *, seed: int = 20) -> Tensor:
    """Return gradients of `shape` as in training: few positives, confident mistakes, small by the factor 1 / B."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(shape[0]) % 5 == 0
    p = torch.sigmoid(torch.randn(shape[0], generator=generator) - 2)
    direction = 1 + 0.5 * torch.randn(shape, generator=generator)
    return ((p - y.float()).view(-1, *[1] * (len(shape) - 1)) * direction / max(shape[0], 1)).to(dtype)


def scaled(g: Tensor) -> dict[str, Tensor]:
    """Return the batch scaled to the limits of float32, by name."""
    unit = g / g.abs().max()
    return {
        "gradients of 1e-30": unit * 1e-30,
        "gradients of 1e30": unit * 1e30,
        "gradients from 1e-30 to 1e30": unit * torch.logspace(-30, 30, len(g))[:, None],
    }


def devices() -> list[str]:
    """Return the CUDA devices of this machine."""
    return [f"cuda:{index}" for index in range(torch.cuda.device_count())]
