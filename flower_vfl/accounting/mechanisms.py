r"""Mechanisms of label differential privacy, and the privacy loss of one draw of each.

Each mechanism gives the hockey-stick divergence of its outputs for two labels of one person in closed form,

.. math:: \delta(\varepsilon) = \sup_S \big( P[M(y) \in S] - e^{\varepsilon} P[M(y') \in S] \big),

from which the privacy loss of many draws follows (`composition`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flower_vfl.errors import ArgumentError
from flower_vfl.registry import is_number

Floats = NDArray[np.float64]

LARGEST_TARGET = 20.0
"""Largest target epsilon: beyond it the probability of a changed label, about e^-epsilon, has few or no digits in the
numbers from 0 to 1 that are drawn, which are multiples of 2^-53."""


@dataclass(frozen=True)
class Mechanism(ABC):
    """A randomised mechanism that is applied to a label.

    Attributes
    ----------
    name
        Its name in a ledger and on the command line.
    coordinates
        Number of coordinates that a change of one label changes, each with independent noise.
    """

    name: ClassVar[str]
    coordinates = 1

    @property
    @abstractmethod
    def pure(self) -> float:
        """The epsilon of one draw at delta 0, over all coordinates; infinite where no finite one holds."""

    @abstractmethod
    def delta(self, epsilon: Floats) -> Floats:
        """Return the hockey-stick divergence of one coordinate for epsilons (n,) of either sign, (n,)."""

    @property
    @abstractmethod
    def strength(self) -> str:
        """The name and the value of the parameter that sets the noise, as text."""

    @property
    @abstractmethod
    def largest_loss(self) -> float:
        """The privacy loss of one coordinate that is exceeded with a probability below 1e-18."""

    @property
    def spread(self) -> float:
        """A bound on the standard deviation of the privacy loss of one coordinate."""
        return self.largest_loss

    @property
    def bits(self) -> float:
        r"""An upper bound on the bits of information that one draw reveals of its label; infinite where none is known.

        Information is at most the divergence between the outputs for two labels. At delta 0 no mechanism exceeds
        randomised response of two classes (`Bounded`): :math:`\varepsilon \tanh(\varepsilon / 2)` nats.

        Examples
        --------
        >>> [round(RandomisedResponse(epsilon).bits, 6) for epsilon in (0.01, 1.0)]
        [7.2e-05, 0.666694]
        """
        return self.pure * math.tanh(self.pure / 2.0) / math.log(2.0)

    def facts(self) -> dict[str, Any]:
        """Return the name and the parameters of the mechanism, for `from_facts`."""
        return {"mechanism": self.name, **asdict(self)}


@dataclass(frozen=True)
class RandomisedResponse(Mechanism):
    r"""Randomised response: a label is kept, or replaced by one of the others.

    The probability of keeping it is :math:`e^\varepsilon / (e^\varepsilon + C - 1)`.

    Parameters
    ----------
    epsilon : float
        Epsilon of one draw, above 0.
    classes : int
        Number of classes C.

    References
    ----------
    Warner, *Randomized response*, 1965.

    Examples
    --------
    >>> RandomisedResponse(1.0).delta(np.array([0.0, 1.0])).round(3)  # at epsilon 0 and 1
    array([0.462, 0.   ])
    """

    epsilon: float
    classes: int = 2
    name: ClassVar[str] = "randomised_response"

    def __post_init__(self) -> None:
        _check_above_zero(self.name, "epsilon", self.epsilon)
        if isinstance(self.classes, bool) or not isinstance(self.classes, int) or self.classes < 2:
            raise ArgumentError(f"{self.name}: classes must be a whole number of at least 2, given {self.classes!r}")

    @property
    def flip(self) -> float:
        """The probability that the label is replaced."""
        others = (self.classes - 1) * math.exp(-self.epsilon)
        return others / (1.0 + others)

    @property
    def pure(self) -> float:  # noqa: D102
        return self.epsilon

    @property
    def largest_loss(self) -> float:  # noqa: D102
        return self.epsilon

    @property
    def strength(self) -> str:  # noqa: D102
        return f"flip {self.flip:.6g}"

    def delta(self, epsilon: Floats) -> Floats:  # noqa: D102
        kept, other = 1.0 - self.flip, self.flip / (self.classes - 1)
        ratio = np.exp(epsilon)
        outcomes = [(kept, other), (other, kept), ((self.classes - 2) * other,) * 2]
        found: Floats = np.sum([np.maximum(0.0, p - ratio * q) for p, q in outcomes], axis=0)
        return found


@dataclass(frozen=True)
class Laplace(Mechanism):
    r"""Laplace noise on a target of which a change of the label changes `coordinates` coordinates by 1.

    .. math:: \delta(\varepsilon) = 1 - e^{(\varepsilon - 1 / b) / 2}, \quad |\varepsilon| \le 1 / b

    Parameters
    ----------
    scale : float
        Scale b of the noise on each coordinate, above 0.
    coordinates : int
        1 for a target of 0 or 1, 2 for a one-hot target.

    Examples
    --------
    >>> Laplace(0.5).pure, Laplace(0.5, coordinates=2).pure
    (2.0, 4.0)
    """

    scale: float
    coordinates: int = 1
    name: ClassVar[str] = "laplace"

    def __post_init__(self) -> None:
        _check_above_zero(self.name, "scale", self.scale)
        _check_coordinates(self.name, self.coordinates)

    @property
    def pure(self) -> float:  # noqa: D102
        return self.coordinates / self.scale

    @property
    def largest_loss(self) -> float:  # noqa: D102
        return 1.0 / self.scale

    @property
    def strength(self) -> str:  # noqa: D102
        return f"scale {self.scale:.6g}"

    def delta(self, epsilon: Floats) -> Floats:  # noqa: D102
        most = 1.0 / self.scale
        inside = -np.expm1((np.clip(epsilon, -most, most) - most) / 2.0)
        return np.where(epsilon < -most, -np.expm1(np.minimum(epsilon, 0.0)), inside)


@dataclass(frozen=True)
class Gaussian(Mechanism):
    r"""Gaussian noise on a number that a label changes by 1, such as a target or the known difference of two classes.

    .. math:: \delta(\varepsilon) = \Phi(1 / 2 \sigma - \varepsilon \sigma)
        - e^\varepsilon \Phi(-1 / 2 \sigma - \varepsilon \sigma)

    Parameters
    ----------
    sigma : float
        Standard deviation of the noise on each coordinate, in units of the change, above 0.
    coordinates : int
        1 for a target of 0 or 1 and for the difference of two gradients, 2 for a one-hot target.

    References
    ----------
    Balle and Wang, *Improving the Gaussian mechanism for differential privacy*, 2018, Theorem 8.
    """

    sigma: float
    coordinates: int = 1
    name: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        _check_above_zero(self.name, "sigma", self.sigma)
        _check_coordinates(self.name, self.coordinates)

    @property
    def pure(self) -> float:  # noqa: D102
        return math.inf

    @property
    def largest_loss(self) -> float:  # noqa: D102
        return 1.0 / (2.0 * self.sigma**2) + 9.0 / self.sigma

    @property
    def spread(self) -> float:  # noqa: D102
        return 1.0 / self.sigma

    @property
    def bits(self) -> float:  # noqa: D102
        return self.coordinates / (2.0 * self.sigma**2) / math.log(2.0)

    @property
    def strength(self) -> str:  # noqa: D102
        return f"sigma {self.sigma:.6g}"

    def delta(self, epsilon: Floats) -> Floats:  # noqa: D102
        return gaussian_delta(1.0 / self.sigma, epsilon)


@dataclass(frozen=True)
class Bounded(Mechanism):
    """Any (epsilon, delta)-private mechanism of which nothing else is known.

    Parameters
    ----------
    epsilon : float
        Epsilon of one draw, at least 0.
    slack : float
        Its delta, from 0 to below 1.

    References
    ----------
    Kairouz, Oh, Viswanath, *The composition theorem for differential privacy*, 2015, Theorem 3.
    """

    epsilon: float
    slack: float = 0.0
    name: ClassVar[str] = "bounded"

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_delta(self.slack)

    @property
    def pure(self) -> float:  # noqa: D102
        return math.inf if self.slack else self.epsilon

    @property
    def largest_loss(self) -> float:  # noqa: D102
        return self.epsilon

    @property
    def strength(self) -> str:  # noqa: D102
        return f"epsilon {self.epsilon:.6g}" + (f", delta {self.slack:.3g}" if self.slack else "")

    def delta(self, epsilon: Floats) -> Floats:  # noqa: D102
        less = math.exp(-self.epsilon) / (1.0 + math.exp(-self.epsilon))
        more = 1.0 - less
        ratio = np.exp(epsilon)
        between = np.maximum(0.0, more - ratio * less) + np.maximum(0.0, less - ratio * more)
        return np.asarray(self.slack + (1.0 - self.slack) * between)


MECHANISMS: Mapping[str, type[Mechanism]] = {
    kind.name: kind for kind in (RandomisedResponse, Laplace, Gaussian, Bounded)
}
"""All mechanisms, by name."""


def from_facts(facts: Mapping[str, Any]) -> Mechanism:
    """Return the mechanism that `Mechanism.facts` describes.

    Raises
    ------
    ArgumentError
        When there is no such mechanism, or it does not allow the values.
    """
    values = dict(facts)
    name = values.pop("mechanism", None)
    if name not in MECHANISMS:
        raise ArgumentError(f"there is no mechanism {name!r}; there are {', '.join(MECHANISMS)}")
    try:
        return MECHANISMS[name](**values)
    except TypeError:
        raise ArgumentError(f"{name} does not take {', '.join(values) or 'nothing'}") from None


def gaussian_delta(separation: float, epsilon: Floats | float) -> Floats:
    r"""Return the hockey-stick divergence of two normal distributions of unit variance, with means `separation` apart.

    Gaussian draws compose to one Gaussian: the squares of their separations :math:`1 / \sigma` add up.
    """
    from scipy.special import log_ndtr

    low = -separation / 2.0 - np.asarray(epsilon) / separation
    found: Floats = np.exp(log_ndtr(low + separation)) - np.exp(np.minimum(epsilon + log_ndtr(low), 0.0))
    return np.clip(found, 0.0, 1.0)


def check_epsilon(epsilon: object) -> None:
    """Refuse an epsilon that is no finite number of at least 0.

    Raises
    ------
    ArgumentError
        When it is none; the message names the allowed values.
    """
    if not is_number(epsilon) or not 0.0 <= epsilon < math.inf:
        raise ArgumentError(f"epsilon must be a finite number of at least 0, given {epsilon!r}")


def check_delta(delta: object) -> None:
    """Refuse a delta that is no number from 0 to below 1.

    Raises
    ------
    ArgumentError
        When it is none; the message names the allowed values.
    """
    if not is_number(delta) or not 0.0 <= delta < 1.0:
        raise ArgumentError(f"delta must be a number from 0 to below 1, such as 1e-6, given {delta!r}")


def check_target(epsilon: float) -> None:
    """Refuse a target epsilon so large that the probability of a changed label is lost in the digits of the draws.

    Raises
    ------
    ArgumentError
        When it is above `LARGEST_TARGET` and finite.
    """
    if LARGEST_TARGET < epsilon < math.inf:
        raise ArgumentError(
            f"epsilon {epsilon:g} cannot be proven: above {LARGEST_TARGET:g} the probability that a label changes is "
            "lost in the digits of the drawn numbers; give a smaller one, such as 2, or a larger flip, or train "
            "without a proof"
        )


def _check_above_zero(name: str, parameter: str, value: object) -> None:
    if not is_number(value) or not 0.0 < value < math.inf:
        raise ArgumentError(f"{name}: {parameter} must be a finite number above 0, given {value!r}")


def _check_coordinates(name: str, value: object) -> None:
    if isinstance(value, bool) or value not in (1, 2):
        raise ArgumentError(
            f"{name}: coordinates must be 1, for a target of 0 or 1, or 2, for a one-hot target, given {value!r}"
        )
