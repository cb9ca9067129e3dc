"""The audit of epsilon: a lower bound with 95 % confidence, from readers' guesses of labels at the end of a run.

With canaries the guessed labels were coins, and the bound holds for any data. Without canaries, guesses are compared
with the odds that a model without gradients gives, and the bound is an estimate: as good as these odds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_vfl.auditing.canaries import FEWEST_CANARIES
from flower_vfl.auditing.halves import CANARY, CHOOSE, SCORE
from flower_vfl.auditing.selection import FittedReader, best
from flower_vfl.metrics.epsilon import coin_bound, odds_bound

WITH_CANARIES, ESTIMATED = "canaries", "estimated"
"""The kinds of a bound: proven with canaries, or as good as the estimated odds."""

CONFIDENCE = 0.95
"""Confidence of all bounds of a run together."""

GUESSED_SHARES = (1.0, 0.25, 0.0625)
"""Shares of the rows that are guessed, the most confident guesses first; each share is a test by itself."""

_LARGEST_Z = 8.0
_SMALLEST_PROBABILITY = 1e-4
_CALIBRATION_STRIDE = 3
_STANDARD_ERRORS = 2.0
_FEWEST_OF_CLASS = 10

Floats = NDArray[np.float64]
Truth = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """The scores that informed readers give to rows that they were not fitted to.

    Attributes
    ----------
    party
        The party whose messages they read, or a colluding group such as "a+b".
    rows
        (n,) rows of the training table in the readers' samples.
    columns
        (n, k) features of each row's gradients that need no label, such as the position along their first direction.
    readers, without
        Readers with gradients, and readers of the same rows without gradients.
    """

    party: str
    rows: NDArray[np.int64]
    columns: Floats
    readers: Sequence[FittedReader]
    without: Sequence[FittedReader]


@dataclass(frozen=True, slots=True, eq=False)
class _Guesses:
    """Guesses of the labels of rows, the most confident first.

    Attributes
    ----------
    right
        (n,) True for each right guess.
    priors
        (n,) the probability of each guessed label before any message was seen.
    gain
        Gain of the reader in log-likelihood of the calibration rows' labels, in nats a row.
    """

    right: Truth
    priors: Floats
    gain: float

    def first(self, share: float) -> tuple[int, Floats]:
        """Return the number of right guesses in the most confident share, and the priors of this share."""
        count = max(1, round(len(self.right) * share))
        return int(np.count_nonzero(self.right[:count])), self.priors[:count]


def audit_epsilon(
    found: Sequence[Evidence],
    background: Sequence[Sequence[FittedReader]],
    *,
    classes: int,
    canaries: int,
    delta: float = 0.0,
) -> dict[str, Any]:
    """Return the lower bounds on epsilon of a run, ``epsilon`` in `result.json`.

    All bounds together hold with a confidence of 95 %: Bonferroni over parties, groups and numbers of guesses.

    Parameters
    ----------
    found : Sequence[Evidence]
        Evidence of the readers, an entry for each party and group.
    background : Sequence[Sequence[FittedReader]]
        For each of them, readers without gradients of all data of the label party; not used with canaries.
    classes, canaries : int
        Number of classes, and number of canaries; 0 for none.
    delta : float
        Delta of the audited claim, for canaries of two classes; an estimate is at delta 0.
    """
    beta = (1.0 - CONFIDENCE) / (len(GUESSED_SHARES) * max(1, len(found)))
    entries = []
    for one, known in zip(found, background, strict=True):
        if canaries:
            entries.append(_canary_entry(one, classes=classes, canaries=canaries, delta=delta, beta=beta))
        else:
            entries.append(_estimated_entry(one, known, beta=beta))
    bounds = [entry for entry in entries if entry["lower"] is not None]
    worst = max(bounds, key=lambda entry: float(entry["lower"]), default=None)
    return {
        "kind": WITH_CANARIES if canaries else ESTIMATED,
        "lower": None if worst is None else worst["lower"],
        "party": None if worst is None else worst["party"],
        "confidence": CONFIDENCE,
        "delta": delta if canaries else 0.0,
        "canaries": canaries,
        "parties": entries,
    }


def _canary_entry(one: Evidence, *, classes: int, canaries: int, delta: float, beta: float) -> dict[str, Any]:
    """Return the entry of a party from the readers' guesses of the coins."""
    if classes > 2 and delta > 0.0:
        return _unavailable(one, "a bound at a delta is known for coins of two classes only")
    options = []
    for reader in one.readers:
        baseline, truth = _best_of_class(one.without, reader), reader.labels_of(CANARY)
        known = np.zeros(len(truth)) if baseline is None else baseline.scores_of(CANARY)
        seen = np.column_stack([known, reader.scores_of(CANARY), one.columns[reader.sample.parts == CANARY]])
        calibration = np.arange(len(truth)) % _CALIBRATION_STRIDE == 0
        if len(truth) < FEWEST_CANARIES or _rarer_count(truth[calibration]) < _FEWEST_OF_CLASS:
            continue
        prior = np.full(len(truth), 1.0 / classes)
        options.append((_guesses(seen, np.zeros((len(truth), 0)), truth, prior, calibration), reader))
    if not options:
        count = max((int(np.count_nonzero(reader.sample.parts == CANARY)) for reader in one.readers), default=0)
        return _unavailable(
            one, f"{count} canaries were seen, at least {FEWEST_CANARIES} with enough of each label are needed"
        )
    guesses, reader = max(options, key=lambda option: option[0].gain)
    tried = []
    for share in GUESSED_SHARES:
        right, priors = guesses.first(share)
        if classes == 2:
            bound = float(coin_bound(right, len(priors), delta=delta, canaries=canaries, beta=beta))
            named = {}
        else:
            bound = float(odds_bound(right, priors, beta=beta))
            named = {"named": int(np.count_nonzero(priors < 0.5))}
        tried.append({"guesses": len(priors), "right": right, "lower": bound, **named})
    return _entry(one, reader, tried)


