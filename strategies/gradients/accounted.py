"""Privacy accounting of a noise defense over all releases of a row, with a bound for logs and budgets."""

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
    """A privacy accountant of the noise of each epoch; `end_epoch` returns its bound, or nothing without one."""

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
        self._repeated = False

    @abstractmethod
    def _new_accountant(self) -> C:
        """Return a new accountant."""

    @abstractmethod
    def accounted_epochs(self, width: int) -> int:
        """Return the largest number of epochs that can be accounted for gradients (B, width)."""

    def _colluding_divergences(self, divergences: Mapping[str, float]) -> dict[str, float]:
        """Return the divergences of colluding groups without their own accountant, from those of their parties."""
        return {}

    def _accountant(self, name: str) -> C:
        """Return the accountant of a party or group; "" is that of all parties together."""
        if name not in self._accountants:
            self._accountants[name] = self._new_accountant()
        return self._accountants[name]

    def _accountant_name(self, step: StepView) -> str:
        """Return the name of a step's accountant; that of a single party if the scope is "per-party"."""
        return next(iter(step.widths), "") if self.scope == "per-party" and not step.party else step.party

    @property
    def _rows_recur(self) -> bool:
        """True if each row recurs in every epoch."""
        return self.base.config.training.order != "time"

    def end_epoch(self) -> Log:
        """Log the bound of Theorem 1 on a row's releases in all epochs so far, taken together."""
        log: Log = {}
        several = len(self.base.widths) > 1
        found = {name: values for name, each in self._accountants.items() if (values := each.end_epoch(self.rho))}
        divergences = {name: values["sum_kl"] for name, values in found.items()}
        for name, divergence in {**divergences, **self._colluding_divergences(divergences)}.items():
            party = f".{name}" if name and several else ""
            log[f"{self.name}.sum_kl_remembered{party}"] = divergence
            log[f"{self.name}.auc_bound_remembered{party}"] = auc_bound(divergence)
            if name in found:
                log[f"{self.name}.kept{party}"] = found[name]["kept"]
        return log

    def bound(self) -> float:
        """Return the larger of two bounds of Theorem 1: on the worst step, and on a row's releases in all epochs.

        The second cannot fall with the epochs. Its estimate may; then the earlier, larger estimate is used.
        """
        if self._repeated:
            return 1.0
        divergences = {name: accountant.largest for name, accountant in self._accountants.items()}
        together = self._colluding_divergences({**dict.fromkeys(self.base.widths, 0.0), **divergences})
        return max(map(auc_bound, [*divergences.values(), *together.values()])) if divergences else 1.0

    def void_bound(self) -> None:
        """Record that a step has sent two different gradients: there is no bound from then on."""
        self._repeated = True

    def check_bound(self, epochs: int) -> None:
        """Refuse more than two classes, and more epochs than can be accounted for together."""
        base, widths = self.base, self.base.widths
        if base.labels.classes > 2:
            raise ConfigError(
                f"attack.max_bound: {self.name} bounds what all epochs give away of two classes, this data has "
                f"{base.labels.classes}; attack.max_leak is a limit for any number"
            )
        most = min(map(self.accounted_epochs, self._accounted_widths(widths)), default=epochs)
        if self._rows_recur and epochs > most:
            raise ConfigError(
                f"attack.max_bound: what all epochs give away together is computed for {most} epochs of gradients this "
                f"wide, and {epochs} are planned: set training.epochs to {most} at most"
            )

    def _accounted_widths(self, widths: Mapping[str, int]) -> list[int]:
        """Return the widths of the gradients that have an accountant."""
        if not widths or self.scope == "per-party":
            return list(widths.values())
        return [sum(widths.values())]

    def state(self) -> dict[str, Any]:
        """Add the states of the accountants."""
        courses = {name: each.state() for name, each in self._accountants.items()}
        return {**super().state(), "courses": courses, "repeated": self._repeated}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned."""
        super().restore(state)
        self._repeated = self._repeated or state["repeated"]  # also where the state is from before
        self._accountants = {}
        for name, saved in state["courses"].items():
            self._accountant(name).restore(saved)
