"""Marvell's optimal noise for many problems at once: `optimum` in tensors, on any device, without branches.

Every problem computes all three candidates and keeps the best; the number of operations depends on nothing but the
shape, and nothing is read back from the device. Names are those of `optimum`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from flower_vfl.strategies.gradients.marvell.optimum import NEWTON_STEPS, spare_power, two_sum

_CHUNK = 8192  # Problems at a time on a CPU, so that intermediate results stay in its cache.


class _Problem(NamedTuple):
    """Problems with u <= v."""

    u: Tensor
    v: Tensor
    n: Tensor
    g: Tensor
    p: Tensor
    q: Tensor
    q_low: Tensor
    power: Tensor


class _Point(NamedTuple):
    """Feasible points and their divergences."""

    sum_kl: Tensor
    x: Tensor
    alpha: Tensor
    beta: Tensor


def solve(u: Tensor, v: Tensor, d: Tensor, g: Tensor, p: Tensor, power: Tensor) -> tuple[Tensor, ...]:
    """Return lam1_neg, lam2_neg, lam1_pos, lam2_pos and sum_kl of valid float64 tensors of one shape.

    Parameters
    ----------
    u, v, d, g, p, power : Tensor
        As `flower_vfl.strategies.gradients.marvell.optimal_noise` takes them.
    """
    flat = [value.reshape(-1) for value in (u, v, d, g, p, power)]
    size = _CHUNK if u.device.type == "cpu" else max(u.numel(), 1)
    pieces = [_solve(*chunk) for chunk in zip(*(torch.split(value, size) for value in flat), strict=True)]
    return tuple(torch.cat(parts).reshape(u.shape) for parts in zip(*pieces, strict=True))


def _solve(u: Tensor, v: Tensor, d: Tensor, g: Tensor, p: Tensor, power: Tensor) -> tuple[Tensor, ...]:
    rest = _power_of_two(torch.maximum(g, power))
    unit = torch.maximum(_power_of_two(torch.maximum(u, v)), rest * 2.0**-400)
    unit = torch.where(unit > 0.0, unit, torch.where(rest > 0.0, rest, 1.0))
    u, v, g, power = u / unit, v / unit, g / unit, power / unit
    swap = u > v
    q, q_low = two_sum(torch.ones_like(p), -p)
    problem = _Problem(
        torch.minimum(u, v),
        torch.maximum(u, v),
        d - 1.0,
        g,
        torch.where(swap, q, p),
        torch.where(swap, p, q),
        torch.where(swap, 0.0, q_low),
        power,
    )
    sum_kl, x, alpha, beta = _solve_ordered(problem)
    wide, x, beta = (x + alpha) * unit, x * unit, beta * unit
    nothing = torch.zeros_like(x)
    return (
        torch.where(swap, beta, wide),
        torch.where(swap, nothing, x),
        torch.where(swap, wide, beta),
        torch.where(swap, x, nothing),
        sum_kl,
    )


def _power_of_two(value: Tensor) -> Tensor:
    return torch.where(value > 0.0, value / (2.0 * torch.frexp(value).mantissa), 0.0)


def _solve_ordered(problem: _Problem) -> _Point:
    u, v, n, g, p, q, q_low, power = problem
    d, gap = n + 1.0, v - u
    zero = torch.zeros_like(u)
    flat = (n == 0.0) | (gap == 0.0)
    spare = spare_power(u, v, d, q, q_low, power)
    cost = q * d
    best = _best_along(problem, zero, gap, u, power)
    # No bound along the difference of means.
    w, s = _unbounded(problem, spare + v, power + p * v + q * u)
    near = w <= 0.5 * gap
    x = torch.where(near, gap - w, (s - u).clamp(min=0.0))
    rest = torch.where(near, spare + cost * w, power - cost * x)
    over = rest < 0.0
    x, w = torch.where(over, power / cost, x), torch.where(over, -spare / cost, w)
    best = _better(best, _best_along(problem, x, w, _variance(u, v, x, w), rest.clamp(min=0.0)), flat)
    # No noise for the larger class.
    growth = g / v / (1.0 + torch.sqrt(1.0 + g / v))
    x = (power / q - u * growth) / (growth + d)
    w = (growth * v - spare / q) / (growth + d)
    equal = w <= 0.0
    x, w = torch.where(equal, gap, x), torch.where(equal, 0.0, w)
    s = _variance(u, v, x, w)
    rest = torch.where(equal, spare.clamp(min=0.0), q * s * growth)
    best = _better(best, _best_along(problem, x, w, s, rest), flat | (q == 0.0) | (x <= 0.0))
    sum_kl, x, alpha, beta = best
    done = (g == 0.0) & (spare >= 0.0)
    none = done | sum_kl.isinf()
    everywhere, along = torch.where(n > 0.0, gap, 0.0), torch.where(n > 0.0, 0.0, gap)
    x = torch.where(done, everywhere, torch.where(none, 0.0, x))
    alpha = torch.where(done, along, torch.where(none, 0.0, alpha))
    return _Point(torch.where(done, 0.0, sum_kl), x, alpha, torch.where(none, 0.0, beta))


def _better(best: _Point, other: _Point, barred: Tensor) -> _Point:
    """Take the other point where its divergence is smaller and it is not barred; a NaN is never smaller."""
    take = (other[0] < best[0]) & ~barred
    return _Point(*(torch.where(take, theirs, ours) for ours, theirs in zip(best, other, strict=True)))


def _variance(u: Tensor, v: Tensor, x: Tensor, w: Tensor) -> Tensor:
    return torch.where(x < w, u + x, v - w)


def _unbounded(problem: _Problem, at_equal: Tensor, at_zero: Tensor) -> tuple[Tensor, Tensor]:
    u, v, n, g, p, q, _, _ = problem
    product, skew, m = p * q, (q - p).square(), n * q
    pull = v * q
    big, _, theta = _theta(g, p, q, product, at_zero)
    still = pull * big * theta / at_zero >= ((v - u) / u) * ((v + u) / u)
    total = at_zero + m * u
    narrow = 2.0 * total < m * v
    below, above = (-at_equal).clamp(min=0.0), at_equal.clamp(min=0.0)
    kappa = torch.sqrt(2.0 * pull * g)
    c = torch.minimum(torch.maximum(at_equal, total * (kappa / (kappa + m * v))), at_zero)
    for step in range(NEWTON_STEPS):
        big, root, theta = _theta(g, p, q, product, c)
        k = pull * big * theta / c
        ratio = torch.sqrt(1.0 + k)
        s = v / ratio
        w = s * k / (1.0 + ratio)
        if step == NEWTON_STEPS - 1:
            break
        slope = m * s * (k / (1.0 + k)) * (1.0 - skew * big / (4.0 * root * root * root * theta))
        left = c + torch.where(narrow, m * s, below)
        right = torch.where(narrow, total, above + m * w)
        derivative = torch.where(narrow, (c + slope) / left, c / left + slope / right)
        c = c * torch.exp(-torch.log(left / right) / derivative)
        c = torch.minimum(torch.maximum(c, above), at_zero)
    equal = kappa == 0.0
    w, s = torch.where(equal, 0.0, w), torch.where(equal, v, s)
    return torch.where(still & ~equal, v - u, w), torch.where(still & ~equal, u, s)


def _theta(g: Tensor, p: Tensor, q: Tensor, product: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    big = g / c
    root = torch.sqrt(1.0 + p * big) * torch.sqrt(1.0 + q * big)
    return big, root, 1.0 + (1.0 + 2.0 * product * big) / root


def _best_along(problem: _Problem, x: Tensor, w: Tensor, s: Tensor, rest: Tensor) -> _Point:
    _, v, n, g, p, q, _, _ = problem
    c = rest + p * v + q * s
    across = torch.where((n > 0.0) & (w > 0.0), n * (w / s) * (w / v), 0.0)  # inf where s = 0
    big = torch.where(g > 0.0, g / c, 0.0)
    p_big, q_big = 1.0 + p * big, 1.0 + q * big
    r = torch.sqrt(q_big / p_big)
    excess = s * ((q - p) * big / (p_big * (r + 1.0))) - w
    alpha, beta, scale = rest - p * excess, r * rest + q * excess, q + p * r
    first, second = alpha < 0.0, (alpha >= 0.0) & (beta < 0.0)
    along = big * (1.0 + 2.0 * ((1.0 + p * q * big) / (1.0 + torch.sqrt(p_big) * torch.sqrt(q_big))))
    alpha = torch.where(first, 0.0, torch.where(second, rest / q, alpha / scale))
    beta = torch.where(second, 0.0, torch.where(first & (p > 0.0), rest / p, torch.where(first, 0.0, beta / scale)))
    a, b = s + alpha, v + beta
    difference = alpha - beta - w
    bounded = (difference / a) * (difference / b) + g / a + g / b
    along = torch.where(first | second, bounded, along)
    # At c = 0, or with a variance of zero left, there is no solution unless the classes are the same point.
    point = (v <= 0.0) & (g == 0.0)
    value = torch.where(point, 0.0, torch.where((a > 0.0) & (b > 0.0), 0.5 * (across + along), torch.inf))
    return _Point(torch.where(value.isnan(), torch.inf, value), x, alpha, beta)
