"""Attacks that score several steps at once give the scores of single steps."""

import numpy as np
import pytest
import torch

from flower_vfl.attacks import make_attack, make_attacks
from flower_vfl.attacks.base import HINTS, NOTHING, REFERENCE, Attack, RowAttack, SideInformation
from flower_vfl.attacks.gradient.principal_direction import fresh_together
from flower_vfl.auditing.batched_scoring import PendingStep, answer
from flower_vfl.errors import ArgumentError
from flower_vfl.protocol.transcript import StepTrace, Transcript
from tests.card.device import card, counting

NAMES = ["norm", "cosine", "inner_product", "direction_count", "residual", "direction", "shell", "hint", "spectral"]
SIZES = (12, 12, 7, 12)
"""Numbers of rows of the steps: the last batch of an epoch is shorter."""


def steps(device, attacks, layers=("cut", "first")):
    """Return targets, and their pending steps; the second step has no reference."""
    generator, found = torch.Generator().manual_seed(4), []
    fresh = {layer: fresh_together(attacks) for layer in layers}  # attacks that follow one line share it, as in a run
    targets = [(fresh[layer][place], layer) for place in range(len(attacks)) for layer in layers]
    for number, size in enumerate(SIZES):
        gradients = {layer: torch.randn(size, 5, generator=generator).to(device) for layer in layers}
        transcript = Transcript()
        transcript.record(StepTrace(number, 1, np.arange(size), gradients["cut"], gradients, gradients))
        step = PendingStep(number, 1, np.zeros(size, dtype=np.int64), 1)
        for attack, layer in targets:
            g = gradients[layer]
            tensors, left_out = {REFERENCE: g[3].clone(), HINTS: g[:2]}, np.array([0, 1])
            side = SideInformation({name: tensors[name] for name in attack.needs}, left_out)
            missing = number == 1 and REFERENCE in attack.needs
            step.add((attack, layer), transcript, None if missing else side, [])
        found.append(step)
    return targets, found


def test_scores_on_a_gpu_are_those_in_main_memory():
    attacks = make_attacks([{"name": name} for name in NAMES])
    targets, here = steps("cpu", attacks)
    assert all(step.held == 2 * size * 5 * 4 for step, size in zip(here, SIZES, strict=True))
    answer(targets, here)
    with card() as device:
        targets, there = steps(device, attacks)
        assert all(step.held == 2 * size * 5 * 4 for step, size in zip(there, SIZES, strict=True))
        with counting() as waits:
            answer(targets, there)
    assert waits["tensors.brought"] == 2  # scores of several steps, and scores of single steps
    assert "arrays.as_numpy" not in waits
    for mine, theirs in zip(there, here, strict=True):
        assert mine.held == theirs.held == 0
        for place, (attack, _) in enumerate(targets):
            scores, expected = mine.found(place), theirs.found(place)
            if mine.step == 1 and REFERENCE in attack.needs:
                assert scores is expected is None
            else:
                assert scores[0] == pytest.approx(expected[0], rel=1e-5, abs=1e-6), attack
                assert scores[1].tolist() == expected[1].tolist()


class Wrong(RowAttack):
    """Returns one number for each batch."""

    name = "wrong"

    def rate(self, rows, known):
        return rows.sum(dim=(-2, -1))


class Words(RowAttack):
    """Returns something that is no tensor."""

    name = "words"

    def rate(self, rows, known):
        return ["positive"] * len(rows)


class Alone(Attack):
    """Scores each step by itself, and returns an array in main memory."""

    name = "alone"

    def score(self, transcript, layer, side=NOTHING):
        return transcript.last.gradients[layer].cpu().numpy()[:, 0]


class Recording(RowAttack):
    """Records its inputs."""

    def __init__(self, name, sequential=False):
        self.name, self.inputs, self.sequential = name, [], sequential

    def fresh(self):
        return self

    def rate(self, rows, known):
        self.inputs.append(rows)
        return rows[..., 0]


@pytest.mark.parametrize(
    ("attack", "words"),
    [
        (Wrong(), r"'wrong' returned \(3,\) for several batches: \(3, 12\) is needed"),
        (Words(), r"'words' returned list for several batches: \(3, 12\) is needed"),
    ],
)
def test_an_attack_that_does_not_return_one_number_a_row_is_refused_by_name(attack, words):
    with card() as device:
        targets, waiting = steps(device, [attack])
        with pytest.raises(ArgumentError, match=words):
            answer(targets, waiting)


def test_such_an_attack_is_refused_by_name_in_main_memory_too():
    targets, waiting = steps("cpu", [make_attack("norm"), Wrong()])
    with pytest.raises(ArgumentError, match=r"the attack 'wrong' returned \(\) for 12 rows: \(12,\) is needed"):
        answer(targets, waiting)


def test_scores_of_single_steps_may_be_in_main_memory_already():
    targets, here = steps("cpu", [Alone()])
    with card() as device:
        targets, there = steps(device, [Alone()])
        for waiting in (here, there):
            answer(targets, waiting)
    for mine, theirs in zip(there, here, strict=True):
        assert mine.found(1)[0].tolist() == theirs.found(1)[0].tolist()


def test_all_attacks_on_a_layer_get_one_stack_of_its_gradients():
    attacks = [Recording("one"), Recording("another")]
    with card() as device:
        answer(*steps(device, attacks))
    one, another = (attack.inputs for attack in attacks)
    assert [rows.shape for rows in one] == [*[(3, 12, 5)] * 2, *[(7, 5)] * 2]
    assert all(mine is theirs for mine, theirs in zip(one, another, strict=True))


def test_a_sequential_attack_scores_one_step_after_the_other():
    attack = Recording("one", sequential=True)
    with card() as device:
        targets, waiting = steps(device, [attack], layers=("cut",))
        answer(targets, waiting)
    assert [rows.shape for rows in attack.inputs] == [(size, 5) for size in SIZES]
    assert [step.found(0)[0].shape for step in waiting] == [(size,) for size in SIZES]
