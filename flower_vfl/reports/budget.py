"""Use of a run's leak budget: the leak after each epoch, beside the limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from flower_vfl.reports.figures import budget_figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flower_vfl.reports.run import Run


@dataclass(frozen=True)
class Spent:
    """One limit of a run.

    Attributes
    ----------
    key
        Limited quantity: "leak" or "bound".
    limit
        Largest leak AUC that is allowed.
    reached
        Value of the limited quantity after each epoch; None where it is not known.
    """

    key: str
    limit: float
    reached: Sequence[float | None]

    @property
    def passed(self) -> int | None:
        """First epoch after which the limit was passed; None where it never was."""
        return next((epoch for epoch, value in enumerate(self.reached, 1) if (value or 0.0) > self.limit), None)

    @property
    def at(self) -> float | None:
        """Leak after the epoch in which the limit was passed; None where it was not."""
        return None if self.passed is None else self.reached[self.passed - 1]

    @property
    def largest(self) -> float | None:
        """Largest known value; None without any."""
        return max((value for value in self.reached if value is not None), default=None)

    @property
    def unknown(self) -> int:
        """Number of epochs without a known value."""
        return sum(value is None for value in self.reached)


def of_budget(run: Run) -> dict[str, Any]:
    """Return the values of the page of one run about its limits."""
    known = [Spent(key, entry["limit"], entry["reached"]) for key, entry in run.result.get("budget", {}).items()]
    curves = {
        one.key: (np.arange(1, len(one.reached) + 1), np.array(one.reached, dtype=np.float64), one.limit)
        for one in known
    }
    seen = any(one.largest is not None for one in known)
    return {"budget": known, "budget_figure": Markup(budget_figure("Leak budget", curves)) if seen else None}
