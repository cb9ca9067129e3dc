from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from flower_vfl.nn.initialise import seeded_initialisation


def make(seed):
    with seeded_initialisation(seed):
        return nn.Linear(5, 7).weight.detach().clone()


def test_weights_depend_on_the_seed_alone_whatever_the_global_generator_did():
    first = make(11)
    torch.rand(17)
    assert torch.equal(make(11), first)
    assert not torch.equal(make(12), first)


def test_the_global_generator_continues_unchanged():
    state = torch.get_rng_state()
    expected = torch.rand(5)
    torch.set_rng_state(state)
    make(1)
    assert torch.equal(torch.rand(5), expected)


def test_the_global_generator_is_put_back_when_a_factory_fails():
    state = torch.get_rng_state()

    def broken():
        with seeded_initialisation(1):
            torch.rand(3)
            raise RuntimeError("broken factory")

    with pytest.raises(RuntimeError, match="broken"):
        broken()
    assert torch.equal(torch.get_rng_state(), state)


def test_factories_in_several_threads_do_not_disturb_each_other():
    expected = [make(seed) for seed in range(4)]
    found = {}

    def work(seed):
        for _ in range(50):
            found[seed] = make(seed)
            if not torch.equal(found[seed], expected[seed]):
                return

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert all(torch.equal(found[seed], expected[seed]) for seed in range(4))


def test_contexts_can_be_nested():
    with seeded_initialisation(1):
        before = torch.rand(2)
        inner = make(2)
        after = torch.rand(2)
    with seeded_initialisation(1):
        assert torch.equal(torch.rand(2), before)
        assert torch.equal(torch.rand(2), after)
    assert torch.equal(inner, make(2))
