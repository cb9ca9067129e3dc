"""The stand-in refuses what a GPU refuses, and counts the waits that a GPU would cause."""

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


def test_training_on_the_stand_in_equals_training_in_main_memory():
    with card() as device:
        on_device = trained(device)
    in_memory = trained("cpu")
    assert all(torch.equal(on_device[name], in_memory[name]) for name in in_memory)


def test_tensors_of_two_devices_are_refused():
    with card() as device:
        on_device = torch.ones(2).to(device)
        with pytest.raises(RuntimeError, match="expected all tensors on one device"):
            on_device + torch.ones(2)
        assert (on_device + torch.tensor(1.0)).tolist() == [2.0, 2.0]  # a scalar is a part of the operation
        assert torch.ones(2, device=device).device == on_device.device


@pytest.mark.parametrize("view", [lambda x: x.numpy(), np.asarray])
def test_numpy_cannot_view_a_tensor_of_the_stand_in(view):
    with card() as device, pytest.raises(RuntimeError, match="numpy"):
        view(torch.ones(2).to(device))


def test_a_copy_to_main_memory_must_be_waited_for():
    with card() as device:
        on_device = torch.ones(2).to(device)
        with pytest.raises(RuntimeError, match="must be waited for"):
            on_device.to("cpu", non_blocking=True)
        with pytest.raises(RuntimeError, match="must be waited for"):
            torch.zeros(2).copy_(on_device, non_blocking=True)


WAITS = {
    "a number is read": lambda x: x.sum().item(),
    "a condition is read": lambda x: bool((x > 0).all()),
    "it is copied to main memory": lambda x: x.cpu(),
    "a list is made": lambda x: x.tolist(),
    "a mask selects": lambda x: x[x > 0],
    "indices in main memory select": lambda x: x[torch.tensor([0])],
    "it is compared": lambda x: torch.equal(x, x),
    "it is decomposed": lambda x: torch.linalg.eigh(torch.outer(x, x)),
    "a tensor is copied to the device": lambda x: torch.ones(3).to(x.device),
}
NO_WAITS = {
    "it computes": lambda x: (x @ x + x.sort().values).softmax(0),
    "indices on the device select": lambda x: x[x.argsort()[:2]],
    "a tensor is copied without a wait": lambda x: torch.ones(3).to(x.device, non_blocking=True),
    "numbers are drawn": lambda x: torch.randn(3, device=x.device, generator=torch.Generator(x.device)),
}


@pytest.mark.parametrize("what", WAITS | NO_WAITS)
def test_waits_are_counted(what):
    with card() as device:
        x = torch.arange(1.0, 4.0).to(device)
        with counting() as waits:
            (WAITS | NO_WAITS)[what](x)
    assert waits.total() == (what in WAITS)
    assert waits.launches > 0


def test_a_shape_that_is_changed_in_place_changes():
    with card() as device:
        x = torch.ones(1, 3).to(device)
        x.squeeze_(0)
        assert x.shape == x.cpu().shape == (3,)
        assert copy.deepcopy(x).tolist() == [1.0, 1.0, 1.0]
        assert torch.arange(3, device=device).shape == (3,)  # PyTorch allocates it empty, then resizes it


def test_other_threads_have_the_stand_in_too():
    found = []
    with card() as device:
        thread = threading.Thread(target=lambda: found.append(torch.ones(2).to(device).sum().item()))
        thread.start()
        thread.join()
    assert found == [2.0]
