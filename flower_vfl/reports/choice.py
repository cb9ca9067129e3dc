"""Recommendation among runs or settings: the one with the best validation of those without a found leak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flower_vfl.auditing.verdict import LEAKS, NO_LEAK, NOT_TESTED, PROVEN
from flower_vfl.reports.headline import TONES, Worst, signed
from flower_vfl.reports.proof import upper
from flower_vfl.reports.words import METRICS, listed, number

TableRow = Mapping[str, Any]
"""A line of the page's table."""


@dataclass(frozen=True)
class Candidate:
    """A run that may be recommended, or a setting of a sweep with the runs of all its seeds.

    Attributes
    ----------
    row
        Its line of the page's table.
    name
        Its defenses, and the other values that distinguish it.
    status
        Status of its verdict.
    tested
        False if an attack or reader that should have run gave no number.
    worst
        Its worst leak, with the chance level there; None without any.
    validation, utility, cost
        Validation metric by which it is chosen, utility on the test set, and that utility minus the utility without a
        defense; None where it is not known.
    epsilon
        Epsilon that its defense proves; None without a proof.
    sent
        False if nothing that depends on labels left the label party.
    open
        True if no leak was found, but an interval of a run lies wholly above chance.
    tone
        Colour of its verdict.
    """

    row: TableRow
    name: str
    status: str
    tested: bool
    worst: Worst | None
    validation: float | None
    utility: float | None
    cost: float | None
    epsilon: float | None = None
    sent: bool = True
    open: bool = False
    tone: str = TONES[PROVEN]


@dataclass(frozen=True)
class Recommendation:
    """First statement of a comparison.

    Attributes
    ----------
    headline, sentence
        Finding about all runs, and the recommendation.
    tone
        Colour of the statement; "good" where a candidate has no found leak.
    row
        Row of the recommended candidate, or of the one with the smallest proven epsilon; None without either.
    """

    headline: str
    sentence: str
    tone: str
    row: TableRow | None = None


def choice_of(candidates: Sequence[Candidate], measure: str, noun: str = "run") -> Recommendation:
    """Return the recommendation among runs that ended, or among settings, with its reason.

    The choice is made by validation, never by the test set. Where every candidate leaks, none is recommended, and the
    sentence names the one that leaks least with its cost. A proof is no finding: where some candidates have one, and
    no other is without a found leak, the one with the smallest epsilon is named.

    Parameters
    ----------
    candidates
        The runs or settings.
    measure
        Utility on the test set that the sentence gives: ``test_auc`` or ``test_accuracy``.
    noun
        Word for a candidate: "run" or "setting".
    """
    statuses = (NO_LEAK, PROVEN, NOT_TESTED, LEAKS)
    found, proven, untested, leaking = ([one for one in candidates if one.status == s] for s in statuses)
    free, unclear = [one for one in found if not one.open], [one for one in found if one.open]
    if free:
        return _without_leak(free, proven, leaking, measure, noun)
    if proven:
        return _with_proof(proven, leaking, measure, noun)
    if unclear:
        return Recommendation(
            f"No {noun} can be recommended: whether {listed([one.name for one in unclear])} leaks is not clear.",
            "No leak was found at a level of 5 %, but one reader's 95 % interval lies wholly above guessing. Train "
            "again with other seeds, or on more rows.",
            TONES[NOT_TESTED],
        )
    if untested:
        names = listed([one.name for one in untested])
        return Recommendation(
            f"No {noun} can be recommended: {_count(leaking, 'leak', noun)} and "
            f"{_count(untested, 'not fully tested', noun)}."
            if leaking
            else f"No {noun} can be recommended: not everything that could find a leak ran.",
            f"In {names} not everything that could find a leak ran. Run what is missing first.",
            TONES[NOT_TESTED],
        )
    if leaking:
        return _least_leak(leaking, measure, noun)
    return Recommendation("No run ended by itself.", "There is nothing to compare yet.", TONES[NOT_TESTED])


