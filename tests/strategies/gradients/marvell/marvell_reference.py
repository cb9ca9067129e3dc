"""Marvell's problem solved in another way: sixty digits or more, by an interior-point method that certifies itself.

Of the derivation in `docs/methods/marvell.md` only this is used: the problem is convex in the logarithms of a, b, s
and t. No noise is assumed to be zero, and no equation is solved in closed form.
"""

from __future__ import annotations

import mpmath as mp

DIGITS = 60


def divergence(d, g, a, b, s, t):
    """Return sumKL at total variances a, b along the difference of means and s, t elsewhere."""
    across = (d - 1) * (s - t) ** 2 / (s * t) if d > 1 else 0
    return (across + ((a - b) ** 2 + g * (a + b)) / (a * b)) / 2


def divergence_of(u, v, d, g, noise):
    """Return sumKL of a `NoiseSpectrum`, computed with many digits."""
    with mp.workdps(DIGITS):
        a, s = (mp.mpf(lam) + mp.mpf(u) for lam in (noise.lam1_neg, noise.lam2_neg))
        b, t = (mp.mpf(lam) + mp.mpf(v) for lam in (noise.lam1_pos, noise.lam2_pos))
        return divergence(d if s != t else 1, mp.mpf(g), a, b, s, t)


def reference(u, v, d, g, p, power, gap=1e-13, digits=DIGITS):
    """Return the least divergence that was found, and a lower bound; for power, g, u + v > 0 and 0 < p < 1."""
    with mp.workdps(digits):
        problem = _Barrier(*map(mp.mpf, (u, v, d, g, p, power)))
        z = problem.start()
        sharpness = 1 / problem.value(z)
        for _ in range(80):
            z = problem.centre(z, sharpness)
            value = problem.value(z)
            if problem.constraints / sharpness < gap * value:
                break
            sharpness *= 100
        return value, value - (problem.constraints + mp.mpf("1e-5")) / sharpness


def moved(z, step, size):
    return [x + size * y for x, y in zip(z, step, strict=True)]


def solved(matrix, right):
    """Return x with matrix x = right, by Gaussian elimination; lists take less time than `mp.matrix`."""
    rows, k = [[*row, value] for row, value in zip(matrix, right, strict=True)], len(right)
    for i in range(k):
        pivot = max(range(i, k), key=lambda row: abs(rows[row][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for row in rows[i + 1 :]:
            factor = row[i] / rows[i][i]
            row[i:] = [x - factor * y for x, y in zip(row[i:], rows[i][i:], strict=True)]
    found = []
    for i in reversed(range(k)):
        known = mp.fsum(x * y for x, y in zip(rows[i][i + 1 : k], reversed(found), strict=True))
        found.append((rows[i][k] - known) / rows[i][i])
    return found[::-1]


class _Barrier:
    """The divergence in z = log(a, b, s, t) with logarithmic barriers for power and bounds; s and t only for d > 1."""

    def __init__(self, u, v, d, g, p, power):
        self.u, self.v, self.d, self.g, self.p, self.power = u, v, d, g, p, power
        n, q = d - 1, 1 - p
        self.weights = [q, p, n * q, n * p] if n else [q, p]
        self.budget = power + d * (q * u + p * v)
        low, high = (2, 3) if n else (0, 1)
        self.bounds = [(0, 2, None), (1, 3, None)] if n else []  # z_i > z_j, or z_i > a constant
        self.bounds += [(i, None, mp.log(x)) for i, x in ((low, u), (high, v)) if x > 0]
        self.constraints = len(self.bounds) + 1
        half = mp.mpf(1) / 2
        terms = [(half, 0, 1), (half, 1, 0), (half * g, None, 0), (half * g, None, 1)]
        terms += [(half * n, 2, 3), (half * n, 3, 2)] if n else []
        self.terms = [(c, i, j) for c, i, j in terms if c > 0]  # c * e^(z_i - z_j)

    def start(self):
        part = self.power / 8
        s, t = self.u + part / (1 - self.p) / self.d, self.v + part / self.p / self.d
        z = [s + part / (1 - self.p), t + part / self.p, s, t]
        if self.d == 1:
            z = [self.u + part / (1 - self.p), self.v + part / self.p]
        return [mp.log(x) for x in z]

    def value(self, z):
        e = [mp.exp(x) for x in z]
        return divergence(self.d, self.g, e[0], e[1], *(e[2:] or (1, 1)))

    def _used(self, e):
        return mp.fsum(w * x for w, x in zip(self.weights, e, strict=True)) / self.budget

    def _merit(self, z, sharpness):
        left = 1 - self._used([mp.exp(x) for x in z])
        slacks = [z[i] - (c if j is None else z[j]) for i, j, c in self.bounds]
        if left <= 0 or min(slacks, default=1) <= 0:
            return mp.inf
        return sharpness * self.value(z) - mp.log(left) - mp.fsum(map(mp.log, slacks))

    def _newton(self, z, sharpness):
        k = len(self.weights)
        gradient, hessian = [mp.mpf(0)] * k, [[mp.mpf(0)] * k for _ in range(k)]
        e = [mp.exp(x) for x in z]

        def add(scale, curvature, direction):
            for i, x in direction:
                gradient[i] += scale * x
                for j, y in direction:
                    hessian[i][j] += curvature * x * y

        for c, i, j in self.terms:
            value = sharpness * c * (e[i] if i is not None else 1) / e[j]
            add(value, value, [(j, -1)] + ([(i, 1)] if i is not None else []))
        left = 1 - self._used(e)
        share = [(i, w * x / self.budget) for i, (w, x) in enumerate(zip(self.weights, e, strict=True))]
        add(1 / left, 1 / left**2, share)
        for i, x in share:
            hessian[i][i] += x / left
        for i, j, c in self.bounds:
            slack = z[i] - (c if j is None else z[j])
            add(-1 / slack, 1 / slack**2, [(i, 1)] + ([(j, -1)] if j is not None else []))
        step = solved(hessian, [-x for x in gradient])
        return step, -mp.fsum(gradient[i] * step[i] for i in range(k))

    def centre(self, z, sharpness):
        for _ in range(200):
            step, decrement = self._newton(z, sharpness)
            if decrement < mp.mpf("1e-12"):
                break
            size, before = min(mp.mpf(1), 2 / (1 + mp.sqrt(decrement))), self._merit(z, sharpness)
            while self._merit(moved(z, step, size), sharpness) > before - size * decrement / 10 and size > 1e-30:
                size /= 2
            z = moved(z, step, size)
        return z
