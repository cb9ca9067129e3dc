"""The optimizers of one module, for dense weights and sparse embeddings, with a learning-rate schedule and a state."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from flower_vfl.errors import ConfigError, DataError, lookup
from flower_vfl.nn.row_adam import RowAdam

State = dict[str, Tensor | int | float]


def _uncompiled(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Return a subclass of an optimizer without its guards for compilation and graph capture, which are not used here.

    At the first optimizer of a process, the guards import PyTorch's compiler, which takes as long as PyTorch itself.
    The `step` of the subclass runs no hooks and has no profiler entry, which cost a tenth of a small network's step.
    """
    step = torch.no_grad()(inspect.unwrap(kind.step))
    step.hooked = True  # so that `Optimizer` does not wrap it
    own = {"add_param_group": inspect.unwrap(kind.add_param_group), "step": step}
    return type(kind.__name__, (kind,), {**own, "_accelerator_graph_capture_health_check": _check_nothing})


def _check_nothing(_optimizer: torch.optim.Optimizer) -> None:
    """Replace the check for graph capture."""


_DENSE: dict[str, type[torch.optim.Optimizer]] = {
    "adam": _uncompiled(torch.optim.Adam),
    "adamw": _uncompiled(torch.optim.AdamW),
    "sgd": _uncompiled(torch.optim.SGD),
}
_SPARSE: dict[str, type[torch.optim.Optimizer]] = {
    "adam": _uncompiled(RowAdam),
    "adamw": _uncompiled(RowAdam),
    "sgd": _DENSE["sgd"],
}
# Factor of the learning rate when a part 0 <= done <= 1 of the training is over.
_SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
    "step": lambda done: 1.0 if done < 0.6 else 0.1 if done < 0.85 else 0.01,
    "linear": lambda done: 1.0 - done,
}


class Optimizers:
    r"""The optimizer of one module: sparse embeddings are updated at the rows of the batch only, the rest as usual.

    Weights of `torch.nn.Embedding(sparse=True)` get `RowAdam`, which is `torch.optim.SparseAdam` made faster (for adam
    and adamw), or plain SGD; all other weights get the optimizer of that name. The cost of a step
    depends on the number of distinct values in its batch, not on the vocabulary.

    Parameters
    ----------
    module : torch.nn.Module
        Module to optimize; without parameters, nothing happens.
    name : {"adam", "adamw", "sgd"}
        Optimizer.
    learning_rate : float
        Learning rate at the start.
    weight_decay : float
        Weight decay of dense weights only: decay of an embedding would touch its whole table in every step.
    embedding_decay : float
        Weight decay of sparse embeddings: this factor times the row is added to the gradient of each row that has one,
        once, however often the batch holds the row. A regulariser :math:`\lambda \|W\|^2` in the loss, as in papers,
        adds :math:`2 \lambda` times *every* row in every step; here a row decays only in the steps whose batches hold
        it.
    schedule : {"constant", "cosine", "step", "linear"}
        Learning rate along the training: unchanged; a half cosine down to 0; divided by 10 after 60 % and again after
        85 % of the steps; straight down to 0.
    steps : int
        Steps of the whole training; needed by every schedule but "constant".
    fused : bool
        True for PyTorch's fused kernel of dense weights; it rounds differently, so weights are not equal bit for bit.

    Raises
    ------
    ConfigError
        When a name is unknown, a number is out of range or a combination is impossible.
    """

    def __init__(
        self,
        module: nn.Module,
        name: str = "adam",
        *,
        learning_rate: float = 1e-3,
        weight_decay: float = 0.0,
        embedding_decay: float = 0.0,
        schedule: str = "constant",
        steps: int = 0,
        fused: bool = False,
    ) -> None:
        self._factor = lookup("learning-rate schedule", schedule, _SCHEDULES)
        dense, sparse = split_parameters(module)
        _check(name, learning_rate, {"weight_decay": weight_decay, "embedding_decay": embedding_decay})
        if schedule != "constant" and steps < 1:
            raise ConfigError(f"schedule {schedule!r} needs the number of steps, given steps={steps}")
        self._base, self._embedding_decay, self._tables = learning_rate, embedding_decay, list(sparse.values())
        self._total = steps
        self._taken = 0
        self._parameters = dense | sparse
        self._optimizers: list[torch.optim.Optimizer] = []
        if dense:
            kernel = "fused" if fused else "foreach"
            more: dict[str, Any] = {"lr": learning_rate, "weight_decay": weight_decay, kernel: True}
            self._optimizers.append(_DENSE[name](list(dense.values()), **more))
        if sparse:
            self._optimizers.append(_SPARSE[name](list(sparse.values()), lr=learning_rate))  # type: ignore[call-arg]

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step."""
        return self._base * self._factor(min(1.0, self._taken / self._total) if self._total else 0.0)

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def clip_grad(self, max_norm: float) -> None:
        """Scale all gradients so that their joint norm is at most `max_norm`.

        Rows of an embedding that occur several times in the batch count once, with the sum of their gradients.
        """
        values: list[Tensor] = []
        for parameter in self._parameters.values():
            if parameter.grad is not None:
                if parameter.grad.is_sparse:
                    parameter.grad = parameter.grad.coalesce()
                values.append(parameter.grad._values() if parameter.grad.is_sparse else parameter.grad)
        if not values:
            return
        norms = [torch.linalg.vector_norm(value) for value in values]  # tables may be on another device than the rest
        norm = float(torch.linalg.vector_norm(torch.stack([one.to(norms[0].device) for one in norms])))
        if norm > max_norm:
            for value in values:
                value.mul_(max_norm / norm)

    def step(self) -> None:
        """Update the weights from their gradients."""
        rate = self.learning_rate
        if self._embedding_decay:
            self._decay_rows()
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
        self._taken += 1

    @torch.no_grad()
    def _decay_rows(self) -> None:
        """Add the decay of embedding rows to their gradients."""
        for table in self._tables:
            if table.grad is not None and table.grad.is_sparse:
                table.grad = table.grad.coalesce()
                rows = table.index_select(0, table.grad._indices()[0])
                table.grad._values().add_(rows, alpha=self._embedding_decay)

    def state_dict(self) -> State:
        """Return the state by name: tensors (not copied) and plain numbers, for safetensors and JSON."""
        state: State = {"steps": self._taken}
        for name, parameter in self._parameters.items():
            for optimizer in self._optimizers:
                for key, value in optimizer.state.get(parameter, {}).items():
                    if value is not None:
                        state[f"{name}:{key}"] = value
        return state

    def load_state_dict(self, state: Mapping[str, Tensor | int | float]) -> None:
        """Restore a state that `state_dict` returned for the same module and settings.

        Raises
        ------
        DataError
            When the state belongs to another module; nothing is changed then.
        """
        steps = state.get("steps")
        if not isinstance(steps, int) or steps < 0:
            raise DataError(f"the optimizer's state must hold the number of steps, given {steps!r}")
        fresh: dict[str, dict[str, Tensor | int | float]] = {}
        for key, value in state.items():
            name, colon, slot = key.rpartition(":")
            if colon:
                fresh.setdefault(name, {})[slot] = self._checked_entry(name, slot, value)
            elif key != "steps":
                raise DataError(f"the optimizer's state has an unknown entry {key!r}")
        self._taken = steps
        for optimizer in self._optimizers:
            optimizer.state.clear()
            for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
                name = next(name for name, mine in self._parameters.items() if mine is parameter)
                if name in fresh:
                    optimizer.state[parameter] = dict(fresh[name])

    def _checked_entry(self, name: str, slot: str, value: Tensor | int | float) -> Tensor | int | float:
        """Return a checked copy of one entry of a state; a tensor in the parameter's shape moves to its device."""
        parameter = self._parameters.get(name)
        if parameter is None:
            raise DataError(f"the optimizer's state is for a weight {name!r}, which this model does not have")
        if not isinstance(value, Tensor):
            return value
        if slot == "step":
            return value.clone()
        expected = (len(parameter), 2, *parameter.shape[1:]) if slot == "moments" else tuple(parameter.shape)
        if value.shape != expected:
            given = tuple(value.shape)
            raise DataError(f"the optimizer's state for {name!r} has shape {given}, the weight has {expected}")
        return value.to(parameter.device, copy=True)


