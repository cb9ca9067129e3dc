r"""Marvell's optimal noise for one problem, in plain floats; `docs/methods/marvell.md` derives every formula.

Here the class of smaller variance comes first: variance u, share q, noise x + alpha along the difference of means and x
elsewhere; the other class has variance v >= u, share p, and noise beta along the difference of means only. With
s = u + x, w = v - s, a = s + alpha, b = v + beta, n = d - 1 and G = g / C, where C = q a + p b is fixed by the power,

.. math:: \text{sumKL} = \tfrac12 \Big[ n \frac{w^2}{s v} + \frac{(a-b)^2 + g (a+b)}{a b} \Big].

Differences of nearly equal numbers are never formed: w, alpha and beta are carried beside s, a and b.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeVar

from torch import Tensor

NEWTON_STEPS = 10
"""Steps of Newton's method on the one equation without a closed form; six reach rounding on any problem tried."""

_ENOUGH = 1e-13  # A relative step that changes nothing: the divergence is flat at its minimum.

_Real = TypeVar("_Real", float, Tensor)


class FeasiblePoint(NamedTuple):
    """A feasible point and its divergence.

    Parameters
    ----------
    sum_kl : float
        Divergence.
    x, alpha, beta : float
        The noise of the module's problem.
    settled : bool
        True if the noise along the difference of means violates no bound, which proves the optimum.
    """

    sum_kl: float
    x: float
    alpha: float
    beta: float
    settled: bool


_NO_NOISE = FeasiblePoint(0.0, 0.0, 0.0, 0.0, True)
_INFEASIBLE = FeasiblePoint(math.inf, 0.0, 0.0, 0.0, False)


