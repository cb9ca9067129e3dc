"""Marvell's optimal noise: the exact optimum for a given power, and the least power for a given divergence.

`optimum` solves one problem in plain floats, `optimum_batched` solves many at once; the derivation is in
`docs/methods/marvell.md`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, TypeVar, overload

import torch
from torch import Tensor

from flower_vfl.errors import ArgumentError
from flower_vfl.strategies.gradients.marvell import optimum, optimum_batched

FloatOrTensor = TypeVar("FloatOrTensor", float, Tensor)

_SEARCH_STEPS = 100
_PRECISION = 1e-12
_VALID = (0.0, 0.0, 1.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class NoiseSpectrum(Generic[FloatOrTensor]):
    """Variances of the noise that a row gets, by its class, and the divergence that they leave.

    Parameters
    ----------
    lam1_neg, lam1_pos : float or Tensor
        Variance along the difference of the class means, for negative and positive rows.
    lam2_neg, lam2_pos : float or Tensor
        Variance in each of the other directions; never more than lam1 of the same class.
    sum_kl : float or Tensor
        Symmetric divergence of the two modelled classes with this noise; inf where no noise of that power helps.
    """

    lam1_neg: FloatOrTensor
    lam2_neg: FloatOrTensor
    lam1_pos: FloatOrTensor
    lam2_pos: FloatOrTensor
    sum_kl: FloatOrTensor

    def power(self, d: FloatOrTensor, p: FloatOrTensor) -> FloatOrTensor:
        """Return the mean squared norm of the noise of a row, for width d and a fraction p of positives."""
        negative = self.lam1_neg + (d - 1) * self.lam2_neg
        positive = self.lam1_pos + (d - 1) * self.lam2_pos
        return p * positive + (1 - p) * negative

    def scaled(self, factor: FloatOrTensor) -> NoiseSpectrum[FloatOrTensor]:
        """Return the noise for gradients with `factor` times as large squares; the divergence stays."""
        return NoiseSpectrum(
            self.lam1_neg * factor, self.lam2_neg * factor, self.lam1_pos * factor, self.lam2_pos * factor, self.sum_kl
        )


@overload
def optimal_noise(  # type: ignore[overload-overlap]
    u: float, v: float, d: float, g: float, p: float, P: float
) -> NoiseSpectrum[float]: ...
@overload
def optimal_noise(
    u: Tensor | float, v: Tensor | float, d: Tensor | float, g: Tensor | float, p: Tensor | float, P: Tensor | float
) -> NoiseSpectrum[Tensor]: ...
def optimal_noise(
    u: Tensor | float, v: Tensor | float, d: Tensor | float, g: Tensor | float, p: Tensor | float, P: Tensor | float
) -> NoiseSpectrum[float] | NoiseSpectrum[Tensor]:
    r"""Return the noise of mean power P that makes the classes hardest to tell apart.

    Negative rows are modelled as :math:`N(\mu_0, u I)`, positive rows as :math:`N(\mu_1, v I)`, and
    :math:`g = \|\mu_1 - \mu_0\|^2`. Of all Gaussian noise with covariance lam1 along :math:`\mu_1 - \mu_0` and lam2
    elsewhere, one pair a class, the least symmetric divergence is returned:

    .. math::
        \min \tfrac12 \Big[ (d-1) \frac{(s-t)^2}{s t} + \frac{(a-b)^2 + g (a+b)}{a b} \Big] \quad \text{s.t.} \quad
        p (\lambda_1^+ + (d-1) \lambda_2^+) + (1-p) (\lambda_1^- + (d-1) \lambda_2^-) \le P, \;
        \lambda_1 \ge \lambda_2 \ge 0

    with :math:`a = \lambda_1^- + u, b = \lambda_1^+ + v, s = \lambda_2^- + u, t = \lambda_2^+ + v`. It is exact at
    every scale, needs at most ten steps of Newton's method on one equation, and takes about 15 microseconds.

    Where all noise is equally good, the least is returned: g = 0 and power to spare, u = v = 0, d = 1. With P = 0
    there is no solution if u or v is 0, and sum_kl is inf.

    Parameters
    ----------
    u, v : float or Tensor
        Variance per coordinate of the negative and of the positive gradients, at least 0.
    d : int or Tensor
        Width of a gradient, at least 1.
    g : float or Tensor
        Squared distance of the class means, at least 0.
    p : float or Tensor
        Fraction of positives, in [0, 1].
    P : float or Tensor
        Mean squared norm of the noise, at least 0.

    Returns
    -------
    NoiseSpectrum
        Floats for floats; if any argument is a tensor, float64 tensors of the broadcast shape, on its device.

    Raises
    ------
    ArgumentError
        For arguments that are negative, not finite or out of range.

    References
    ----------
    Li et al., *Label Leakage and Protection in Two-party Split Learning*, ICLR 2022, section 4.2 and appendix A.4
    (equation 8).

    Examples
    --------
    >>> noise = optimal_noise(u=1.0, v=2.0, d=10, g=3.0, p=0.25, P=6.0)
    >>> round(noise.lam2_neg, 4), noise.lam2_pos, round(noise.sum_kl, 4)
    (0.5434, 0.0, 1.1259)
    >>> round(noise.power(10, 0.25), 12)
    6.0
    >>> optimal_noise(u=torch.tensor([0.0, 1.0]), v=1.0, d=2, g=1.0, p=0.5, P=0.0).sum_kl
    tensor([inf, 1.], dtype=torch.float64)
    """
    given = (u, v, d, g, p, P)
    if not any(isinstance(value, Tensor) for value in given):
        if not (0 <= u < math.inf and 0 <= v < math.inf and 1 <= d < math.inf and 0 <= g < math.inf):
            raise _invalid(given)
        if not (0 <= p <= 1 and 0 <= P < math.inf):
            raise _invalid(given)
        return NoiseSpectrum(*optimum.solve(*map(float, given)))
    device = next(value.device for value in given if isinstance(value, Tensor))
    single = [torch.as_tensor(value, dtype=torch.float64, device=device) for value in given]
    extremes = [torch.stack(torch.aminmax(value)) for value in single if value.numel()]
    low, high = torch.stack(extremes).T.tolist() if len(extremes) == len(given) else (_VALID, _VALID)
    if not all(map(math.isfinite, high)) or not min(low) >= 0.0 or low[2] < 1.0 or high[4] > 1.0:
        raise _invalid(given)
    return NoiseSpectrum(*optimum_batched.solve(*torch.broadcast_tensors(*single)))  # type: ignore[no-untyped-call]


def _invalid(given: tuple[Tensor | float, ...]) -> ArgumentError:
    words = ", ".join(f"{name}={value}" for name, value in zip("uvdgpP", given, strict=True))
    return ArgumentError(
        f"optimal_noise: given {words}; u, v, g and P must be finite and at least 0, d finite and at least 1, "
        "p between 0 and 1"
    )


def least_power(u: float, v: float, d: float, g: float, p: float, sum_kl: float) -> tuple[float, NoiseSpectrum[float]]:
    r"""Return the least power at which the optimal noise brings the divergence down to `sum_kl`, and that noise.

    The optimal divergence falls as the power rises. The power that makes both classes spherical with the variance
    max(u, v, g / sum_kl) suffices; between it and zero the least one is found by a bracketed search. The upper
    end of the bracket is returned: its divergence was computed, and is at most `sum_kl`.

    Parameters
    ----------
    u, v, d, g, p : float
        As for `optimal_noise`.
    sum_kl : float
        Target, above 0: no finite power reaches 0 where the means differ.

    Returns
    -------
    tuple[float, NoiseSpectrum]
        The power, within 1e-10 of the least, and the noise.

    Raises
    ------
    ArgumentError
        For a target that is not a finite number above 0, and for arguments that `optimal_noise` refuses.

    References
    ----------
    Li et al., *Label Leakage and Protection in Two-party Split Learning* (workshop version), 2021, section 4.2.

    Examples
    --------
    >>> power, noise = least_power(u=1.0, v=2.0, d=10, g=3.0, p=0.25, sum_kl=0.5)
    >>> round(power, 6), noise.sum_kl <= 0.5
    (10.730209, True)
    """
    if not 0.0 < sum_kl < math.inf:
        raise ArgumentError(f"least_power: sum_kl must be a finite number above 0, given {sum_kl}")
    noise = optimal_noise(u, v, d, g, p, 0.0)
    if noise.sum_kl <= sum_kl:
        return 0.0, noise
    small, large, share = (u, v, 1 - p) if u <= v else (v, u, p)
    level = max(large, g / sum_kl)
    high = share * ((d - 1) * (large - small) + (level - small)) + (1 - share) * (level - large)
    high *= 1.0 + _PRECISION  # The bound is exact, the arithmetic is not.
    best = optimal_noise(u, v, d, g, p, high)
    low, low_value = high * 1e-20, math.log(noise.sum_kl / sum_kl)
    high_value = math.log(best.sum_kl / sum_kl) if best.sum_kl > 0.0 else -1.0
    for step in range(_SEARCH_STEPS):
        if high <= low * (1.0 + _PRECISION):
            break
        width = math.log(high / low)
        part = 0.5
        if step % 3 and math.isfinite(low_value):
            part = min(max(low_value / (low_value - high_value), 1e-3), 1.0 - 1e-3)
        middle = low * math.exp(part * width)
        noise = optimal_noise(u, v, d, g, p, middle)
        if noise.sum_kl <= sum_kl:
            high, best = middle, noise
            high_value = math.log(noise.sum_kl / sum_kl) if noise.sum_kl > 0.0 else -1.0
        else:
            low, low_value = middle, math.log(noise.sum_kl / sum_kl)
    return high, best
