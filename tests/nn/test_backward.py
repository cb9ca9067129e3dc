"""The backward pass from a given gradient is PyTorch's own."""

import subprocess
import sys

import pytest
import torch

from flower_vfl.nn.backward import backward


def gradients(work, gradient):
    weights = torch.arange(6.0).reshape(3, 2).requires_grad_()
    for _ in range(2):  # gradients are added up
        work(torch.tanh(torch.arange(12.0).reshape(4, 3) / 12 @ weights), gradient)
    return weights.grad


def test_the_gradients_are_those_of_pytorch():
    gradient = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    assert torch.equal(gradients(backward, gradient), gradients(torch.autograd.backward, gradient))


def test_a_gradient_of_another_shape_is_refused():
    with pytest.raises(RuntimeError, match="shape"):
        gradients(backward, torch.zeros(4, 3))


def test_it_imports_no_sympy():
    """The import takes longer than many runs' first step, in every process of every party."""
    code = """
import sys, torch
from flower_vfl.nn.backward import backward
backward(torch.nn.Linear(2, 2)(torch.ones(3, 2)), torch.ones(3, 2))
print("sympy" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False\n", "")
