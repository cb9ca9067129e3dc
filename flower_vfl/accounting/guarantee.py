"""The guarantee of a defense: an epsilon for each label, and the release that it follows from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from flower_vfl.accounting.composition import Release, compose_epsilon, largest_auc
from flower_vfl.accounting.mechanisms import Bounded
from flower_vfl.errors import ArgumentError


@dataclass(frozen=True)
class Guarantee:
    r"""Label differential privacy of everything that is sent in one training, whatever an attacker computes from it.

    Attributes
    ----------
    epsilon, delta : float
        Epsilon and delta of each person's label, over all epochs and all parties together.
    release : Release, optional
        The mechanism and the number of times that it is applied to each label, for an account over several trainings;
        by default any mechanism of this epsilon and delta, which may cost more there.
    """

    epsilon: float
    delta: float = 0.0
    release: Release | None = None

    @classmethod
    def of(cls, release: Release, delta: float = 0.0) -> Self:
        """Return the guarantee of a release at a delta.

        Raises
        ------
        ArgumentError
            When the release has no finite epsilon at this delta.

        Examples
        --------
        >>> from flower_vfl.accounting import Laplace, Release
        >>> Guarantee.of(Release(Laplace(2.0), draws=6)).epsilon
        3.0
        """
        epsilon = compose_epsilon([release], delta)
        if epsilon == math.inf:
            raise ArgumentError(f"{release} has no epsilon at delta {delta}; give a delta above 0, such as 1e-6")
        return cls(epsilon, delta, release)

    @property
    def accounted(self) -> Release:
        """The release that is put on an account."""
        return self.release or Release(Bounded(self.epsilon, self.delta))

    @property
    def auc(self) -> float:
        """The largest AUC with which two labels of one person, all else equal, can be distinguished."""
        return largest_auc(self.epsilon, self.delta)
