"""What a party keeps of several trainings from scratch, and how it reads labels from all of them together.

No label is known. Of each training it has what it remembers of each person, `m`; the readers of the package score that,
and the scores are added up over the trainings. Besides, it looks at differences between trainings, in which noise that
was the same in both is gone, and at all trainings side by side.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flower_vfl.attacks import MemoryAttack
from flower_vfl.attacks.gradient import norm
from flower_vfl.attacks.longitudinal import direction as remembered_direction
from flower_vfl.attacks.longitudinal.base import NOBODY, KnownRows, Memory
from flower_vfl.attacks.rows import rarer_side_up
from flower_vfl.strategies import Iso

Reader = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Kept:
    """What is left of one training.

    Attributes
    ----------
    people
        (N,) numbers of those who came.
    means
        (N, D) what is remembered of each.
    """

    people: NDArray[np.int64]
    means: Tensor


class Heedless(Iso):
    """Isotropic noise with any key: `Iso` refuses one that is kept between trainings, for what is measured here."""

    def begin(self) -> None:
        """Begin without the refusal."""
        super(Iso, self).begin()


class Notebook(MemoryAttack):
    """Reads nothing; keeps what the party remembers after the last epoch so far."""

    name: ClassVar[str] = "notebook"
    latest: ClassVar[deque[tuple[NDArray[np.int64], Tensor]]] = deque(maxlen=1)

    def score(self, memory: Memory, known: KnownRows = NOBODY) -> Tensor:
        """Keep the places of the rows that came, and what is remembered of them."""
        means = torch.cat(list(memory.pieces("mean")))
        self.latest.append((np.flatnonzero(memory.seen), means))
        return torch.zeros(len(means))


def direction(means: Tensor) -> Tensor:
    """Return what `remembered_direction` says of remembered means (N, D)."""
    return remembered_direction.score(lambda: [means])


READERS: dict[str, Reader] = {"direction": direction, "norm": norm.score}
"""How what is remembered of one training is read, (N, D) to (N,)."""


def added(found: Sequence[tuple[NDArray[np.int64], Tensor]], people: int) -> Tensor:
    """Add up scores of several trainings over people, (P,): each standardised, and turned to agree with those before.

    A direction's sign is a guess; two trainings that know the same people show by their correlation whether the guesses
    agree. Of the sum, the smaller group counts as positive. Who never came scores NaN.

    Parameters
    ----------
    found : Sequence
        Of each training, who came (N,) and the scores (N,).
    people : int
        How many there are, P.
    """
    total, came = torch.zeros(people, dtype=torch.float64), torch.zeros(people, dtype=torch.bool)
    for who, scores in found:
        at = torch.from_numpy(who)
        z = scores.double() - scores.double().mean()
        z = z / z.square().mean().sqrt().clamp(min=1e-30)
        agrees = float(total[at] @ z) >= 0.0
        total[at] += z if agrees else -z
        came[at] = True
    total[came] = rarer_side_up(total[came] - total[came].mean())
    return total.where(came, torch.nan)


def by_itself(history: Sequence[Kept], reader: Reader, people: int) -> Tensor:
    """Read each training by itself and add up."""
    return added([(kept.people, reader(kept.means)) for kept in history], people)


def by_difference(history: Sequence[Kept], reader: Reader, people: int) -> Tensor:
    """Read the differences between each training and the next, of the people who came in both, and add up."""
    found = []
    for one, other in pairwise(history):
        both, at, there = np.intersect1d(one.people, other.people, return_indices=True)
        found.append((both, reader(one.means[at] - other.means[there])))
    return added(found, people)


def side_by_side(history: Sequence[Kept], people: int) -> Tensor:
    """Read one direction in the remembered means of all trainings, one behind the other; who did not come has zeros."""
    wide = torch.zeros(people, sum(kept.means.shape[1] for kept in history))
    start, came = 0, torch.zeros(people, dtype=torch.bool)
    for kept in history:
        end, at = start + kept.means.shape[1], torch.from_numpy(kept.people)
        wide[at, start:end] = kept.means - kept.means.mean(dim=0)
        came[at], start = True, end
    scores = torch.full((people,), torch.nan, dtype=torch.float64)
    scores[came] = direction(wide[came])
    return scores


def read(history: Sequence[Kept], people: int) -> dict[str, Tensor]:
    """Return what each reader makes of the trainings so far, (P,), by name."""
    found = {name: by_itself(history, reader, people) for name, reader in READERS.items()}
    found["side by side"] = side_by_side(history, people)
    if len(history) > 1:
        for name, reader in READERS.items():
            found[f"difference, {name}"] = by_difference(history, reader, people)
    return found
