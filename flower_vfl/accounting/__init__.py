"""Accounting of label privacy: the epsilon of each person's label, over epochs and trainings.

`mechanisms` has the mechanisms that randomise a label, `composition` composes the privacy losses of several draws, and
`ledger` keeps account of the epsilon that trainings on the same labels spend.
"""

from flower_vfl.accounting.composition import Release, calibrate, compose_epsilon, largest_auc
from flower_vfl.accounting.guarantee import Guarantee
from flower_vfl.accounting.mechanisms import (
    Bounded,
    Gaussian,
    Laplace,
    Mechanism,
    RandomisedResponse,
    check_target,
)

__all__ = [
    "Bounded",
    "Gaussian",
    "Guarantee",
    "Laplace",
    "Mechanism",
    "RandomisedResponse",
    "Release",
    "calibrate",
    "check_target",
    "compose_epsilon",
    "largest_auc",
]
