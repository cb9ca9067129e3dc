"""Base class of the defenses that perturb cut gradients: their scope, and batches that cannot be protected."""

from __future__ import annotations

import inspect
import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from flower_vfl.errors import ConfigError, UnprotectedBatchError
from flower_vfl.parties.hooks import Log, StepView, checked_pair
from flower_vfl.protocol.tensors import is_finite
from flower_vfl.strategies.base import Defense, HookedStrategy
from flower_vfl.strategies.gradients.units import each_run

_log = logging.getLogger(__name__)
Scope = Literal["joint", "per-party"]
Protection = Log | UnprotectedBatchError
"""The log of a perturbed batch, or the reason why it could not be protected."""


class GradientDefense(Defense):
    """A defense that perturbs cut gradients; subclasses implement `perturb`, this class applies it in its scope.

    A batch for which `perturb` raises `UnprotectedBatchError`, or returns a value that is not finite, is replaced by
    zeros: they carry no information, and the feature party's model only misses a step. That is counted, logged as
    `fallback` and warned of once.

    Parameters
    ----------
    strategy : HookedStrategy
        The wrapped strategy.
    scope : {"joint", "per-party"}
        "joint" perturbs the gradients of all feature parties together, so that colluding parties learn no more than
        one; "per-party" perturbs each party's by themselves.

    Attributes
    ----------
    unbiased
        True if the perturbed gradients are, on average over the noise, the gradients; `check_defense` tests it.
    checks_finite
        True if `perturb` itself raises for values that are not finite, by numbers that it reads anyway: each read of
        a GPU waits for it.
    fallbacks
        Number of batches, or parties' parts of one, that could not be protected as usual.
    """

    unbiased: ClassVar[bool] = False
    checks_finite: ClassVar[bool] = False

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

        A subclass may take a third parameter, ``step: StepView | None = None``, for more information on the step; its
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
        perturbed, (more,) = self.protect_runs([self], inner, labels, [step])
        return perturbed, {**log, **more}

    @classmethod
    def protect_runs(
        cls, defenses: Sequence[Self], grads: Tensor, labels: Tensor, steps: Sequence[StepView]
    ) -> tuple[Tensor, list[Log]]:
        """Perturb the gradients of R runs, each by its own defense, as `protect` does after the inner strategy.

        Parameters
        ----------
        defenses : Sequence[GradientDefense]
            R defenses of this class and of one scope.
        grads, labels : Tensor
            (R, B, D) gradients and (R, B) prepared labels; or (B, D) and (B,) of one run.
        steps : Sequence[StepView]
            Each run's view of its step.
        """
        widths = steps[0].widths
        if defenses[0].scope == "joint" or len(widths) < 2:
            perturbed, logs = cls._perturb_or_withhold(defenses, grads, labels, steps)
            return perturbed, [{f"{cls.name}.{key}": value for key, value in log.items()} for log in logs]
        pieces, logs_of = [], []
        for party, piece in zip(widths, torch.split(grads, list(widths.values()), dim=-1), strict=True):
            perturbed, logs = cls._perturb_or_withhold(defenses, piece, labels, [step.of(party) for step in steps])
            pieces.append(perturbed)
            logs_of.append(logs)
        by_run = zip(defenses, zip(*logs_of, strict=True), steps, strict=True)
        return torch.cat(pieces, dim=-1), [
            defense._by_party(dict(zip(widths, logs, strict=True)), step) for defense, logs, step in by_run
        ]

    @classmethod
    def perturb_runs(
        cls, defenses: Sequence[Self], g: Tensor, y: Tensor, steps: Sequence[StepView]
    ) -> tuple[Tensor, list[Protection]]:
        """Perturb gradients (R, B, D) of R runs with labels (R, B), each with the noise that it would draw alone.

        A run with a batch that cannot be protected has the error in place of its log, and arbitrary gradients; the
        others are perturbed as usual. By default the runs are perturbed one after another. A subclass that perturbs
        all at once implements this method for (B, D) and (R, B, D), and its `perturb` calls it for one run.
        """
        return _one_after_another(defenses, g, y, steps)

    @classmethod
    def _perturbs_runs(cls) -> bool:
        """Return True if the class of `perturb` defines `perturb_runs` too: a subclass may override `perturb` only."""
        return "perturb_runs" in vars(next(one for one in cls.__mro__ if "perturb" in vars(one)))

    @classmethod
    def _perturb_or_withhold(
        cls, defenses: Sequence[Self], g: Tensor, y: Tensor, steps: Sequence[StepView]
    ) -> tuple[Tensor, list[Log]]:
        perturb = cls.perturb_runs if g.dim() > 2 and cls._perturbs_runs() else _one_after_another
        perturbed, found = perturb(defenses, g, y, steps)
        logs = list[Log]()
        for defense, own, log in zip(defenses, each_run(perturbed), found, strict=True):
            if isinstance(log, UnprotectedBatchError):
                defense.count_fallback(log)
                own.zero_()
                logs.append({"noise_power": 0.0, "fallback": 1.0})
            else:
                logs.append({"fallback": 0.0, **log})
        return perturbed, logs

    def colluding(self, parties: Sequence[str], logs: Sequence[Log], step: StepView) -> Log:
        """Return the log entries for colluding parties, after `perturb` and its log.

        It is called where each party's gradients are perturbed by themselves; by default it returns no entry.
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
        """Return True if `perturb` is all that it does in a step, so that `protect_runs` is the same for many runs."""
        hooks = (
            *("prepare_labels", "build", "begin_batch", "embed", "loss", "private_loss", "protect", "end_batch"),
            "predict",
        )
        unchanged = all(getattr(cls, hook) is getattr(GradientDefense, hook) for hook in hooks)
        return unchanged and not cls.asks_other_labels

    def count_fallback(self, error: UnprotectedBatchError, instead: str = "zeros are sent instead") -> None:
        """Count a batch that could not be protected as usual, and warn at the first one."""
        if not self.fallbacks:
            _log.warning("%s; %s, here and wherever it happens again", error, instead)
        self.fallbacks += 1

    def state(self) -> dict[str, Any]:
        """Add the count of fallbacks."""
        return {**super().state(), "fallbacks": self.fallbacks}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned."""
        super().restore(state)
        self.fallbacks = int(state["fallbacks"])