def _count(found: Sequence[Candidate], finding: str, noun: str) -> str:
    """Return the number of candidates with a verb: "2 runs leak", or with another finding "2 were not fully tested"."""
    many = len(found) != 1
    if finding == "leak":
        return f"{len(found)} {f'{noun}s leak' if many else f'{noun} leaks'}"
    return f"{len(found)} {'were' if many else 'was'} {finding}"


def _without_leak(
    free: Sequence[Candidate], proven: Sequence[Candidate], leaking: Sequence[Candidate], measure: str, noun: str
) -> Recommendation:
    """Return the choice among candidates without a found leak."""
    known = [(one.validation, one) for one in free if one.validation is not None]
    if len(known) < len(free) > 1:
        return Recommendation(
            f"No leak was found in {listed([one.name for one in free])}.",
            "Not all of them have a validation part to choose by, and nothing may be chosen by the test set: take the "
            "simplest, or train again with training.validation.",
            TONES[NO_LEAK],
        )
    best = max(known, key=lambda pair: pair[0])[1] if known else free[0]
    why = (
        f" Of {len(free)} {noun}s without a found leak it predicts best on the validation part."
        if len(free) > 1
        else ""
    )
    others = f" {_count(leaking, 'leak', noun)}." if leaking else ""
    if proven:
        other = _smallest_epsilon(proven)
        others += (
            f" With a proof: {other.name}, epsilon {upper(other.epsilon or 0.0)} for each person's label. "
            f"{_utility(other, measure)}"
        )
    found = "No leak was found." if best.sent else "Nothing that depends on labels left the label party."
    return Recommendation(
        f"Recommended: {best.name}. {found}", f"{_utility(best, measure)}{why}{others}", TONES[NO_LEAK], best.row
    )


def _with_proof(proven: Sequence[Candidate], leaking: Sequence[Candidate], measure: str, noun: str) -> Recommendation:
    """Return the candidate with the smallest proven epsilon; the reader decides whether it is small enough."""
    best = _smallest_epsilon(proven)
    epsilon = upper(best.epsilon or 0.0)
    why = f" Of {len(proven)} {noun}s with a proof its epsilon is the smallest." if len(proven) > 1 else ""
    others = f" {_count(leaking, 'leak', noun)} without a proof." if leaking else ""
    return Recommendation(
        f"Proven: {best.name}, epsilon {epsilon} for each person's label.",
        f"{_utility(best, measure)}{why}{others} Decide whether this epsilon is small enough: the proof bounds what "
        "the messages add about a person, not what a party's own columns tell.",
        best.tone,
        best.row,
    )


def _smallest_epsilon(proven: Sequence[Candidate]) -> Candidate:
    return min(proven, key=lambda one: one.epsilon or 0.0)


def _least_leak(leaking: Sequence[Candidate], measure: str, noun: str) -> Recommendation:
    """Return the statement that all candidates leak, with the fully tested one that leaks least."""
    found = f"Every {noun} leaks: none can be recommended." if len(leaking) > 1 else f"The {noun} leaks."
    known = [(one.worst, one) for one in leaking if one.worst is not None]
    tested = [(worst, one) for worst, one in known if one.tested]
    if not tested:
        unknown = "Which leaks least is not known: not everything that could find a leak ran, or not on enough steps."
        return Recommendation(found, unknown if known else "", TONES[LEAKS])
    worst, least = min(tested, key=lambda pair: pair[0].most)
    name = least.name.replace("no defense", "No defense", 1)
    single = f", in single steps up to {number(worst.single)}" if worst.single else ""
    others = " Others were not fully tested." if len(tested) < len(leaking) else ""
    return Recommendation(
        found,
        f"{name} leaks least: leak AUC {number(worst.value)}{single}, guessing reaches {number(worst.null)}.{others} "
        f"{_utility(least, measure)}",
        TONES[LEAKS],
    )


def _utility(one: Candidate, measure: str) -> str:
    """Return the utility of a run on the test set, and the cost of its defense there, in a sentence."""
    words = METRICS[measure].replace("Test", "test")
    reached = f"It reaches a {words} of {number(one.utility, 4)}"
    cost = one.cost
    return f"{reached}, {signed(cost, 4)} against no defense." if cost is not None and cost != 0 else f"{reached}."
