"""What a noise defense promises about all releases of a row together: logged after each epoch, and a budget's bound."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar

from flower_vfl.errors import ConfigError
from flower_vfl.metrics import auc_bound
from flower_vfl.parties.hooks import Log, StepView
from flower_vfl.strategies.base import HookedStrategy, Scope
from flower_vfl.strategies.gradients.noise import NoiseDefense


class Accountant(Protocol):
    """What was done in each epoch, and what that promises; `end_epoch` returns nothing where it promises nothing."""

    largest: float

    def end_epoch(self, rho: float) -> dict[str, float]:  # noqa: D102
        ...

    def state(self) -> dict[str, Any]:  # noqa: D102
        ...

    def restore(self, state: Mapping[str, Any]) -> None:  # noqa: D102
        ...


C = TypeVar("C", bound=Accountant)


class AccountedNoise(NoiseDefense, Generic[C]):
    """A noise defense with a course for all parties together, or one for each and for those that collude.

    Parameters
    ----------
    strategy, scope, rho
        See `NoiseDefense`.
    """

    def __init__(self, strategy: HookedStrategy, *, scope: Scope = "joint", rho: float = 0.0) -> None:
        super().__init__(strategy, scope=scope, rho=rho)
        self._accountants: dict[str, C] = {}

    @abstractmethod
    def _nothing_done(self) -> C:
        """Return a course that begins."""

    @abstractmethod
    def accounted_epochs(self, width: int) -> int:
        """Return after how many epochs something is still said of gradients (B, width)."""

    def _summed(self, left: Mapping[str, float]) -> dict[str, float]:
        """Return what divergences of parties make for groups that collude, where these have no course of their own."""
        return {}

    def _accountant(self, whose: str) -> C:
        """Return the course of a party or group; "" is that of all parties together."""
        if whose not in self._accountants:
            self._accountants[whose] = self._nothing_done()
        return self._accountants[whose]

    def _whose(self, step: StepView) -> str:
        """Return whose course a step belongs to; a single party's has its name where the scope is "per-party"."""
        return next(iter(step.widths), "") if self.scope == "per-party" and not step.party else step.party

    @property
    def _repeats(self) -> bool:
        """Whether rows come again in each epoch."""
        return self.base.config.training.order != "time"

    def end_epoch(self) -> Log:
        """Log what Theorem 1 says of a row's releases in all epochs so far, taken together."""
        log: Log = {}
        several = len(self.base.widths) > 1
        found = {name: values for name, course in self._accountants.items() if (values := course.end_epoch(self.rho))}
        left = {name: values["sum_kl"] for name, values in found.items()}
        for name, divergence in {**left, **self._summed(left)}.items():
            party = f".{name}" if name and several else ""
            log[f"{self.name}.sum_kl_remembered{party}"] = divergence
            log[f"{self.name}.auc_bound_remembered{party}"] = auc_bound(divergence)
            if name in found:
                log[f"{self.name}.kept{party}"] = found[name]["kept"]
        return log

    def bound(self) -> float:
        """Return Theorem 1 for the worst of the steps and for a row's releases in all epochs, whichever is larger.

        Epoch by epoch the second can only rise; as it is estimated it may fall, and what was said before counts then.
        """
        left = {name: course.largest for name, course in self._accountants.items()}
        together = self._summed({**dict.fromkeys(self.base.widths, 0.0), **left})
        return max(map(auc_bound, [*left.values(), *together.values()])) if left else 1.0

    def check_bound(self, epochs: int) -> None:
        """Refuse more than two classes, and more epochs than can be judged together."""
        base, widths = self.base, self.base.widths
        if base.labels.classes > 2:
            raise ConfigError(
                f"attack.max_bound: {self.name} bounds what all epochs give away of two classes, this data has "
                f"{base.labels.classes}; attack.max_leak is a limit for any number"
            )
        most = min(map(self.accounted_epochs, self._bounded(widths)), default=epochs)
        if self._repeats and epochs > most:
            raise ConfigError(
                f"attack.max_bound: what all epochs give away together is computed for {most} epochs of gradients this "
                f"wide, and {epochs} are planned: set training.epochs to {most} at most"
            )

    def _bounded(self, widths: Mapping[str, int]) -> list[int]:
        """Return the widths of the gradients that there is a course of."""
        if not widths or self.scope == "per-party":
            return list(widths.values())
        return [sum(widths.values())]

    def state(self) -> dict[str, Any]:
        """Add what was done in each epoch."""
        return {**super().state(), "courses": {name: course.state() for name, course in self._accountants.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        super().restore(state)
        self._accountants = {}
        for name, course in state["courses"].items():
            self._accountant(name).restore(course)
