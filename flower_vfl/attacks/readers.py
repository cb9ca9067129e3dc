"""Readers that are fitted on a few rows of known classes: a linear one, a Gaussian for each class, a network.

The rows may be anything: histories of gradients, or embeddings of the trained model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

TensorReader: TypeAlias = Callable[[Tensor], Tensor]
"""A function from rows (n, ...) to scores: (n,) for two classes, higher means more likely class 1, and (n, C) for more,
where the largest number names the class; never NaN for finite rows."""

LEAST_VARIANCE = 1e-6
"""Least variance of a class in any direction, in units of the known rows' mean variance: a class with equal known
rows, or with one, still has a density."""

RATE, MOMENTUM, DECAY = 1.0, 0.9, 1e-3
"""Settings of gradient descent on all known rows. Adam is not used: its steps are equally large in each coordinate, so
that it overfits to those without information. The decay shrinks each weight in every step, for the same reason."""

_RANK_TOLERANCE = 1e-6
"""Share of the largest variance below which the variance of a combination of blocks is a rounding error."""


def standardising(x: Tensor) -> Callable[[Tensor], Tensor]:
    r"""Return a function that centres rows of blocks, decorrelates the blocks and gives each of them mean variance 1.

    .. math:: z = (x - \bar x) (M \otimes I_D), \qquad M^T C M = I, \qquad
        C_{ab} = \tfrac{1}{nD} \sum_i \langle x_i^a - \bar x^a, \; x_i^b - \bar x^b \rangle

    The mean, the last gradient and the last difference overlap, after one epoch entirely: a reader with equal weights
    would count the common part several times. Epochs share most of their persistent noise, and their differences would
    hardly count. Coordinates of a block keep their proportions.

    Parameters
    ----------
    x
        (n, b, D) known rows, float64.

    Returns
    -------
    Callable[[Tensor], Tensor]
        Function from rows (n, b, D) to (n, r D) of float64, with r the number of linearly independent blocks.
    """
    mean = x.mean(dim=0)
    apart = (x - mean).transpose(0, 1).flatten(1)
    values, vectors = torch.linalg.eigh(apart @ apart.T / apart.shape[1])
    kept = values > _RANK_TOLERANCE * values[-1]
    mixing = vectors[:, kept] / values[kept].sqrt() if bool(kept.any()) else torch.eye(x.shape[1]).to(x)

    def standardised(rows: Tensor) -> Tensor:
        return torch.einsum("nbd,br->nrd", rows.double() - mean, mixing).flatten(1)

    return standardised


def linear(x: Tensor, y: Tensor, classes: int, *, penalty: float) -> TensorReader:
    """Return a linear reader of rows (n, F), fitted to known rows by `ridge`; for more than two classes one for each.

    It uses class means only, which is best where all classes have the same noise. Rows keep their number format.
    """
    targets = 2.0 * _targets(y, classes).to(x.dtype) - 1.0
    weights, offset = ridge(x, targets, penalty)
    return lambda rows: rows @ weights.to(rows.dtype) + offset.to(rows.dtype)


def ridge(x: Tensor, y: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    r"""Fit a linear reader to known rows by ridge regression, in closed form.

    .. math::

        w = X^T (X X^T + \alpha I)^{-1} y, \qquad b = \bar y - \langle w, \bar x \rangle, \qquad
        \alpha = \text{penalty} \cdot \tfrac1n \| X \|_F^2

    with X and y around their means. With few rows of many numbers, a strong penalty makes w nearly parallel to the
    difference of the class means, which is best where noise is the same in all directions.

    Parameters
    ----------
    x
        (n, F) known rows, float64.
    y
        (n,) or (n, C) their targets.
    penalty
        Penalty of large weights, in units of the rows' mean squared distance from their mean; above 0.

    Returns
    -------
    tuple[Tensor, Tensor]
        Weights w (F,) or (F, C) and the offset b, () or (C,).

    References
    ----------
    Hoerl and Kennard, *Ridge regression: biased estimation for nonorthogonal problems*, Technometrics 12, 1970.
    """
    centre, middle = x.mean(dim=0), y.mean(dim=0)
    rows = x - centre
    gram = rows @ rows.T
    alpha = penalty * float(gram.diagonal().mean())
    if not alpha > 0:  # all known rows are equal
        return x.new_zeros(x.shape[1], *y.shape[1:]), middle
    gram.diagonal().add_(alpha)
    weights = rows.T @ torch.linalg.solve(gram, y - middle)
    return weights, middle - centre @ weights


def quadratic(x: Tensor, y: Tensor, classes: int, *, shrinkage: float | None) -> TensorReader:
    r"""Return a reader of rows (n, F) with a Gaussian for each class, fitted to known rows by `fit_gaussian`.

    .. math:: r(x) = \log N(x; m_1, \Sigma_1) - \log N(x; m_0, \Sigma_0)

    for two classes; for more, the logarithm of the probability of each, with equal priors. No reader is better where
    each class is Gaussian, and the fit is right. It uses variances as well as means.
    """
    gaussians = [fit_gaussian(x[y == c], shrinkage) for c in range(classes)]

    def read(rows: Tensor) -> Tensor:
        densities = torch.stack([gaussian.log_density(rows) for gaussian in gaussians], dim=1)
        return densities[:, 1] - densities[:, 0] if classes == 2 else densities.log_softmax(dim=1)

    return read


@dataclass(frozen=True, slots=True, eq=False)
class SpikedGaussian:
    r"""A normal distribution with a variance of its own along few axes, and one variance across them.

    .. math:: N\Big(m, \; \sum_j v_j a_j a_j^T + w \big(I - \sum_j a_j a_j^T\big)\Big)

    Attributes
    ----------
    mean
        Mean m, (F,).
    axes
        Axes a_j, the rows of (r, F), orthonormal.
    variances
        Variances v_j along the axes, (r,), above 0.
    across
        Variance w in all other directions, above 0.
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


