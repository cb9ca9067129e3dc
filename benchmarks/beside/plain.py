"""Networks, optimizer and counted steps that both sides of `benchmarks/peers.py` use; it imports torch alone.

A file holds the work: initial weights, batches, labels. `Ticks` reports each step to the benchmark, and waits.
"""

from __future__ import annotations

import math
import os
import socket
import struct
from typing import Any

import torch
from torch import Tensor, nn

LOSS = struct.Struct("d")


def work() -> dict[str, Any]:
    """Return the work that the benchmark wrote, with one thread set to do it."""
    torch.set_num_threads(1)
    found: dict[str, Any] = torch.load(os.environ["BESIDE_WORK"], weights_only=True)
    return found


def batch(found: dict[str, Any], step: int) -> Tensor:
    """Return the rows of a step; after the last batch they begin again."""
    rows: Tensor = found["batches"][step % len(found["batches"])]
    return rows


def perceptron(layers: list[tuple[Tensor, Tensor]], *, last: bool) -> nn.Sequential:
    """Return linear layers of these weights and biases with a ReLU between them, and with `last` one after them."""
    modules: list[nn.Module] = []
    for weight, bias in layers:
        linear = nn.Linear(weight.shape[1], weight.shape[0])
        linear.load_state_dict({"weight": weight, "bias": bias})
        modules += [linear, nn.ReLU()]
    return nn.Sequential(*(modules if last else modules[:-1]))


def optimizer(network: nn.Module, found: dict[str, Any]) -> torch.optim.Optimizer:
    """Return the optimizer that the work names, which is PyTorch's own."""
    kind = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[found["optimizer"]]
    return kind(network.parameters(), lr=found["rate"])


class Features:
    """A feature party: `forward` gives the embedding of rows, `backward` takes its gradient and makes a step.

    Parameters
    ----------
    found : dict
        The work.
    party : str
        The party's name in it.

    Attributes
    ----------
    bottom : nn.Module
        The bottom model.
    """

    def __init__(self, found: dict[str, Any], party: str) -> None:
        self._columns: Tensor = found["columns"][party]
        self.bottom = perceptron(found["bottoms"][party], last=True)
        self._optimizer = optimizer(self.bottom, found)
        self._embedding: Tensor | None = None

    def forward(self, rows: Tensor) -> Tensor:
        """Return the embedding of these rows, (B, D), and keep what its backward pass needs."""
        self._embedding = self.bottom(self._columns[rows])
        return self._embedding.detach()

    def backward(self, gradient: Tensor) -> None:
        """Make a step with the gradient of the embedding that was sent last."""
        if self._embedding is None:
            raise RuntimeError("there is a gradient, and no embedding was sent before it")
        self._optimizer.zero_grad()
        self._embedding.backward(gradient)
        self._optimizer.step()


class Labels:
    """The label party: `step` takes the joined embedding of rows, makes a step and returns loss and gradient.

    Parameters
    ----------
    found : dict
        The work.
    """

    def __init__(self, found: dict[str, Any]) -> None:
        self._labels: Tensor = found["labels"]
        self._top = perceptron(found["top"], last=False)
        self._optimizer = optimizer(self._top, found)

    def step(self, rows: Tensor, embedding: Tensor) -> tuple[float, Tensor]:
        """Return the loss and the gradient of the joined embedding, (B, D)."""
        z = embedding.requires_grad_()
        loss = nn.functional.binary_cross_entropy_with_logits(self._top(z).squeeze(1), self._labels[rows])
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        if z.grad is None:
            raise RuntimeError("the loss does not depend on the embedding")
        return loss.item(), z.grad


class Ticks:
    """A connection that reports the loss of each step to the benchmark, and waits for its answer."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(os.environ["BESIDE_TICKS"])

    def tick(self, loss: float) -> None:
        """Report one step; raise ConnectionError when the benchmark is over."""
        self._socket.sendall(LOSS.pack(loss))
        if not self._socket.recv(1):
            raise ConnectionError("the benchmark is over")

    def interrupt(self) -> None:
        """Report an interruption by something that is no step."""
        self.tick(math.nan)
