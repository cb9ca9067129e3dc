"""Distance correlation of embeddings and labels, kept low while training [S22; Z23 section 4.3]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from flower_vfl.errors import ConfigError, suggestion
from flower_vfl.strategies.base import HookedStrategy
from flower_vfl.strategies.embeddings.pairs import (
    ClassRange,
    add_row_sums,
    blocks_of_one_class,
    both_ways,
    check_batch,
    sort_by_class,
    spread,
    squared_distances,
    strips,
    wants_gradient,
    with_gradient,
)
from flower_vfl.strategies.embeddings.regulariser import Regulariser

Form = Literal["dcor", "log", "squared"]


def distance_correlation(z: Tensor, y: Tensor, *, form: Form = "dcor") -> Tensor:
    r"""Return the distance correlation of embeddings and labels, its square or its logarithm.

    With the doubly centred distances :math:`A` of the embeddings and :math:`B` of the labels
    (:math:`b_{ij} = 1` where the classes differ and 0 elsewhere, which is the distance of 0/1 labels and, but for a
    factor that cancels, of one-hot labels),

    .. math::
        A_{ij} = a_{ij} - \bar a_{i \cdot} - \bar a_{\cdot j} + \bar a_{\cdot \cdot}, \quad
        a_{ij} = \|z_i - z_j\|, \quad
        R^2 = \frac{\sum_{ij} A_{ij} B_{ij}}{\sqrt{\sum_{ij} A_{ij}^2 \sum_{ij} B_{ij}^2}} \in [0, 1],

    "dcor" is :math:`R`, "squared" :math:`R^2`, "log" :math:`\log R`. With :math:`e` the rounding unit of the number
    format, the root is taken as :math:`R^2 / \sqrt{R^2 + e}` and the logarithm as :math:`\frac12 \log(R^2 + e)`, so
    that no gradient grows without bound where the correlation vanishes.

    Added to the loss it makes embeddings depend less on the labels, against attacks on the output of the bottom
    model: spectral and clustering attacks. It does not protect cut gradients.

    Parameters
    ----------
    z : Tensor
        (B, ...) embeddings.
    y : Tensor
        (B,) labels, of any number of classes.
    form : {"dcor", "log", "squared"}
        One of the three definitions in use, on which the weight of the term depends.

    Returns
    -------
    Tensor
        (), in the number format of `z` but float32 for shorter ones; 0 in every form if all labels or all
        embeddings are the same. It can be differentiated once.

    Raises
    ------
    ConfigError
        For an unknown form, embeddings that are not of floating point, and labels that do not fit.

    References
    ----------
    Székely, Rizzo, Bakirov, *Measuring and testing dependence by correlation of distances*, 2007. Sun et al., *Label
    Leakage and Protection from Forward Embedding in Vertical Federated Learning* (the logarithm). Zheng et al.,
    *Protecting Split Learning by Potential Energy Loss*, equation 8 (the square).

    Examples
    --------
    >>> y = torch.tensor([0, 0, 1, 1])
    >>> round(float(distance_correlation(torch.tensor([[0.0], [0.0], [2.0], [2.0]]), y)), 6)
    1.0
    >>> float(distance_correlation(torch.tensor([[0.0], [2.0], [0.0], [2.0]]), y))
    0.0
    """
    _check_form(form)
    check_batch("distance_correlation", z, y)
    rows, order, runs = sort_by_class(z, y)
    if len(runs) < 2:
        return with_gradient(z, rows.new_zeros(()), torch.zeros_like(rows) if wants_gradient(z) else None, order)
    value, gradient = _correlation(rows, runs, form, gradient=wants_gradient(z))
    return with_gradient(z, value.to(rows.dtype), gradient, order)


def _check_form(form: str) -> None:
    if form not in get_args(Form):
        raise ConfigError(f"distance_correlation: there is no form {form!r}; {suggestion(str(form), get_args(Form))}")


@dataclass(frozen=True)
class _Distances:
    """The distances a of all pairs of rows, and the sums over ordered pairs that enter the correlation."""

    strips: list[Tensor]
    """Kept for the gradient only."""
    row_sums: Tensor
    squares: Tensor
    within: Tensor
    """The sum over pairs of one class."""


def _distances(rows: Tensor, runs: list[ClassRange], *, keep: bool) -> _Distances:
    lengths = rows.square().sum(dim=1)
    sums = rows.new_zeros(len(rows), dtype=torch.float64)
    squares, within = sums.new_zeros(()), sums.new_zeros(())
    kept = []
    for head, tail in strips(0, len(rows)):
        strip = squared_distances(rows, lengths, head, tail)
        squares += both_ways(strip)
        strip.sqrt_()
        add_row_sums(sums, strip, head, tail)
        for block in blocks_of_one_class(head, runs):
            within += both_ways(strip[block])
        if keep:
            kept.append(strip)
    return _Distances(kept, sums, squares, within)


def _correlation(rows: Tensor, runs: list[ClassRange], form: Form, *, gradient: bool) -> tuple[Tensor, Tensor | None]:
    """Return the value, float64, and its gradient with respect to the rows, which are of two classes at least."""
    rows = rows - rows.mean(dim=0)
    unit = _or_one(rows.abs().amax() if rows.numel() else rows.new_zeros(()))
    rows = rows / unit  # squares neither overflow nor vanish, and the correlation does not depend on the unit
    count, pairs = len(rows), len(rows) ** 2
    a = _distances(rows, runs, keep=gradient)
    means, mean = a.row_sums / count, a.row_sums.sum() / pairs
    sizes = torch.tensor([end - begin for begin, end in runs]).to(rows.device, non_blocking=True)
    shares = sizes.double() / count
    others = (1.0 - shares).repeat_interleave(sizes, output_size=count)  # means of b, a row each
    differ = 1.0 - shares.square().sum()  # and of all pairs
    covariance = mean - a.within / pairs - 2.0 * (means * others).mean() + mean * differ
    variance = a.squares / pairs - 2.0 * means.square().mean() + mean.square()
    label_variance = differ - 2.0 * others.square().mean() + differ.square()
    scale = (_or_one(variance) * label_variance).sqrt()
    squared = (covariance / scale).clamp(min=0.0)
    value, slope = _in_form(squared, form, torch.finfo(rows.dtype).eps)
    value = torch.where(variance == 0, 0.0, value)
    if not gradient:
        return value, None
    # The derivative by a_ij is by_label * B_ij - by_distance * A_ij; written out, all but two terms belong to a row.
    by_label = slope / (scale * pairs)
    by_distance = slope * squared / (_or_one(variance) * pairs)
    of_rows = by_distance * (means - 0.5 * mean) + by_label * (0.5 * (1.0 + differ) - others)
    forces = _forces(rows, a.strips, runs, of_rows.to(rows.dtype), by_label.to(rows.dtype))
    return value, (forces - (2.0 * count * by_distance).to(rows.dtype) * rows) / unit


def _forces(rows: Tensor, kept: list[Tensor], runs: list[ClassRange], of_rows: Tensor, same_class: Tensor) -> Tensor:
    """Return the gradient of the sum of w_ij a_ij over ordered pairs for fixed weights w.

    The weights are `of_rows[i] + of_rows[j]`, less `same_class` for a pair of one class. Pairs of equal rows add 0.
    """
    forces, totals = torch.zeros_like(rows), rows.new_zeros(len(rows))
    for (head, tail), distances in zip(strips(0, len(rows)), kept, strict=True):
        weights = of_rows[head, None] + of_rows[tail]
        for block in blocks_of_one_class(head, runs):
            weights[block] -= same_class
        weights.div_(distances).nan_to_num_(0.0, 0.0, 0.0)  # by 0 for equal rows
        spread(forces, weights, rows, head, tail)
        add_row_sums(totals, weights, head, tail)
    return 2.0 * (totals[:, None] * rows - forces)


def _in_form(squared: Tensor, form: Form, unit: float) -> tuple[Tensor, Tensor]:
    """Return the correlation in one of its forms and the derivative by its square."""
    softened = squared + unit
    if form == "squared":
        return squared, torch.ones_like(squared)
    if form == "log":
        return 0.5 * softened.log(), 0.5 / softened
    return squared / softened.sqrt(), (0.5 * squared + unit) / softened**1.5


def _or_one(number: Tensor) -> Tensor:
    return torch.where(number == 0, 1.0, number)


class DistanceCorrelation(Regulariser):
    """A term of the loss: alpha times the distance correlation of embeddings and labels.

    The embeddings are those of all feature parties side by side. It protects the output of the bottom models against
    spectral and clustering attacks; cut gradients need a defense of their own.

    Parameters
    ----------
    strategy : HookedStrategy
        The wrapped strategy.
    alpha : float
        Weight of the term, at least 0. Its range depends on the form: 0.001 to 0.05 is usual for "dcor", 1 to 32
        is the second paper's for "squared".
    form : {"dcor", "log", "squared"}
        See `distance_correlation`.
    normalise : bool
        True if each party's embedding is layer-normalised without weights first, in training and in evaluation, as
        the second paper does.

    References
    ----------
    Sun et al., *Label Leakage and Protection from Forward Embedding in Vertical Federated Learning*; Zheng et al.,
    *Protecting Split Learning by Potential Energy Loss*, section 4.3.
    """

    name: ClassVar[str] = "distance_correlation"

    def __init__(
        self, strategy: HookedStrategy, alpha: float = 0.05, form: Form = "dcor", *, normalise: bool = False
    ) -> None:
        _check_form(form)
        super().__init__(strategy, alpha, normalise=normalise)
        self.form: Form = form

    @property
    def params(self) -> dict[str, Any]:
        """Weight, form and normalisation."""
        return {"alpha": self.alpha, "form": self.form, "normalise": self.normalise}

    def term(self, z: Tensor, labels: Tensor) -> Tensor:
        """Return the distance correlation in its form."""
        return distance_correlation(z, labels, form=self.form)
