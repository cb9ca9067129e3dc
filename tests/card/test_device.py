"""The stand-in refuses what a card refuses, and counts what a card would be waited for."""

import copy
import threading

import numpy as np
import pytest
import torch
from torch import nn

from tests.card.device import card, counting


def trained(device):
    torch.manual_seed(3)
    network = nn.Sequential(
        nn.Embedding(20, 4, sparse=True), nn.Flatten(), nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Tanh()
    )
    network = network.to(device)
    optimizers = [torch.optim.SparseAdam([network[0].weight]), torch.optim.Adam(network[2:].parameters())]
    for step in range(4):
        ids = torch.arange(15).reshape(5, 3).roll(step).to(device)
        network(ids).square().sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return {name: value.cpu() for name, value in network.state_dict().items()}


def test_training_there_gives_what_it_gives_in_main_memory():
    with card() as device:
        there = trained(device)
    here = trained("cpu")
    assert all(torch.equal(there[name], here[name]) for name in here)


def test_tensors_of_two_devices_are_refused():
    with card() as device:
        there = torch.ones(2).to(device)
        with pytest.raises(RuntimeError, match="expected all tensors on one device"):
            there + torch.ones(2)
        assert (there + torch.tensor(1.0)).tolist() == [2.0, 2.0]  # a single number travels with the operation
        assert torch.ones(2, device=device).device == there.device


@pytest.mark.parametrize("view", [lambda x: x.numpy(), np.asarray])
def test_numpy_does_not_see_what_lies_there(view):
    with card() as device, pytest.raises(RuntimeError, match="numpy"):
        view(torch.ones(2).to(device))


def test_what_comes_from_there_must_be_waited_for():
    with card() as device:
        there = torch.ones(2).to(device)
        with pytest.raises(RuntimeError, match="must be waited for"):
            there.to("cpu", non_blocking=True)
        with pytest.raises(RuntimeError, match="must be waited for"):
            torch.zeros(2).copy_(there, non_blocking=True)


WAITS = {
    "a number is read": lambda x: x.sum().item(),
    "it decides": lambda x: bool((x > 0).all()),
    "it is brought back": lambda x: x.cpu(),
    "a list is made": lambda x: x.tolist(),
    "a mask chooses": lambda x: x[x > 0],
    "places of main memory choose": lambda x: x[torch.tensor([0])],
    "it is compared": lambda x: torch.equal(x, x),
    "it is decomposed": lambda x: torch.linalg.eigh(torch.outer(x, x)),
    "something is sent": lambda x: torch.ones(3).to(x.device),
}
GOES_ON = {
    "it computes": lambda x: (x @ x + x.sort().values).softmax(0),
    "places of its own choose": lambda x: x[x.argsort()[:2]],
    "something is sent and not waited for": lambda x: torch.ones(3).to(x.device, non_blocking=True),
    "numbers are drawn": lambda x: torch.randn(3, device=x.device, generator=torch.Generator(x.device)),
}


@pytest.mark.parametrize("what", WAITS | GOES_ON)
def test_waits_are_counted(what):
    with card() as device:
        x = torch.arange(1.0, 4.0).to(device)
        with counting() as waits:
            (WAITS | GOES_ON)[what](x)
    assert waits.total() == (what in WAITS)
    assert waits.launches > 0


def test_a_shape_that_is_changed_in_place_changes():
    with card() as device:
        x = torch.ones(1, 3).to(device)
        x.squeeze_(0)
        assert x.shape == x.cpu().shape == (3,)
        assert copy.deepcopy(x).tolist() == [1.0, 1.0, 1.0]
        assert torch.arange(3, device=device).shape == (3,)  # PyTorch begins with nothing, and makes it larger


def test_other_threads_have_the_card_too():
    found = []
    with card() as device:
        thread = threading.Thread(target=lambda: found.append(torch.ones(2).to(device).sum().item()))
        thread.start()
        thread.join()
    assert found == [2.0]
