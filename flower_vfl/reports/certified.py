"""Bounds on the leak of a run with noise, under its model of the gradients, beside the measurements of attacks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from flower_vfl.auditing.entries import AUDIT, CONDITIONAL, label_of, on_embeddings, received, turns
from flower_vfl.metrics import Exceedances, detection_error_bound, exceedances, nearest_rank
from flower_vfl.reports.leaks import side_information

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from flower_vfl.auditing.entries import Entry
    from flower_vfl.reports.run import Run

    StepSeries = tuple[NDArray[np.int64], NDArray[np.float64]]

STEP_BOUND = ".auc_bound"
FIRST_STEPS = 5

HARDLY_EVER = 0.005
"""Probability of as many steps beyond chance up to which they contradict a certificate: 5 % over ten comparisons."""


@dataclass(frozen=True, slots=True)
class BoundComparison:
    """One attack compared with the bound.

    Attributes
    ----------
    attack, party, layer
        Attack (its label), party and layer of the measurement.
    oracle
        True if it has side information that no real attacker has.
    turned
        True if the sign of its scores is reversed in all steps, see `auditing.entries.turns`. The bound holds for
        reversed scores as well.
    q95, null
        The leak AUC and its chance level.
    error, error_q05
        Detection error: mean over the steps, and the 5 % quantile; None where it was not measured, as for reversed
        scores.
    found
        Counts of the steps that exceed the bound; None where the batches' class counts are not known.
    first
        The first few steps that exceed it by more than chance explains.
    """

    attack: str
    party: str
    layer: str
    oracle: bool
    turned: bool
    q95: float
    null: float | None
    error: float | None
    error_q05: float | None
    found: Exceedances | None
    first: list[int]

    @property
    def too_often(self) -> bool:
        """True if as many steps are beyond chance as hardly happens where the model holds, see `HARDLY_EVER`."""
        from scipy.special import bdtrc

        if self.found is None or not self.found.beyond_chance.size:
            return False
        steps, beyond = self.found.steps, self.found.beyond_chance.size
        return float(bdtrc(beyond - 1, steps, self.found.expected / steps)) <= HARDLY_EVER

    @property
    def breaks(self) -> bool:
        """True if a reader that the bound covers exceeded it: no oracle, on sent gradients, at the cut."""
        return self.too_often and not self.oracle and self.layer == "cut"


@dataclass(frozen=True, slots=True)
class Certificate:
    """The bound that one defense logs about the gradients of one party, or of all of them together.

    It is marginal: over all rows together, for rules whose only information on a row is its gradient, if the
    gradients were as the defense models them.

    Attributes
    ----------
    defense
        The defense with its parameters.
    party
        The feature party; "a+b" for a colluding group whose members have noise of their own; empty for a bound on all
        feature parties together.
    bound, bound_last
        Bound on the leak AUC: mean over the steps, and of the last one.
    silent
        Share of steps for which the theorem gives no bound.
    error, asked
        Least detection error under the same model, and True if it is the target that the user set. The error of
        parties that collude is smaller than the target of each of them.
    fallback, withheld
        Shares of steps whose noise came from earlier batches, and in which zeros were sent.
    steps
        Number of steps.
    accuracy
        Bound on the accuracy of such a rule, where there are more than two classes; else None.
    measured
        The attacks, compared with the bound.
    conditional
        Entries of the conditional oracle, which has everything of a row except its label, and which the bound does not
        cover.
    informed
        The entries of informed readers of single batches, fitted to labels of other rows.
    """

    defense: dict[str, Any]
    party: str
    bound: float
    bound_last: float
    silent: float
    error: float
    asked: bool
    fallback: float
    withheld: float
    steps: int
    accuracy: float | None
    measured: list[BoundComparison]
    conditional: list[Entry] = field(default_factory=list)
    informed: list[Entry] = field(default_factory=list)

    @property
    def broken(self) -> list[BoundComparison]:
        """The attacks that exceeded the bound in more steps than chance explains."""
        return [row for row in self.measured if row.breaks]

    @property
    def exceeded(self) -> Entry | None:
        """The informed reader with the largest AUC of those whose interval lies wholly above the bound; else None.

        Of several parties and groups only the worst is shown, as in the headline.
        """
        found = (entry for entry in self.informed if self.bound < 1.0 and entry["interval95"][0] > self.bound)
        return max(found, key=lambda entry: float(entry["mean"]), default=None)

    @property
    def holds(self) -> bool:
        """True if no measurement contradicts the bound."""
        return not self.broken and self.exceeded is None

    @property
    def together(self) -> list[str]:
        """The members of the colluding group; empty for a bound on one party, or on all."""
        return self.party.split("+") if "+" in self.party else []


def certificates(run: Run) -> list[Certificate]:
    """Return the bounds that hold under a model: those of the outermost defense that logs one.

    Where each party has noise of its own, there is one bound for each party and each colluding group. The bound of an
    inner defense is not used where an outer one has logged its own.
    """
    labels = {str(metric) for metric in run.steps["metric"].unique().to_pylist()}
    for defense in run.result["defenses"]:
        prefix = f"{defense.get('name')}{STEP_BOUND}"
        if prefix in labels:
            return [_certificate(run, defense, "")]
        parties = sorted(label.removeprefix(f"{prefix}.") for label in labels if label.startswith(f"{prefix}."))
        if parties:
            return [_certificate(run, defense, party) for party in parties]
    return []


def _certificate(run: Run, defense: dict[str, Any], party: str) -> Certificate:
    def series(metric: str) -> StepSeries:
        steps, _, values = run.curve(party="label", metric=f"{defense['name']}.{metric}{'.' if party else ''}{party}")
        return steps, values

    def mean(metric: str) -> float:
        values = series(metric)[1]
        return float(values.mean()) if values.size else 0.0

    steps, bounds = series("auc_bound")
    errors = [detection_error_bound(value) for value in series("sum_kl_after")[1] if value >= 0]
    params = defense.get("params")
    target = params.get("detection_error") if isinstance(params, dict) and "+" not in party else None
    series_of = [s for s in run.leak_series() if party in ("", s[1]) and not on_embeddings(run.result, s[0])]
    compared = [s for s in series_of if s[0] != CONDITIONAL]
    leakage = [entry for entry in run.result["leakage"] if party in ("", entry.get("party"))]
    return Certificate(
        defense=defense,
        party=party,
        bound=float(bounds.mean()),
        bound_last=float(bounds[-1]),
        silent=float((bounds >= 1).mean()),
        error=float(target) if isinstance(target, float | int) else float(np.mean(errors or [0.0])),
        asked=isinstance(target, float | int),
        fallback=mean("fallback"),
        withheld=mean("withheld"),
        steps=bounds.size,
        accuracy=mean("accuracy_bound") or None,
        measured=[_measured(run, *key, (steps, bounds)) for key in compared],
        conditional=[e for e in leakage if e.get("attack") == CONDITIONAL and e.get("q95") is not None],
        informed=[e for e in leakage if _reads_batches(e)],
    )


def _reads_batches(entry: Entry) -> bool:
    """Return True if an entry is of an informed reader of gradients alone, on single batches, with an interval."""
    kind = (entry.get("phase"), entry.get("attack"), entry.get("sees"), entry.get("span"))
    interval = entry.get("interval95")
    return kind == (AUDIT, "informed", ["gradients"], "batch") and isinstance(interval, list) and None not in interval


def _measured(run: Run, attack: str, party: str, layer: str, metric: str, bounds: StepSeries) -> BoundComparison:
    steps, _, values = run.curve(attack=attack, party=party, layer=layer, metric=metric)
    source = "attacker" if metric == "auc" else "monitor"
    key = (attack, party, layer, source)
    entry: Entry = next(
        (e for e in received(run.result) if (label_of(e), e.get("party"), e.get("layer"), e.get("source")) == key),
        {"attack": attack},
    )
    oracle, left_out = side_information(run.result, entry)
    turned = turns(entry)
    values = 1.0 - values if turned else values
    found, first = _exceeded(run, steps, values, bounds, left_out)
    return BoundComparison(
        attack=attack,
        party=party,
        layer=layer,
        oracle=oracle,
        turned=turned,
        q95=nearest_rank(values[np.isfinite(values)]),
        null=entry.get("q95_null"),
        error=None if turned else entry.get("detection_error_mean"),
        error_q05=None if turned else entry.get("detection_error_q05"),
        found=found,
        first=first,
    )


def _exceeded(
    run: Run, steps: NDArray[np.int64], values: NDArray[np.float64], bounds: StepSeries, left_out: int
) -> tuple[Exceedances | None, list[int]]:
    """Return the counts of steps in which one attack exceeds the bound, and the first of them.

    `left_out` positives of each batch were not scored.
    """
    rows, positives = (run.curve(party="label", metric=metric)[::2] for metric in ("batch_rows", "batch_positives"))
    bound, size, count = (_at(steps, series) for series in (bounds, rows, positives))
    known = np.isfinite(bound) & np.isfinite(size) & np.isfinite(count)
    if not known.any():
        return None, []
    negatives, scored = (size - count)[known].astype(np.int64), (count[known] - left_out).clip(min=0).astype(np.int64)
    found = exceedances(values[known], bound[known], negatives, scored)
    return found, steps[known][found.beyond_chance[:FIRST_STEPS]].tolist()


def _at(steps: NDArray[np.int64], series: StepSeries) -> NDArray[np.float64]:
    """Return a series' values at these steps, NaN where it has none."""
    known, values = series
    if not known.size:
        return np.full(steps.size, np.nan)
    position = known.searchsorted(steps).clip(max=known.size - 1)
    return np.where(known[position] == steps, values[position], np.nan)
