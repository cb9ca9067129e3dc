"""Marvell's optimal noise for any number of classes, by a geometric program with a certificate.

Directions come in *groups* in which noise has one level a class: an axis of the class means, or all directions across
the axes. The derivation is in `docs/methods/marvell-classes.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flower_vfl.errors import ArgumentError

Floats = NDArray[np.float64]
ExcessFunction = Callable[[Floats, Floats], tuple[float, float]]

_PRECISION = 1e-12
_SETTLED = 2e-14
_ROUNDS = 100
_PLENTY = 1e10
"""Ratio of noise to hidden distances beyond which more noise changes nothing: then it is equal in all directions."""
_LONGEST_STEP = 3.0
"""Largest change of a logarithm in one step of Newton's method."""


@dataclass(frozen=True, slots=True, eq=False)
class ClassNoise:
    """Variances of the noise that a row gets, by its class and direction, and the divergences that they leave.

    Parameters
    ----------
    levels : ndarray, (M, C)
        Variance of the noise of each class in each direction of a group.
    divergences : ndarray, (C, C)
        Symmetric divergence of each pair of modelled classes with this noise; inf where nothing hides the difference.
    gap : float
        Proven bound, up to rounding, on the excess of the sum over pairs above the least possible one. With noise
        beyond 1e10 times the hidden distances, where more noise changes nothing, it may be inf.
    """

    levels: Floats
    divergences: Floats
    gap: float

    @property
    def total(self) -> float:
        """The sum of the divergences over pairs of classes, which is minimised."""
        return float(self.divergences.sum()) / 2.0

    @property
    def largest(self) -> float:
        """The largest divergence of two classes."""
        return float(self.divergences.max())


@dataclass(frozen=True, eq=False)
class ClassProblem:
    r"""Classes modelled as Gaussians with independent coordinates, in groups of directions.

    Parameters
    ----------
    sizes : ndarray, (M,)
        Number of directions in each group, at least 1.
    distances : ndarray, (M, C, C)
        Squared distance of two class means within a group.
    variances : ndarray, (M, C)
        Variance of a class in each direction of a group, at least 0.
    shares : ndarray, (C,)
        Shares of the classes; above 0, with the sum 1.

    Raises
    ------
    ArgumentError
        For arrays that do not fit, and for values that are negative or not finite.
    """

    sizes: Floats
    distances: Floats
    variances: Floats
    shares: Floats

    def __post_init__(self) -> None:
        groups, classes = len(self.sizes), len(self.shares)
        fit = self.distances.shape == (groups, classes, classes) and self.variances.shape == (groups, classes)
        values = (self.sizes, self.distances, self.variances, self.shares)
        if not fit or classes < 2 or groups < 1:
            shapes = ", ".join(str(value.shape) for value in values)
            raise ArgumentError(
                f"a problem of M groups and C > 1 classes has (M,), (M, C, C), (M, C), (C,); given {shapes}"
            )
        if not all(np.isfinite(value).all() and (value >= 0).all() for value in values):
            raise ArgumentError("sizes, distances, variances and shares must be finite and at least 0")
        if self.sizes.min() < 1 or self.shares.min() <= 0 or abs(self.shares.sum() - 1.0) > 1e-9:
            raise ArgumentError(
                f"sizes are at least 1 and shares above 0 with the sum 1; given {self.sizes}, {self.shares}"
            )

    @cached_property
    def pull(self) -> Floats:
        """Sum of a class's squared distances from all others within a group, (M, C)."""
        found: Floats = self.distances.sum(axis=2)
        return found

    @cached_property
    def cost(self) -> Floats:
        """The cost of a unit of noise in mean power, (M, C)."""
        return self.sizes[:, None] * self.shares

    def power(self, levels: Floats) -> float:
        """Return the mean squared norm of the noise of a row."""
        return float((self.cost * levels).sum())

    def divergences(self, levels: Floats) -> Floats:
        """Return the symmetric divergence of each pair of classes with noise of these levels (M, C)."""
        a = self.variances + levels
        with np.errstate(divide="ignore", invalid="ignore"):
            one, other = a[:, :, None], a[:, None, :]
            spread = self.sizes[:, None, None] * ((one - other) / one) * ((one - other) / other)
            apart = np.where(self.distances > 0.0, self.distances / one + self.distances / other, 0.0)
        found: Floats = 0.5 * (np.where(one == other, 0.0, spread) + apart).sum(axis=0)
        return found

    def solved(self, levels: Floats, multiplier: float) -> ClassNoise:
        """Return the noise with its divergences and the bound on its excess over the optimum."""
        return ClassNoise(levels, self.divergences(levels), _gap(self, levels, multiplier))


