"""Noise models, for a conditional oracle: the distribution of a sent gradient, given all of its row but the label.

A defense describes the noise of its last batch by one of these models. Pure functions over tensors; they are computed
in float64 on the processor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

WIDEST_COVARIANCE = 512
"""Largest width of gradients for a model with one covariance for each class: its matrices have this size."""

_ROUNDING = 8.0
"""Standard deviation of the rounding of sent gradients, in units of their precision times their largest entry."""

_FINEST = 1e-12
"""Assumed precision of float64; products lose the last digits."""


class NoiseModel(Protocol):
    """The noise of one batch, for all gradients that were perturbed together."""

    def log_ratio(self, sent: Tensor, hypotheses: Tensor, columns: Tensor) -> Tensor:
        """Return the log-likelihood ratio of label 1 to label 0 for each row, (B,) float64.

        Parameters
        ----------
        sent : Tensor
            (B, d) sent gradients in these columns.
        hypotheses : Tensor
            (2, B, D) gradients before the noise, if the row had label 0 and if it had label 1, with all columns.
        columns : Tensor
            (d,) positions, among the D columns, of those that the reader sees.
        """


@dataclass(frozen=True, slots=True, eq=False)
class GaussianNoise:
    r"""Normal noise with one covariance a class, :math:`\Sigma_c = e_c I + F_c F_c^T`.

    Attributes
    ----------
    everywhere
        e, variance in every direction, of negatives and of positives.
    factors
        F, (D, R) of each; R may be 0.

    Examples
    --------
    >>> noise = GaussianNoise((1.0, 1.0), (torch.zeros(1, 0), torch.zeros(1, 0)))
    >>> means = torch.tensor([[[0.0], [0.0]], [[2.0], [2.0]]])
    >>> noise.log_ratio(torch.tensor([[1.0], [3.0]]), means, torch.arange(1)).round(decimals=6).tolist()
    [0.0, 4.0]
    """

    everywhere: tuple[float, float]
    factors: tuple[Tensor, Tensor]

    def log_ratio(self, sent: Tensor, hypotheses: Tensor, columns: Tensor) -> Tensor:
        """Return the log-likelihood ratios, see `NoiseModel.log_ratio`."""
        x, floor = _exact(sent), _rounding(sent)
        found = []
        for everywhere, factors, mean in zip(self.everywhere, self.factors, hypotheses, strict=True):
            inside = _exact(factors)[columns]
            identity = torch.eye(x.shape[1], dtype=torch.float64)
            root = torch.linalg.cholesky(inside @ inside.T + (everywhere + floor) * identity)
            away = torch.linalg.solve_triangular(root, (x - _exact(mean)[:, columns]).T, upper=False)
            found.append(-0.5 * away.square().sum(dim=0) - root.diagonal().log().sum())
        ratio: Tensor = found[1] - found[0]
        return ratio


@dataclass(frozen=True, slots=True)
class LineNoise:
    r"""Noise along each row's own gradient, :math:`g (1 + \sigma \varepsilon)`, to a mean square of `longest` squared.

    Attributes
    ----------
    longest
        Length of the longest row of the batch.
    """

    longest: float

    def log_ratio(self, sent: Tensor, hypotheses: Tensor, columns: Tensor) -> Tensor:
        """Return the log-likelihood ratios, see `NoiseModel.log_ratio`."""
        x, floor = _exact(sent), _rounding(sent)
        found = []
        for hypothesis in hypotheses:
            whole = _exact(hypothesis)
            mean, square = whole[:, columns], whole.square().sum(dim=1)
            own = mean.square().sum(dim=1)
            line = mean / own.sqrt().clamp(min=torch.finfo(torch.float64).tiny)[:, None]
            along = (x * line).sum(dim=1)
            missing = (self.longest**2 - square).clamp(min=0.0)  # a row of the other label may be longer than all
            variance = missing * own / square.clamp(min=torch.finfo(torch.float64).tiny) + floor
            across = (x - along[:, None] * line).square().sum(dim=1)
            found.append(-0.5 * ((along - own.sqrt()).square() / variance + variance.log() + across / floor))
        return found[1] - found[0]


def hypotheses(gradients: Tensor, labels: Tensor, change: Tensor) -> Tensor:
    """Return each gradient as it would be with label 0 and with label 1, (2, B, D).

    Parameters
    ----------
    gradients : Tensor
        (B, D) gradients before any noise.
    labels : Tensor
        (B,) the labels 0 or 1 that they were computed with.
    change : Tensor
        (B, D) change of each gradient where its label changes from 0 to 1.

    Examples
    --------
    >>> hypotheses(torch.tensor([[0.25], [-0.5]]), torch.tensor([0, 1]), torch.tensor([[-1.0], [-1.0]])).tolist()
    [[[0.25], [0.5]], [[-0.75], [-0.5]]]
    """
    positive = (labels == 1)[:, None].to(gradients)
    return torch.stack([gradients - positive * change, gradients + (1.0 - positive) * change])


def _exact(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float64)


def _rounding(sent: Tensor) -> float:
    """Return the variance of the rounding alone: no reader has more digits of a number than its format."""
    relative = _ROUNDING * max(torch.finfo(sent.dtype).eps, _FINEST)
    largest = float(sent.abs().max()) if sent.numel() else 0.0
    return max((relative * largest) ** 2, torch.finfo(torch.float64).tiny)
