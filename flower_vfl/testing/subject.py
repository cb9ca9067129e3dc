"""A defense under test: its construction, its batches, and the calls of its hooks."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flower_vfl.config import Config
from flower_vfl.config.schema import AttackConfig, TrainingConfig
from flower_vfl.parties.hooks import Log, StepView, is_reserved
from flower_vfl.protocol.schedule import Rows
from flower_vfl.rng import Secret
from flower_vfl.strategies.base import Defense, HookedStrategy
from flower_vfl.strategies.gradients.base import GradientDefense
from flower_vfl.strategies.vertical import VerticalStrategy
from flower_vfl.testing.common import gradients
from flower_vfl.training.assembly import build_defenses

ONE_PARTY: Mapping[str, int] = MappingProxyType({"a": 8})
PARTIES: tuple[Mapping[str, int], ...] = (ONE_PARTY, {"a": 5, "b": 3, "c": 48}, {"a": 1})
"""Widths of the parties' gradients, as the label party passes them on: flattened, side by side."""

FEATURE_MAP = (3, 4, 4)
"""The shape of an embedding of width 48; others are vectors."""

_HOOKS = ("prepare_labels", "embed", "loss", "private_loss", "predict", "protect")
_ROWS, _TABLE = 64, 512


@dataclass(frozen=True)
class Subject:
    """A defense class with its parameters."""

    defense_class: Callable[..., Defense]
    params: dict[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The name of the class."""
        return str(getattr(self.defense_class, "__name__", self.defense_class))

    @property
    def perturbs(self) -> bool:
        """True if it is a `GradientDefense`, which handles the scope and batches that it cannot protect."""
        return isinstance(self.defense_class, type) and issubclass(self.defense_class, GradientDefense)

    @property
    def hooks(self) -> tuple[str, ...]:
        """The hooks that it overrides."""
        return tuple(hook for hook in _HOOKS if getattr(self.defense_class, hook) is not getattr(Defense, hook))

    def scopes(self) -> Iterator[dict[str, Any]]:
        """Yield the scopes in which it is checked, as parameters."""
        if not self.perturbs:
            yield {}
            return
        for scope in dict.fromkeys([self.params.get("scope", "joint"), "joint", "per-party"]):
            yield {"scope": scope}

    def make(self, *, secret: int = 1, widths: Mapping[str, int] = ONE_PARTY, classes: int = 2, **more: Any) -> Defense:
        """Return a new defense around a strategy without a defense."""
        made = self.defense_class(strategy(widths, secret=secret, classes=classes), **{**self.params, **more})
        build_defenses(made, made.base.cut)
        return made


def strategy(widths: Mapping[str, int] = ONE_PARTY, *, secret: int = 1, classes: int = 2) -> VerticalStrategy:
    """Return a label party's strategy that is built for parties with embeddings of these widths."""
    base = VerticalStrategy(
        lambda shape: nn.Identity(),
        labels_of(_TABLE, classes),
        parties=tuple(widths),
        config=Config(attack=AttackConfig(names=[]), training=TrainingConfig(epochs=2, patience=0)),
        secret=Secret(bytes([secret]) * 32, "check_defense"),
    )
    base.build({party: (width,) for party, width in widths.items()}, torch.device("cpu"))
    base.begin_batch(np.arange(_ROWS))
    return base


def labels_of(rows: int, classes: int = 2) -> Tensor:
    """Return labels (N,) that fit the gradients of `batch`: one row in five is positive."""
    return (torch.arange(rows) % 5 == 0).long() if classes == 2 else torch.arange(rows) % classes


def batch(width: int, *, rows: int = _ROWS, step: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the cut gradients (B, D) of a step."""
    return gradients((rows, width), dtype, seed=20 + step)


def play(defense: HookedStrategy, steps: Sequence[int], *, prepare: bool = True, classes: int = 2) -> list[Tensor]:
    """Call the hooks of an epoch as in training, except its end, and return all tensors that they return."""
    widths = defense.base.widths
    given = labels_of(_TABLE, classes)
    for one in defense.hook_targets if prepare else ():
        one.begin()
    labels = (defense.prepare_labels(given.clone())[0] if prepare else given)[:_ROWS]
    seen = [labels.clone()]
    for step in steps:
        rows = np.arange(_ROWS * step, _ROWS * (step + 1))
        for one in defense.hook_targets:
            one.begin_batch(rows)
        z = batch(sum(widths.values()), step=100 + step) * _ROWS
        parts = [
            defense.embed(part, party=party)[0]
            for party, part in zip(widths, torch.split(z, list(widths.values()), dim=1), strict=True)
        ]
        logits = z.sum(dim=1) if classes == 2 else z[:, :1] * torch.arange(classes)
        loss, _ = defense.loss(logits, labels, torch.cat([part.flatten(1) for part in parts], dim=1))
        g = batch(sum(widths.values()), step=step)
        sent, _ = defense.protect(g, labels, step_of(defense, g, labels, rows))
        for one in defense.hook_targets:
            one.end_batch()
        seen += [*parts, loss, sent]
    return [tensor.detach().clone() for tensor in seen]


def promised(defense: HookedStrategy, log: Log) -> list[Tensor]:
    """Return the values that `end_epoch` logged and the bound after it, as a tensor to compare like those of `play`."""
    values = torch.tensor([*log.values(), defense.bound()], dtype=torch.float64)
    return [values.nan_to_num()]  # `log_problems` reports NaN


def send(defense: HookedStrategy, g: Tensor, y: Tensor, *, first: int = 0) -> tuple[Tensor, Log]:
    """Return the result of `protect`, called as in training, for rows of the table from `first` on."""
    rows = np.arange(first, first + len(g))
    for one in defense.hook_targets:
        one.begin_batch(rows)
    return defense.protect(g, y, step_of(defense, g, y, rows))


def step_of(defense: HookedStrategy, g: Tensor, y: Tensor, rows: Rows) -> StepView:
    """Return the view of a step with these gradients (B, D): those of a network that predicts 0.3 for every row."""

    def relabel(labels: Tensor) -> Tensor:
        slopes = g / (0.3 - y.to(g.dtype))[:, None]
        return slopes * (0.3 - labels.to(g.dtype))[:, None]

    classes, widths = defense.base.labels.classes, defense.base.widths
    logits = g.new_full((len(g),) if classes == 2 else (len(g), classes), math.log(0.3 / 0.7))
    embeddings = {party: batch(width, rows=len(g)).to(g) for party, width in widths.items()}
    return StepView(rows, widths, logits, embeddings, relabel=relabel if defense.other_labels else None)


def same(ones: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Return True if two runs gave bitwise equal tensors."""
    return len(ones) == len(others) and all(map(torch.equal, ones, others))


def log_problems(log: object, what: str, subject: Subject) -> Iterator[str]:
    """Yield the problems of a hook's log."""
    if not isinstance(log, dict):
        yield f"{what}: it logs {log!r}; a dictionary of numbers is needed"
        return
    for key, value in log.items():
        if not isinstance(key, str) or isinstance(value, bool) or not isinstance(value, int | float):
            yield f"{what}: it logs {key!r} = {value!r}; a name and a number are needed; float(...) makes one"
        elif is_reserved(key):
            yield f"{what}: it logs {key!r}, which is a name of the training's own metrics; log it under another one"
        elif math.isnan(value):
            yield f"{what}: it logs {key!r} = NaN"
        elif math.isinf(value) and not _documented(key, subject):
            yield f"{what}: it logs {key!r} = {value}, and no docstring explains when that is inf"


def _documented(key: str, subject: Subject) -> bool:
    """Return True if the docstrings of the class and of its hooks name the value and inf."""
    names = {part for part in key.split(".") if part not in (getattr(subject.defense_class, "name", ""), "a", "b", "c")}
    methods = [getattr(subject.defense_class, hook, None) for hook in (*_HOOKS, "perturb", "end_epoch")]
    docs = " ".join(str(thing.__doc__) for thing in (subject.defense_class, *methods) if thing is not None)
    return bool(re.search(r"\binf\b", docs)) and any(re.search(rf"\b{re.escape(name)}\b", docs) for name in names)
