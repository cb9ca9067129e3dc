"""The utility of one party's columns alone, beside that of all parties together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from flower_vfl.apps.result_schema import kept_utility

EACH_ALONE, BETTER = "alone", "alone_better"
"""Keys of a result: the utility of each party alone, and the party that is better than all together."""


def alone_by(result: Mapping[str, Any]) -> str:
    """Return the name of the measure of each party alone: the test AUC, for more than two classes the mean over them.

    Examples
    --------
    >>> alone_by({"utility": {"last": {"test_auc": None, "test_macro_auc": 0.9}}})
    'test_macro_auc'
    """
    return "test_macro_auc" if "test_macro_auc" in kept_utility(result) else "test_auc"


def with_alone(result: Mapping[str, Any], reached: Mapping[str, float]) -> dict[str, Any]:
    """Return a result with the utility of each party alone, and with `alone_better` where one is better than all.

    Examples
    --------
    >>> with_alone({"utility": {"last": {"test_auc": 0.9}}}, {"a": 0.7, "b": 0.95})["alone_better"]
    {'party': 'b', 'measure': 'test_auc', 'alone': 0.95, 'together': 0.9}
    >>> "alone_better" in with_alone({"utility": {"last": {"test_auc": 0.9}}}, {"a": 0.7, "b": 0.9})
    False
    """
    measure, found = alone_by(result), {**result, EACH_ALONE: dict(reached)}
    together = kept_utility(result).get(measure)
    party, alone = max(reached.items(), key=lambda pair: -math.inf if math.isnan(pair[1]) else pair[1])
    if isinstance(together, int | float) and alone > together:
        found[BETTER] = {"party": party, "measure": measure, "alone": alone, "together": float(together)}
    return found
