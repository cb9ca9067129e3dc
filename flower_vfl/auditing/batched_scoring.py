"""What attacks say of the steps that wait to be scored: on a card they are asked of many steps at once.

In main memory an attack is asked in the step that it attacks, while the gradients are in the processor's caches. On a
card each question is a dozen small operations and each answer a wait until all that came before is done; there the
gradients are held, attacks that look at single steps are asked of many of them together, and one copy brings it all.
Sequential attacks are asked of one step after the other.
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
from flower_vfl.metrics import ArgumentError
from flower_vfl.metrics.arrays import as_numpy
from flower_vfl.protocol.tensors import brought
from flower_vfl.protocol.transcript import Transcript

HELD = 2**28
"""Bytes of gradients of one party on a card that may wait for attacks to be asked of them."""

Target = tuple[Attack, str]
"""An attack, and the layer that it looks at."""


@dataclass(slots=True, eq=False)
class Waiting:
    """One step that waits to be scored.

    Attributes
    ----------
    step, epoch
        Which.
    labels
        (B,) true class numbers.
    positive
        The class that is looked for.
    sides
        What each target is told; None where the batch does not have what it needs.
    said
        (B,) what each said; None where it was told nothing that it needs, or is not asked yet.
    gradients
        (B, ...) by layer, of which it is not asked yet.
    """

    step: int
    epoch: int
    labels: NDArray[Any]
    positive: int
    sides: list[SideInformation | None] = field(default_factory=list)
    said: list[Any] = field(default_factory=list)
    gradients: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def held(self) -> int:
        """Bytes of the gradients."""
        return sum(gradient.nbytes for gradient in self.gradients.values())

    def found(self, place: int) -> tuple[NDArray[Any], NDArray[np.int64]] | None:
        """Return what the target of that place said, and whom it was told more of; None where it was not asked."""
        side = self.sides[place]
        return None if side is None else (self.said[place], side.left_out)

    def hear(self, target: Target, transcript: Transcript, side: SideInformation | None, shown: list[Tensor]) -> None:
        """Ask a target about the transcript's last step, now or later.

        Parameters
        ----------
        target : Target
            Who is asked, and about which layer.
        transcript : Transcript
            What the party saw.
        side : SideInformation, optional
            What the attack is told; None where the batch does not have what it needs.
        shown : list of Tensor
            All tensors that it sees and must not write into.

        Raises
        ------
        ConfigError
            When it writes into them.
        """
        attack, layer = target
        self.sides.append(side)
        self.said.append(None)
        if isinstance(attack, RowAttack) and transcript.last.embedding.device.type != "cpu":
            self.gradients = transcript.last.gradients
        elif side is not None:
            self.said[-1] = ask(attack, partial(attack.score, transcript, layer, side), shown)


Unasked = Sequence[tuple[Waiting, SideInformation]]
"""Steps of which an attack is still to be asked, each with what it is told."""


def answer(targets: Sequence[Target], waiting: Sequence[Waiting]) -> None:
    """Ask what was not asked yet, and bring what is said to main memory: (B,) arrays then.

    Raises
    ------
    ArgumentError
        Where an attack does not say one number of each row.
    """
    stacks: dict[Any, Tensor] = {}
    asked: list[tuple[int, Unasked]] = []
    together: list[Any] = []
    for place, (attack, layer) in enumerate(targets):
        if isinstance(attack, RowAttack):
            for steps in _unasked(waiting, place, layer, sequential=attack.sequential):
                asked.append((place, steps))
                together.append(_ask_together(attack, layer, steps, stacks))
    for (place, steps), said in zip(asked, _brought(together), strict=True):
        for (step, _), scores in zip(steps, said, strict=True):
            step.said[place] = scores
    alone = [(step, place) for step in waiting for place, said in enumerate(step.said) if said is not None]
    for (step, place), said in zip(alone, _brought([step.said[place] for step, place in alone]), strict=True):
        step.said[place] = said_of(targets[place][0], said, len(step.labels))
    for step in waiting:
        step.gradients = {}


def said_of(attack: AttackMethod, said: Any, rows: int) -> NDArray[Any]:
    """Return what an attack says of so many rows, (N,).

    Raises
    ------
    ArgumentError
        When it is not one number a row.
    """
    found = as_numpy(said)
    if found.shape != (rows,):
        raise ArgumentError(f"the attack {attack.label!r} says {found.shape} of {rows} rows: ({rows},) is needed")
    return found


def _unasked(waiting: Sequence[Waiting], place: int, layer: str, *, sequential: bool) -> list[Unasked]:
    """Return the steps of which a target is still to be asked, those with gradients of one shape together.

    A sequential attack is asked of each step by itself, in their order.
    """
    groups: defaultdict[Any, list[tuple[Waiting, SideInformation]]] = defaultdict(list)
    for step in waiting:
        side = step.sides[place]
        if side is not None and step.said[place] is None:
            groups[step.step if sequential else step.gradients[layer].shape].append((step, side))
    return list(groups.values())


def _ask_together(attack: RowAttack, layer: str, steps: Unasked, stacks: dict[Any, Tensor]) -> Tensor:
    """Return what an attack says of steps whose gradients have one shape; `stacks` keeps what others look at, too.

    A sequential attack sees the rows of its one step without a leading dimension, as in main memory.
    """
    key = layer, tuple(step.step for step, _ in steps)
    if key not in stacks:
        stacks[key] = torch.stack([as_rows(step.gradients[layer]) for step, _ in steps])
    shown = [stacks[key]]
    told = [attack.told(rows, side) for rows, (_, side) in zip(shown[0], steps, strict=True)]
    known = [one for one in told if one is not None]
    shown += [torch.stack(known)] if known else []
    rated = [tensor[0] for tensor in shown] if attack.sequential else shown
    said = ask(attack, partial(attack.rate, rated[0], rated[1] if known else None), shown)
    if attack.sequential and isinstance(said, Tensor):
        said = said[None]
    if not isinstance(said, Tensor) or said.shape != shown[0].shape[:2]:
        given = tuple(said.shape) if isinstance(said, Tensor) else type(said).__name__
        wanted = tuple(shown[0].shape[:2])
        raise ArgumentError(f"the attack {attack.label!r} says {given} of several batches: {wanted} is needed")
    return said


def _brought(said: Sequence[Any]) -> list[Any]:
    """Return what was said with all that is on a card in main memory."""
    there = [isinstance(one, Tensor) and one.device.type != "cpu" for one in said]
    found = iter(brought([one for one, is_there in zip(said, there, strict=True) if is_there]))
    return [next(found) if is_there else one for one, is_there in zip(said, there, strict=True)]