def optimal_levels(problem: ClassProblem, power: float) -> ClassNoise:
    r"""Return the noise of a mean power that makes the classes hardest to tell apart.

    .. math::
        \min \sum_{c < k} \sum_i \tfrac12 \Big[ n_i \frac{(a_{ic} - a_{ik})^2}{a_{ic} a_{ik}} +
        g_{ick} \Big(\frac1{a_{ic}} + \frac1{a_{ik}}\Big) \Big]
        \quad \text{s.t.} \quad \sum_i n_i \sum_c p_c (a_{ic} - v_{ic}) \le P, \; a_{ic} \ge v_{ic}

    which is convex in the logarithms of a. For two classes, one direction along the difference of their means and the
    others in a group of their own, it is `flower_vfl.strategies.gradients.marvell.optimal_noise`. If there is more
    power than makes the classes equal, which needs equal means, only the least such power is used.

    Parameters
    ----------
    problem : ClassProblem
        The classes.
    power : float
        P, the mean squared norm of the noise, at least 0.

    Returns
    -------
    ClassNoise
        Noise of the power P, up to rounding; or of the least power that makes the classes equal.

    Raises
    ------
    ArgumentError
        For a power that is negative or not finite.

    References
    ----------
    For two classes Li et al., *Label Leakage and Protection in Two-party Split Learning*, ICLR 2022, section 4.2.

    Examples
    --------
    >>> corners = np.array([[0.0, 2.0, 2.0], [2.0, 0.0, 2.0], [2.0, 2.0, 0.0]])
    >>> problem = ClassProblem(np.array([2.0]), corners[None], np.full((1, 3), 0.5), np.full(3, 1 / 3))
    >>> noise = optimal_levels(problem, 4.0)
    >>> noise.levels.round(6).tolist(), round(noise.total, 6), noise.gap < 1e-9
    ([[2.0, 2.0, 2.0]], 2.4, True)
    """
    if not 0.0 <= power < math.inf:
        raise ArgumentError(f"optimal_levels: the power must be a finite number of at least 0, given {power}")
    nothing = np.zeros_like(problem.variances)
    if power == 0.0:
        return ClassNoise(nothing, problem.divergences(nothing), 0.0)
    if not problem.pull.any():
        equal = problem.variances.max(axis=1, keepdims=True) - problem.variances
        if problem.power(equal) <= power:
            return problem.solved(equal, 0.0)
    level = (power + problem.power(problem.variances)) / float(problem.cost.sum())
    if level > _PLENTY * float(problem.variances.max() + problem.distances.sum(axis=0).max()):
        return problem.solved(level - problem.variances, 0.0)
    path = _Path(problem, np.full_like(problem.variances, power / float(problem.cost.sum())))

    def excess(levels: Floats, slopes: Floats) -> tuple[float, float]:
        spent = problem.power(levels)
        slope = float((problem.cost * (problem.variances + levels) * slopes).sum())
        return (math.log(spent / power), slope / spent) if spent > 0.0 else (-math.inf, 0.0)

    levels, multiplier = path.search(excess)
    spent = problem.power(levels)
    return problem.solved(levels * (power / spent) if spent > 0.0 else levels, multiplier)


