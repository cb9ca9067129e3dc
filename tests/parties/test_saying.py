"""Attacks that are asked of many steps at once say what they say of each."""

import numpy as np
import pytest
import torch

from flower_vfl.attacks import make_attacks
from flower_vfl.attacks.base import HINTS, REFERENCE, RowAttack, SideInformation
from flower_vfl.errors import ArgumentError
from flower_vfl.parties.saying import Waiting, answer
from flower_vfl.protocol.transcript import StepTrace, Transcript
from tests.card.device import card, counting

NAMES = ["norm", "cosine", "inner_product", "direction_count", "residual", "hint", "spectral"]
SIZES = (12, 12, 7, 12)
"""Rows of the steps: the last batch of an epoch is shorter."""


def steps(device, attacks, layers=("cut", "first")):
    """What waits after some steps; of the second one, no reference is known."""
    generator, found = torch.Generator().manual_seed(4), []
    targets = [(attack, layer) for attack in attacks for layer in layers]
    for number, size in enumerate(SIZES):
        gradients = {layer: torch.randn(size, 5, generator=generator).to(device) for layer in layers}
        transcript = Transcript()
        transcript.record(StepTrace(number, 1, np.arange(size), gradients["cut"], gradients, gradients))
        step = Waiting(number, 1, np.zeros(size, dtype=np.int64), 1)
        for attack, layer in targets:
            g = gradients[layer]
            tensors, left_out = {REFERENCE: g[3].clone(), HINTS: g[:2]}, np.array([0, 1])
            side = SideInformation({name: tensors[name] for name in attack.needs}, left_out)
            missing = number == 1 and REFERENCE in attack.needs
            step.hear((attack, layer), transcript, None if missing else side, [])
        found.append(step)
    return targets, found


def test_what_is_said_on_a_card_is_what_is_said_in_main_memory():
    attacks = make_attacks([{"name": name} for name in NAMES])
    targets, here = steps("cpu", attacks)
    answer(targets, here)
    with card() as device:
        targets, there = steps(device, attacks)
        assert all(step.held == 2 * size * 5 * 4 for step, size in zip(there, SIZES, strict=True))
        with counting() as waits:
            answer(targets, there)
    assert waits["tensors.brought"] == 2  # what was asked together, and what was said in its step
    for mine, theirs in zip(there, here, strict=True):
        assert mine.held == theirs.held == 0
        for place, (attack, _) in enumerate(targets):
            said, expected = mine.found(place), theirs.found(place)
            if mine.step == 1 and REFERENCE in attack.needs:
                assert said is expected is None
            else:
                assert said[0] == pytest.approx(expected[0], rel=1e-5, abs=1e-6), attack
                assert said[1].tolist() == expected[1].tolist()


class Wrong(RowAttack):
    """Says one number a batch."""

    name = "wrong"

    def rate(self, rows, known):
        return rows.sum(dim=(-2, -1))


def test_an_attack_that_does_not_say_one_number_a_row_is_refused_by_name():
    with card() as device:
        targets, waiting = steps(device, [Wrong()])
        with pytest.raises(ArgumentError, match=r"'wrong' says \(3,\) of several batches: \(3, 12\) is needed"):
            answer(targets, waiting)
