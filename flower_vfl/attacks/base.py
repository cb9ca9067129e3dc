"""The interface of attacks: a name, parameters and, for attacks during training, a transcript in and scores out.

Attacks on the trained model are in `flower_vfl.attacks.embedding.inference`, longitudinal ones in
`flower_vfl.attacks.longitudinal.base`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from inspect import Parameter
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias, TypeVar

import numpy as np

from flower_vfl.errors import ArgumentError, ConfigError, suggestion
from flower_vfl.registry import parameters

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from flower_vfl.protocol.transcript import Transcript

Word = TypeVar("Word", bound=str)

REFERENCE, HINTS, LABELS = "reference", "hints", "labels"
KINDS: Mapping[str, str] = {
    REFERENCE: "(D,) the clean gradient of one positive of the batch; no real attacker has it",
    HINTS: "(k, D) the gradients, as the party sees them, of k examples of the batch that it knows to be positive",
    LABELS: "(B,) 1 for a row of the batch that it knows to be positive, 0 for one that it knows not to be, else -1",
}
"""Kinds of side information on the last step at one layer, by the name that `Attack.needs` declares."""

Reads: TypeAlias = Literal["scores", "classes", "logits", "clusters"]
"""Kind of an attack's result on the attacked rows."""


WHILE_TRAINING: tuple[Reads, ...] = ("scores", "clusters")
"""Kinds of results of attacks on the steps of training."""


def nobody() -> NDArray[np.int64]:
    """Return an empty array of row numbers: no row is known to the attack."""
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class SideInformation:
    """The side information of an attack on the last step at one layer, beyond its transcript.

    Attributes
    ----------
    tensors
        Side information by name, see `KINDS`.
    left_out
        (n,) positions in the batch of the examples that supplied it. They are not measured: recognising side
        information is no attack.
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
        """Return the side information of a name.

        Raises
        ------
        ArgumentError
            When it was not given.
        """
        try:
            return self.tensors[name]
        except KeyError:
            given = ", ".join(sorted(self.tensors)) or "nothing"
            raise ArgumentError(
                f"The attack needs {name!r} as side information, it was given {given}: declare it in `needs`."
            ) from None


NOTHING = SideInformation()
"""No side information: what an attacker has that knows no label."""


def is_whole(value: object) -> bool:
    """Return True if a value is a whole number from 1; a bool is none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def whole(attack: str, name: str, value: int) -> int:
    """Return the value of an attack's parameter if it is a whole number from 1.

    Raises
    ------
    ConfigError
        When it is anything else.
    """
    if not is_whole(value):
        raise ConfigError(f"{attack}: {name} is {value!r}; give a whole number from 1")
    return value


