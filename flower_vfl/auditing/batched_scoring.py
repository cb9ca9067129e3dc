"""Scores of pending steps: gradients are held until attacks score several steps in a row.

Between two steps of training nothing that an attack needs is in the processor's caches, so 16 steps in a row take about
half of the time of 16 that are scored one at a time between steps of training. On a GPU each call is a dozen small
operations, and each result waits for all earlier work; there attacks on single steps score the steps together, and all
scores come back in one copy. Sequential attacks score one step after the other. Attacks that are no `RowAttack` read
the transcript and score each step at once. So do, in main memory, attacks of other packages, whose first scores are
compared with those of a second instance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flower_vfl.attacks.base import Attack, AttackMethod, RowAttack, SideInformation
from flower_vfl.attacks.rows import as_rows
from flower_vfl.auditing.read_only import ask
from flower_vfl.auditing.shared_state import SCORED_STEPS
from flower_vfl.metrics import ArgumentError
from flower_vfl.metrics.arrays import as_numpy
from flower_vfl.protocol.tensors import brought
from flower_vfl.protocol.transcript import Transcript
from flower_vfl.registry import from_elsewhere

STEPS_AT_ONCE = 16
"""Number of steps that are scored in a row during training."""

MOST_PENDING_BYTES = 2**27
"""Largest number of bytes of one party's tensors in pending steps."""

LayerAttack = tuple[Attack, str]
"""An attack, and the layer that it scores."""


@dataclass(slots=True, eq=False)
class PendingStep:
    """A step that is not scored yet.

    Attributes
    ----------
    step, epoch
        Numbers of the step and of its epoch.
    labels
        (B,) true class numbers.
    positive
        The class that is detected in this step.
    sides
        Side information of each target; None where the batch lacks it.
    scores
        (B,) scores of each target; None where it lacks side information, or has not scored yet.
    gradients
        (B, ...) gradients by layer, for attacks that score later.
    """

    step: int
    epoch: int
    labels: NDArray[Any]
    positive: int
    sides: list[SideInformation | None] = field(default_factory=list)
    scores: list[Any] = field(default_factory=list)
    gradients: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def held(self) -> int:
        """Number of bytes of the held gradients."""
        return sum(gradient.nbytes for gradient in self.gradients.values())

    def found(self, place: int) -> tuple[NDArray[Any], NDArray[np.int64]] | None:
        """Return a target's scores, and the positions of the rows that it knows; None without side information."""
        side = self.sides[place]
        return None if side is None else (self.scores[place], side.left_out)

    def add(
        self, target: LayerAttack, transcript: Transcript, side: SideInformation | None, shown: list[Tensor]
    ) -> None:
        """Add a target that scores the transcript's last step, now or later.

        Parameters
        ----------
        target : LayerAttack
            The attack and its layer.
        transcript : Transcript
            The party's transcript.
        side : SideInformation, optional
            The attack's side information; None where the batch lacks it.
        shown : list of Tensor
            All tensors that the attack receives and must not write into.

        Raises
        ------
        ConfigError
            When the attack writes into them.
        """
        attack, layer = target
        self.sides.append(side)
        self.scores.append(None)
        on_gpu = transcript.last.embedding.device.type != "cpu"
        if isinstance(attack, RowAttack) and (on_gpu or not from_elsewhere(type(attack))):
            self.gradients = transcript.last.gradients
        elif side is not None:
            score = partial(attack.score, transcript, layer, side)
            self.scores[-1] = ask(attack, score, shown, copies=self.step < SCORED_STEPS)


Unscored = Sequence[tuple[PendingStep, SideInformation]]
"""Steps that an attack has not scored yet, each with its side information."""


