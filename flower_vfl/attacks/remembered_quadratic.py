"""A Gaussian for each class, fitted on a few known rows: their likelihood ratio reads variances as well as means."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from flower_vfl.attacks.learned import History, LearnedAttack, Reader, standardising
from flower_vfl.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

FLOOR = 1e-6
"""Least variance of a class in any direction, where the known rows have 1 in the mean: a class whose known rows are
equal, as one row alone is, still has a density."""


@dataclass(frozen=True, slots=True, eq=False)
class Gaussian:
    r"""A normal distribution with a variance of its own along few axes, and one variance across them.

    .. math:: N\Big(m, \; \sum_j v_j a_j a_j^T + w \big(I - \sum_j a_j a_j^T\big)\Big)

    Attributes
    ----------
    mean
        m, (F,).
    axes
        Rows a_j, (r, F), orthonormal.
    variances
        v_j, (r,), above 0.
    across
        w, above 0.
    """

    mean: Tensor
    axes: Tensor
    variances: Tensor
    across: float

    def log_density(self, rows: Tensor) -> Tensor:
        """Return the logarithm of the density at rows (n, F), (n,) of float64."""
        width, axes = len(self.mean), len(self.axes)
        x = rows.double() - self.mean
        distance = x.square().sum(dim=1) / self.across
        distance += (x @ self.axes.T).square() @ (1 / self.variances - 1 / self.across)
        volume = float(self.variances.log().sum()) + (width - axes) * math.log(self.across)
        return -(distance + volume + width * math.log(2 * math.pi)) / 2


def fit_gaussian(x: Tensor, shrinkage: float | None) -> Gaussian:
    r"""Fit a Gaussian to rows of one class, its covariance shrunk towards a multiple of the identity.

    .. math:: \Sigma = (1 - \lambda) S + \lambda \tfrac{\operatorname{tr} S}{F} I, \qquad
        S = \tfrac1n \sum_i (x_i - \bar x)(x_i - \bar x)^T

    No (F, F) matrix is made: outside the few axes along which the rows differ it has one variance.

    Parameters
    ----------
    x
        (n, F) rows, float64; no variance is taken below `FLOOR`.
    shrinkage
        Lambda in (0, 1]; None: that of `ledoit_wolf`, at least 1 / n: two rows agree with their own covariance, so that
        the estimate finds no error in it.

    References
    ----------
    Ledoit and Wolf, *A well-conditioned estimator for large-dimensional covariance matrices*, 2004, equations 2 and 14.
    """
    mean = x.mean(dim=0)
    centred = x - mean
    share = max(ledoit_wolf(centred), 1 / len(x)) if shrinkage is None else shrinkage
    _, singular, axes = torch.linalg.svd(centred, full_matrices=False)
    common = share * float(centred.square().mean())
    variances = (1 - share) * singular.square() / len(x) + common
    return Gaussian(mean, axes, variances.clamp(min=FLOOR), max(common, FLOOR))


def ledoit_wolf(centred: Tensor) -> float:
    r"""Return the share of the identity that brings a covariance nearest to the true one, as estimated from the rows.

    .. math:: \lambda = \min\left(1, \; \frac{\tfrac{1}{n^2} \sum_i \| x_i x_i^T - S \|_F^2}{\| S - \mu I \|_F^2}\right)

    Parameters
    ----------
    centred
        (n, F) rows around their mean.

    Returns
    -------
    float
        From 0 to 1; 1 where there is nothing but the identity to see.

    References
    ----------
    Ledoit and Wolf, 2004, section 3.3.
    """
    count, width = centred.shape
    gram = centred @ centred.T
    squared = float(gram.square().sum()) / count**2  # of S, in the Frobenius norm
    apart = squared - float(gram.trace() / count) ** 2 / width
    if not apart > 0:
        return 1.0
    error = (float(gram.diagonal().square().mean()) - squared) / count
    return min(1.0, max(0.0, error) / apart)


class RememberedQuadraticAttack(LearnedAttack):
    r"""Scores each row by the likelihood ratio of two Gaussians, fitted on k known rows of each class.

    .. math:: r(x) = \log N(x; m_1, \Sigma_1) - \log N(x; m_0, \Sigma_0)

    No reader is better where each class is Gaussian, as Marvell's model and its certificate have it, and the fit is
    right. It reads classes that differ in their variance alone, of which a linear reader reads nothing. Of one known
    row of each class it says which is nearer. Blocks are made uncorrelated before (`standardising`).

    Parameters
    ----------
    k
        How many labelled rows of each class it knows, at least 1.
    shrinkage
        The share of the identity in each class's covariance, above 0 and up to 1, where a class is a ball; None: the
        share that Ledoit and Wolf estimate from the known rows, at least 1 / k.
    reads
        "all", for mean, last and difference; or one of these, or "epochs".

    References
    ----------
    Li et al., *Label Leakage and Protection in Two-party Split Learning*, ICLR 2022, section 4.2 (the model); Neyman
    and Pearson, 1933.
    """

    name: ClassVar[str] = "remembered_quadratic"

    def __init__(self, k: int = 16, shrinkage: float | None = None, reads: History = "all") -> None:
        super().__init__(k, reads)
        if isinstance(shrinkage, bool) or (shrinkage is not None and not 0 < shrinkage <= 1):
            raise ConfigError(
                f"remembered_quadratic: shrinkage is {shrinkage!r}; give a number above 0 and up to 1, or leave it out "
                "for the share that is estimated from the known rows"
            )
        self.shrinkage = shrinkage

    @property
    def params(self) -> dict[str, Any]:
        """What every learned reader has, and the share of the identity."""
        return {**super().params, "shrinkage": self.shrinkage}

    def fit(self, x: Tensor, positive: Tensor) -> Reader:
        """Return the likelihood ratio of the classes' Gaussians."""
        standard = standardising(x)
        known = standard(x)
        one, other = (fit_gaussian(known[which], self.shrinkage) for which in (positive, ~positive))

        def read(rows: Tensor) -> Tensor:
            z = standard(rows)
            return one.log_density(z) - other.log_density(z)

        return read
