"""What an attack is: a name, parameters and, for attacks while training, a transcript in and scores out.

Attacks on the trained model are in `flower_vfl.attacks.embedding.inference`, longitudinal ones in
`flower_vfl.attacks.longitudinal.base`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from inspect import Parameter
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias, TypeGuard, TypeVar

import numpy as np

from flower_vfl.errors import ArgumentError, ConfigError
from flower_vfl.registry import parameters, suggestion

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from flower_vfl.protocol.transcript import Transcript

Word = TypeVar("Word", bound=str)

REFERENCE, HINTS = "reference", "hints"
KINDS: Mapping[str, str] = {
    REFERENCE: "(D,) the clean gradient of one positive of the batch; no real attacker has it",
    HINTS: "(k, D) the gradients, as the party sees them, of k examples of the batch that it knows to be positive",
}
"""What an attack can be told about the last step at one layer, by the name that `Attack.needs` declares."""

Reads: TypeAlias = Literal["scores", "classes", "logits", "clusters"]
"""What an attack says of the attacked rows."""


WHILE_TRAINING: tuple[Reads, ...] = ("scores", "clusters")
"""What an attack on the steps of a training can say."""


def nobody() -> NDArray[np.int64]:
    """Return the rows of which an attack was told nothing more."""
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class SideInformation:
    """What an attack is told about the last step at one layer, beyond its transcript.

    Attributes
    ----------
    tensors
        By name, see `KINDS`.
    left_out
        (n,) positions in the batch of the examples that supplied it. Who measures the attack leaves them out: to
        recognise what one was told is no attack.
    classes
        Number of classes; every party knows it.

    Examples
    --------
    >>> import torch
    >>> side = SideInformation({"reference": torch.ones(4)}, np.array([2]))
    >>> side.tensor("reference").shape, side.left_out
    (torch.Size([4]), array([2]))
    """

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    left_out: NDArray[np.int64] = field(default_factory=nobody)
    classes: int = 2

    def tensor(self, name: str) -> Tensor:
        """Return what was told under a name.

        Raises
        ------
        ArgumentError
            When it was not told.
        """
        try:
            return self.tensors[name]
        except KeyError:
            told = ", ".join(sorted(self.tensors)) or "nothing"
            raise ArgumentError(
                f"The attack needs {name!r} as side information, it was given {told}: declare it in `needs`."
            ) from None


NOTHING = SideInformation()


def is_whole(value: object) -> bool:
    """Say whether a value is a whole number from 1; true is none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def whole(attack: str, name: str, value: int) -> int:
    """Return a parameter of an attack that is a whole number from 1.

    Raises
    ------
    ConfigError
        Where it is anything else.
    """
    if not is_whole(value):
        raise ConfigError(f"{attack}: {name} is {value!r}; give a whole number from 1")
    return value


def is_number(value: object) -> TypeGuard[float]:
    """Say whether a value is a whole or a floating point number; true is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def truth(attack: str, name: str, value: bool) -> bool:
    """Return a parameter of an attack that is true or false; texts are neither, "False" would count as true.

    Raises
    ------
    ConfigError
        Where it is anything else.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{attack}: {name} is {value!r}; give true or false")
    return value


def one_of(attack: str, name: str, value: Word, allowed: Sequence[Word]) -> Word:
    """Return a parameter of an attack that is one of these words.

    Raises
    ------
    ConfigError
        Where it is anything else.
    """
    if value not in allowed:
        raise ConfigError(f"{attack}: {name} is {value!r}; {suggestion(str(value), allowed)}")
    return value


