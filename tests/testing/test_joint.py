"""`check_attack` on joint attacks: each mistake is found and named."""

import pytest
import torch

from flower_vfl.attacks.joint import JointAttack, JointScores
from flower_vfl.testing import CheckError, check_attack


class Right(JointAttack):
    """Reads the first number of the embeddings."""

    name = "right"
    reads_own = False

    def read(self, view):
        """Return the first numbers."""
        return JointScores(self.of(view.train.embeddings), self.of(view.test.embeddings))

    def of(self, embeddings):
        return embeddings[:, 0]


def test_an_attack_of_one_method_passes():
    check_attack(Right)


class Unnamed(Right):
    """Has a name with a space."""

    name = "un named"


class UnknownNeed(Right):
    """Needs a reference gradient, which joint attacks do not get."""

    needs = frozenset({"reference"})


class Unsure(Right):
    """Does not declare whether it reads a row's own gradient."""

    reads_own = None


class Silent(Right):
    __doc__ = None


class Undefined(Right):
    """Returns NaN."""

    def of(self, embeddings):
        return embeddings[:, 0] * float("nan")


class Random(Right):
    """Draws from the global generator."""

    def of(self, embeddings):
        return torch.rand(len(embeddings))


class Writing(Right):
    """Changes the view."""

    def of(self, embeddings):
        return embeddings.mul_(2.0)[:, 0]


class Owning(Right):
    """Reads the row's own gradient and declares that it does not."""

    def read(self, view):
        """Return the first numbers of gradients."""
        return JointScores(view.gradients[:, 0], self.of(view.test.embeddings))


class NoNumber(Right):
    """Needs known labels and does not declare their number."""

    needs = frozenset({"leaked"})


class UnusedLabels(Right):
    """Scores without the labels that it declares to need."""

    needs = frozenset({"leaked"})
    leaks = 4


@pytest.mark.parametrize(
    ("attack", "words"),
    [
        (Unnamed, "its `name` is 'un named'"),
        (UnknownNeed, "its `needs` is"),
        (Unsure, "its `reads_own` is None"),
        (Silent, "the class has no docstring"),
        (Undefined, "scores are NaN"),
        (Random, "gives other scores the second time"),
        (Writing, "it changes the view"),
        (Owning, "a row's own gradient changes the row's score"),
        (NoNumber, "an attack that knows rows says both"),
        (UnusedLabels, "scores without the side information"),
    ],
)
def test_a_mistake_is_named(attack, words):
    with pytest.raises(CheckError, match=words):
        check_attack(attack)
