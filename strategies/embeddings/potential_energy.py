"""Potential energy of same-class embeddings: rows of one class repel each other [Z23 section 4.2]."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from flower_vfl.errors import ConfigError, suggestion
from flower_vfl.strategies.base import HookedStrategy
from flower_vfl.strategies.embeddings.pairs import (
    ClassRange,
    add_row_sums,
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

Reduction = Literal["mean", "sum"]
Distance = Literal["angular", "euclidean"]

_EPSILON = 1e-3
_TIP = 2.5e-11
_SHORTEST = 1e-2


def potential_energy(
    z: Tensor,
    y: Tensor,
    *,
    reduction: Reduction = "mean",
    distance: Distance = "angular",
    floor: float = 0.0,
) -> Tensor:
    r"""Return the mean, or the sum, of the inverse distances of all ordered pairs of rows of one class.

    .. math::
        \sum_{i \ne j, \, y_i = y_j} \frac{1}{(\delta_{ij}^4 + \epsilon^4)^{1/4}}, \quad
        \delta_{ij} = \arccos \frac{\langle z_i, z_j \rangle}{\|z_i\| \|z_j\|} \; \text{or} \; \|z_i - z_j\|, \quad
        \epsilon = 10^{-3}

    Equal rows have the energy :math:`1 / \epsilon` and no force; at a distance of 0.1 the energy differs from
    :math:`1 / \delta` by :math:`3 \cdot 10^{-9}` of itself, beyond that by less. The tip of the angle at opposite rows
    is smoothed within :math:`10^{-5}`, so that they exert no force. A row of zeros is at right angles to every other
    and gets no force. The angular form depends on directions only, whatever the length of each row. In float32,
    angles are exact to 0.0005 at both ends.

    Added to the loss it spreads the embeddings of a class over the sphere, so that clustering, and classifiers that
    are fitted to a few labelled rows, reveal less to the owner of the bottom model. It does not protect cut gradients.

    Parameters
    ----------
    z : Tensor
        (B, ...) embeddings; they are not normalised.
    y : Tensor
        (B,) labels, of any number of classes.
    reduction : {"mean", "sum"}
        "mean" divides by the number of pairs; "sum" is the paper's.
    distance : {"angular", "euclidean"}
        The paper's equations 6 and 5.
    floor : float
        In the angular form, the length :math:`f` below which a row counts as short: :math:`\|z\|` becomes
        :math:`(\|z\|^4 + f^4)^{1/4}`, which bounds the gradient of a short row; otherwise it grows as
        :math:`1 / \|z\|`.

    Returns
    -------
    Tensor
        (), in the number format of `z` but float32 for shorter ones; 0 where no class has two rows. It can be
        differentiated once.

    Raises
    ------
    ConfigError
        For an unknown reduction or distance, embeddings that are not of floating point, and labels that do not fit.

    References
    ----------
    Zheng et al., *Protecting Split Learning by Potential Energy Loss*, section 4.2. The paper writes the angle as
    arccos<z, z'>; the inner product must be divided by both lengths.

    Examples
    --------
    >>> z = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0], [5.0, 5.0]])
    >>> float(potential_energy(z, torch.tensor([0, 0, 1, 1])) * math.pi)  # one angle of 90 degrees and one of 135
    1.666...
    """
    _check_form(reduction, distance)
    check_batch("potential_energy", z, y)
    rows, order, runs = sort_by_class(z, y)
    pairs = sum((end - begin) * (end - begin - 1) for begin, end in runs)
    share = 1.0 / max(pairs, 1) if reduction == "mean" else 1.0
    of_rows = _angular if distance == "angular" else _euclidean
    value, gradient = of_rows(rows, runs, floor, gradient=wants_gradient(z))
    return with_gradient(z, (share * value).to(rows.dtype), None if gradient is None else gradient.mul_(share), order)


def _check_form(reduction: str, distance: str) -> None:
    for name, given, kind in (("reduction", reduction, Reduction), ("distance", distance, Distance)):
        if given not in get_args(kind):
            hint = suggestion(str(given), get_args(kind))
            raise ConfigError(f"potential_energy: there is no {name} {given!r}; {hint}")


def _angular(rows: Tensor, runs: list[ClassRange], floor: float, *, gradient: bool) -> tuple[Tensor, Tensor | None]:
    """Return the sum over ordered pairs, float64, and its gradient with respect to the rows."""
    unit = rows.abs().amax(dim=1, keepdim=True) if rows.numel() else rows[:, :1]
    unit = torch.where(unit == 0, 1.0, unit)  # squares of the scaled differences neither overflow nor vanish
    scaled = rows / unit
    lengths = (scaled.square().sum(dim=1, keepdim=True).square() + (floor / unit) ** 4) ** 0.25
    inverse = torch.where(lengths == 0, 0.0, 1.0 / lengths)
    directions = scaled * inverse
    value = rows.new_zeros((), dtype=torch.float64)
    forces = torch.zeros_like(rows) if gradient else None
    for run in runs:
        for head, tail in strips(*run):
            energy, weights = _of_cosines(directions[head] @ directions[tail].T, gradient=gradient)
            value += both_ways(energy)
            if forces is not None and weights is not None:
                spread(forces, weights, directions, head, tail)
    if forces is None:
        return value, None
    along = (forces * directions).sum(dim=1, keepdim=True) * directions.square().sum(dim=1, keepdim=True)
    return value, (forces - along * directions) * (2.0 * inverse / unit)


def _of_cosines(cosines: Tensor, *, gradient: bool) -> tuple[Tensor, Tensor | None]:
    """Return the energies of a strip's pairs, (h, m), and their derivatives; 0 for a row with itself."""
    unit = torch.finfo(cosines.dtype).eps
    tip = max(_TIP, unit)  # The angle has a tip at pi, which staying below pi smooths.
    angles = cosines.clamp_(-1.0, 1.0 - unit).mul_(1.0 - tip).add_(tip).acos()  # and above 0, where the sine is 0 too
    squares = angles.square()
    energy, root = _soften(squares)
    if not gradient:
        return energy, None
    sines = (1.0 - cosines).mul_(cosines.add_(1.0)).rsqrt_()  # 1 / sin
    return energy, sines.mul_(1.0 - tip).mul_(angles).mul_(squares).mul_(energy).mul_(root).mul_(root)


