"""Recommendation among several runs: the most useful one, by validation, of those in which no leak was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flower_vfl.auditing.verdict import LEAKS, NO_LEAK, NOT_TESTED, PROVEN
from flower_vfl.reports.headline import TONES, signed
from flower_vfl.reports.proof import upper
from flower_vfl.reports.ranking import validation
from flower_vfl.reports.words import METRICS, listed, number, undefended

Row = Mapping[str, Any]
"""One run of a comparison: ``run``, ``headline``, ``defenses``, ``last`` and ``cost``."""


@dataclass(frozen=True)
class Choice:
    """First statement of a comparison.

    Attributes
    ----------
    headline, sentence
        What was found of all runs, and what is recommended.
    tone
        The colour: good where a run is recommended.
    row
        The run that is recommended; None where none can be.
    """

    headline: str
    sentence: str
    tone: str
    row: Row | None = None


def choice_of(rows: Sequence[Row], measure: str) -> Choice:
    """Return what to recommend among the runs that ended, and why.

    A run is chosen by validation, never by the test set. Where no run is free of a found leak there is none to
    recommend: the one that leaks least stands in the sentence with what it costs. A proof is no finding: where some
    runs have one, and no other run is free of a found leak, the one with the smallest epsilon is named.

    Parameters
    ----------
    rows
        The runs.
    measure
        The utility of the test set that is shown beside: ``test_auc`` or ``test_accuracy``.
    """
    ended = [row for row in rows if row["run"].ended]
    statuses = (NO_LEAK, PROVEN, NOT_TESTED, LEAKS)
    free, proven, untested, leaking = ([row for row in ended if row["headline"].status == s] for s in statuses)
    if free:
        return _among(free, leaking, measure)
    if proven:
        return _with_proof(proven, leaking, measure)
    if untested:
        names = listed([_name(row) for row in untested])
        return Choice(
            f"No run can be recommended: {_count(leaking, 'leak')} and {_count(untested, 'not fully tested')}."
            if leaking
            else "No run can be recommended: what could find a leak did not run.",
            f"No leak was found in {names}, but not everything that could find one ran. Run what is missing first.",
            TONES[NOT_TESTED],
        )
    if leaking:
        return _least(leaking, measure)
    return Choice("No run ended by itself.", "There is nothing to compare yet.", TONES[NOT_TESTED])


def _count(rows: Sequence[Row], what: str) -> str:
    """Return how many runs leak, or are something else."""
    many = len(rows) != 1
    if what == "leak":
        return f"{len(rows)} {'runs leak' if many else 'run leaks'}"
    return f"{len(rows)} {'were' if many else 'was'} {what}"


def _among(free: Sequence[Row], leaking: Sequence[Row], measure: str) -> Choice:
    """Choose among runs without a found leak."""
    known = [(value, row) for row in free if (value := validation(row["run"].result)) is not None]
    if len(known) < len(free) > 1:
        return Choice(
            f"No leak was found in {listed([_name(row) for row in free])}.",
            "Not all of them have a validation part to choose by, and nothing may be chosen by the test set: take the "
            "simplest, or train again with training.validation.",
            TONES[NO_LEAK],
        )
    row = max(known, key=lambda pair: pair[0])[1] if known else free[0]
    why = f" Of {len(free)} runs without a found leak it predicts best on the validation part." if len(free) > 1 else ""
    others = f" {_count(leaking, 'leak')}." if leaking else ""
    found = "No leak was found." if row["headline"].sent else row["headline"].sentence
    return Choice(
        f"Recommended: {_name(row)}. {found}",
        f"{_utility(row, measure)}{why}{others}",
        TONES[NO_LEAK],
        row,
    )


def _with_proof(proven: Sequence[Row], leaking: Sequence[Row], measure: str) -> Choice:
    """Name the run with the smallest proven epsilon; how much is too much is not ours to say."""
    row = min(proven, key=lambda row: float(row["headline"].epsilon.proof.epsilon))
    epsilon = upper(row["headline"].epsilon.proof.epsilon)
    why = f" Of {len(proven)} runs with a proof its epsilon is the smallest." if len(proven) > 1 else ""
    others = f" {_count(leaking, 'leak')} without a proof." if leaking else ""
    return Choice(
        f"Proven: {_name(row)}, epsilon {epsilon} for each person's label.",
        f"{_utility(row, measure)}{why}{others} Decide whether this epsilon is enough: the proof bounds what the "
        "messages add about a person, not what a party's own columns tell.",
        TONES[PROVEN],
        row,
    )


def _least(leaking: Sequence[Row], measure: str) -> Choice:
    """Say that every run leaks, and which does least of those in which all that should have run did."""
    found = "Every run leaks: none can be recommended." if len(leaking) > 1 else "The run leaks."
    known = [row for row in leaking if row["headline"].worst is not None and row["headline"].worst.value is not None]
    tested = [row for row in known if not row["headline"].missing]
    if not tested:
        unknown = "Which leaks least was not tested: not everything that could find a leak ran, or not on enough steps."
        return Choice(found, unknown if known else "", TONES[LEAKS])
    row = min(tested, key=lambda row: row["headline"].worst.value)
    worst, name = row["headline"].worst, _name(row).replace("no defense", "No defense", 1)
    others = " Others were not fully tested." if len(tested) < len(leaking) else ""
    return Choice(
        found,
        f"{name} leaks least: leak AUC {number(worst.value)}, guessing reaches {number(worst.null)}.{others} "
        f"{_utility(row, measure)}",
        TONES[LEAKS],
    )


def _name(row: Row) -> str:
    """Return a run's defenses, and its folder where that says more."""
    name, defenses = row["run"].name, "no defense" if undefended(row["run"].result) else row["defenses"]
    return f"{defenses} (run {name})"


def _utility(row: Row, measure: str) -> str:
    """Return what a run reaches on the test set, and what its defense costs there."""
    value, cost = row["last"].get(measure), row["cost"]
    words = METRICS[measure].replace("Test", "test")
    reached = f"It reaches a {words} of {number(value, 4)}"
    return f"{reached}, {signed(cost, 4)} against no defense." if cost is not None and cost != 0 else f"{reached}."