class AttackMethod(ABC):
    """What every attack has, whenever it runs.

    A run makes one instance for each party, layer and view that is attacked, by `fresh`: what an instance keeps between
    its calls is of one sequence of batches. It survives a resume where `state` returns it and `restore` takes it back.

    Attributes
    ----------
    name
        What users and results call it.
    needs
        What it must be told beyond what the attacked party sees. An attack that needs something is measured where
        somebody knows it: in simulations and, while training, at the label party.
    sees
        ``"gradients"`` or ``"embeddings"``: what it looks at. What a defense does to the gradients of a step changes
        nothing about the embeddings of that step.
    """

    name: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset()
    sees: ClassVar[Literal["gradients", "embeddings"]] = "gradients"

    @property
    def params(self) -> dict[str, Any]:
        """The attack's parameters as they go into ``result.json``; given back to the class, they make the same one."""
        return {}

    def fresh(self) -> Self:
        """Return an instance with the same parameters for another party, layer or view; by default a deep copy."""
        return deepcopy(self)

    def state(self) -> dict[str, Any]:
        """Return what the attack keeps between its calls, as plain values and tensors; by default nothing.

        A checkpoint has it. In a sweep whose trials are trained together, a `RowAttack` keeps the states of all runs in
        tensors with the leading dimensions of the rows that it rates.
        """
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - most attacks keep nothing
        """Continue from what `state` returned; by default there is nothing to take back.

        Parameters
        ----------
        state
            What `state` returned, perhaps in another process and of rows on another device.
        """

    @cached_property
    def label(self) -> str:
        """Its name with the parameters that differ from their defaults, as a config writes it: the name in a log."""
        defaults = {name: entry.default for name, entry in parameters(type(self)).items()}
        given = [f"{key}={value}" for key, value in self.params.items() if value != defaults.get(key, Parameter.empty)]
        return f"{self.name}({','.join(given)})" if given else self.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self.params.items())})"


class Attack(AttackMethod):
    """A curious feature party's way to read labels from what it sees while it trains.

    An attack sees the party's transcript and the side information that it declares, nothing else: no label, no
    defense, no other party. Scoring its scores against the true labels is somebody else's work.

    Attributes
    ----------
    needs
        Names of the side information that must be given to `score`: ``"reference"`` or ``"hints"``, see `KINDS`.
    reads
        What `score` returns: ``"scores"``, or ``"clusters"``, groups without names. Of more than two classes, scores
        are for one against the rest; which one is the positive class the scorer says, by the side information.
    sequential
        Whether its scores depend on the steps that it has scored before. Then it is called once a step, in their order;
        another `RowAttack` may be asked of several steps together.
    """

    reads: ClassVar[Reads] = "scores"
    sequential: ClassVar[bool] = False

    @property
    def hints(self) -> int:
        """How many positives of the batch it must be told, where it needs ``"hints"``."""
        return 1

    @abstractmethod
    def score(self, transcript: Transcript, layer: str, side: SideInformation = NOTHING) -> Tensor:
        """Score the examples of the transcript's last step.

        Parameters
        ----------
        transcript
            What the party saw so far. It writes nothing into it: in a simulation it may be what was sent, and others
            look at it afterwards. A run refuses an attack that does.
        layer
            Which layer to look at: ``"cut"``, ``"first"`` or another layer of the party's own model.
        side
            What `needs` declares, for this step and layer.

        Returns
        -------
        Tensor
            (B,), higher means more likely positive; never NaN for finite gradients. Of clusters, whole numbers below
            the number of classes, ``side.classes``.
        """


class RowAttack(Attack):
    """An attack that scores gradients (..., B, D), so that it can read those of many runs at once.

    It returns scores, and is told nothing or what one name in `needs` stands for. A sweep that trains its trials
    together calls `rate`, a run by itself calls `score`, which is `rate` of one batch. A `sequential` one keeps a state
    for each of the leading dimensions: these are runs, the same ones in every call.
    """

    def score(self, transcript: Transcript, layer: str, side: SideInformation = NOTHING) -> Tensor:
        """Return what `rate` says of the layer's gradients in the last step, (B,).

        Raises
        ------
        ArgumentError
            Where it is not told what it needs, or something of another width.
        """
        from flower_vfl.attacks.rows import as_rows

        rows = as_rows(transcript.last.gradients[layer])
        return self.rate(rows, self.told(rows, side))

    def told(self, rows: Tensor, side: SideInformation) -> Tensor | None:
        """Return what it is told of one batch (B, D), (k, D) as `rate` takes it.

        Raises
        ------
        ArgumentError
            Where it is not told what it needs, or something of another width.
        """
        from flower_vfl.attacks.rows import as_known

        known = None
        for name in self.needs:
            told = side.tensor(name)
            known = as_known(told.reshape(1, -1) if name == REFERENCE else told, rows, name.capitalize())
        return known

    @abstractmethod
    def rate(self, rows: Tensor, known: Tensor | None) -> Tensor:
        """Score rows (..., B, D), each batch by itself.

        Parameters
        ----------
        rows
            (..., B, D) gradients, detached and flattened.
        known
            (..., k, D) what it is told of each batch, by the one name in `needs`, of which k is 1 for
            ``"reference"``; None where it needs nothing.

        Returns
        -------
        Tensor
            (..., B), higher means more likely positive; never NaN for finite gradients.
        """
