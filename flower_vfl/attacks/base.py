"""What an attack is: a transcript in, a score for each example of the last batch out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from flower_vfl.protocol.transcript import Transcript

NOTHING: Mapping[str, Tensor] = MappingProxyType({})


class Attack(ABC):
    """A curious feature party's way to read labels from what it sees.

    An attack sees the party's transcript and the side information that it declares, nothing else: no label, no
    defense, no other party. Scoring its scores against the true labels is somebody else's work.

    Attributes
    ----------
    name
        What users and results call it.
    needs
        Names of the side information that must be given to `score`, such as ``"reference"`` (the clean gradient of a
        positive) or ``"hints"``. A real attacker has none of it: an attack that needs something runs in simulations.
    """

    name: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset()

    @property
    def params(self) -> dict[str, Any]:
        """The attack's parameters as they go into ``result.json``."""
        return {}

    @abstractmethod
    def score(self, transcript: Transcript, layer: str, side: Mapping[str, Tensor] = NOTHING) -> Tensor:
        """Score the examples of the transcript's last step.

        Parameters
        ----------
        transcript
            What the party saw so far.
        layer
            Whose gradient to look at: ``"cut"``, ``"first"`` or another layer of the party's own model.
        side
            What `needs` declares, by name.

        Returns
        -------
        Tensor
            (B,), higher means more likely positive.
        """
