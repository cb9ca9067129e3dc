"""Noise on the targets of a loss, drawn once, and the evidence on labels by such targets [TPSL, ALIBI]."""

from __future__ import annotations

import torch
from torch import Tensor

from flower_vfl.rng import Keystream
from flower_vfl.strategies.labels.label_dp import check_labels

GRID = 1024
"""Number of steps of the noise from 0 to 1: targets of both labels have the same values, unlike real numbers."""


def noisy_targets(labels: Tensor, *, classes: int, epsilon: float, draws: Keystream) -> Tensor:
    r"""Return the target of each label with discrete Laplace noise.

    Two classes have one target, :math:`x = y + u`; more have one a class, :math:`x = e_y + u`, of which a label changes
    two. The noise :math:`u` has the values :math:`j / 1024` with probabilities proportional to
    :math:`e^{-|u| / b}`, where :math:`b` is :math:`1 / \varepsilon`, or :math:`2 / \varepsilon` for more than two
    classes.

    So the targets are label-private with epsilon. Cross-entropy is linear in its target, and the noise has mean 0: the
    gradient of the loss with these targets is, on average over the noise, that of the true labels. Drawn once, they
    are private over all epochs; drawn again, they would cost epsilon each time.

    The distribution is discrete because the last digits of a floating-point number would reveal the label. Its tails
    end beyond 73 b, which has a probability of :math:`2^{-106}`: a larger noise would prove the label, so up to
    `LARGEST_TARGET` a delta below 1e-22 belongs to epsilon.

    Parameters
    ----------
    labels : Tensor
        (N,) whole numbers from 0 to classes - 1.
    classes : int
        Number of classes C, at least 2.
    epsilon : float
        Privacy parameter of each label, above 0.
    draws : Keystream
        Source of the random numbers.

    Returns
    -------
    Tensor
        (N,) for two classes, else (N, C), in single precision.

    References
    ----------
    [TPSL] Yang et al., *Differentially private label protection in split learning*, 2022, for noise on targets; Ghosh,
    Roughgarden, Sundararajan, *Universally utility-maximizing privacy mechanisms*, 2009, for discrete noise; Mironov,
    *On significance of the least significant bits for differential privacy*, 2012.

    Examples
    --------
    >>> y = torch.tensor([0, 1, 1])
    >>> x = noisy_targets(y, classes=2, epsilon=100.0, draws=Keystream(bytes(32)))
    >>> [round(value, 3) for value in x.tolist()]
    [-0.001, 1.002, 1.012]
    """
    whole = check_labels(labels, classes)
    clean = whole.double() if classes == 2 else torch.nn.functional.one_hot(whole, classes).double()
    decay = 1.0 / (scale_of(epsilon, classes) * GRID)
    # The second draw fills the digits below those of the first, which matter for the smallest numbers alone.
    coarse, fine = (torch.from_numpy(draws.uniform(2, *clean.shape)).to(clean.device) for _ in range(2))
    one, other = torch.floor(-torch.log((1.0 - coarse) - 2.0**-53 * fine) / decay)
    noise: Tensor = (one - other) / GRID
    return (clean + noise).float()


def scale_of(epsilon: float, classes: int) -> float:
    """Return the scale b of the noise: the change of all targets together by a label, over epsilon.

    Examples
    --------
    >>> scale_of(0.5, 2), scale_of(0.5, 10)
    (2.0, 4.0)
    """
    return (1.0 if classes == 2 else 2.0) / epsilon


def evidence_of_targets(targets: Tensor, *, epsilon: float) -> Tensor:
    r"""Return the log-likelihood ratios of noisy targets with a label and without it.

    .. math:: \frac{|x| - |x - 1|}{b}

    Parameters
    ----------
    targets : Tensor
        (..., N) of two classes or (..., N, C), as `noisy_targets` draws them.
    epsilon : float
        Privacy parameter with which they were drawn.

    Returns
    -------
    Tensor
        In the shape of `targets`: at most epsilon in size, for more than two classes half of it.
    """
    scale = scale_of(epsilon, 2 if targets.dim() == 1 else targets.shape[-1])
    return (targets.abs() - (targets - 1.0).abs()) / scale


def evidence_of_answers(answers: Tensor, *, classes: int, epsilon: float) -> Tensor:
    """Return the log-likelihood ratios of answers of randomised response with a label and without it.

    Parameters
    ----------
    answers : Tensor
        (N,) randomised labels.
    classes : int
        Number of classes C.
    epsilon : float
        Privacy parameter with which they were drawn.

    Returns
    -------
    Tensor
        (N,) for two classes: epsilon for an answer of 1, else -epsilon. Otherwise (N, C): epsilon for the answer.
    """
    if classes == 2:
        return epsilon * (2.0 * answers.float() - 1.0)
    return epsilon * torch.nn.functional.one_hot(answers.long(), classes).float()


def posterior(logits: Tensor, evidence: Tensor) -> Tensor:
    r"""Return the probability of each label, from a head's prediction and the evidence of the draw.

    .. math:: t_c \propto p_c \, P(x \mid c)

    The cross-entropy with these targets, held fixed, has the gradient :math:`p - t` by the logits. That is the gradient
    of :math:`-\log \sum_c p_c P(x \mid c)`: a head that follows it learns by maximum likelihood, and its
    predictions are those of true labels rather than of randomised ones.

    Parameters
    ----------
    logits : Tensor
        (N,) of two classes or (N, C).
    evidence : Tensor
        Logarithms of the likelihoods, in the same shape, up to a constant a row.

    References
    ----------
    [ALIBI] Malek, Mironov, Prasad, Shilov, Tramèr, *Antipodes of label differential privacy: PATE and ALIBI*, NeurIPS
    2021; Patrini et al., *Making deep neural networks robust to label noise: a loss correction approach*, CVPR 2017,
    for the same loss with randomised response ("forward").

    Examples
    --------
    >>> posterior(torch.tensor([0.0, 0.0]), torch.tensor([1.0986, -1.0986]))
    tensor([0.7500, 0.2500])
    """
    added = logits.detach() + evidence.to(logits)
    return torch.sigmoid(added) if logits.dim() == 1 else torch.softmax(added, dim=-1)
