"""What one party's columns reach by themselves, beside what all parties reach together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from flower_vfl.apps.result_schema import kept_utility

ALONE, BETTER = "alone", "alone_better"
"""Keys of a result: what each party reaches alone, and the party that reaches more than all together."""


def alone_by(result: Mapping[str, Any]) -> str:
    """Return the measure of what each party reaches alone: the test AUC, of more than two classes the mean over them.

    Examples
    --------
    >>> alone_by({"utility": {"last": {"test_auc": None, "test_macro_auc": 0.9}}})
    'test_macro_auc'
    """
    return "test_macro_auc" if "test_macro_auc" in kept_utility(result) else "test_auc"


def with_alone(result: Mapping[str, Any], reached: Mapping[str, float]) -> dict[str, Any]:
    """Return a result with what each party reaches alone, and with `alone_better` where one reaches more.

    Examples
    --------
    >>> with_alone({"utility": {"last": {"test_auc": 0.9}}}, {"a": 0.7, "b": 0.95})["alone_better"]
    {'party': 'b', 'measure': 'test_auc', 'alone': 0.95, 'together': 0.9}
    >>> "alone_better" in with_alone({"utility": {"last": {"test_auc": 0.9}}}, {"a": 0.7, "b": 0.9})
    False
    """
    measure, found = alone_by(result), {**result, ALONE: dict(reached)}
    together = kept_utility(result).get(measure)
    party, alone = max(reached.items(), key=lambda pair: -math.inf if math.isnan(pair[1]) else pair[1])
    if isinstance(together, int | float) and alone > together:
        found[BETTER] = {"party": party, "measure": measure, "alone": alone, "together": float(together)}
    return found
