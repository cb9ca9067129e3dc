"""(h) Marvell's optimal noise against a general-purpose optimizer, and the time of the defenses that draw noise.

Problems are those of training (variances, distances and powers within a few orders of magnitude, widths 32 to 1600).
The other side is scipy's SLSQP on the same convex problem in the logarithms of the four variances, with exact
gradients, from one start. Targets: at most 0.1 ms for one problem, at least 100,000 problems a second at once; at most
1 ms for ten classes, with noise on each of nine axes and across them (SLSQP: 110 variables and one constraint).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from harness import arguments, report
from scipy.optimize import minimize

from flower_vfl.strategies.gradients import max_norm
from flower_vfl.strategies.gradients.marvell import isotropic, multiclass
from flower_vfl.strategies.gradients.marvell.multiclass_solver import ClassProblem, optimal_levels

ONE_MS, MANY_PER_SECOND, TEN_CLASSES_MS = 0.1, 1e5, 1.0

Problem = tuple[float, float, int, float, float, float]


def problems(count: int) -> list[Problem]:
    """Draw u, v, d, g, p, P."""
    rng = np.random.default_rng(0)
    u, v, g = 10.0 ** rng.uniform([[-3], [-3], [-2]], [[0], [0], [2]], (3, count))
    power = g * 10.0 ** rng.uniform(-1, 1.4, count)
    width = rng.choice([32, 64, 128, 600, 1600], count)
    columns = (u, v, width, g, rng.uniform(0.05, 0.5, count), power)
    return [
        (float(a), float(b), int(d), float(c), float(p), float(e)) for a, b, d, c, p, e in zip(*columns, strict=True)
    ]


def general_purpose(problem: Problem) -> float:
    """Solve one problem with SLSQP and return the divergence that it reached."""
    u, v, d, g, p, power = problem
    n, q = d - 1, 1 - p
    weights = np.array([q, p, n * q, n * p])
    budget = power + d * (q * u + p * v)
    exponents = np.array([[1, -1, 0, 0], [-1, 1, 0, 0], [-1, 0, 0, 0], [0, -1, 0, 0], [0, 0, 1, -1], [0, 0, -1, 1]])
    scales = 0.5 * np.array([1, 1, g, g, n, n])

    def objective(z: np.ndarray) -> tuple[float, np.ndarray]:
        terms = scales * np.exp(exponents @ z)
        return terms.sum() - d, terms @ exponents

    order = np.array([[1.0, 0, -1, 0], [0, 1, 0, -1]])
    constraints = [
        {
            "type": "ineq",
            "fun": lambda z: 1 - weights @ np.exp(z) / budget,
            "jac": lambda z: -weights * np.exp(z) / budget,
        },
        {"type": "ineq", "fun": lambda z: order @ z, "jac": lambda z: order},
    ]
    bounds = [(None, None), (None, None), (np.log(u), None), (np.log(v), None)]
    start = np.log([u + power / 2, v + power / 2, u, v])
    found = minimize(
        objective, start, jac=True, method="SLSQP", bounds=bounds, constraints=constraints, options={"ftol": 1e-15}
    )
    return _feasible_divergence(problem, np.exp(found.x))


def _feasible_divergence(problem: Problem, variances: np.ndarray) -> float:
    """Return the divergence after small violations of the constraints have been removed."""
    u, v, d, g, p, power = problem
    lam = np.maximum(variances - np.array([u, v, u, v]), 0)
    lam[:2] = np.maximum(lam[:2], lam[2:])
    spent = (1 - p) * (lam[0] + (d - 1) * lam[2]) + p * (lam[1] + (d - 1) * lam[3])
    a, b, s, t = lam * min(1.0, power / spent) + np.array([u, v, u, v])
    return float((d - 1) * (s - t) ** 2 / (s * t) + ((a - b) ** 2 + g * (a + b)) / (a * b)) / 2


def ten_classes(count: int) -> list[tuple[ClassProblem, float]]:
    """Draw problems of ten classes in general position, with their powers."""
    rng, found = np.random.default_rng(0), []
    for _ in range(count):
        places = rng.normal(size=(10, 9)) * np.exp(0.5 * rng.normal(size=9))
        distances = np.zeros((10, 10, 10))
        distances[:9] = (places.T[:, :, None] - places.T[:, None, :]) ** 2
        variances = 10.0 ** rng.uniform(-2, 0, (10, 10))
        sizes = np.array([*[1.0] * 9, float(rng.choice([32, 128, 600]) - 9)])
        power = 10.0 ** rng.uniform(-1, 1.4) * distances.sum() / 90
        found.append((ClassProblem(sizes, distances, variances, rng.dirichlet(np.full(10, 20.0))), power))
    return found


def general_purpose_classes(problem: ClassProblem, power: float) -> float:
    """Solve a problem of many classes with SLSQP and return the sum of divergences that it reached."""
    shape, n = problem.variances.shape, problem.sizes[:, None]
    budget = power + problem.power(problem.variances)

    def objective(z: np.ndarray) -> tuple[float, np.ndarray]:
        a = np.exp(z).reshape(shape)
        gradient = 0.5 * (n * (a * (1 / a).sum(1)[:, None] - a.sum(1)[:, None] / a) - problem.pull / a)
        return problem.divergences(a - problem.variances).sum() / 2, gradient.ravel()

    constraint = {
        "type": "ineq",
        "fun": lambda z: 1 - problem.cost.ravel() @ np.exp(z) / budget,
        "jac": lambda z: -problem.cost.ravel() * np.exp(z) / budget,
    }
    bounds = [(low, None) for low in np.log(problem.variances).ravel()]
    start = np.log(problem.variances + power / problem.cost.sum()).ravel()
    found = minimize(
        objective, start, jac=True, method="SLSQP", bounds=bounds, constraints=[constraint], options={"ftol": 1e-12}
    )
    levels = np.maximum(np.exp(found.x).reshape(shape) - problem.variances, 0)
    return float(problem.divergences(levels * min(1.0, power / problem.power(levels))).sum() / 2)


def of_ten_classes(count: int) -> dict[str, float]:
    """Return milliseconds of ours and of SLSQP in turns, the largest gap of ours, and how often SLSQP's differ."""
    ours, theirs, gaps, excess = [], [], [], []
    for problem, power in ten_classes(count):
        started = time.perf_counter()
        mine = optimal_levels(problem, power)
        middle = time.perf_counter()
        other = general_purpose_classes(problem, power)
        theirs.append(1e3 * (time.perf_counter() - middle))
        ours.append(1e3 * (middle - started))
        gaps.append(mine.gap / mine.total)
        excess.append(other / mine.total - 1)
    return {
        "ten_classes_ms": round(statistics.median(ours), 4),
        "ten_classes_scipy_ms": round(statistics.median(theirs), 1),
        "ten_classes_largest_gap": max(gaps),
        "ten_classes_scipy_worse_by_1e_6": sum(not value < 1e-6 for value in excess) / count,
        "ten_classes_scipy_better_by_1e_6": sum(value < -1e-6 for value in excess) / count,
    }