def least_levels(problem: ClassProblem, largest: float) -> tuple[float, ClassNoise]:
    """Return the least power at which the optimal noise brings the divergence of any two classes down to `largest`.

    The search goes along the optimal noises of all powers. Their sum of divergences falls as the power rises; should
    the largest one rise somewhere, which it can while another falls, a larger power than the least may be found.

    Parameters
    ----------
    problem : ClassProblem
        The classes.
    largest : float
        Target, above 0: no finite power reaches 0 where means differ.

    Returns
    -------
    tuple[float, ClassNoise]
        The power and the noise; its largest divergence was computed and is at most the target.

    Raises
    ------
    ArgumentError
        For a target that is not a finite number above 0.
    """
    if not 0.0 < largest < math.inf:
        raise ArgumentError(f"least_levels: the target must be a finite number above 0, given {largest}")
    nothing = np.zeros_like(problem.variances)
    noise = problem.solved(nothing, 0.0)
    if noise.largest <= largest:
        return 0.0, ClassNoise(nothing, noise.divergences, 0.0)
    pairs = len(problem.shares) * (len(problem.shares) - 1) / 2
    sphere = max(float(problem.variances.max()), float(problem.distances.sum(axis=0).max()) * pairs / largest)
    path = _Path(problem, sphere - problem.variances)

    def excess(levels: Floats, slopes: Floats) -> tuple[float, float]:
        found = problem.divergences(levels)
        c, k = divmod(int(found.argmax()), len(found))
        a = problem.variances + levels
        groups = a.min(axis=1) > 0.0  # elsewhere the classes coincide
        one, other, by_one, by_other = (values[groups, which] for values in (a, slopes) for which in (c, k))
        spread = problem.sizes[groups] * (one / other - other / one) * (by_one - by_other)
        apart = problem.distances[groups, c, k] * (by_one / one + by_other / other)
        value, slope = float(found[c, k]), 0.5 * float((spread - apart).sum())
        return -math.log(value / largest) - 2.0 * _PRECISION, -slope / value

    levels, multiplier = path.search(excess)
    return problem.power(levels), problem.solved(levels, multiplier)


