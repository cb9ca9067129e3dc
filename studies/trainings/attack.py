"""Attacks of a party that keeps the row memory of several trainings from scratch.

No label is known. Each training leaves the mean gradient of each person; the readers of the package score these means,
and the scores are added up over the trainings. Further attacks use differences between trainings, in which noise that
was the same in both is gone, and all trainings side by side.
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
from flower_vfl.attacks.longitudinal.base import NO_KNOWN_ROWS, KnownRows, Memory
from flower_vfl.attacks.rows import rarer_side_up
from flower_vfl.strategies import Iso

Reader = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Kept:
    """Row memory of one training.

    Attributes
    ----------
    people
        (N,) numbers of the people in it.
    means
        (N, D) mean gradient of each.
    """

    people: NDArray[np.int64]
    means: Tensor


class Heedless(Iso):
    """Isotropic noise with any key: `Iso` refuses one that is kept between trainings, for the leak measured here."""

    def begin(self) -> None:
        """Begin without the refusal."""
        super(Iso, self).begin()


class Notebook(MemoryAttack):
    """An attack that scores nothing and keeps the party's row memory after the latest epoch."""

    name: ClassVar[str] = "notebook"
    latest: ClassVar[deque[tuple[NDArray[np.int64], Tensor]]] = deque(maxlen=1)

    def score(self, memory: Memory, known: KnownRows = NO_KNOWN_ROWS) -> Tensor:
        """Keep the numbers of the seen rows and their means, and return zeros."""
        means = torch.cat(list(memory.pieces("mean")))
        self.latest.append((np.flatnonzero(memory.seen), means))
        return torch.zeros(len(means))


def direction(means: Tensor) -> Tensor:
    """Return the scores (N,) of `remembered_direction` for means (N, D)."""
    return remembered_direction.score(lambda: [means])


READERS: dict[str, Reader] = {"direction": direction, "norm": norm.score}
"""Readers of the means of one training, (N, D) to (N,), by name."""


def added(found: Sequence[tuple[NDArray[np.int64], Tensor]], people: int) -> Tensor:
    """Return the sum of people's scores over several trainings, (P,): standardised, with signs that agree.

    The sign of a direction is a guess; the correlation of two trainings over the same people shows if the guesses
    agree. In the sum, the smaller group counts as positive. People in no training score NaN.

    Parameters
    ----------
    found : Sequence
        People (N,) and scores (N,) of each training.
    people : int
        Number of people, P.
    """
    total, present = torch.zeros(people, dtype=torch.float64), torch.zeros(people, dtype=torch.bool)
    for members, scores in found:
        at = torch.from_numpy(members)
        z = scores.double() - scores.double().mean()
        z = z / z.square().mean().sqrt().clamp(min=1e-30)
        agrees = float(total[at] @ z) >= 0.0
        total[at] += z if agrees else -z
        present[at] = True
    total[present] = rarer_side_up(total[present] - total[present].mean())
    return total.where(present, torch.nan)


def by_itself(history: Sequence[Kept], reader: Reader, people: int) -> Tensor:
    """Return the sum of the scores of each training by itself."""
    return added([(kept.people, reader(kept.means)) for kept in history], people)


def by_difference(history: Sequence[Kept], reader: Reader, people: int) -> Tensor:
    """Return the sum of the scores of the differences between each training and the next, of the people in both."""
    found = []
    for one, other in pairwise(history):
        both, at, there = np.intersect1d(one.people, other.people, return_indices=True)
        found.append((both, reader(one.means[at] - other.means[there])))
    return added(found, people)


def side_by_side(history: Sequence[Kept], people: int) -> Tensor:
    """Return the scores of one direction in the means of all trainings, side by side; missing people have zeros."""
    wide = torch.zeros(people, sum(kept.means.shape[1] for kept in history))
    start, present = 0, torch.zeros(people, dtype=torch.bool)
    for kept in history:
        end, at = start + kept.means.shape[1], torch.from_numpy(kept.people)
        wide[at, start:end] = kept.means - kept.means.mean(dim=0)
        present[at], start = True, end
    scores = torch.full((people,), torch.nan, dtype=torch.float64)
    scores[present] = direction(wide[present])
    return scores


def read(history: Sequence[Kept], people: int) -> dict[str, Tensor]:
    """Return the scores (P,) of each reader for the trainings so far, by name."""
    found = {name: by_itself(history, reader, people) for name, reader in READERS.items()}
    found["side by side"] = side_by_side(history, people)
    if len(history) > 1:
        for name, reader in READERS.items():
            found[f"difference, {name}"] = by_difference(history, reader, people)
    return found
