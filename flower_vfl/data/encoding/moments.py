"""Moments of a column, accumulated piece by piece."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Moments:
    """The first three moments of some numbers; those of two pieces add up to those of both.

    Parameters
    ----------
    count : int
        Number of values.
    mean : float
        Mean of the values; 0 without values.
    spread : float
        Standard deviation of the values, with divisor N.
    skewness : float
        Mean of ((x - mean) / spread)^3; 0 where all values are equal.

    References
    ----------
    Pébay, *Formulas for robust, one-pass parallel computation of covariances and arbitrary-order statistical moments*,
    2008.

    Examples
    --------
    >>> pieces = [Moments.of(np.array([1.0, 2.0])), Moments.of(np.array([9.0]))]
    >>> (pieces[0] + pieces[1]).mean
    4.0
    """

    count: int = 0
    mean: float = 0.0
    spread: float = 0.0
    skewness: float = 0.0

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Moments:
        """Return the moments of (N,) finite numbers."""
        if not len(values):
            return cls()
        mean, spread = float(values.mean()), float(values.std())
        if not spread > 0.0:
            return cls(len(values), mean)
        distances = (values - mean) / spread
        return cls(len(values), mean, spread, float((distances * distances * distances).mean()))

    def __add__(self, other: Moments) -> Moments:
        if not self.count or not other.count:
            return other if other.count else self
        count = self.count + other.count
        mine, theirs, gap = self.count / count, other.count / count, other.mean - self.mean
        variance = mine * self.spread**2 + theirs * other.spread**2 + gap**2 * mine * theirs
        third = (
            mine * self.skewness * self.spread**3
            + theirs * other.skewness * other.spread**3
            + gap**3 * mine * theirs * (mine - theirs)
            + 3 * gap * mine * theirs * (other.spread**2 - self.spread**2)
        )
        spread = variance**0.5
        return Moments(count, self.mean + gap * theirs, spread, third / spread**3 if spread > 0.0 else 0.0)