class _Path:
    r"""The optimal noises of all powers, by the multiplier of the power.

    Within a group the optimum for a multiplier :math:`\nu / 2` is :math:`a_c^2 = (S + w_c) / (R + \nu p_c)`, clipped to
    the bounds, with :math:`S = \sum a_c`, :math:`R = \sum 1 / a_c` and :math:`w_c` the pull of the other means per
    direction. So there are two unknowns a group, log S and -log R. The map that they are a fixed point of is monotone
    and never increases the largest distance of two points; it replaces steps of Newton's method that are slower.

    Parameters
    ----------
    problem : ClassProblem
        The classes.
    levels : ndarray, (M, C)
        Noise of about the required power; it is the result if the search finds no better one.
    """

    def __init__(self, problem: ClassProblem, levels: Floats) -> None:
        self._initial = levels
        apart = problem.pull.max(axis=1) > 0.0
        spread = problem.variances.max(axis=1) - problem.variances.min(axis=1)
        self._distinct: NDArray[np.bool_] = apart | (spread > 0.0)  # classes that coincide need no noise
        self._shares, self._low = problem.shares, problem.variances[self._distinct]
        pull = problem.pull[self._distinct] / problem.sizes[self._distinct, None]
        largest = self._low.max(axis=1, keepdims=True)
        self._high = np.where(apart[self._distinct][:, None], math.inf, largest)
        total = problem.power(problem.variances + levels)
        root = float(np.sqrt(problem.cost * problem.pull).sum()) / total or 1.0 / math.sqrt(total)
        start = np.minimum(np.sqrt(pull / self._shares) / root + self._low, self._high)
        start = np.maximum(start, largest * 1e-6)
        self._pull, self._log = pull, 2.0 * math.log(root)
        self._s, self._t = np.log(start.sum(axis=1)), -np.log((1.0 / start).sum(axis=1))

    def search(self, excess: ExcessFunction) -> tuple[Floats, float]:
        """Return the noise and multiplier at which a falling function of the logarithm of nu is zero, or just above.

        Parameters
        ----------
        excess : Callable
            Function of the levels and the slopes of log a, both (M, C); it returns value (-inf allowed) and slope.
        """
        low, high = -math.inf, math.inf
        best = self._initial, 0.0
        for _ in range(_ROUNDS):
            levels, slopes, y = self._solve()
            value, slope = excess(levels, slopes)
            if value >= 0.0 or abs(value) <= _PRECISION:
                best = levels, math.exp(self._log) / 2.0
            if value >= 0.0:
                low = self._log
            else:
                high = self._log
            if abs(value) <= _PRECISION or high - low <= 1e-15 * max(abs(self._log), 1.0):
                break
            step = -value / slope if slope < 0.0 and math.isfinite(value) else math.copysign(_LONGEST_STEP, value)
            step = min(max(step, -_LONGEST_STEP), _LONGEST_STEP)
            if not low < self._log + step < high:
                step = 0.5 * (low + high) - self._log
            self._log += step
            self._s, self._t = self._s + y[0] * step, self._t + y[1] * step
        return best

    def _solve(self) -> tuple[Floats, Floats, tuple[Floats, Floats]]:
        """Return the levels at this multiplier, the slopes of log a, and those of the unknowns."""
        last = np.full(len(self._s), math.inf)
        push = math.exp(self._log) * self._shares
        for _ in range(_ROUNDS):
            s, t = np.exp(self._s)[:, None], np.exp(-self._t)[:, None]
            above, below = s + self._pull, t + push
            found = np.sqrt(above / below)
            free = (found > self._low) & (found < self._high)
            a = np.clip(found, self._low, self._high)
            sums, inverse = a.sum(axis=1), (1.0 / a).sum(axis=1)
            f, g = self._s - np.log(sums), self._t + np.log(inverse)
            by_s, by_t = np.where(free, 0.5 * s / above, 0.0), np.where(free, 0.5 * t / below, 0.0)
            by_log = np.where(free, 0.5 - by_t, 0.0)
            of_s, of_t = a / sums[:, None], 1.0 / (a * inverse[:, None])
            ss, st, ts, tt = ((of * by).sum(axis=1) for of in (of_s, of_t) for by in (by_s, by_t))
            det = np.maximum((1.0 - ss) * (1.0 - tt) - st * ts, 1e-300)
            wrong = np.maximum(np.abs(f), np.abs(g))
            if wrong.max() <= _SETTLED * max(1.0, float(np.abs(self._s).max())):
                break
            slow = wrong > 0.9 * last
            last = np.where(slow, math.inf, wrong)
            to_s, to_t = -((1.0 - tt) * f + st * g) / det, -(ts * f + (1.0 - ss) * g) / det
            self._s = self._s + np.where(slow, -f, np.clip(to_s, -_LONGEST_STEP, _LONGEST_STEP))
            self._t = self._t + np.where(slow, -g, np.clip(to_t, -_LONGEST_STEP, _LONGEST_STEP))
        f, g = (of_s * by_log).sum(axis=1), (of_t * by_log).sum(axis=1)
        to_s, to_t = -((1.0 - tt) * f + st * g) / det, -(ts * f + (1.0 - ss) * g) / det
        slopes = by_s * to_s[:, None] + by_t * to_t[:, None] - by_log
        return self._all_groups(a - self._low), self._all_groups(slopes), (to_s, to_t)

    def _all_groups(self, values: Floats) -> Floats:
        """Return values of all groups, zeros where classes coincide."""
        found = np.zeros((len(self._distinct), values.shape[1]))
        found[self._distinct] = values
        return found


def _gap(problem: ClassProblem, levels: Floats, multiplier: float) -> float:
    r"""Return a bound on how far the sum of divergences is above the least one for the power that is spent.

    For convex f and power h of x = log a, any feasible y has :math:`f(y) \ge f(x) + \langle \nabla f + \mu \nabla h,
    y - x \rangle`, so the remaining gradient counts with the largest step that y can take in its direction.
    """
    a = problem.variances + levels
    value = float(problem.divergences(levels).sum()) / 2.0
    if not 0.0 < value < math.inf:
        return 0.0
    n, power = problem.sizes[:, None], problem.power(levels)
    with np.errstate(divide="ignore", invalid="ignore"):
        low = np.maximum(problem.variances, problem.pull / (2.0 * value))
        low = np.maximum(low, low.max(axis=1, keepdims=True) / (2.0 + 2.0 * value / n))
        high = problem.variances + power / problem.cost
        gradient = 0.5 * (n * (a * (1.0 / a).sum(axis=1)[:, None] - a.sum(axis=1)[:, None] / a) - problem.pull / a)
        gradient += multiplier * problem.cost * a
        room = np.where(gradient > 0.0, np.log(a / low), np.log(high / a))
        room = np.where(a > 0.0, np.maximum(room, 0.0), 0.0)
        return float(np.where(room > 0.0, np.abs(gradient) * room, 0.0).sum())
