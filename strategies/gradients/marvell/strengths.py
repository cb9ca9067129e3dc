"""The strength of the variants of Marvell: one number, under one of several parameter names."""

from __future__ import annotations

import math

from flower_vfl.errors import ConfigError, UnprotectedBatchError
from flower_vfl.strategies.gradients.checks import is_real, strength

DEFAULT_S = 4.0
"""Default strength: the power relative to the squared distance of the class means."""

_LARGEST = 1e300


def chosen(defense: str, **given: float | None) -> tuple[str, float]:
    """Check the given strengths and return the name and value of the only one; by default s = 4.

    Parameters
    ----------
    defense : str
        The defense's name, for messages.
    **given
        `s`, `P`, `sum_kl` and `detection_error`, or those of them that the defense has.

    Raises
    ------
    ConfigError
        For more than one, and for a number out of range.

    Examples
    --------
    >>> chosen("marvell", s=None, P=2.0), chosen("marvell", s=None, P=None)
    (('P', 2.0), ('s', 4.0))
    """
    found = {name: value for name, value in given.items() if value is not None}
    if len(found) > 1:
        words = ", ".join(f"{name}={value!r}" for name, value in found.items())
        *names, last = given
        raise ConfigError(f"{defense}: give one strength, of {', '.join(names)} or {last}; given {words}")
    ((name, value),) = found.items() if found else (("s", DEFAULT_S),)
    if name == "sum_kl" and not (is_real(value) and 0.0 < value < math.inf):
        raise ConfigError(
            f"{defense}: sum_kl must be a finite number above 0, given {value!r}; no noise of finite power reaches 0"
        )
    if name == "detection_error" and not (is_real(value) and 0.0 < value < 0.5):
        raise ConfigError(
            f"{defense}: detection_error must be above 0 and below 0.5, given {value!r}; 0.5 is guessing, and no noise "
            "of finite power reaches it"
        )
    return name, strength(f"{defense}: {name}", value)


def power(name: str, value: float, apart: float, unit: float) -> float:
    """Return the power of a strength `s` or `P`, in units squared.

    Parameters
    ----------
    name, value
        The result of `chosen`.
    apart : float
        Squared distance of the class means, in units squared.
    unit : float
        Length in which that is measured.
    """
    return value * apart if name == "s" else min(value / unit / unit, _LARGEST)


def check_power(defense: str, value: float, power: float, sum_kl: float) -> None:
    """Refuse noise without power if it is needed and the strength is above 0.

    Parameters
    ----------
    defense : str
        The defense's name, for messages.
    value : float
        The given strength.
    power : float
        Its noise power.
    sum_kl : float
        The divergence of the classes that this power leaves.

    Raises
    ------
    UnprotectedBatchError
        When the class means coincide although the classes differ, so that power relative to their distance is none.
    """
    if value > 0.0 and power == 0.0 and sum_kl > 0.0:
        raise UnprotectedBatchError(
            f"{defense}: the class means coincide but the classes differ; noise relative to the distance of the means "
            "is zero then and hides nothing"
        )


def target(name: str, value: float) -> float:
    """Return the largest divergence that a strength `sum_kl` or `detection_error` allows."""
    return value if name == "sum_kl" else (2.0 - 4.0 * value) ** 2