def answer(targets: Sequence[LayerAttack], waiting: Sequence[PendingStep]) -> None:
    """Compute all missing scores, and bring them to main memory as arrays (B,).

    Raises
    ------
    ArgumentError
        When an attack does not return one number for each row.
    """
    shared: dict[Any, Tensor] = {}
    calls: list[tuple[int, RowAttack, str, Unscored]] = []
    for place, (attack, layer) in enumerate(targets):
        if isinstance(attack, RowAttack):
            found = _unscored(waiting, place, layer, sequential=attack.sequential)
            calls += [(place, attack, layer, steps) for steps in found]
    # In the order of steps: sequential attacks on one layer share the direction that they track, and each batch must
    # update it once. In main memory, the gradients of a step are then still in the caches for the next attack.
    calls.sort(key=lambda one: one[-1][0][0].step)
    together = [_score_together(attack, layer, steps, shared) for _, attack, layer, steps in calls]
    for (place, *_, steps), scores in zip(calls, _on_cpu(together), strict=True):
        for (step, _), own in zip(steps, scores, strict=True):
            step.scores[place] = own
    alone = [(step, place) for step in waiting for place, scores in enumerate(step.scores) if scores is not None]
    for (step, place), scores in zip(alone, _on_cpu([step.scores[place] for step, place in alone]), strict=True):
        step.scores[place] = checked_scores(targets[place][0], scores, len(step.labels))
    for step in waiting:
        step.gradients = {}


def checked_scores(attack: AttackMethod, scores: Any, rows: int) -> NDArray[Any]:
    """Return an attack's scores of N rows as an array (N,).

    Raises
    ------
    ArgumentError
        When there is not one number for each row.
    """
    found = as_numpy(scores)
    if found.shape != (rows,):
        raise ArgumentError(f"the attack {attack.label!r} returned {found.shape} for {rows} rows: ({rows},) is needed")
    return found


def rate(attack: RowAttack, rows: Tensor, known: Tensor | None) -> Tensor:
    """Return an attack's scores of many batches at once: of the steps of one run, or of the runs of a stack.

    Parameters
    ----------
    attack : RowAttack
        The attack.
    rows : Tensor
        (..., B, D) gradients.
    known : Tensor, optional
        (..., k, D) rows of the attack's side information.

    Returns
    -------
    Tensor
        (..., B) scores.

    Raises
    ------
    ArgumentError
        When the attack does not return one number for each row.
    ConfigError
        When the attack writes into its inputs.
    """
    scores = ask(attack, partial(attack.rate, rows, known), [rows] if known is None else [rows, known])
    if not isinstance(scores, Tensor) or scores.shape != rows.shape[:-1]:
        given = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        needed = tuple(rows.shape[:-1])
        raise ArgumentError(f"the attack {attack.label!r} returned {given} for several batches: {needed} is needed")
    return scores


def _unscored(waiting: Sequence[PendingStep], place: int, layer: str, *, sequential: bool) -> list[Unscored]:
    """Return groups of the steps that a target has not scored yet, on a GPU one for each shape of gradients.

    In main memory, and for a sequential attack, each step is a group of its own, in their order.
    """
    groups: defaultdict[Any, list[tuple[PendingStep, SideInformation]]] = defaultdict(list)
    for step in waiting:
        side = step.sides[place]
        if side is not None and step.scores[place] is None:
            gradients = step.gradients[layer]
            alone = sequential or gradients.device.type == "cpu"
            groups[step.step if alone else gradients.shape].append((step, side))
    return list(groups.values())


def _score_together(attack: RowAttack, layer: str, steps: Unscored, shared: dict[Any, Tensor]) -> Tensor:
    """Return an attack's scores of steps with gradients of one shape; `shared` caches these for other attacks.

    The rows of a single step have no leading dimension.
    """
    if len(steps) == 1:
        ((step, side),) = steps
        rows = shared.setdefault((layer, step.step), as_rows(step.gradients[layer]))
        return rate(attack, rows, attack.side_rows(rows, side))[None]
    key = layer, tuple(step.step for step, _ in steps)
    if key not in shared:
        shared[key] = torch.stack([as_rows(step.gradients[layer]) for step, _ in steps])
    sides = [attack.side_rows(rows, side) for rows, (_, side) in zip(shared[key], steps, strict=True)]
    given = [one for one in sides if one is not None]
    return rate(attack, shared[key], torch.stack(given) if given else None)


def _on_cpu(scores: Sequence[Any]) -> list[Any]:
    """Return all scores in main memory; one copy brings those on a GPU."""
    on_gpu = [isinstance(one, Tensor) and one.device.type != "cpu" for one in scores]
    found = iter(brought([one for one, remote in zip(scores, on_gpu, strict=True) if remote]))
    return [next(found) if remote else one for one, remote in zip(scores, on_gpu, strict=True)]
