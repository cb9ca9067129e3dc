"""`check_attack` on longitudinal attacks: each mistake is found and named."""

import numpy as np
import pytest
import torch

from flower_vfl.attacks import MemoryAttack
from flower_vfl.attacks.longitudinal.base import NO_KNOWN_ROWS
from flower_vfl.testing import CheckError, check_attack


class Right(MemoryAttack):
    """Reads the first number of the last gradient."""

    name = "right"
    keeps = frozenset({"last"})

    def score(self, memory, known=NO_KNOWN_ROWS):
        """Return the first numbers."""
        return self.of(torch.cat(list(memory.pieces("last"))))

    def of(self, rows):
        return rows[:, 0]


def test_an_attack_of_one_method_passes():
    check_attack(Right)


class Unnamed(Right):
    """Has a name with a space."""

    name = "un named"


class UnknownNeed(Right):
    """Needs a reference gradient, which longitudinal attacks do not get."""

    needs = frozenset({"reference"})


class UnknownHistory(Right):
    """Declares a history that does not exist."""

    keeps = frozenset({"all"})


class UndeclaredHistory(Right):
    """Reads a history that it did not declare."""

    keeps = frozenset({"mean"})


class Early(Right):
    """Counts epochs from 0."""

    first_epoch = 0


class Silent(Right):
    __doc__ = None


class Short(Right):
    """Scores some rows."""

    def of(self, rows):
        return rows[1:, 0]


class Undefined(Right):
    """Divides by a norm that may be 0."""

    def of(self, rows):
        return rows[:, 0] / rows.norm(dim=1)


class Random(Right):
    """Draws from a global generator."""

    def of(self, rows):
        return torch.rand(len(rows))


class Writing(Right):
    """Changes the memory."""

    def score(self, memory, known=NO_KNOWN_ROWS):
        """Return the first numbers."""
        memory.sums[0][memory.order] += np.float32(1)
        return super().score(memory)


class NoNumber(Right):
    """Needs known rows and does not declare their number."""

    needs = frozenset({"leaked"})


class UnusedHints(Right):
    """Declares hints and does not use them."""

    needs = frozenset({"hints"})

    @property
    def hints(self):
        return 2


@pytest.mark.parametrize(
    ("attack", "words"),
    [
        (Unnamed, "its `name` is 'un named'"),
        (UnknownNeed, "its `needs` is"),
        (UnknownHistory, "its `keeps` is"),
        (UndeclaredHistory, "The memory does not give 'last'"),
        (Early, "its `first_epoch` is 0"),
        (Silent, "the class has no docstring"),
        (Short, "one number a row is needed"),
        (Undefined, "scores are NaN"),
        (Random, "gives other scores the second time"),
        (Writing, "it changes the memory"),
        (NoNumber, "an attack that knows rows says both"),
        (UnusedHints, "scores without the side information"),
    ],
)
def test_a_mistake_is_named(attack, words):
    with pytest.raises(CheckError, match=words):
        check_attack(attack)
