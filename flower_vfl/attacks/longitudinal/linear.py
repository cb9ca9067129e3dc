"""A linear reader of the row memory, fitted on a few rows with known labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from flower_vfl.attacks.longitudinal.learned import History, LearnedAttack
from flower_vfl.attacks.readers import TensorReader, linear
from flower_vfl.errors import ConfigError
from flower_vfl.registry import is_number

if TYPE_CHECKING:
    from torch import Tensor


class RememberedFitAttack(LearnedAttack):
    """An attack that scores each row by a linear reader of its history, fitted on k known rows of each class.

    The reader is a ridge regression (`readers.ridge`).

    Parameters
    ----------
    k
        Number of labelled rows of each class that it knows, at least 1.
    penalty
        Penalty of large weights, in units of the known rows' mean squared length; above 0.
    reads
        "all", for mean, last and difference; or one of these, or "epochs".
    """

    name: ClassVar[str] = "remembered_fit"

    def __init__(self, k: int = 16, penalty: float = 1.0, reads: History = "all") -> None:
        super().__init__(k, reads)
        if not is_number(penalty) or not 0 < penalty < float("inf"):
            raise ConfigError(f"remembered_fit: penalty is {penalty!r}; give a number above 0")
        self.penalty = penalty

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of every learned reader, and the penalty of large weights."""
        return {**super().params, "penalty": self.penalty}

    def fit(self, x: Tensor, positive: Tensor) -> TensorReader:
        """Return the linear reader."""
        read = linear(x.flatten(1), positive.long(), 2, penalty=self.penalty)
        return lambda rows: read(rows.flatten(1))
