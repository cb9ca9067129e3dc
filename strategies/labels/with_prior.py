"""Randomised response for labels with a prior [G21]."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from flower_vfl.errors import ConfigError
from flower_vfl.rng import Keystream
from flower_vfl.strategies.labels.label_dp import check_labels


def response_probabilities(labels: Tensor, prior: Tensor, *, epsilon: float) -> Tensor:
    r"""Return the probability of each class as the answer to each label.

    With the prior in falling order, :math:`p_{(1)} \ge p_{(2)} \ge \dots`, take the :math:`k` that maximises

    .. math:: w_k = \frac{e^\varepsilon}{e^\varepsilon + k - 1} \sum_{j \le k} p_{(j)}.

    A label among the :math:`k` most likely classes is kept with probability
    :math:`e^\varepsilon / (e^\varepsilon + k - 1)`, or becomes each other one of these with probability
    :math:`1 / (e^\varepsilon + k - 1)`. Any other label becomes each of the :math:`k` with probability :math:`1 / k`.

    For any prior that does not depend on the label, the answer is label-private with epsilon. No private answer is
    right with a higher probability than :math:`w_k`. A uniform prior gives `flip`.

    Parameters
    ----------
    labels : Tensor
        (N,) whole numbers from 0 to C - 1.
    prior : Tensor
        (N, C) or (C,): probabilities of the classes, none of them computed from the label itself.
    epsilon : float
        Privacy parameter of each label, above 0.

    Returns
    -------
    Tensor
        (N, C) probabilities, in double precision.

    Raises
    ------
    ConfigError
        For an invalid prior, labels that are none of its classes, and an epsilon of 0 or below.

    References
    ----------
    [G21] Ghazi, Golowich, Kumar, Manurangsi, Zhang, *Deep learning with label differential privacy*, NeurIPS 2021,
    Algorithm 2 (RRTop-k), Algorithm 3 (RRWithPrior) and Theorem 3.

    Examples
    --------
    >>> response_probabilities(torch.tensor([0, 1]), torch.tensor([0.7, 0.3]), epsilon=0.5)  # k = 1: it is constant
    tensor([[1., 0.],
            [1., 0.]], dtype=torch.float64)
    """
    p = _check_prior(prior, len(labels))
    whole = check_labels(labels, p.shape[1])
    if not 0.0 < epsilon < math.inf:
        raise ConfigError(f"with_prior: epsilon must be a finite number above 0, given {epsilon!r}")
    ranked = torch.sort(p, dim=1, descending=True, stable=True)
    sizes = torch.arange(1, p.shape[1] + 1, device=p.device, dtype=torch.float64)
    kept = 1.0 / (1.0 + (sizes - 1.0) * math.exp(-epsilon))
    k = (kept * ranked.values.cumsum(dim=1)).argmax(dim=1, keepdim=True) + 1
    rank = torch.argsort(ranked.indices, dim=1)
    answered = rank < k
    mine = torch.arange(p.shape[1], device=p.device) == whole[:, None]
    keep = kept[k - 1]
    inside = torch.where(mine, keep, keep * math.exp(-epsilon))
    probability = torch.where(answered.gather(1, whole[:, None]), inside, 1.0 / k.double())
    return torch.where(answered, probability, 0.0)


def with_prior(labels: Tensor, prior: Tensor, *, epsilon: float, draws: Keystream) -> Tensor:
    """Draw an answer for each label by `response_probabilities`; a class with probability 0 is never drawn.

    Parameters
    ----------
    labels, prior, epsilon
        As for `response_probabilities`.
    draws : Keystream
        Source of the random numbers.

    Returns
    -------
    Tensor
        (N,) in the number format of `labels`.

    Examples
    --------
    >>> y = torch.tensor([0, 1, 2, 0, 1, 2])
    >>> with_prior(y, torch.tensor([0.5, 0.4, 0.1]), epsilon=2.0, draws=Keystream(bytes(32))).tolist()
    [0, 1, 1, 0, 1, 0]
    """
    probability = response_probabilities(labels, prior, epsilon=epsilon)
    below = probability.cumsum(dim=1)
    below = below / below[:, -1:]  # rounded, the sum may not be 1
    drawn = torch.from_numpy(draws.uniform(len(labels), 1)).to(below.device)
    return (below <= drawn).sum(dim=1).to(labels.dtype)


def without_flips(answered: Tensor, *, rate: float) -> Tensor:
    r"""Return the probabilities of labels from those of their randomised answers with flips of this rate.

    Flips turn probabilities :math:`\pi` into
    :math:`\rho / (C - 1) + (1 - \rho C / (C - 1))\, \pi`; a result below 0 counts as 0.

    Parameters
    ----------
    answered : Tensor
        (N, C) probabilities of the flipped labels.
    rate : float
        The probability that a label is replaced.

    Examples
    --------
    >>> without_flips(torch.tensor([[0.62, 0.38]]), rate=0.2)
    tensor([[0.7000, 0.3000]])
    """
    classes = answered.shape[1]
    floor = rate / (classes - 1)
    found = ((answered - floor) / (1.0 - classes * floor)).clamp(min=0.0)
    return found / found.sum(dim=1, keepdim=True)


def _check_prior(prior: Tensor, rows: int) -> Tensor:
    """Return the prior (N, C) in double precision, after a check."""
    p = prior.double()
    if p.dim() == 1:
        p = p.expand(rows, -1)
    if p.dim() != 2 or len(p) != rows or p.shape[1] < 2:
        raise ConfigError(
            "with_prior: a prior has a probability for each of at least 2 classes, for all labels or for each of "
            f"them; given {tuple(prior.shape)} for {rows} labels"
        )
    if rows and not bool((p >= 0.0).all() and torch.allclose(p.sum(dim=1), p.new_ones(rows), atol=1e-4)):
        raise ConfigError("with_prior: the probabilities of a prior are at least 0 and add up to 1; these do not")
    return p
