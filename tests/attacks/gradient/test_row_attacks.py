"""Attacks that score many runs at once score each as if it were alone."""

from importlib import import_module

import pytest
import torch

from flower_vfl.attacks import make_attacks
from flower_vfl.attacks.base import HINTS, REFERENCE, RowAttack, SideInformation
from flower_vfl.metrics import ArgumentError
from flower_vfl.protocol.transcript import StepTrace, Transcript

CALLS = [
    {"name": "norm"},
    {"name": "cosine"},
    {"name": "inner_product"},
    {"name": "direction_count"},
    {"name": "residual"},
    *({"name": "hint", "k": 3, "measure": measure} for measure in ("inner", "cosine", "distance")),
]


def one_step(g):
    """Return the transcript of a step with these gradients at the cut."""
    transcript = Transcript()
    transcript.record(StepTrace(0, 1, torch.arange(len(g)).numpy(), g, {"cut": g}))
    return transcript


@pytest.mark.parametrize("scale", [1.0, 1e-30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("attack", make_attacks(CALLS), ids=lambda attack: attack.label)
def test_a_stack_of_batches_is_scored_like_its_batches(attack, dtype, scale):
    assert isinstance(attack, RowAttack)
    generator = torch.Generator().manual_seed(0)
    g = scale * torch.randn(3, 600, 32, generator=generator, dtype=dtype)
    g[1, 5] = 0.0
    known = g[:, : attack.hints] if attack.needs else None
    found = attack.rate(g, known)
    for run in range(3):
        side = {}
        if known is not None:
            side = {HINTS: known[run]} if HINTS in attack.needs else {REFERENCE: known[run, 0]}
        alone = attack.score(one_step(g[run]), "cut", SideInformation(side))
        score = import_module(type(attack).__module__).score
        params = {name: value for name, value in attack.params.items() if name != "k"}
        for expected in (alone, score(g[run], *side.values(), **params)):
            assert found.dtype == expected.dtype
            torch.testing.assert_close(found[run], expected, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize(
    ("call", "side"),
    [("cosine", {REFERENCE: torch.ones(4)}), ("hint", {HINTS: torch.ones(6, 4)}), ("hint", {HINTS: torch.ones(0, 8)})],
)
def test_side_information_of_another_width_is_refused_whatever_else_fits(call, side):
    (attack,) = make_attacks([{"name": call}])
    with pytest.raises(ArgumentError, match="give at least one, all of the gradients' width 8"):
        attack.score(one_step(torch.ones(3, 2, 4)), "cut", SideInformation(side))


def test_an_attack_without_the_side_information_that_it_needs_is_refused():
    with pytest.raises(ArgumentError, match="needs gradients of positives"):
        make_attacks([{"name": "cosine"}])[0].rate(torch.ones(2, 3, 4), None)