def _estimated_entry(one: Evidence, background: Sequence[FittedReader], *, beta: float) -> dict[str, Any]:
    """Return the entry of a party from guesses of labels with estimated odds.

    Readers without gradients exceed the odds only where these are wrong. Their bound, eta, is subtracted.
    """
    options = []
    for reader in one.readers:
        known = best([candidate for candidate in background if candidate.positive == reader.positive])
        if known is not None and _rarer_count(reader.labels_of(CHOOSE)) >= _FEWEST_OF_CLASS:
            options.append((_guesses_against(known, reader, one.columns), reader, known))
    if not options:
        return _unavailable(one, "no model gives the odds of the labels: too few rows, or no reader could be fitted")
    guesses, reader, known = max(options, key=lambda option: option[0].gain)
    control = _best_of_class(one.without, reader)
    eta = 0.0 if control is None else max(_bounds(_guesses_against(known, control), 0.0, beta))
    bounds = _bounds(guesses, eta, beta)
    tried = []
    for share, bound in zip(GUESSED_SHARES, bounds, strict=True):
        right, priors = guesses.first(share)
        tried.append({"guesses": len(priors), "right": right, "expected": float(priors.sum()), "lower": bound})
    return {**_entry(one, reader, tried), "eta": eta, "odds_by": known.reader}


def _guesses_against(known: FittedReader, reader: FittedReader, columns: Floats | None = None) -> _Guesses:
    """Return a reader's guesses of the rows to score, with the odds of a reader without gradients as priors."""
    parts = (CHOOSE, SCORE)
    odds = np.concatenate([known.scores_of(part) for part in parts])[:, None]
    seen = np.concatenate([reader.scores_of(part) for part in parts])[:, None]
    if columns is not None:
        more = np.concatenate([columns[reader.sample.parts == part] for part in parts])
        seen = np.concatenate([seen, more], axis=1)
    truth = np.concatenate([reader.labels_of(part) for part in parts])
    calibration = np.arange(len(truth)) < len(reader.scores_of(CHOOSE))
    prior, error = _logistic_regression(odds, truth, calibration)
    return _guesses(seen, odds, truth, prior, calibration, error=error)


