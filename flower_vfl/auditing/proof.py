"""Proof and measurement of a run: an upper bound on epsilon, and a lower one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flower_vfl.auditing.entries import Result
from flower_vfl.auditing.epsilon import WITH_CANARIES
from flower_vfl.metrics import coin_p_value, odds_p_value


@dataclass(frozen=True, slots=True)
class Measurement:
    """The measured lower bound on epsilon of a run.

    Attributes
    ----------
    lower
        Lower bound on epsilon.
    party
        The party, or colluding group, from whose messages it was measured.
    proven
        True with canaries: the bound then holds for any data. Otherwise it is as good as the estimated odds.
    confidence
        Confidence of all bounds of the run together.
    delta
        Delta at which the bound holds; it holds at every smaller one, too.
    """

    lower: float
    party: str
    proven: bool
    confidence: float
    delta: float = 0.0


@dataclass(frozen=True, slots=True)
class Proof:
    """The smallest epsilon that a defense of a run proves.

    Attributes
    ----------
    epsilon, auc
        The bound, and the largest AUC with which two labels of one person can be distinguished under it.
    by
        The defense's name.
    delta
        Probability with which epsilon may be exceeded.
    mechanism
        The name of the defense's mechanism; empty where it has one only.
    """

    epsilon: float
    auc: float
    by: str
    delta: float = 0.0
    mechanism: str = ""

    def refuted_by(self, found: Measurement | None) -> bool:
        """Return True if a measurement contradicts the proof.

        An estimate never contradicts it, nor does a measurement at a smaller delta than that of the proof.
        """
        return found is not None and found.proven and self.delta <= found.delta and found.lower > self.epsilon


def proof_of(result: Result) -> Proof | None:
    """Return the proof with the smallest epsilon of a run; None without a proof."""
    defenses: list[Mapping[str, Any]] = result["defenses"]
    found = [
        Proof(
            float(proven["epsilon"]),
            float(proven["auc"]),
            str(defense.get("name")),
            float(proven.get("delta", 0.0)),
            str((defense.get("params") or {}).get("mechanism", "")),
        )
        for defense in defenses
        if (proven := defense.get("proven"))
    ]
    return min(found, key=lambda one: one.epsilon, default=None)


def measurement_of(result: Result) -> Measurement | None:
    """Return the measured lower bound on epsilon of a run; None where there is none."""
    found = result.get("epsilon") or {}
    if found.get("lower") is None:
        return None
    proven = found.get("kind") == WITH_CANARIES
    delta = float(found.get("delta", 0.0))
    return Measurement(float(found["lower"]), str(found.get("party")), proven, float(found["confidence"]), delta)


def refutation_p_value(result: Result, proof: Proof) -> float | None:
    """Return the probability, if the proof is right, that canaries contradict it as clearly as in a run.

    It is the smallest one over all parties, groups and numbers of guesses, times their number, so a p-value of at most
    5 % is a 95 % bound above the proven epsilon. None without canaries, and at a smaller delta than that of the proof.
    """
    found = measurement_of(result)
    if found is None or not found.proven or found.delta < proof.delta:
        return None
    canaries, classes = int(result["epsilon"]["canaries"]), int((result.get("dataset") or {}).get("classes") or 2)

    def p_value(one: Mapping[str, Any]) -> float:
        right, guesses = int(one["right"]), int(one["guesses"])
        if classes == 2:
            return coin_p_value(right, guesses, proof.epsilon, delta=found.delta, canaries=canaries)
        named = int(one["named"])
        priors = np.repeat([1 / classes, 1 - 1 / classes], [named, guesses - named])
        return odds_p_value(right, priors, proof.epsilon)

    tried = [one for entry in result["epsilon"]["parties"] for one in entry.get("tried", ())]
    p_values = [p_value(one) for one in tried if classes == 2 or "named" in one]  # earlier results do not have it
    return min(1.0, min(p_values) * len(p_values)) if p_values else None
