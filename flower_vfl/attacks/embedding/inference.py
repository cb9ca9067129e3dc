"""The interface of attacks on the trained model: embeddings of unlabelled rows in, scores or classes of the rows out.

After training, the outputs of a feature party's bottom model separate the classes, whatever noise its gradients had.
Such an attack sees the outputs of one layer for the attacked rows, and everything else that a curious party has. It
never sees the labels of the attacked rows.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from flower_vfl.attacks.base import AttackMethod, Reads, truth, whole
from flower_vfl.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

LEAKED = "leaked"
"""The only side information of attacks on the trained model, in `needs`: labelled examples, see `Leaked`."""


@dataclass(frozen=True, slots=True, eq=False)
class Leaked:
    """Labelled examples that the attacker knows, equally many of each class.

    Attributes
    ----------
    embeddings
        (n, ...) outputs of the attacked layer.
    inputs
        (n, ...) inputs of the party's model for them.
    labels
        (n,) their class numbers.
    """

    embeddings: Tensor
    inputs: tuple[Tensor, ...]
    labels: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class TrainedView:
    """The view of an attacker with a trained bottom model; everything that an attack may use.

    Attributes
    ----------
    embeddings
        (N, ...) outputs of the attacked layer for the attacked rows.
    classes
        Number of classes C.
    seed
        Seed of the attack's own randomness.
    inputs
        (N, ...) inputs of the party's model for the attacked rows; empty where only the embeddings are known.
    leaked
        Labelled examples, where the attack declares that it needs them.
    top
        Factory of fresh top models for the attacked layer: rows (B, ...) to logits, (B,) or (B, 1) for two classes and
        (B, C) for more.
    network
        Factory of fresh bottom models with a top model: the party's inputs to logits.
    """

    embeddings: Tensor
    classes: int
    seed: int = 0
    inputs: tuple[Tensor, ...] = ()
    leaked: Leaked | None = None
    top: Callable[[], nn.Module] | None = None
    network: Callable[[], nn.Module] | None = None

    def examples(self) -> Leaked:
        """Return the labelled examples.

        Raises
        ------
        ArgumentError
            When they were not given.
        """
        if self.leaked is None:
            raise ArgumentError(
                f"The attack needs labelled examples, and none were given: declare {LEAKED!r} in `needs`."
            )
        return self.leaked

    def known(self) -> tuple[Leaked, Callable[[], nn.Module], Callable[[], nn.Module]]:
        """Return the labelled examples, and the factories of a top model and of a whole network.

        Raises
        ------
        ArgumentError
            When one of them was not given.
        """
        leaked = self.examples()
        if self.top is None or self.network is None:
            raise ArgumentError("The attack needs fresh models, and no factories of them were given.")
        return leaked, self.top, self.network


class InferenceAttack(AttackMethod):
    """An attack of a curious feature party on its trained bottom model.

    Attributes
    ----------
    needs
        Empty, or ``{"leaked"}``: then it is measured in simulations only, where labels can leak.
    reads
        The kind of the result of `infer`: ``"scores"``, higher means more likely positive, for two classes only
        (measured as AUC); ``"classes"``, class numbers (accuracy); ``"logits"``, (N, C) with the largest number at the
        class, for two classes (N,), positive for class 1 (accuracy, and AUC); ``"clusters"``, groups without names
        (accuracy of the best assignment of groups to classes).
    draws
        The number of repetitions, each with other labelled examples and other random numbers.
    """

    sees: ClassVar[Literal["gradients", "embeddings"]] = "embeddings"
    reads: ClassVar[Reads]
    draws: int = 1

    @abstractmethod
    def infer(self, view: TrainedView) -> Tensor:
        """Return scores or classes of the rows, (N,) or, for logits of more than two classes, (N, C), see `reads`."""

    def baseline(self, view: TrainedView) -> Tensor | None:
        """Return the same kind of result without the trained model; None where that is impossible."""
        return None


class ExamplesAttack(InferenceAttack):
    """An attack that knows k labelled examples of each class, and is repeated with other ones.

    Parameters
    ----------
    k
        Number of labelled examples of each class, at least 1.
    draws
        Number of repetitions.
    normalise
        True if it uses the layer-normalised embeddings, as the top model does behind a defense that normalises.
    """

    needs: ClassVar[frozenset[str]] = frozenset({LEAKED})

    def __init__(self, k: int, draws: int, normalise: bool) -> None:
        self.k, self.draws = whole(self.name, "k", k), whole(self.name, "draws", draws)
        self.normalise = truth(self.name, "normalise", normalise)

    @property
    def leaks(self) -> int:
        """The number of labelled examples of each class that it knows."""
        return self.k