def truth(attack: str, name: str, value: bool) -> bool:
    """Return the value of an attack's parameter if it is a bool; the text "False" would count as true.

    Raises
    ------
    ConfigError
        When it is anything else.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{attack}: {name} is {value!r}; give true or false")
    return value


def one_of(attack: str, name: str, value: Word, allowed: Sequence[Word]) -> Word:
    """Return the value of an attack's parameter if it is one of the allowed words.

    Raises
    ------
    ConfigError
        When it is anything else.
    """
    if value not in allowed:
        raise ConfigError(f"{attack}: {name} is {value!r}; {suggestion(str(value), allowed)}")
    return value


class AttackMethod(ABC):
    """The base class of all attacks, during and after training.

    A run makes one instance for each party, layer and view that is attacked, by `fresh`: the state of an instance
    belongs to one sequence of batches. It survives a resume if `state` returns it and `restore` sets it.

    Attributes
    ----------
    name
        Its name in configurations and results.
    needs
        The side information that it needs beyond the attacked party's view. Such an attack is measured where the side
        information is known: in simulations and, during training, at the label party.
    sees
        ``"gradients"`` or ``"embeddings"``: its input. A defense of the gradients of a step does not change the
        embeddings of that step.
    """

    name: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset()
    sees: ClassVar[Literal["gradients", "embeddings"]] = "gradients"

    @property
    def params(self) -> dict[str, Any]:
        """The attack's parameters as written to ``result.json``; its class called with them makes an equal attack.

        By default those of its constructor, read from the attributes of the same names; empty where one of these is
        missing or no plain value.
        """
        kept = {name: vars(self).get(name, self) for name in parameters(type(self))}
        return kept if all(isinstance(value, str | int | float | None) for value in kept.values()) else {}

    @property
    def leaks(self) -> int:
        """The number of labelled rows of each class that it knows, where it needs ``"labels"`` or ``"leaked"``."""
        return 0

    def fresh(self) -> Self:
        """Return an instance with the same parameters for another party, layer or view; by default a deep copy."""
        return deepcopy(self)

    def state(self) -> dict[str, Any]:
        """Return the attack's state between its calls, as plain values and tensors; by default it is empty.

        A checkpoint contains it. In a sweep whose trials are trained together, a `RowAttack` keeps the states of all
        runs in tensors with the leading dimensions of the rows that it rates.
        """
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - most attacks have no state
        """Set the state to a result of `state`; by default do nothing.

        Parameters
        ----------
        state
            The result of `state`, perhaps from another process and for rows on another device.
        """

    @cached_property
    def label(self) -> str:
        """Its name with the parameters that differ from their defaults, as in a config; the name in logs."""
        defaults = {name: entry.default for name, entry in parameters(type(self)).items()}
        given = [f"{key}={value}" for key, value in self.params.items() if value != defaults.get(key, Parameter.empty)]
        return f"{self.name}({','.join(given)})" if given else self.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self.params.items())})"


class Attack(AttackMethod):
    """An attack of a curious feature party on the gradients or embeddings of a training step.

    An attack sees the party's transcript and the side information that it declares, nothing else: no label, no
    defense, no other party. An attack evaluator compares its scores with the true labels.

    Attributes
    ----------
    needs
        Names of the side information that must be given to `score`: ``"reference"``, ``"hints"`` or ``"labels"``, see
        `KINDS`.
    reads
        The kind of the result of `score`: ``"scores"``, or ``"clusters"``, groups without names. For more than two
        classes, scores are for one against the rest; the evaluator chooses that class and gives side information on it.
    history
        Number of latest steps in its transcript, of all training steps, scored or not; by default 1, the scored step
        alone. At the start of a run there are fewer. A `RowAttack` reads no other step.
    sequential
        True if its scores depend on the steps that it has scored before. Then it is called once a step, in their order;
        any other `RowAttack` may score several steps together.
    """

    reads: ClassVar[Reads] = "scores"
    history: ClassVar[int] = 1
    sequential: ClassVar[bool] = False

    @property
    def hints(self) -> int:
        """The number of positives of the batch that it knows, where it needs ``"hints"``."""
        return 1

    @abstractmethod
    def score(self, transcript: Transcript, layer: str, side: SideInformation = NOTHING) -> Tensor:
        """Score the examples of the transcript's last step.

        Parameters
        ----------
        transcript
            The party's view of the latest `history` steps, oldest first; an attack keeps in its `state` what it needs
            of earlier ones. It must not write into the transcript: in a simulation its tensors may be those that are
            sent, and others read them afterwards. A run ends with an error if an attack does.
        layer
            The attacked layer: ``"cut"``, ``"first"`` or another layer of the party's own model.
        side
            The side information that `needs` declares, for this step and layer.

        Returns
        -------
        Tensor
            (B,), higher means more likely positive; never NaN for finite gradients. For clusters, whole numbers below
            the number of classes, ``side.classes``.
        """


class RowAttack(Attack):
    """An attack that scores gradients (..., B, D), so that it can read those of many runs at once.

    It returns scores, and `needs` has at most one name. A sweep that trains its trials together calls `rate`, a single
    run calls `score`, which is `rate` of one batch. The leading dimensions are runs, the same ones in every call; a
    `sequential` attack keeps a state for each of them.
    """

    @property
    def stacks(self) -> bool:
        """True if `rate` is all of a score, so that it is the same for many runs."""
        of_rate = type(self).score is RowAttack.score and type(self).side_rows is RowAttack.side_rows
        return of_rate and self.reads == "scores" and len(self.needs) < 2 and self.needs <= {HINTS, REFERENCE}

    def score(self, transcript: Transcript, layer: str, side: SideInformation = NOTHING) -> Tensor:
        """Return the scores of `rate` for the layer's gradients in the last step, (B,).

        Raises
        ------
        ArgumentError
            When side information is missing, or has another width.
        """
        from flower_vfl.attacks.rows import as_rows

        rows = as_rows(transcript.last.gradients[layer])
        return self.rate(rows, self.side_rows(rows, side))

    def side_rows(self, rows: Tensor, side: SideInformation) -> Tensor | None:
        """Return the side information on one batch (B, D) as `rate` takes it, (k, D).

        Raises
        ------
        ArgumentError
            When side information is missing, or has another width.
        """
        from flower_vfl.attacks.rows import as_known

        known = None
        for name in self.needs:
            found = side.tensor(name)
            known = as_known(found.reshape(1, -1) if name == REFERENCE else found, rows, name.capitalize())
        return known

    @abstractmethod
    def rate(self, rows: Tensor, known: Tensor | None) -> Tensor:
        """Score rows (..., B, D), each batch by itself.

        Parameters
        ----------
        rows
            (..., B, D) gradients, detached and flattened.
        known
            (..., k, D) side information on each batch, of the one name in `needs`; k is 1 for ``"reference"``. None
            if `needs` is empty.

        Returns
        -------
        Tensor
            (..., B), higher means more likely positive; never NaN for finite gradients.
        """
