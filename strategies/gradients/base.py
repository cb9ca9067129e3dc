"""Base of the defenses that perturb cut gradients: the scope, and batches that cannot be protected."""

from __future__ import annotations

import inspect
import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from flower_vfl.errors import ConfigError, UnprotectedBatchError
from flower_vfl.parties.hooks import Log, StepView
from flower_vfl.strategies.base import Defense, HookedStrategy

if TYPE_CHECKING:
    from flower_vfl.auditing.noise import NoiseModel

_log = logging.getLogger(__name__)
Scope = Literal["joint", "per-party"]


class GradientDefense(Defense):
    """A defense that perturbs cut gradients: subclasses write `perturb`, this class applies it in the right scope.

    A batch for which `perturb` raises `UnprotectedBatchError` is replaced by zeros: they carry nothing, and the feature
    party's model only misses a step. That is counted, logged as `fallback` and warned of once.

    Parameters
    ----------
    strategy : HookedStrategy
        The wrapped strategy.
    scope : {"joint", "per-party"}
        True if the gradients of all feature parties are perturbed together, so that colluding parties learn no more
        than one, or each party's by themselves.

    Attributes
    ----------
    unbiased
        True if the perturbed gradients are, on average over the noise, the gradients; `check_defense` tests it.
    fallbacks
        Number of batches, or parties' parts of one, that could not be protected as usual.
    """

    unbiased: ClassVar[bool] = False

    def __init__(self, strategy: HookedStrategy, *, scope: Scope = "joint") -> None:
        super().__init__(strategy)
        if scope not in ("joint", "per-party"):
            raise ConfigError(f'{self.name}: scope must be "joint" or "per-party", given {scope!r}')
        self.scope: Scope = scope
        self.fallbacks = 0
        self._takes_step = "step" in inspect.signature(self.perturb).parameters

    @property
    def params(self) -> dict[str, Any]:
        """The scope; a subclass with parameters adds its own."""
        return {"scope": self.scope}

    @abstractmethod
    def perturb(self, g: Tensor, y: Tensor) -> tuple[Tensor, Log]:
        """Perturb gradients (B, D) of examples with prepared labels (B,).

        A subclass may take a third parameter, ``step: StepView | None = None``, for what else is known of the step; its
        `party` is the name of the party that receives the gradients.

        Raises
        ------
        UnprotectedBatchError
            For a batch that cannot be protected.
        """

    def protect(self, grads: Tensor, labels: Tensor, step: StepView | None = None) -> tuple[Tensor, Log]:
        """Let the inner strategy protect first, then perturb."""
        step = step or self.base.step
        inner, log = self.strategy.protect(grads, labels, step)
        widths = step.widths
        if self.scope == "joint" or len(widths) < 2:
            perturbed, more = self._perturb_or_withhold(inner, labels, step)
            return perturbed, {**log, **{f"{self.name}.{key}": value for key, value in more.items()}}
        pieces, logs = [], {}
        split = torch.split(inner, list(widths.values()), dim=1)
        for party, piece in zip(widths, split, strict=True):
            perturbed, logs[party] = self._perturb_or_withhold(piece, labels, step.of(party))
            pieces.append(perturbed)
        return torch.cat(pieces, dim=1), {**log, **self._by_party(logs, step)}

    def noise_model(self, part: int = 0) -> NoiseModel | None:
        """Return the law of the noise in the last batch that `protect` took; None where it is not known.

        A defense that gives one is also measured, in a simulation, by a conditional oracle: a reader that knows
        everything about a row but its label (docs/methods/certificate.md).

        Parameters
        ----------
        part : int
            The number of the party, where each has noise of its own.
        """
        return None

    def colluding(self, parties: Sequence[str], logs: Sequence[Log], step: StepView) -> Log:
        """Return the log entries for colluding parties, after `perturb` and its log.

        It is called where each party's gradients are perturbed by themselves; by default it returns nothing.
        """
        return {}

    def _by_party(self, logs: Mapping[str, Log], step: StepView) -> Log:
        """Return the log of each party and of each colluding group, as in "a+b"."""
        groups = self.base.config.parties.coalitions(list(logs))
        found = {
            group: self.colluding(names, [logs[party] for party in names], step) for group, names in groups.items()
        }
        known = {**logs, **found}
        return {f"{self.name}.{key}.{name}": value for name, log in known.items() for key, value in log.items()}

    @classmethod
    def stacks(cls) -> bool:
        """Return whether all that it does is `perturb`, so that `protect_stacked` does the same for many runs."""
        hooks = ("prepare_labels", "build", "begin_batch", "embed", "loss", "protect", "end_batch")
        unchanged = all(getattr(cls, hook) is getattr(GradientDefense, hook) for hook in hooks)
        return unchanged and not cls.asks_other_labels

    @classmethod
    def protect_stacked(
        cls, defenses: Sequence[Self], grads: Tensor, labels: Tensor, steps: Sequence[StepView]
    ) -> tuple[Tensor, list[Log]]:
        """Do what `protect` does for gradients (R, B, D) and labels (R, B) of R runs, each with a defense of its own.

        All are of this class and of one scope, and each wraps a strategy without another defense of gradients.
        """
        widths = steps[0].widths
        if defenses[0].scope == "joint" or len(widths) < 2:
            found, more = cls._perturb_or_withhold_stacked(defenses, grads, labels, steps)
            return found, [{f"{cls.name}.{key}": value for key, value in log.items()} for log in more]
        pieces, logs = [], []
        for party, piece in zip(widths, torch.split(grads, list(widths.values()), dim=2), strict=True):
            views = [step.of(party) for step in steps]
            found, more = cls._perturb_or_withhold_stacked(defenses, piece.contiguous(), labels, views)
            pieces.append(found)
            logs.append(more)
        by_run = zip(defenses, zip(*logs, strict=True), steps, strict=True)
        return torch.cat(pieces, dim=2), [
            one._by_party(dict(zip(widths, own, strict=True)), step) for one, own, step in by_run
        ]

    @classmethod
    def _perturb_or_withhold_stacked(
        cls, defenses: Sequence[Self], g: Tensor, y: Tensor, steps: Sequence[StepView]
    ) -> tuple[Tensor, list[Log]]:
        found, logs = cls.perturb_stacked(defenses, g, y, steps)
        for run, (defense, log) in enumerate(zip(defenses, logs, strict=True)):
            if log is None:
                found[run], logs[run] = defense._perturb_or_withhold(g[run], y[run], steps[run])
        return found, [{"fallback": 0.0, **(log or {})} for log in logs]

    @classmethod
    def perturb_stacked(
        cls, defenses: Sequence[Self], g: Tensor, y: Tensor, steps: Sequence[StepView]
    ) -> tuple[Tensor, list[Log | None]]:
        """Perturb gradients (R, B, D) of R runs at once, with the numbers that each run alone would draw.

        A subclass may do that for ordinary batches. None instead of a log means that a run's own `perturb`
        shall do it; for such a run nothing was drawn and nothing has changed. By default that is so for all.
        """
        return torch.empty_like(g), [None] * len(defenses)

    def _perturb_or_withhold(self, g: Tensor, y: Tensor, step: StepView) -> tuple[Tensor, Log]:
        more = {"step": step} if self._takes_step else {}
        try:
            perturbed, log = self.perturb(g, y, **more)
        except UnprotectedBatchError as error:
            self.count_fallback(error)
            return torch.zeros_like(g), {"noise_power": 0.0, "fallback": 1.0}
        return perturbed, {"fallback": 0.0, **log}

    def count_fallback(self, error: UnprotectedBatchError, instead: str = "zeros are sent instead") -> None:
        """Count a batch that could not be protected as usual, and warn at the first one."""
        if not self.fallbacks:
            _log.warning("%s; %s, here and wherever it happens again", error, instead)
        self.fallbacks += 1

    def state(self) -> dict[str, Any]:
        """Add the count of fallbacks."""
        return {**super().state(), "fallbacks": self.fallbacks}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        super().restore(state)
        self.fallbacks = int(state["fallbacks"])