def fit_gaussian(x: Tensor, shrinkage: float | None) -> SpikedGaussian:
    r"""Fit a Gaussian to rows of one class, its covariance shrunk towards a multiple of the identity.

    .. math:: \Sigma = (1 - \lambda) S + \lambda \tfrac{\operatorname{tr} S}{F} I, \qquad
        S = \tfrac1n \sum_i (x_i - \bar x)(x_i - \bar x)^T

    No (F, F) matrix is made: outside the few axes along which the rows differ it has one variance.

    Parameters
    ----------
    x
        (n, F) rows, float64; no variance is taken below `LEAST_VARIANCE`.
    shrinkage
        Lambda in (0, 1]; None for that of `ledoit_wolf`, at least 1 / n: for two rows the estimate of the error is 0.

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
    return SpikedGaussian(mean, axes, variances.clamp(min=LEAST_VARIANCE), max(common, LEAST_VARIANCE))


def ledoit_wolf(centred: Tensor) -> float:
    r"""Return the share of the identity in a covariance with the least squared error, estimated from the rows.

    .. math:: \lambda = \min\left(1, \; \frac{\tfrac{1}{n^2} \sum_i \| x_i x_i^T - S \|_F^2}{\| S - \mu I \|_F^2}\right)

    Parameters
    ----------
    centred
        (n, F) rows around their mean.

    Returns
    -------
    float
        From 0 to 1; 1 where the covariance of the rows is a multiple of the identity.

    References
    ----------
    Ledoit and Wolf, 2004, section 3.3.
    """
    count, width = centred.shape
    gram = centred @ centred.T
    squared = float(gram.square().sum()) / count**2  # squared Frobenius norm of S
    distance = squared - float(gram.trace() / count) ** 2 / width
    if not distance > 0:
        return 1.0
    error = (float(gram.diagonal().square().mean()) - squared) / count
    return min(1.0, max(0.0, error) / distance)


def network(x: Tensor, y: Tensor, classes: int, *, hidden: int, steps: int, generator: torch.Generator) -> TensorReader:
    """Return a network with one hidden layer as a reader of rows (n, F), fitted to standardised known rows.

    It uses more of a class than its mean and covariance, and needs more known rows for it; see `fit_network`.
    """
    length = x.shape[1] ** 0.5
    fitted = fit_network(x / length, _targets(y, classes), hidden=hidden, steps=steps, generator=generator)
    return lambda rows: _logits(fitted, rows / length)


def fit_network(x: Tensor, positive: Tensor, *, hidden: int, steps: int, generator: torch.Generator) -> list[Tensor]:
    r"""Fit a network with one hidden layer to labelled rows, all of them in each step.

    .. math:: r(x) = \langle w, \tanh(A x + b) \rangle + c

    by the logistic loss, for more than two classes by the cross-entropy with a w and a c for each, with momentum,
    weight decay and a fixed number of steps: there are too few known rows for early stopping.

    Parameters
    ----------
    x
        (n, F) rows, float64, around 0 and of mean squared length 1.
    positive
        (n,) of bool, or (n, C) with one true entry a row.
    hidden
        Number of units of the hidden layer, H.
    steps
        Number of steps.
    generator
        Random generator of the initial weights.

    Returns
    -------
    list[Tensor]
        A (F, H), b (H,), w (H,) or (H, C) and c () or (C,).
    """
    target = positive.to(x.dtype)
    inner = torch.randn(x.shape[1], hidden, generator=generator, dtype=x.dtype)
    outer = torch.randn(hidden, *target.shape[1:], generator=generator, dtype=x.dtype) / hidden**0.5
    network = [inner.to(x), x.new_zeros(hidden), outer.to(x), x.new_zeros(target.shape[1:])]
    decays = [DECAY, 0.0, DECAY, 0.0]
    momenta = [torch.zeros_like(tensor) for tensor in network]
    for _ in range(steps):
        gradients = _gradients(network, x, target)
        momenta = [MOMENTUM * v + g + d * w for v, g, d, w in zip(momenta, gradients, decays, network, strict=True)]
        network = [tensor - RATE * momentum for tensor, momentum in zip(network, momenta, strict=True)]
    return network


def _gradients(network: list[Tensor], x: Tensor, target: Tensor) -> list[Tensor]:
    """Return the gradients of the mean loss, written out, so that no autograd graph is made."""
    inner, offsets, outer, offset = network
    units = torch.tanh(x @ inner + offsets)
    logits = units @ outer + offset
    probabilities = torch.sigmoid(logits) if logits.dim() == 1 else logits.softmax(dim=1)
    error = (probabilities - target) / len(x)
    back = error.reshape(len(x), -1) @ outer.reshape(len(outer), -1).T * (1 - units.square())
    return [x.T @ back, back.sum(dim=0), units.T @ error, error.sum(dim=0)]


def _logits(network: list[Tensor], x: Tensor) -> Tensor:
    inner, offsets, outer, offset = network
    return torch.tanh(x @ inner + offsets) @ outer + offset


def _targets(y: Tensor, classes: int) -> Tensor:
    """Return the mask (n,) of rows of class 1, or for more than two classes the mask (n, C) of each class."""
    return y == 1 if classes == 2 else torch.eq(y[:, None], torch.arange(classes, device=y.device))
