"""Epsilon in words: the proof of a run, its measurement, and the assumptions of both."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flower_vfl.auditing.entries import Result
from flower_vfl.auditing.proof import Measurement, Proof, measurement_of, proof_of
from flower_vfl.reports.words import grade, number, percent

RECOMMENDED_CANARIES = 1000
"""Canaries that a report recommends: they refute a claim of 0.5 or more with half of its noise, by a power of 0.95."""

MECHANISM_WORDS = {
    "label_dp": "randomised response",
    "randomised_response": "randomised response",
    "posterior": "randomised response",
    "laplace": "noise on targets",
    "alibi": "noise on targets",
    "prior": "randomised response in two stages",
}
"""Words for each mechanism, by its name; of a defense with a single mechanism, by the name of the defense."""

_BOUNDS_NOTHING = 30.0
"""Epsilon above which the odds of a label may change by more than 10^13."""
_WEAK = 4
"""Grade of the AUC that a proof allows from which the proof is called weak: almost complete reading."""


@dataclass(frozen=True)
class Epsilon:
    """The part of a report about epsilon.

    Attributes
    ----------
    proof
        The proof; None for a run without one.
    found
        The measurement; None without one.
    epochs
        Number of trained epochs; None where it is not known.
    prior
        Share of positives of two classes; otherwise one half.
    audit
        Audit entry of the measured party, or of the first party without a measurement; empty without any.
    account
        The account in the label party's ledger after the run; empty without one.
    """

    proof: Proof | None
    found: Measurement | None
    epochs: int | None
    prior: float
    audit: Mapping[str, Any]
    account: Mapping[str, Any]

    @property
    def refuted(self) -> bool:
        """True if the measurement contradicts the proof."""
        return self.proof is not None and self.proof.refuted_by(self.found)

    @property
    def doubtful(self) -> bool:
        """True if an estimate exceeds the proof: the estimated odds are then too coarse for a measurement."""
        found, proof = self.found, self.proof
        return found is not None and proof is not None and not found.proven and found.lower > proof.epsilon

    @property
    def shown(self) -> bool:
        """True if a lower bound above 0 was measured."""
        return self.found is not None and lower(self.found.lower) != "0.0"

    @property
    def tone(self) -> str:
        """Colour: "bad" where the proof is refuted, "warn" where it is weak, else "proof"."""
        if self.refuted:
            return "bad"
        return "warn" if self.proof is not None and grade(self.proof.auc, 0.5) >= _WEAK else "proof"

    @property
    def sentence(self) -> str:
        """The sentence with the proof and the measurement; empty without a proof."""
        if self.proof is None:
            return ""
        epsilon, by = upper(self.proof.epsilon), self.proof.by
        if self.refuted and self.found is not None:
            return (
                f"The proof does not hold: {by} claims epsilon {epsilon} for each person's label, and at least "
                f"{lower(self.found.lower)} was measured ({percent(self.found.confidence)} confidence)."
            )
        words = MECHANISM_WORDS.get(self.proof.mechanism or by)
        mechanism = f"{words} ({by})" if words else by
        over = "" if self.epochs is None else f" over {self.epochs} epoch{'' if self.epochs == 1 else 's'}"
        claim = f"epsilon {epsilon}{_at_delta(self.proof.delta)} for each person's label{over}"
        return f"Proven: {claim}, by {mechanism}; {self._measured_clause}."

    @property
    def _measured_clause(self) -> str:
        if self.found is None or self.doubtful:
            return "not measured"
        if not self.found.proven:
            return f"estimated from below: {lower(self.found.lower)}"
        if not self.shown:
            return f"measured: no epsilon above 0 could be shown ({percent(self.found.confidence)} confidence)"
        return f"measured: at least {lower(self.found.lower)} ({percent(self.found.confidence)} confidence)"

    @property
    def odds(self) -> str:
        """Meaning of the proven epsilon for the odds of a label, in sentences; empty without a proof."""
        if self.proof is None:
            return ""
        if self.proof.epsilon > _BOUNDS_NOTHING:
            return "So large an epsilon bounds nothing: somebody may become certain of a person's label."
        factor = math.exp(self.proof.epsilon)
        odds = self.prior / (1.0 - self.prior)
        high, low = (odds * by / (1.0 + odds * by) for by in (factor, 1.0 / factor))
        return (
            "Whatever somebody computes from the messages of this training, the odds of a person's label change by a "
            f"factor of at most {number(factor, 1)}. A probability of {share(self.prior)} for this label before "
            f"the training lies between {share(low)} and {share(high)} after it. The best test between two labels of "
            f"one person, all else equal, has an AUC of at most {number(self.proof.auc)}."
        )

    @property
    def measured(self) -> str:
        """The measurement and its source, in sentences."""
        found, audit = self.found, self.audit
        if found is None:
            return f"Not measured: {audit.get('unavailable') or 'the informed readers did not run'}."
        counts = f"{number(audit['right'])} of {number(audit['guesses'])}"
        sure = f"{percent(found.confidence)} confidence"
        least = f"epsilon is at least {lower(found.lower)}" if self.shown else "no epsilon above 0 could be shown"
        if found.proven:
            return (
                f"Measured: {least} ({sure}). For labels that were drawn at random, {counts} guesses from the messages "
                "were right."
            )
        expected = number(round(audit["expected"]))
        compared = f"{counts} guesses from the messages were right; by the estimated odds alone, {expected} would be."
        if self.doubtful:
            return (
                f"Not measured: without canaries the estimate is {lower(found.lower)}, above the proof. Either the "
                "odds of labels were estimated too coarsely, or the proof fails. A run with canaries decides: "
                f"attack.canaries = {RECOMMENDED_CANARIES}."
            )
        return f"Estimated: {least} ({sure}, if the odds of labels are as estimated). {compared}"

    @property
    def unbounded(self) -> str:
        """Measurement of a run without a proof, in sentences; empty with a proof, and without a measurement."""
        if self.proof is not None or self.found is None:
            return ""
        factor = number(math.exp(math.floor(100 * self.found.lower) / 100), 1)
        moved = (
            f" {'So' if self.found.proven else 'If so,'} the messages change the odds of a person's label by a factor "
            f"of at least {factor}."
        )
        above = " Nothing is proven of this run: no number bounds epsilon from above."
        return f"{self.measured}{moved if self.shown else ''}{above}"

    @property
    def _trainings(self) -> str:
        """Trainings that the proof covers, in sentences: this one, or those that the ledger counts."""
        if not self.account:
            return "The proof is for one training on these labels. Another one with a new secret adds its own epsilon."
        count = self.account["trainings"]
        one = count == 1
        return (
            f"By the label party's ledger, {count} training{'' if one else 's'} on these labels "
            f"{'has' if one else 'have'} spent epsilon {upper(self.account['epsilon'])} of a limit of "
            f"{self.account['limit']:.4g}{_at_delta(self.account['delta'])}. A training without the ledger would add "
            "its own epsilon."
        )

    @property
    def assumptions(self) -> list[str]:
        """The assumptions of proof and measurement, in sentences."""
        sentences = list[str]()
        if self.proof is not None:
            sentences += [
                self._trainings,
                "The proof covers what leaves the label party in training: gradients and requests, and their number, "
                "order and end. It does not cover predictions that are served, metrics that are published and the time "
                "that computing takes.",
                "The proof is about one person's label, whatever is known about everybody else. No epsilon bounds what "
                "a party's own columns, or a model of everybody, tell about that label.",
                "Only the label party knows its secret, and the software does what it says. A measurement tests the "
                "software.",
            ]
        if self.found is not None and self.found.proven:
            sentences.append(
                "The measured number comes from labels that were drawn at random before training (canaries). It holds "
                "for any data, with the stated confidence over all parties and numbers of guesses. It is a lower "
                "bound: better readers may read more."
            )
        elif self.found is not None:
            sentences.append(
                "The estimated number compares guesses with the odds of the labels. A model estimates these odds from "
                "all columns and embeddings that the audit has. If the odds are wrong by a factor, the bound is "
                "lower by the logarithm of that factor. The number proves nothing, and it is no upper bound."
            )
        return sentences


def epsilon_of(result: Result) -> Epsilon | None:
    """Return the part of a report about epsilon; None with neither a proof nor a measurement."""
    proof, found = proof_of(result), measurement_of(result)
    if proof is None and found is None:
        return None
    last = (result.get("utility") or {}).get("last") or {}
    entries = (result.get("epsilon") or {}).get("parties") or [{}]
    audit = next((one for one in entries if found is not None and one.get("party") == found.party), entries[0])
    prior = (result.get("dataset") or {}).get("positives")
    prior = prior if isinstance(prior, float) and 0.0 < prior < 1.0 else 0.5
    return Epsilon(proof, found, last.get("epoch"), prior, audit, result.get("account") or {})


def _at_delta(delta: float) -> str:
    return f" (delta {delta:.3g})" if delta else ""


def upper(epsilon: float) -> str:
    """Return a proven epsilon as text, rounded up to two decimals.

    Examples
    --------
    >>> upper(1.0), upper(0.501), upper(3.8918)
    ('1.0', '0.51', '3.9')
    """
    return f"{math.ceil(round(100 * epsilon, 6)) / 100:.2f}".removesuffix("0")


def lower(epsilon: float) -> str:
    """Return a measured lower bound on epsilon as text, rounded down to two decimals.

    Examples
    --------
    >>> lower(0.759), lower(2.0), lower(0.004)
    ('0.75', '2.0', '0.0')
    """
    return f"{math.floor(round(100 * epsilon, 6)) / 100:.2f}".removesuffix("0")


def share(value: float) -> str:
    """Return a probability in percent, with a decimal below 10 % and above 90 %.

    Examples
    --------
    >>> share(0.731), share(0.0214)
    ('73 %', '2.1 %')
    """
    return percent(value) if 0.1 <= value <= 0.9 else f"{100 * value:.1f} %"
