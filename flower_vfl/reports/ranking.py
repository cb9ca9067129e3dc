"""Ranking of runs by validation; the test rows only measure the chosen run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flower_vfl.apps.result_schema import kept_utility
from flower_vfl.training.outcome import OF_MANY_CLASSES

NOT_RANKED = (
    "Nothing is ranked and nothing recommended: these runs have no validation part that compares them, and nothing may "
    "be chosen by the test rows. Set training.validation above 0."
)
"""Message where no run has a value to rank by."""


def validation_name(result: Mapping[str, Any]) -> str:
    """Return the measure by which a run is ranked, the one that compared its epochs.

    For two classes that is the validation AUC, for more the accuracy, or with balanced class weights the mean AUC.

    Examples
    --------
    >>> validation_name({"utility": {"last": {"validation_macro_auc": 0.9, "validation_accuracy": 0.8}}})
    'validation_accuracy'
    >>> validation_name({"utility": {"last": {"validation_macro_auc": 0.9}}, "best_by": "validation_macro_auc"})
    'validation_macro_auc'
    """
    if "validation_macro_auc" not in kept_utility(result):
        return "validation_auc"
    found = str(result.get("best_by"))
    return found if found in OF_MANY_CLASSES.values() else OF_MANY_CLASSES["none"]


def validation(result: Mapping[str, Any]) -> float | None:
    """Return the value of the validation measure of the model that a run kept; None where there is none.

    There is none without a validation part, and where all of its rows are of one class.

    Examples
    --------
    >>> validation({"utility": {"last": {"validation_auc": 0.9, "test_auc": 0.8}}})
    0.9
    >>> validation({"utility": {"last": {"validation_macro_auc": None, "validation_accuracy": 0.8}}})
    """
    kept = kept_utility(result)
    values = [kept.get(name) for name in ("validation_auc", "validation_macro_auc") if name in kept]
    value = kept.get(validation_name(result)) if values and values[0] is not None else None
    return float(value) if isinstance(value, int | float) else None


def not_beaten(pairs: Sequence[tuple[float | None, float | None]]) -> list[int]:
    """Return the positions of the (validation, leak) that no other beats, from the least leak to the most.

    A pair beats another where it is at least as good in both and better in one; equal pairs all stay. A pair that lacks
    one of the two is left out, and beats no other.

    Examples
    --------
    >>> not_beaten([(0.9, 1.0), (0.8, 0.6), (0.7, 0.7), (None, 0.5)])
    [1, 0]
    """
    known = [(leak, -useful, at) for at, (useful, leak) in enumerate(pairs) if useful is not None and leak is not None]
    found: list[tuple[float, float, int]] = []
    for pair in sorted(known):
        if not found or pair[1] < found[-1][1] or pair[:2] == found[-1][:2]:
            found.append(pair)
    return [at for *_, at in found]
