"""The base of learned readers of a row memory: fitted on a few rows with known labels, they score all others."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from flower_vfl.attacks.base import whole
from flower_vfl.attacks.embedding.inference import LEAKED
from flower_vfl.attacks.longitudinal.base import NO_KNOWN_ROWS, Kept, KnownRows, Memory, MemoryAttack
from flower_vfl.attacks.readers import TensorReader
from flower_vfl.errors import ConfigError, suggestion

History: TypeAlias = Literal["all", "mean", "last", "difference", "epochs"]

BLOCKS: Mapping[History, tuple[Kept, ...]] = {
    "all": ("mean", "last", "difference"),
    "mean": ("mean",),
    "last": ("last",),
    "difference": ("difference",),
    "epochs": ("epochs",),
}
"""Statistics that a reader uses, by its parameter ``reads``: with "last" the gradients of one epoch alone, with
"epochs" those of all epochs, each by itself."""


class LearnedAttack(MemoryAttack):
    """An attack that scores each row by a reader of its history, fitted on k known rows of each class.

    The history of a row is its mean gradient, its last gradient and the difference of its last two, or one of them,
    each in units of the known rows' root mean square; or its gradients of all epochs, in one common unit. These are b
    blocks of D numbers. A subclass fits the reader.

    Parameters
    ----------
    k
        Number of labelled rows of each class that it knows, at least 1.
    reads
        "all", for mean, last and difference; or one of these, or "epochs".
    """

    needs: ClassVar[frozenset[str]] = frozenset({LEAKED})

    def __init__(self, k: int = 16, reads: History = "all") -> None:
        self.k = whole(self.name, "k", k)
        if not isinstance(reads, str) or reads not in BLOCKS:
            raise ConfigError(f"{self.name}: there is no {reads!r} to read; {suggestion(str(reads), BLOCKS)}")
        self.reads: History = reads
        self.keeps = frozenset(BLOCKS[reads])
        self.first_epoch = 2 if reads == "difference" else 1

    @property
    def params(self) -> dict[str, Any]:
        """The number of known rows of each class, and the statistics that are read."""
        return {"k": self.k, "reads": self.reads}

    @property
    def leaks(self) -> int:
        """The number of labelled rows of each class that it knows."""
        return self.k

    @abstractmethod
    def fit(self, x: Tensor, positive: Tensor) -> TensorReader:
        """Fit a reader to known rows.

        Parameters
        ----------
        x
            (n, b, D) histories of the known rows, float64; the root mean square of each block, or of all epochs
            together, is 1 or 0.
        positive
            (n,) of bool; both classes occur.

        Returns
        -------
        TensorReader
            Function from histories (n, b, D) of float32 to scores; never NaN for finite ones.
        """

    def score(self, memory: Memory, known: KnownRows = NO_KNOWN_ROWS) -> Tensor:
        """Return the fitted reader's scores of the rows' histories, (N,)."""
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