def _soften(squares: Tensor) -> tuple[Tensor, Tensor]:
    """Return the energies of squared distances, and the squares of these, which are not set to 0 on the diagonal."""
    root = squares.square().add_(_EPSILON**4).rsqrt_()
    energy = root.sqrt()
    energy.diagonal().zero_()
    return energy, root


def _euclidean(rows: Tensor, runs: list[ClassRange], floor: float, *, gradient: bool) -> tuple[Tensor, Tensor | None]:
    """Return the sum over ordered pairs, float64, and its gradient with respect to the rows."""
    rows = rows - rows.mean(dim=0)
    squares = rows.square().sum(dim=1)
    value = rows.new_zeros((), dtype=torch.float64)
    forces = torch.zeros_like(rows) if gradient else None
    totals = torch.zeros_like(squares)
    for run in runs:
        for head, tail in strips(*run):
            distances = squared_distances(rows, squares, head, tail)
            energy, root = _soften(distances)
            value += both_ways(energy)
            if forces is not None:
                weights = distances.mul_(energy).mul_(root).mul_(root)
                spread(forces, weights, rows, head, tail)
                add_row_sums(totals, weights, head, tail)
    return value, None if forces is None else 2.0 * (forces - totals[:, None] * rows)


class PotentialEnergy(Regulariser):
    """A term of the loss: alpha times the potential energy of same-class embeddings.

    In the angular form each party's embedding is layer-normalised without weights first, in training and in
    evaluation, so that the top model reads the same embeddings as the term. The energy is that of all feature parties'
    embeddings side by side. It protects the output of the trained bottom model against clustering and against
    classifiers fitted to leaked labels; cut gradients need a defense of their own.

    Parameters
    ----------
    strategy : HookedStrategy
        The wrapped strategy.
    alpha : float
        Weight of the term, at least 0.
    reduction : {"mean", "sum"}
        The paper's alpha, 0.25 to 32, belongs to "sum" and grows in effect with the square of the batch; with "mean",
        the default, it does not depend on the batch.
    distance : {"angular", "euclidean"}
        "euclidean" is the paper's ablation: Euclidean distances of embeddings that are not normalised.

    References
    ----------
    Zheng et al., *Protecting Split Learning by Potential Energy Loss*, section 4.2.
    """

    name: ClassVar[str] = "potential_energy"

    def __init__(
        self,
        strategy: HookedStrategy,
        alpha: float = 1.0,
        *,
        reduction: Reduction = "mean",
        distance: Distance = "angular",
    ) -> None:
        _check_form(reduction, distance)
        super().__init__(strategy, alpha, normalise=distance == "angular")
        self.reduction: Reduction = reduction
        self.distance: Distance = distance

    @property
    def params(self) -> dict[str, Any]:
        """Weight, reduction and distance."""
        return {"alpha": self.alpha, "reduction": self.reduction, "distance": self.distance}

    def term(self, z: Tensor, labels: Tensor) -> Tensor:
        """Return the potential energy; rows that layer norm leaves much shorter than sqrt(D) count as short."""
        floor = _SHORTEST * math.sqrt(z.shape[1])
        return potential_energy(z, labels, reduction=self.reduction, distance=self.distance, floor=floor)
