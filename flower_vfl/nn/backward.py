"""The backward pass of a network whose output's gradient another party has computed."""

from __future__ import annotations

from torch import Tensor
from torch.autograd import Variable


def backward(output: Tensor, gradient: Tensor) -> None:
    """Add the gradients of all weights to them, as `torch.autograd.backward(output, gradient)` does.

    PyTorch's function imports sympy to compare the shapes where a gradient is given: 0.6 s of a core in each process of
    a feature party. Its engine checks them too.
    """
    engine = Variable._execution_engine
    engine.run_backward((output,), (gradient,), False, False, (), allow_unreachable=True, accumulate_grad=True)
