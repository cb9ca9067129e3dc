"""What a learned reader of a memory is: fitted on a few rows whose labels the attacker knows, it reads all others."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from flower_vfl.attacks.base import whole
from flower_vfl.attacks.inference import LEAKED
from flower_vfl.attacks.remembering import NOBODY, Kept, KnownRows, Memory, MemoryAttack
from flower_vfl.errors import ConfigError
from flower_vfl.registry import suggestion

History: TypeAlias = Literal["all", "mean", "last", "difference", "epochs"]

BLOCKS: Mapping[History, tuple[Kept, ...]] = {
    "all": ("mean", "last", "difference"),
    "mean": ("mean",),
    "last": ("last",),
    "difference": ("difference",),
    "epochs": ("epochs",),
}
"""What a reader looks at. With "last" it reads the gradients of one epoch, and remembers nothing; with "epochs" those
of all epochs, each by itself."""

Reader: TypeAlias = Callable[[Tensor], Tensor]
"""From histories (n, b, D) to scores (n,), higher means more likely positive."""

_MIXTURE = 1e-6
"""Part of the largest variance below which a mixture of blocks is rounding, and nothing of its own."""


class LearnedAttack(MemoryAttack):
    """Scores each row by a reader of its history, fitted on k known rows of each class.

    The history of a row is its remembered mean, its last gradient and the difference of its last two, or one of them,
    each measured in the root mean square of the known rows; or its gradients of all epochs, measured together. These
    are b blocks of D numbers. A subclass says how the reader is fitted.

    Parameters
    ----------
    k
        How many labelled rows of each class it knows, at least 1.
    reads
        "all", for mean, last and difference; or one of these, or "epochs".
    """

    needs: ClassVar[frozenset[str]] = frozenset({LEAKED})

    def __init__(self, k: int = 16, reads: History = "all") -> None:
        self.k = whole(self.name, "k", k)
        if reads not in BLOCKS:
            raise ConfigError(f"{self.name}: there is no {reads!r} to read; {suggestion(str(reads), BLOCKS)}")
        self.reads: History = reads
        self.keeps = frozenset(BLOCKS[reads])
        self.first_epoch = 2 if reads == "difference" else 1

    @property
    def params(self) -> dict[str, Any]:
        """How many labelled rows of each class are known, and what is read of each row."""
        return {"k": self.k, "reads": self.reads}

    @property
    def leaks(self) -> int:
        """How many labelled rows of each class it knows."""
        return self.k

    @abstractmethod
    def fit(self, x: Tensor, positive: Tensor) -> Reader:
        """Fit a reader to known rows.

        Parameters
        ----------
        x
            (n, b, D) histories of the known rows, float64; of each block, or of all epochs, the root mean square is 1,
            or 0.
        positive
            (n,) of bool; both classes occur.

        Returns
        -------
        Reader
            Scores histories (n, b, D) of float32; never NaN for finite ones.
        """

    def score(self, memory: Memory, known: KnownRows = NOBODY) -> Tensor:
        """Return what the fitted reader says of each row's history, (N,)."""
        positive = torch.from_numpy(known.require(0, 1).labels == 1)
        blocks = BLOCKS[self.reads]
        parts = [memory.at(known.rows, kept).double() for kept in blocks]
        units = [float(part.square().mean().sqrt()) or 1.0 for part in parts]
        read = self.fit(_histories(parts, units, memory.width), positive)
        pieces = zip(*(memory.pieces(kept) for kept in blocks), strict=True)
        return torch.cat([read(_histories(piece, units, memory.width)) for piece in pieces])


def _histories(parts: Sequence[Tensor], units: Sequence[float], width: int) -> Tensor:
    """Return parts (n, D), or (n, T D), in their units as blocks (n, b, D)."""
    blocks = [(part / unit).view(len(part), -1, width) for part, unit in zip(parts, units, strict=True)]
    return torch.cat(blocks, dim=1)


def standardising(x: Tensor) -> Callable[[Tensor], Tensor]:
    r"""Return what centres histories, makes their blocks uncorrelated and gives each of them mean variance 1.

    .. math:: z = (x - \bar x) (M \otimes I_D), \qquad M^T C M = I, \qquad
        C_{ab} = \tfrac{1}{nD} \sum_i \langle x_i^a - \bar x^a, \; x_i^b - \bar x^b \rangle

    A mean, the last gradient in it and a difference of that say much of the same, after one epoch all of it: a reader
    that takes coordinates as alike would count it several times. Epochs with persistent noise have most of it in
    common, and what differs between them would hardly count. Coordinates of a block keep their proportions.

    Parameters
    ----------
    x
        (n, b, D) known rows, float64.

    Returns
    -------
    Callable[[Tensor], Tensor]
        From histories (n, b, D) to (n, r D) of float64, with r the number of blocks that are no mixture of others.
    """
    mean = x.mean(dim=0)
    apart = (x - mean).transpose(0, 1).flatten(1)
    values, vectors = torch.linalg.eigh(apart @ apart.T / apart.shape[1])
    which = values > _MIXTURE * values[-1]
    mixing = vectors[:, which] / values[which].sqrt() if bool(which.any()) else torch.eye(x.shape[1], dtype=x.dtype)

    def standardised(rows: Tensor) -> Tensor:
        return torch.einsum("nbd,br->nrd", rows.double() - mean, mixing).flatten(1)

    return standardised