def milliseconds(work: Callable[[], object], repeats: int) -> float:
    """Return the median milliseconds of repeated calls."""
    work()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times)


def defenses(repeats: int) -> dict[str, float]:
    """Return milliseconds of each defense on batches of 1,024."""
    source = torch.Generator().manual_seed(0)
    found = {}
    for width in (32, 128):
        y = (torch.rand(1024, generator=source) < 0.2).long()
        g = 1e-3 * (0.3 * torch.randn(1024, width, generator=source) * (1 + y[:, None]) + y[:, None])
        found[f"marvell_{width}_ms"] = milliseconds(lambda: isotropic.perturb(g, y, s=4.0, generator=source), repeats)  # noqa: B023
        ten = torch.randint(0, 10, (1024,), generator=source)
        h = 1e-3 * (0.3 * torch.randn(1024, width, generator=source) + torch.eye(10, width)[ten])
        found[f"marvell_ten_classes_{width}_ms"] = milliseconds(
            lambda: multiclass.perturb(h, ten, classes=10, s=4.0, generator=source),  # noqa: B023
            repeats,
        )
        found[f"max_norm_{width}_ms"] = milliseconds(lambda: max_norm.perturb(g, generator=source), repeats)  # noqa: B023
    return {name: round(value, 4) for name, value in found.items()}


def main() -> None:
    """Measure and report."""
    quick = arguments(__doc__).quick
    torch.set_num_threads(1)
    count = 20 if quick else 500
    ours, theirs, excess = [], [], []
    for problem in problems(count):  # in turns, so that other load of the machine affects both
        started = time.perf_counter()
        mine = isotropic.optimal_noise(*problem).sum_kl
        middle = time.perf_counter()
        other = general_purpose(problem)
        theirs.append(1e3 * (time.perf_counter() - middle))
        ours.append(1e3 * (middle - started))
        excess.append(other / mine - 1)
    many = torch.tensor(problems(2_000 if quick else 200_000), dtype=torch.float64).T.contiguous()
    rate = many.shape[1] / (1e-3 * milliseconds(lambda: isotropic.optimal_noise(*many), 3 if quick else 7))
    one = statistics.median(ours)
    ten = of_ten_classes(5 if quick else 50)
    report(
        "optimal_noise",
        target=f"<= {ONE_MS} ms for one problem, >= {MANY_PER_SECOND:g} problems/s at once, "
        f"<= {TEN_CLASSES_MS:g} ms for ten classes",
        met=one <= ONE_MS and rate >= MANY_PER_SECOND and ten["ten_classes_ms"] <= TEN_CLASSES_MS,
        quick=quick,
        one_ms=round(one, 4),
        scipy_ms=round(statistics.median(theirs), 3),
        many_per_second=round(rate),
        scipy_worse_by_1e_6=sum(not value < 1e-6 for value in excess) / count,
        scipy_better_by_1e_9=sum(value < -1e-9 for value in excess) / count,
        **ten,
        **defenses(5 if quick else 200),
    )


if __name__ == "__main__":
    main()
