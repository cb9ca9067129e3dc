"""A reader of the whole history: fitted on a few rows whose labels the attacker knows, it reads all others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch

from flower_vfl.attacks.inference import LEAKED
from flower_vfl.attacks.remembering import NOBODY, Kept, KnownRows, Memory, MemoryAttack
from flower_vfl.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

HISTORY: tuple[Kept, ...] = ("mean", "last", "difference")


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


class RememberedFitAttack(MemoryAttack):
    """Scores each row by a linear reader of its history, fitted on k known rows of each class.

    The history of a row is its remembered mean, its last gradient and the difference of its last two, each measured in
    the root mean square of the known rows. The reader is that of `ridge`.

    Parameters
    ----------
    k
        How many labelled rows of each class it knows, at least 1.
    penalty
        How strongly large weights are held back, in units of the known rows' mean squared length; above 0.
    """

    name: ClassVar[str] = "remembered_fit"
    needs: ClassVar[frozenset[str]] = frozenset({LEAKED})
    keeps: ClassVar[frozenset[Kept]] = frozenset(HISTORY)

    def __init__(self, k: int = 16, penalty: float = 1.0) -> None:
        if not isinstance(k, int) or isinstance(k, bool) or k < 1:
            raise ConfigError(f"remembered_fit: k is {k!r}, known rows of each class; give a whole number from 1")
        if isinstance(penalty, bool) or not 0 < penalty < float("inf"):
            raise ConfigError(f"remembered_fit: penalty is {penalty!r}; give a number above 0")
        self.k, self.penalty = k, penalty

    @property
    def params(self) -> dict[str, Any]:
        """How many labelled rows of each class are known, and how strongly large weights are held back."""
        return {"k": self.k, "penalty": self.penalty}

    @property
    def leaks(self) -> int:
        """How many labelled rows of each class it knows."""
        return self.k

    def score(self, memory: Memory, known: KnownRows = NOBODY) -> Tensor:
        """Return what the fitted reader says of each row's history, (N,)."""
        labels = known.require(0, 1).labels
        parts = [memory.at(known.rows, kept).double() for kept in HISTORY]
        units = [float(part.square().mean().sqrt()) or 1.0 for part in parts]
        x = torch.cat([part / unit for part, unit in zip(parts, units, strict=True)], dim=1)
        weights, offset = ridge(x, torch.from_numpy(2.0 * labels - 1.0), self.penalty)
        of_parts = torch.split(weights, memory.width)
        readers = [(w / unit).float() for w, unit in zip(of_parts, units, strict=True)]
        histories = zip(*(memory.pieces(kept) for kept in HISTORY), strict=True)
        said = [torch.stack([part @ w for part, w in zip(history, readers, strict=True)]) for history in histories]
        return torch.cat([parts.sum(dim=0) for parts in said]) + offset
