"""The hint attack: the attacker knows a few positives of the batch, and searches for gradients near theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, get_args

import torch

from flower_vfl.attacks.base import HINTS, RowAttack, one_of, whole
from flower_vfl.attacks.rows import as_known, as_rows, cosines, inner_products, lengths, narrowed, required
from flower_vfl.errors import ArgumentError, suggestion

if TYPE_CHECKING:
    from torch import Tensor

Measure = Literal["inner", "cosine", "distance"]


def score(g: Tensor, hints: Tensor, measure: Measure = "inner") -> Tensor:
    r"""Score each example by the nearness of its gradient to the nearest gradient of a known positive.

    .. math::

        r(g_i) = \max_j \langle g_i, h_j \rangle, \qquad \max_j \cos(g_i, h_j), \qquad
        \text{or} \quad -\min_j \| g_i - h_j \|_2

    The hints are gradients that the attacker itself received, noise included: an attacker that knows a few customers
    of the label party can do this, without any oracle.

    Parameters
    ----------
    g
        (B, D) gradients, one row an example; further dimensions are flattened.
    hints
        (k, D) the perturbed gradients of k > 0 known positives at the same layer; further dimensions are flattened.
        Hinted examples must be left out of the measurement.
    measure
        Measure of nearness: "inner", "cosine" or "distance".

    Returns
    -------
    Tensor
        (B,) scores; float64 for inner products, which leave the range of float32; else float32 for the half precisions
        and the type of ``g`` for the others. A row of zeros has cosine 0 with every hint.

    Raises
    ------
    ArgumentError
        When ``g`` is no floating point tensor with a row for each example, when there is no hint or hints are of
        another width, and for an unknown measure.

    References
    ----------
    Li et al., *Label Leakage and Protection in Two-party Split Learning*, 2021 workshop version, section 5.3 (its
    figures show five hints with the inner product).

    Examples
    --------
    >>> g, hints = torch.tensor([[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> score(g, hints)
    tensor([2., 3., 0.], dtype=torch.float64)
    >>> score(g, hints, measure="distance")
    tensor([-1.0000, -2.0000, -1.4142])
    """
    rows = as_rows(g)
    return _nearness(rows, as_known(hints, rows, "Hints"), measure)


def _nearness(rows: Tensor, known: Tensor, measure: Measure) -> Tensor:
    """Return the nearness (..., B) of rows (..., B, D) to the nearest known row (..., k, D) of their batch."""
    if measure == "inner":
        return inner_products(known, rows).amax(dim=-2)
    if measure == "cosine":
        return narrowed(cosines(known, rows).amax(dim=-2), rows)
    if measure == "distance":
        return narrowed(-_distances(rows, known), rows)
    raise ArgumentError(f"There is no measure {measure!r}; {suggestion(str(measure), get_args(Measure))}.")


def _distances(rows: Tensor, known: Tensor) -> Tensor:
    """Return the Euclidean distance (..., B) of each row from the nearest known row of its batch.

    Differences are taken entry by entry: the usual way over inner products loses all digits of a small distance.
    """
    wide = torch.promote_types(torch.promote_types(rows.dtype, known.dtype), torch.float32)
    rows, known = rows.to(wide), known.to(wide)
    difference = torch.empty_like(rows)  # allocating memory for each hint costs more than the arithmetic
    apart = (lengths(torch.sub(rows, hint[..., None, :], out=difference)) for hint in known.unbind(dim=-2))
    return torch.stack(list(apart)).amin(dim=0)


class HintAttack(RowAttack):
    """An attack that scores each example by its nearness to the gradients of k known positives of the batch.

    Parameters
    ----------
    k
        Number of positives that it knows, at least 1. A batch with fewer positives than that cannot be scored, one with
        just as many has no other positive: such steps are counted with those of one class.
    measure
        Measure of nearness: "inner", "cosine" or "distance".

    Examples
    --------
    >>> HintAttack(k=3, measure="cosine").label
    'hint(k=3,measure=cosine)'
    """

    name: ClassVar[str] = "hint"
    needs: ClassVar[frozenset[str]] = frozenset({HINTS})

    def __init__(self, k: int = 5, measure: Measure = "inner") -> None:
        self.k = whole(self.name, "k", k)
        self.measure = one_of(self.name, "measure", measure, get_args(Measure))

    @property
    def hints(self) -> int:
        """The number of positives of the batch that it knows."""
        return self.k

    def rate(self, rows: Tensor, known: Tensor | None) -> Tensor:
        """Return the nearness of the rows to the hints of their batch."""
        return _nearness(rows, required(known, self.label), self.measure)
