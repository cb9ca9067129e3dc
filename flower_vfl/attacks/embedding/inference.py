"""What an attack on the trained model is: embeddings of rows nobody labelled in, what they say about the labels out.

After training, a feature party owns a bottom model whose outputs separate the classes, whatever noise its gradients
had. Such an attack sees the outputs of one layer for the attacked rows, and what else a curious party has; the labels
of the attacked rows it never sees.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from flower_vfl.attacks.base import AttackMethod, Reads, truth, whole
from flower_vfl.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

LEAKED = "leaked"
"""The one thing that an attack on the trained model can declare in `needs`: labelled examples, see `Leaked`."""


@dataclass(frozen=True, slots=True, eq=False)
class Leaked:
    """Labelled examples that the attacker knows, equally many of each class.

    Attributes
    ----------
    embeddings
        (n, ...) outputs of the attacked layer.
    inputs
        (n, ...) what the party's model takes of them.
    labels
        (n,) their class numbers.
    """

    embeddings: Tensor
    inputs: tuple[Tensor, ...]
    labels: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class TrainedView:
    """What an attacker has once its bottom model is trained; everything that an attack may look at.

    Attributes
    ----------
    embeddings
        (N, ...) outputs of the attacked layer for the attacked rows.
    classes
        Number of classes C.
    seed
        Where the attack's own randomness starts.
    inputs
        (N, ...) what the party's model takes of the attacked rows; empty where only the embeddings are known.
    leaked
        Labelled examples, where the attack declares that it needs them.
    top
        Makes a fresh top model for the attacked layer: rows (B, ...) to logits, (B,) or (B, 1) for two classes and
        (B, C) for more.
    network
        Makes a fresh bottom model and a top model on it: the party's inputs to logits.
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
            When they were not told.
        """
        if self.leaked is None:
            raise ArgumentError(
                f"The attack needs labelled examples, it was not told them: declare {LEAKED!r} in `needs`."
            )
        return self.leaked

    def known(self) -> tuple[Leaked, Callable[[], nn.Module], Callable[[], nn.Module]]:
        """Return the labelled examples, and how to make a top model and a whole network.

        Raises
        ------
        ArgumentError
            When one of them was not told.
        """
        leaked = self.examples()
        if self.top is None or self.network is None:
            raise ArgumentError("The attack needs fresh models, it was not told how to make them.")
        return leaked, self.top, self.network


def classes_of(logits: Tensor) -> Tensor:
    """Return the class numbers (N,) that logits name: (N,) of two classes, (N, C) of more."""
    return (logits > 0).long() if logits.dim() == 1 else logits.argmax(dim=1)


class InferenceAttack(AttackMethod):
    """A curious feature party's way to read labels from its trained bottom model.

    Attributes
    ----------
    needs
        Empty, or ``{"leaked"}``: then it is measured in simulations only, where somebody can tell it labels.
    reads
        What `infer` returns: ``"scores"``, higher means more likely positive, of two classes only (measured as AUC);
        ``"classes"``, class numbers (accuracy); ``"logits"``, numbers of which the largest names the class, (N, C), of
        two classes (N,), positive for class 1 (accuracy, and AUC); ``"clusters"``, groups without names (accuracy of
        the best assignment of groups to classes).
    """

    sees: ClassVar[Literal["gradients", "embeddings"]] = "embeddings"
    reads: ClassVar[Reads]

    @property
    def leaks(self) -> int:
        """How many labelled examples of each class it must be told."""
        return 0

    @property
    def draws(self) -> int:
        """How often it is repeated, with other labelled examples and other random numbers."""
        return 1

    @abstractmethod
    def infer(self, view: TrainedView) -> Tensor:
        """Say what the attacked rows are, (N,) or, for logits of more than two classes, (N, C), as `reads` declares."""

    def baseline(self, view: TrainedView) -> Tensor | None:
        """Say the same without the trained model: what the attacker could do anyway; None where nothing is."""
        return None


class ExamplesAttack(InferenceAttack):
    """Knows k labelled examples of each class, and is repeated with other ones.

    Parameters
    ----------
    k
        Labelled examples of each class, at least 1.
    draws
        How often it is repeated.
    normalise
        Whether it looks at the layer-normalised embeddings, as the top model does behind a defense that normalises.
    """

    needs: ClassVar[frozenset[str]] = frozenset({LEAKED})

    def __init__(self, k: int, draws: int, normalise: bool) -> None:
        self.k, self._draws = whole(self.name, "k", k), whole(self.name, "draws", draws)
        self.normalise = truth(self.name, "normalise", normalise)

    @property
    def params(self) -> dict[str, Any]:
        """How many labels it knows, how often it is repeated, whether it looks at layer-normalised embeddings."""
        return {"k": self.k, "draws": self._draws, "normalise": self.normalise}

    @property
    def leaks(self) -> int:
        """How many labelled examples of each class it must be told."""
        return self.k

    @property
    def draws(self) -> int:
        """How often it is repeated."""
        return self._draws
