"""Accounting of label privacy: what proven mechanisms tell of each person's label, over epochs and trainings.

`mechanisms` describes what a label goes through, `composition` adds up what several draws tell, and `ledger` keeps
account of it over trainings on the same labels.
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
