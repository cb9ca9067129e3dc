"""The interface of joint attacks: a feature party's view at the end of training in, scores of its rows out.

A feature party owns its columns and its bottom model. Noise on gradients averages out over people with similar columns,
so that many noisy gradients may reveal more than a single one.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from flower_vfl.attacks.base import AttackMethod
from flower_vfl.attacks.longitudinal.base import NO_KNOWN_ROWS, KnownRows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

Sees: TypeAlias = Literal["columns", "embeddings", "gradients"]
"""Parts of a party's view."""


@dataclass(frozen=True, slots=True, eq=False)
class OwnRows:
    """A party's own columns and embeddings of some rows.

    Attributes
    ----------
    inputs
        (n, ...) inputs of the party's model: numbers as floating point tensors, category numbers or word ids as
        integers.
    embeddings
        (n, ...) outputs of the trained bottom model for them.
    """

    inputs: tuple[Tensor, ...]
    embeddings: Tensor

    def __len__(self) -> int:
        return len(self.embeddings)


@dataclass(frozen=True, slots=True, eq=False)
class JointView:
    """A party's view at the end of training; everything that a joint attack may use.

    Attributes
    ----------
    gradients
        (n, D) mean gradient of each training row over the epochs, centred in its batches (`centred_in_batch_units`).
    train
        Columns and embeddings of the same n rows.
    test
        Columns and embeddings of N rows that were never trained on.
    known
        Rows with labels that the attack knows, by their position among the n rows; they are not measured.
    words
        True if integers of ``inputs`` are word ids of a text, not category numbers.
    seed
        Seed of the attack's own randomness.
    """

    gradients: Tensor
    train: OwnRows
    test: OwnRows
    known: KnownRows = NO_KNOWN_ROWS
    words: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class JointScores:
    """Scores of the rows of a view; higher means more likely positive.

    Attributes
    ----------
    train, test
        (n,) and (N,) scores.
    without_own
        (n,) scores of the training rows by the same reader without each row's own gradient, as for test rows; a
        further baseline of ``train``. None if the attack has none.
    """

    train: Tensor
    test: Tensor
    without_own: Tensor | None = None


class JointAttack(AttackMethod):
    """An attack of a curious feature party on gradients together with its own columns and embeddings.

    It runs once, at the end of training, in a simulation. It sees a `JointView` and the labels that it declares to
    know, nothing else.

    Attributes
    ----------
    needs
        Empty; or ``{"leaked"}``, the labels of `leaks` rows of each class.
    reads_own
        True if the score of a training row depends on that row's own gradient. If not, it uses a model of all
        rows, which any useful training reveals, and no p-value is reported for its advantage.
    """

    reads_own: ClassVar[bool] = True

    @abstractmethod
    def read(self, view: JointView) -> JointScores:
        """Score the training rows and the test rows of a view; never NaN for finite views."""

    def baselines(self, view: JointView) -> Mapping[str, JointScores]:
        """Return the scores of readers without gradients, with the same labels, by the name of the data they use.

        An attack is compared with the best of these; without one, with guessing.
        """
        return {}
