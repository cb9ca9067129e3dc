"""What a noise defense promises about all releases of a row together: logged after each epoch, and a budget's bound."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar

from flower_vfl.errors import ConfigError
from flower_vfl.metrics import auc_bound
from flower_vfl.parties.label import Log
from flower_vfl.strategies.base import HookedStrategy, Scope
from flower_vfl.strategies.gradients.noise import NoiseDefense


class Course(Protocol):
    """What was done in each epoch, and what that promises; `end_epoch` returns nothing where it promises nothing."""

    largest: float

    def end_epoch(self, rho: float) -> dict[str, float]:  # noqa: D102
        ...

    def state(self) -> dict[str, Any]:  # noqa: D102
        ...

    def restore(self, state: Mapping[str, Any]) -> None:  # noqa: D102
        ...


C = TypeVar("C", bound=Course)


class BoundedNoise(NoiseDefense, Generic[C]):
    """A noise defense with a course for all parties together, or one for each and for those that collude.

    Parameters
    ----------
    strategy, scope, rho
        See `NoiseDefense`.
    """

    def __init__(self, strategy: HookedStrategy, *, scope: Scope = "joint", rho: float = 0.0) -> None:
        super().__init__(strategy, scope=scope, rho=rho)
        self._courses: dict[str, C] = {}

    @abstractmethod
    def _nothing_done(self) -> C:
        """Return a course that begins."""

    @abstractmethod
    def most_epochs(self, width: int) -> int:
        """Return after how many epochs something is still said of gradients (B, width)."""

    def _summed(self, left: Mapping[str, float]) -> dict[str, float]:
        """Return what divergences of parties make for groups that collude, where these have no course of their own."""
        return {}

    def _course(self, whose: str | None = None) -> C:
        """Return the course of a party or group, by default of the party whose turn it is."""
        name = self._whose if whose is None else whose
        if name not in self._courses:
            self._courses[name] = self._nothing_done()
        return self._courses[name]

    @property
    def _whose(self) -> str:
        return [*self.base.widths, ""][self.part] if self.scope == "per-party" else ""

    @property
    def _repeats(self) -> bool:
        """Whether rows come again in each epoch."""
        return self.base.config.training.order != "time"

    def end_epoch(self) -> Log:
        """Log what Theorem 1 says of a row's releases in all epochs so far, taken together."""
        log: Log = {}
        several = len(self.base.widths) > 1
        found = {name: values for name, course in self._courses.items() if (values := course.end_epoch(self.rho))}
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
        left = {name: course.largest for name, course in self._courses.items()}
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
        most = min(map(self.most_epochs, self._bounded(widths)), default=epochs)
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
        return {**super().state(), "courses": {name: course.state() for name, course in self._courses.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        super().restore(state)
        self._courses = {}
        for name, course in state["courses"].items():
            self._course(name).restore(course)