def two_sum(a: _Real, b: _Real) -> tuple[_Real, _Real]:
    """Return a + b and its rounding error [Knuth]."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def two_product(a: _Real, b: _Real) -> tuple[_Real, _Real]:
    """Return a * b and its rounding error [Dekker]."""
    product = a * b
    high_a, high_b = 134217729.0 * a, 134217729.0 * b
    high_a = high_a - (high_a - a)
    high_b = high_b - (high_b - b)
    low_a, low_b = a - high_a, b - high_b
    return product, ((high_a * high_b - product) + high_a * low_b + low_a * high_b) + low_a * low_b


def spare_power(u: _Real, v: _Real, d: _Real, q: _Real, q_low: _Real, power: _Real) -> _Real:
    """Return power - (q + q_low) d (v - u) with one rounding: the power left once both variances are equal."""
    gap, gap_low = two_sum(v, -u)
    need, need_low = two_product(d, gap)
    need, need_low = two_sum(need, need_low + d * gap_low)
    cost, cost_low = two_product(need, q)
    cost_low = cost_low + (need * q_low + need_low * q)
    rest, rest_low = two_sum(power, -cost)
    return rest + (rest_low - cost_low)


def solve(u: float, v: float, d: float, g: float, p: float, power: float) -> tuple[float, float, float, float, float]:
    """Return lam1_neg, lam2_neg, lam1_pos, lam2_pos and sum_kl of valid arguments.

    Parameters
    ----------
    u, v, d, g, p, power : float
        As `flower_vfl.strategies.gradients.marvell.optimal_noise` takes them.
    """
    top, rest = max(u, v), max(g, power)
    if top <= 0.0 and rest <= 0.0:
        return 0.0, 0.0, 0.0, 0.0, 0.0
    # A power of two, so that dividing by it is exact; squares of the quotients neither overflow nor vanish.
    unit = max(_power_of_two(top), _power_of_two(rest) * 2.0**-400) or _power_of_two(rest)
    u, v, g, power = u / unit, v / unit, g / unit, power / unit
    if u <= v:
        q, q_low = two_sum(1.0, -p)
        point = _solve_ordered(u, v, d, g, p, q, q_low, power)
        return (point.x + point.alpha) * unit, point.x * unit, point.beta * unit, 0.0, point.sum_kl
    point = _solve_ordered(v, u, d, g, 1.0 - p, p, 0.0, power)
    return point.beta * unit, 0.0, (point.x + point.alpha) * unit, point.x * unit, point.sum_kl


def _power_of_two(value: float) -> float:
    return value / (2.0 * math.frexp(value)[0]) if value > 0.0 else 0.0


def _solve_ordered(
    u: float, v: float, d: float, g: float, p: float, q: float, q_low: float, power: float
) -> FeasiblePoint:
    """Solve a problem with u <= v: the first candidate with a proof, or else the best of three."""
    n, gap = d - 1.0, v - u
    spare = spare_power(u, v, d, q, q_low, power)
    if g == 0.0 and spare >= 0.0:  # Equal variances hide all; more noise would hide no more.
        return FeasiblePoint(0.0, gap, 0.0, 0.0, True) if n > 0.0 else FeasiblePoint(0.0, 0.0, gap, 0.0, True)
    untouched = _best_along(0.0, gap, u, power, v, n, g, p, q)
    if n == 0.0 or gap == 0.0 or (power == 0.0 and u == 0.0 and q > 0.0):
        return untouched
    w, s = _unbounded(u, v, n, g, p, q, spare + v, power + p * v + q * u)
    if w <= 0.5 * gap:
        x = gap - w
        rest = spare + q * d * w
    else:
        x = max(s - u, 0.0)
        rest = power - q * d * x
    if rest < 0.0:
        x, w, rest = power / (q * d), -spare / (q * d), 0.0
    point = _best_along(x, w, _variance(u, v, x, w), rest, v, n, g, p, q)
    if point.settled:
        return point
    return min(point, _one_sided(u, v, n, g, p, q, power, spare), untouched)


def _one_sided(u: float, v: float, n: float, g: float, p: float, q: float, power: float, spare: float) -> FeasiblePoint:
    """Return the optimum with beta = 0, which the known ratio a / s determines; x = 0 is left to the caller."""
    if q == 0.0:
        return _INFEASIBLE
    growth = g / v / (1.0 + math.sqrt(1.0 + g / v))  # a / s - 1
    x = (power / q - u * growth) / (growth + n + 1.0)
    w = (growth * v - spare / q) / (growth + n + 1.0)
    if x <= 0.0:
        return _INFEASIBLE
    if w <= 0.0:
        return _best_along(v - u, 0.0, v, max(spare, 0.0), v, n, g, p, q)
    s = _variance(u, v, x, w)
    return _best_along(x, w, s, q * s * growth, v, n, g, p, q)


def _variance(u: float, v: float, x: float, w: float) -> float:
    return u + x if x < w else v - w


def _unbounded(
    u: float, v: float, n: float, g: float, p: float, q: float, at_equal: float, at_zero: float
) -> tuple[float, float]:
    """Return w and s of the optimum without the bounds on alpha and beta, but with 0 <= x <= v - u.

    Solves C + n q s(C) = const for C, where s(C) = v / sqrt(1 + v K(C)) is the stationary s. Newton's method in log C
    on the logarithm of a ratio of positive terms, in that of three forms whose slope at the root is between 1/2 and 3.

    Parameters
    ----------
    u, v, n, g, p, q : float
        The problem.
    at_equal, at_zero : float
        C at x = v - u, which may be negative, and at x = 0.
    """
    product, skew, m = p * q, (q - p) ** 2, n * q
    kappa = math.sqrt(2.0 * q * g * v)
    if kappa == 0.0:
        return 0.0, v
    if u > 0.0:
        big = g / at_zero
        theta = 1.0 + (1.0 + 2.0 * product * big) / (math.sqrt(1.0 + p * big) * math.sqrt(1.0 + q * big))
        if v * q * big * theta / at_zero >= ((v - u) / u) * ((v + u) / u):
            return v - u, u
    total = at_zero + m * u
    narrow = 2.0 * total < m * v
    below, above = max(-at_equal, 0.0), max(at_equal, 0.0)
    c = min(max(at_equal, total * (kappa / (kappa + m * v))), at_zero)
    w, s = v - u, u
    for _ in range(NEWTON_STEPS):
        big = g / c
        root = math.sqrt(1.0 + p * big) * math.sqrt(1.0 + q * big)
        theta = 1.0 + (1.0 + 2.0 * product * big) / root
        k = v * q * big * theta / c
        ratio = math.sqrt(1.0 + k)
        s = v / ratio
        w = s * k / (1.0 + ratio)
        slope = 0.5 * s * (k / (1.0 + k)) * (2.0 - skew * big / (2.0 * root * root * root * theta))  # d s / d log C
        if narrow:
            left, right = c + m * s, total
            step = math.log(left / right) / ((c + m * slope) / left)
        else:
            left, right = c + below, above + m * w
            step = math.log(left / right) / (c / left + m * slope / right)
        if abs(step) < _ENOUGH:
            break
        c = min(max(c * math.exp(-step), above), at_zero)
    return w, s


def _best_along(
    x: float, w: float, s: float, rest: float, v: float, n: float, g: float, p: float, q: float
) -> FeasiblePoint:
    """Return the best point for given x, with the `rest` of the power along the difference of means.

    Parameters
    ----------
    x, w, s : float
        Noise, v - s, and u + x.
    rest : float
        The required value of q alpha + p beta.
    v, n, g, p, q : float
        The problem.
    """
    c = rest + p * v + q * s
    if (n > 0.0 and w > 0.0 and s <= 0.0) or c <= 0.0:
        return _NO_NOISE if c <= 0.0 and g == 0.0 and w == 0.0 else _INFEASIBLE
    across = n * (w / s) * (w / v) if n > 0.0 and w > 0.0 else 0.0
    big = g / c
    p_big, q_big = 1.0 + p * big, 1.0 + q * big
    r = math.sqrt(q_big / p_big)  # b / a without bounds
    excess = s * ((q - p) * big / (p_big * (r + 1.0))) - w  # r s - v
    alpha, beta, scale = rest - p * excess, r * rest + q * excess, q + p * r
    if alpha >= 0.0 and beta >= 0.0:
        root = math.sqrt(p_big) * math.sqrt(q_big)
        along = big * (1.0 + 2.0 * ((1.0 + p * q * big) / (1.0 + root)))
        return FeasiblePoint(0.5 * (across + along), x, alpha / scale, beta / scale, True)
    alpha, beta = (0.0, rest / p if p > 0.0 else 0.0) if alpha < 0.0 else (rest / q, 0.0)
    a, b = s + alpha, v + beta
    if a <= 0.0 or b <= 0.0:
        return _INFEASIBLE
    difference = alpha - beta - w
    return FeasiblePoint(0.5 * (across + (difference / a) * (difference / b) + g / a + g / b), x, alpha, beta, False)