class OwnOptimizer:
    """A user's own torch optimizer, with the interface that a party uses.

    Parameters
    ----------
    module : torch.nn.Module
        The module that it optimizes.
    optimizer : torch.optim.Optimizer
        Any optimizer whose `step()` needs no closure.

    Raises
    ------
    ConfigError
        For something else than such an optimizer.
    """

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, torch.optim.LBFGS):
            raise ConfigError(
                f"the optimizer function returned {type(optimizer).__name__}: a torch.optim.Optimizer is needed whose "
                "`step()` takes no closure"
            )
        self._parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._optimizer = optimizer

    def zero_grad(self) -> None:
        """Drop the gradients."""
        self._optimizer.zero_grad(set_to_none=True)

    def clip_grad(self, max_norm: float) -> None:
        """Scale all gradients so that their joint norm is at most `max_norm`."""
        nn.utils.clip_grad_norm_(self._parameters, max_norm)

    def step(self) -> None:
        """Update the weights from their gradients."""
        self._optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state."""
        return self._optimizer.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self._optimizer.load_state_dict(dict(state))


def split_parameters(module: nn.Module) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter]]:
    """Return the trainable parameters by name, dense ones and those with sparse gradients."""
    tables = {
        id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse
    }
    named = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    dense = {name: parameter for name, parameter in named.items() if id(parameter) not in tables}
    return dense, {name: parameter for name, parameter in named.items() if id(parameter) in tables}


def _check(name: str, lr: float, decays: Mapping[str, float]) -> None:
    lookup("optimizer", name, _DENSE)
    if not (math.isfinite(lr) and lr > 0.0):
        raise ConfigError(f"the learning rate must be above 0, given {lr}")
    for key, decay in decays.items():
        if not (math.isfinite(decay) and decay >= 0.0):
            raise ConfigError(f"{key} must be at least 0, given {decay}")
