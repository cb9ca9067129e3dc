"""Privacy accounting of a noise defense over all releases of a row: logged after each epoch, and a budget's bound."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar

from flower_vfl.errors import ConfigError
from flower_vfl.metrics import auc_bound
from flower_vfl.parties.hooks import Log, StepView
from flower_vfl.strategies.base import HookedStrategy
from flower_vfl.strategies.gradients.base import Scope
from flower_vfl.strategies.gradients.noise import NoiseDefense


class Accountant(Protocol):
    """A privacy accountant: the noise of each epoch and its bound; `end_epoch` returns nothing where there is none."""

    largest: float

    def end_epoch(self, rho: float) -> dict[str, float]:  # noqa: D102
        ...

    def state(self) -> dict[str, Any]:  # noqa: D102
        ...

    def restore(self, state: Mapping[str, Any]) -> None:  # noqa: D102
        ...


C = TypeVar("C", bound=Accountant)


class AccountedNoise(NoiseDefense, Generic[C]):
    """A noise defense with one privacy accountant for all parties, or one for each party and colluding group.

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
        """Return a new accountant."""

    @abstractmethod
    def accounted_epochs(self, width: int) -> int:
        """Return the largest number of epochs that can be accounted for gradients (B, width)."""

    def _summed(self, left: Mapping[str, float]) -> dict[str, float]:
        """Return the divergences of colluding groups without their own accountant, from those of their parties."""
        return {}

    def _accountant(self, whose: str) -> C:
        """Return the accountant of a party or group; "" is that of all parties together."""
        if whose not in self._accountants:
            self._accountants[whose] = self._nothing_done()
        return self._accountants[whose]

    def _whose(self, step: StepView) -> str:
        """Return the name of a step's accountant; that of a single party if the scope is "per-party"."""
        return next(iter(step.widths), "") if self.scope == "per-party" and not step.party else step.party

    @property
    def _repeats(self) -> bool:
        """True if each row recurs in every epoch."""
        return self.base.config.training.order != "time"

    def end_epoch(self) -> Log:
        """Log the bound of Theorem 1 on a row's releases in all epochs so far, taken together."""
        log: Log = {}
        several = len(self.base.widths) > 1
        found = {name: values for name, each in self._accountants.items() if (values := each.end_epoch(self.rho))}
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

        The second can only rise with the epochs. Its estimate may fall; then the earlier, larger estimate counts.
        """
        left = {name: accountant.largest for name, accountant in self._accountants.items()}
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
        """Return the widths of the gradients that have an accountant."""
        if not widths or self.scope == "per-party":
            return list(widths.values())
        return [sum(widths.values())]

    def state(self) -> dict[str, Any]:
        """Add the states of the accountants."""
        return {**super().state(), "courses": {name: each.state() for name, each in self._accountants.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        super().restore(state)
        self._accountants = {}
        for name, saved in state["courses"].items():
            self._accountant(name).restore(saved)