def _one_after_another(
    defenses: Sequence[GradientDefense], g: Tensor, y: Tensor, steps: Sequence[StepView]
) -> tuple[Tensor, list[Protection]]:
    """Perturb the gradients of each run by themselves."""
    perturbed, logs = [], list[Protection]()
    for defense, own, labels, step in zip(defenses, each_run(g), each_run(y, dims=1), steps, strict=True):
        more = {"step": step} if defense._takes_step else {}
        try:
            found, log = checked_pair(defense.perturb(own, labels, **more), "perturb", defense.name)
            if not (defense.checks_finite or is_finite(found)):
                raise UnprotectedBatchError(f"{defense.name}: a perturbed gradient is not finite")
            logs.append(log)
        except UnprotectedBatchError as error:
            found = torch.zeros_like(own)
            logs.append(error)
        except Exception as error:
            error.add_note(f"in `perturb` of the defense {defense.name!r}")
            raise
        perturbed.append(found)
    return perturbed[0] if g.dim() == 2 else torch.stack(perturbed), logs


def of_one_run(perturbed: Tensor, logs: Sequence[Protection]) -> tuple[Tensor, Log]:
    """Return the result of `perturb_runs` for one run in the form of `perturb`.

    Raises
    ------
    UnprotectedBatchError
        For a batch that could not be protected.
    """
    (log,) = logs
    if isinstance(log, UnprotectedBatchError):
        raise log
    return perturbed, log