def _guesses(
    seen: Floats, odds: Floats, truth: Truth, prior: Floats, calibration: Truth, *, error: Floats | float = 0.0
) -> _Guesses:
    """Return guesses of the rows outside the calibration: the labels that the scores make more likely.

    Parameters
    ----------
    seen, odds : NDArray
        (n, k) scores of readers, and (n, j) scores that the odds follow from.
    truth, calibration : NDArray
        (n,) true labels, and mask of the rows to which the logistic regression of the scores is fitted.
    prior : NDArray
        (n,) probability of the label before any message was seen.
    error : NDArray or float
        Standard error of the prior's logit; the prior of each guess is raised by two of them.
    """
    from scipy.special import expit, logit

    posterior, _ = _logistic_regression(np.concatenate([odds, seen], axis=1), truth, calibration)
    moved = logit(posterior) - logit(prior)
    chance = [np.where(truth, p, 1.0 - p)[calibration] for p in (posterior, prior)]
    rest = np.flatnonzero(~calibration)
    order = rest[np.argsort(-np.abs(moved[rest]), kind="stable")]
    guess = moved[order] > 0.0
    likely = np.where(guess, prior[order], 1.0 - prior[order])
    priors = expit(logit(likely) + _STANDARD_ERRORS * np.broadcast_to(error, prior.shape)[order])
    return _Guesses(guess == truth[order], priors, float(np.log(chance[0]).mean() - np.log(chance[1]).mean()))


def _logistic_regression(columns: Floats, truth: Truth, calibration: Truth) -> tuple[Floats, Floats]:
    """Return the probability of the label (n,) by a logistic regression on columns (n, k) of the calibration rows.

    The second result is the standard error of its logit, (n,), by the Fisher information.
    """
    from sklearn.linear_model import LogisticRegression

    centre, scale = columns[calibration].mean(axis=0), columns[calibration].std(axis=0)
    z = np.clip((columns - centre) / np.where(scale > 0.0, scale, 1.0), -_LARGEST_Z, _LARGEST_Z)
    model = LogisticRegression().fit(z[calibration], truth[calibration])
    share = np.clip(model.predict_proba(z)[:, 1], _SMALLEST_PROBABILITY, 1.0 - _SMALLEST_PROBABILITY)
    design = np.column_stack([np.ones(len(z)), z])
    spread = (share * (1.0 - share))[calibration]
    information = (design[calibration] * spread[:, None]).T @ design[calibration] + np.diag([0.0, *np.ones(z.shape[1])])
    error = np.sqrt(np.einsum("nk,nk->n", design, np.linalg.solve(information, design.T).T))
    return np.asarray(share), np.asarray(error)


def _bounds(guesses: _Guesses, eta: float, beta: float) -> list[float]:
    return [float(odds_bound(*guesses.first(share), eta=eta, beta=beta)) for share in GUESSED_SHARES]


def _best_of_class(found: Sequence[FittedReader], reader: FittedReader) -> FittedReader | None:
    """Return the best of the candidates that read the same class as a reader; None without any."""
    return best([candidate for candidate in found if candidate.positive == reader.positive])


def _rarer_count(truth: Truth) -> int:
    count = int(np.count_nonzero(truth))
    return min(count, len(truth) - count)


def _entry(one: Evidence, reader: FittedReader, tried: list[dict[str, Any]]) -> dict[str, Any]:
    largest = max(tried, key=lambda entry: float(entry["lower"]))
    return {"party": one.party, **largest, "tried": tried, **reader.name, "unavailable": ""}


def _unavailable(one: Evidence, why: str) -> dict[str, Any]:
    return {"party": one.party, "lower": None, "unavailable": why}
