"""The summary of an attack's values of all steps as one entry of a result, the leak of a whole run."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from flower_vfl.errors import ArgumentError
from flower_vfl.metrics.null import null_quantile, quantile_p_value, step_p_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, NDArray

SINGLE_STEPS = ("max_p_value", "steps_read", "steps_read_max")
"""The numbers of an entry about its single steps, each tested among all of them."""

STEP_LEVEL = 0.05
"""Rate of runs of random scores in which any step counts as read."""


def nearest_rank(values: ArrayLike, q: float = 0.95) -> float:
    """Return the smallest of the values that at least the share ``q`` of them does not exceed.

    It is always one of the values, never an interpolation; of fewer than 20 the 95 % quantile is the largest. It is NaN
    where there are none.

    Examples
    --------
    >>> nearest_rank([3.0, 1.0, 2.0, 4.0], 0.5)
    2.0
    """
    if not 0 < q <= 1:
        raise ArgumentError(f"The quantile is {q}: give a number above 0 and at most 1, such as 0.95.")
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    if not ordered.size:
        return math.nan
    return float(ordered[math.ceil(q * ordered.size - 1e-9) - 1])


@dataclass
class LeakSummary:
    """A summary of the leak of one attack, at one layer of one party, over the steps of a run.

    A step has no AUC if its batch has one class only, or too few positives for the attack's side information: such
    steps are counted separately, neither dropped nor set to 0.5.

    Attributes
    ----------
    attack, params, metric, phase, source, defended, layer, party
        Description of the measurement; the result has them unchanged.

    Examples
    --------
    >>> leak = LeakSummary(attack="norm", party="a")
    >>> leak.add(0.9, negatives=940, positives=84)
    >>> leak.add(float("nan"), negatives=1024, positives=0)
    >>> entry = leak.result()
    >>> entry["q95"], entry["steps"], entry["one_class_steps"]
    (0.9, 2, 1)
    """

    attack: str
    party: str
    layer: str = "cut"
    params: Mapping[str, Any] = field(default_factory=dict)
    metric: str = "auc"
    phase: str = "train"
    source: str = "attacker"
    defended: bool = False
    one_class_steps: int = field(default=0, init=False)
    values: array[float] = field(default_factory=lambda: array("d"), init=False, repr=False)
    errors: array[float] = field(default_factory=lambda: array("d"), init=False, repr=False)
    nulls: array[float] = field(default_factory=lambda: array("d"), init=False, repr=False)
    negatives: array[int] = field(default_factory=lambda: array("q"), init=False, repr=False)
    positives: array[int] = field(default_factory=lambda: array("q"), init=False, repr=False)

    @property
    def class_counts(self) -> Counter[tuple[int, int]]:
        """The number of steps with a value, by their negatives and positives."""
        return Counter(self._pairs())

    def _pairs(self) -> list[tuple[int, int]]:
        return list(zip(self.negatives, self.positives, strict=True))

    def add(
        self,
        value: float,
        negatives: int,
        positives: int,
        detection_error: float = math.nan,
        null: float = math.nan,
    ) -> None:
        """Add one step: the attack's value (NaN where there is none) and the class counts of the batch.

        `null` is the value of a random score in this step, where it does not follow from the class counts.
        """
        if not math.isnan(null):
            self.nulls.append(null)
        if not math.isnan(detection_error):
            self.errors.append(detection_error)
        if math.isnan(value):
            self.one_class_steps += 1
        else:
            self.values.append(value)
            self.negatives.append(negatives)
            self.positives.append(positives)

    def result(
        self,
        *,
        baseline: float | None = None,
        advantage: float | None = None,
        population: tuple[int, int] | None = None,
    ) -> dict[str, Any]:
        """Return the entry for the ``leakage`` list of ``result.json``; unknown values are None.

        ``q95`` is the 95 % quantile over the steps (nearest rank), ``q95_null`` that of a random score on these
        batches, ``q95_turned`` that of the scores turned around (of AUCs only), ``q95_p_value`` the probability that a
        random score, or the same turned around, reaches the larger of both (of AUCs of single steps only), ``steps``
        all steps, ``one_class_steps`` those of them without a value. ``max_p_value`` is the probability that random
        scores, or the same turned around, read any of these steps as well as one was read, ``steps_read`` the number of
        steps for which that probability is at most 5 %, and ``steps_read_max`` the largest AUC of these, turned around
        where it is below 0.5. Of longitudinal attacks ``p_value`` is that probability for the AUCs of all epochs.
        ``detection_error_q05`` is the 5 % quantile of the detection error: at one step in twenty the attack's is no
        larger. Of the accuracies of groups in single steps ``p_value`` compares them with those of the same groups in
        random order, by a sign test. ``baseline`` and ``advantage`` belong to attacks that are compared with training
        alone.
        ``population`` are negatives and positives among all rows, which may keep their scores from epoch to epoch, see
        `quantile_p_value`.
        """
        values, errors = np.array(self.values), np.array(self.errors)
        by_chance = self.metric == "auc"
        null = null_quantile(self.class_counts.elements()) if by_chance else nearest_rank(self.nulls)
        q95, turned = nearest_rank(values), nearest_rank(1.0 - values) if by_chance else math.nan
        tested = by_chance and self.phase == "train"
        return {
            "attack": self.attack,
            "params": dict(self.params),
            "metric": self.metric,
            "phase": self.phase,
            "source": self.source,
            "defended": self.defended,
            "layer": self.layer,
            "party": self.party,
            "q95": none_if_nan(q95),
            "q95_null": none_if_nan(null),
            "q95_turned": none_if_nan(turned),
            "q95_p_value": none_if_nan(self._p_value(max(q95, turned), null, population)) if tested else None,
            **(self._single_steps(values) if tested and values.size else dict.fromkeys(SINGLE_STEPS)),
            **({"p_value": self.p_value} if by_chance and self.phase == "remembered" else {}),
            **({} if by_chance or self.phase != "train" else {"p_value": self._sign_test(population)}),
            "mean": none_if_nan(float(values.mean()) if values.size else math.nan),
            "max": none_if_nan(float(values.max()) if values.size else math.nan),
            "detection_error_mean": none_if_nan(float(errors.mean()) if errors.size else math.nan),
            "detection_error_q05": none_if_nan(nearest_rank(errors, 0.05)),
            "steps": values.size + self.one_class_steps,
            "one_class_steps": self.one_class_steps,
            "baseline": baseline,
            "advantage": advantage,
        }

    def _single_steps(self, values: NDArray[np.float64]) -> dict[str, Any]:
        """Return the numbers of `SINGLE_STEPS`."""
        p_values = self._p_values(values)
        read = np.maximum(values, 1.0 - values)[p_values <= STEP_LEVEL]
        found = float(p_values.min()), read.size, float(read.max()) if read.size else None
        return dict(zip(SINGLE_STEPS, found, strict=True))

    def _p_values(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the p-value of each AUC by its class counts: Bonferroni over all of them and both sides of each."""
        sides = step_p_values(2 * self._pairs(), [*values, *(1.0 - values)]).reshape(2, -1)
        found: NDArray[np.float64] = np.minimum(1.0, sides.size * sides.min(axis=0))
        return found

    @property
    def p_value(self) -> float | None:
        """The probability that random scores, or the same turned around, reach any of the AUCs; None without any."""
        return float(self._p_values(np.array(self.values)).min()) if self.values else None

    def _sign_test(self, population: tuple[int, int] | None) -> float | None:
        """Return the probability that values are above those by chance in as many steps; None if a step has none.

        Where groups carry nothing, a value is as often above that of the same groups in random order as below it. Rows
        may keep their groups from epoch to epoch, so that steps count as no more than those of one epoch.
        """
        from scipy.stats import binom

        values, nulls = np.array(self.values), np.array(self.nulls)
        if not nulls.size or nulls.size != values.size:
            return None
        rows = sum(self.negatives) + sum(self.positives)
        share = min(1.0, sum(population) / rows) if population else 1.0
        above, different = math.floor(share * np.sum(values > nulls)), math.ceil(share * np.sum(values != nulls))
        return float(binom.sf(above - 1, different, 0.5))

    def _p_value(self, value: float, null: float, population: tuple[int, int] | None) -> float:
        """Return the two-sided probability that a random score reaches a value: 1 up to its quantile `null`."""
        if value <= null:
            return 1.0
        return min(1.0, 2.0 * quantile_p_value(self.class_counts.elements(), value, population=population))


def none_if_nan(value: float) -> float | None:
    """Return a value for ``result.json``, which has no NaN."""
    return None if math.isnan(value) else value
