"""A check, in the first steps, that instances of attacks of other packages share no state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from flower_vfl.attacks.base import Attack, SideInformation
from flower_vfl.errors import ConfigError
from flower_vfl.protocol.transcript import Transcript
from flower_vfl.registry import from_elsewhere

SCORED_STEPS = 4
"""Number of steps that two instances score: one step does not show a shared mean of the batches."""

_CURE = "keep what an instance keeps in `self`, set in `__init__`, and draw numbers from a seeded generator of its own"


class SharedStateCheck:
    """A check that instances of attacks of other packages share no state: second ones score the first steps, too.

    Two instances that see the same steps give the same scores. They do not where the second one uses state that the
    first one left in the class or in the module, or where `fresh` returns the first one itself.

    Parameters
    ----------
    attacks : Sequence[Attack]
        The attacks that are measured, before they have scored a step.
    """

    def __init__(self, attacks: Sequence[Attack]) -> None:
        places = [place for place, attack in enumerate(attacks) if from_elsewhere(type(attack))]
        self._second = {place: attacks[place].fresh() for place in places}
        self._steps_left = dict.fromkeys(self._second, SCORED_STEPS)

    def compare(
        self, place: int, transcript: Transcript, layer: str, side: SideInformation | None, scores: Any
    ) -> None:
        """Compare a step's scores with those of the second instance of the attack at a place, as long as there is one.

        Raises
        ------
        ConfigError
            When the second instance gives other scores (B,) than the one that is measured.
        """
        if place not in self._second or side is None or not isinstance(scores, Tensor):
            return
        second = self._second[place]
        others = second.score(transcript, layer, side)
        if scores.shape != others.shape or not torch.allclose(scores, others, atol=rounding(scores), equal_nan=True):
            raise ConfigError(
                f"the attack {second.label!r}: two instances that scored the same steps gave different scores. They "
                f"share state or randomness: {_CURE}. flower_vfl.testing.check_attack checks it"
            )
        self._steps_left[place] -= 1
        if not self._steps_left[place]:
            self.stop([place])

    def stop(self, places: Sequence[int] = ()) -> None:
        """Drop second instances, by default all: an attack that a checkpoint restores is ahead of a new instance."""
        for place in places or list(self._second):
            del self._second[place]


def rounding(scores: Tensor) -> float:
    """Return the tolerated difference of two computations of these scores (B,)."""
    if not scores.is_floating_point() or not scores.numel():
        return 0.0
    return 1e-5 * float(scores.nan_to_num(0.0, 0.0, 0.0).abs().max())
