"""Attacks on the releases of all epochs side by side that know half of the labels, to compare the bound with."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from flower_vfl.metrics import leak_auc
from flower_vfl.parties.hooks import Log, StepView
from flower_vfl.strategies import Defense, HookedStrategy

Matrix = NDArray[np.float64]

_RIDGE = 1e-6
"""Share of the mean variance that is added to each variance: directions without any would have no likelihood."""


class SideBySide(Defense):
    """Wrapper that keeps the sent gradients of each row and epoch, in units of the batch, and logs attacks on them.

    After each epoch a linear reader and one with a Gaussian for each class are fitted to one half of the rows, all
    epochs side by side, and scored on the other half. It must be the outermost defense.
    """

    name: ClassVar[str] = "side_by_side"

    def __init__(self, strategy: HookedStrategy) -> None:
        super().__init__(strategy)
        self._epochs: list[NDArray[np.float32]] = []
        self._now = np.zeros((0, 0), dtype=np.float32)

    @property
    def params(self) -> dict[str, Any]:
        """No parameters."""
        return {}

    def protect(self, grads: Tensor, labels: Tensor, step: StepView | None = None) -> tuple[Tensor, Log]:
        """Return the inner strategy's gradients, and keep them."""
        sent, log = self.strategy.protect(grads, labels, step)
        if not self._now.size:
            self._now = np.full((len(self.base.labels.train), sent.shape[1]), np.nan, dtype=np.float32)
        self._now[self.base.step.rows] = (sent / sent.double().square().sum(dim=1).mean().sqrt()).cpu().numpy()
        return sent, log

    def end_epoch(self) -> Log:
        """Return the log with the AUCs of both readers."""
        self._epochs.append(self._now)
        self._now = np.zeros((0, 0), dtype=np.float32)
        seen = np.concatenate(self._epochs, axis=1)
        complete = np.isfinite(seen).all(axis=1)
        linear, quadratic = read(seen[complete].astype(np.float64), self.base.labels.train[complete])
        return {**super().end_epoch(), f"{self.name}.linear": linear, f"{self.name}.quadratic": quadratic}


def read(seen: Matrix, labels: NDArray[Any], seed: int = 0) -> tuple[float, float]:
    """Return the AUC on one half of the rows (N, M) of the best linear and quadratic readers of the other half."""
    known = np.random.default_rng(seed).random(len(labels)) < 0.5
    fitted = [_gaussian(seen[known & (labels == label)]) for label in (0, 1)]
    (mean, covariance), (other, second) = fitted
    linear = seen[~known] @ np.linalg.solve(covariance + second, other - mean)
    likelihoods = [_likelihood(seen[~known], *one) for one in fitted]
    return tuple(leak_auc(scores, labels[~known]) for scores in (linear, likelihoods[1] - likelihoods[0]))  # type: ignore[return-value]


def _gaussian(rows: Matrix) -> tuple[Matrix, Matrix]:
    covariance = np.cov(rows.T)
    return rows.mean(axis=0), covariance + _RIDGE * np.trace(covariance) / len(covariance) * np.eye(len(covariance))


def _likelihood(rows: Matrix, mean: Matrix, covariance: Matrix) -> Matrix:
    factor = np.linalg.cholesky(covariance)
    apart = np.linalg.solve(factor, (rows - mean).T)
    found: Matrix = -0.5 * (apart**2).sum(axis=0) - np.log(np.diag(factor)).sum()
    return found
