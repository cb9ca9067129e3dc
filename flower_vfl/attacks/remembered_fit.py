"""A linear reader of what is remembered, fitted on a few rows whose labels the attacker knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch

from flower_vfl.attacks.learned import History, LearnedAttack, Reader
from flower_vfl.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


def ridge(x: Tensor, y: Tensor, penalty: float) -> tuple[Tensor, float]:
    r"""Fit a linear reader to known rows by ridge regression, in closed form.

    .. math::

        w = X^T (X X^T + \alpha I)^{-1} y, \qquad b = \bar y - \langle w, \bar x \rangle, \qquad
        \alpha = \text{penalty} \cdot \tfrac1n \| X \|_F^2

    with X and y around their means. It is the smallest reader: of a few rows with many numbers, a strong penalty leaves
    the difference of the classes' means, which is best where noise is the same in all directions.

    Parameters
    ----------
    x
        (n, F) known rows, float64.
    y
        (n,) their targets.
    penalty
        In units of the rows' mean squared distance from their mean; above 0.

    Returns
    -------
    tuple[Tensor, float]
        Weights w (F,) and the offset b.

    References
    ----------
    Hoerl and Kennard, *Ridge regression: biased estimation for nonorthogonal problems*, Technometrics 12, 1970.
    """
    centre = x.mean(dim=0)
    rows, targets = x - centre, y - y.mean()
    gram = rows @ rows.T
    alpha = penalty * float(gram.diagonal().mean())
    if not alpha > 0:  # all known rows are equal
        return torch.zeros_like(centre), float(y.mean())
    weights = rows.T @ torch.linalg.solve(gram + alpha * torch.eye(len(rows), dtype=rows.dtype), targets)
    return weights, float(y.mean() - centre @ weights)


class RememberedFitAttack(LearnedAttack):
    """Scores each row by a linear reader of its history, fitted on k known rows of each class.

    The reader is that of `ridge`.

    Parameters
    ----------
    k
        How many labelled rows of each class it knows, at least 1.
    penalty
        How strongly large weights are held back, in units of the known rows' mean squared length; above 0.
    reads
        "all", for mean, last and difference; or one of these, or "epochs".
    """

    name: ClassVar[str] = "remembered_fit"

    def __init__(self, k: int = 16, penalty: float = 1.0, reads: History = "all") -> None:
        super().__init__(k, reads)
        if isinstance(penalty, bool) or not 0 < penalty < float("inf"):
            raise ConfigError(f"remembered_fit: penalty is {penalty!r}; give a number above 0")
        self.penalty = penalty

    @property
    def params(self) -> dict[str, Any]:
        """What every learned reader has, and how strongly large weights are held back."""
        return {**super().params, "penalty": self.penalty}

    def fit(self, x: Tensor, positive: Tensor) -> Reader:
        """Return the linear reader."""
        weights, offset = ridge(x.flatten(1), 2.0 * positive.to(x.dtype) - 1.0, self.penalty)
        of_floats = weights.float()
        return lambda rows: rows.flatten(1) @ of_floats + offset
