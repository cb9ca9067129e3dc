"""Many models of one architecture as one module: stacked weights, and passes in the same operations.

A dense weight of R models is one tensor (R, ...), and `torch.func.vmap` runs the model's own code on all of them.
Embedding tables with sparse gradients are concatenated, (R V, W), so that a step still touches the rows of its batches
only. The computations of the models are independent: a model that diverges affects no other.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from flower_vfl.errors import ConfigError
from flower_vfl.nn.dropout import Dropout
from flower_vfl.nn.optim import State, split_parameters

_Function = Callable[[Tensor], Tensor]
_Forward = Callable[..., Tensor]


class _AllModels(torch.autograd.Function):
    """An operation that leaves `vmap`: it gets the tensors of all models at once, (R, ...)."""

    generate_vmap_rule = False

    @staticmethod
    def forward(function: _Function, x: Tensor) -> Tensor:
        """Apply `function` to the tensor itself; within `vmap` the rule below applies."""
        return function(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Save nothing: autograd records the operations of `function` themselves."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, int | None], function: _Function, x: Tensor) -> tuple[Tensor, int]:
        """Apply `function` to the tensors of all models at once."""
        place = in_dims[1]
        return function(x.expand(info.batch_size, *x.shape) if place is None else x.movedim(place, 0)), 0


def _for_all_models(function: _Function, x: Tensor) -> Tensor:
    found: Tensor = _AllModels.apply(function, x)  # type: ignore[no-untyped-call]
    return found


def _joint_rows(ids: Tensor, levels: int) -> Tensor:
    """Return the row numbers (R, ...) of each model's ids in the table of all models."""
    return ids + (torch.arange(len(ids), device=ids.device) * levels).view(-1, *[1] * (ids.dim() - 1))


class _Tables(nn.Embedding):
    """The embedding tables of R models, concatenated to (R V, W)."""

    levels: int

    def forward(self, input: Tensor) -> Tensor:
        """Look up ids (B, ...) in each model's own table."""

        def look_up(ids: Tensor) -> Tensor:
            return nn.functional.embedding(_joint_rows(ids, self.levels), self.weight, sparse=True)

        return _for_all_models(look_up, input)


class _Bags(nn.EmbeddingBag):
    """The embedding tables of R models, concatenated to (R V, W), with rows that are summed."""

    levels: int

    def forward(self, input: Tensor) -> Tensor:  # type: ignore[override]
        """Sum the rows of ids (B, K) in each model's own table."""

        def add_up(ids: Tensor) -> Tensor:
            flat = _joint_rows(ids, self.levels).flatten(0, 1)
            sums = nn.functional.embedding_bag(flat, self.weight, mode=self.mode, sparse=True)
            return sums.view(*ids.shape[:2], -1)

        return _for_all_models(add_up, input)


class _Dropouts(nn.Module):
    """Dropout of R models, each mask from its own model's generator."""

    def __init__(self, parts: Sequence[Dropout]) -> None:
        super().__init__()
        self._draw = [part.mask for part in parts]  # bound methods: the dropouts do not become submodules

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` with fresh masks while training, unchanged otherwise."""

        def drop(entries: Tensor) -> Tensor:
            masks = [draw(entry) for draw, entry in zip(self._draw, entries, strict=True)]
            return entries * torch.stack(masks)

        return _for_all_models(drop, x) if self.training else x


class _Caller(nn.Module):
    """A module with the function that calls it, so that its weights can be exchanged for one call."""

    def __init__(self, module: nn.Module, forward: _Forward) -> None:
        super().__init__()
        self.module, self._forward = module, forward

    def forward(self, *inputs: Any) -> Tensor:
        return self._forward(self.module, *inputs)


class Stack:
    """R models of one architecture with weights of their own, trained together.

    Parameters
    ----------
    modules : Sequence[nn.Module]
        The models; they do not change, but their dropouts' generators are drawn from.
    forward : Callable, optional
        Function that returns the output of a model, from the module and the inputs of one model. By default it calls
        the module with the inputs.
    watched : Mapping[str, nn.Module], optional
        Parts of the *first* model with outputs that are kept in `seen`, by name.

    Attributes
    ----------
    module : nn.Module
        The weights of all models, each under its name in a single model: (R, ...), and (R V, W) of a sparse embedding.
        An optimizer that treats every entry in the same way can train it like one model.
    seen : dict[str, Tensor]
        Outputs (R, B, ...) of the watched parts in the last pass.

    Raises
    ------
    ConfigError
        When a model has parts that cannot be stacked: running statistics.

    Examples
    --------
    >>> one, two = nn.Linear(3, 2), nn.Linear(3, 2)
    >>> stack, x = Stack([one, two]), torch.randn(2, 5, 3)
    >>> torch.allclose(stack(x)[1], two(x[1]), atol=1e-6)
    True
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        forward: _Forward = lambda module, *inputs: module(*inputs),
        watched: Mapping[str, nn.Module] | None = None,
    ) -> None:
        names = {id(part): name for name, part in modules[0].named_modules()}
        self.module = copy.deepcopy(modules[0])
        self.runs = len(modules)
        self.seen: dict[str, Tensor] = {}
        parts = dict(self.module.named_modules())
        _check(parts)
        for layer, part in (watched or {}).items():
            parts[names[id(part)]].register_forward_hook(self._recorder(layer))
        every = [dict(module.named_modules()) for module in modules]
        for name, part in parts.items():
            if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse:
                self._join_tables(part)
            elif isinstance(part, Dropout):
                place, _, last = name.rpartition(".")
                same_parts = [other[name] for other in every]
                setattr(parts[place], last, _Dropouts([entry for entry in same_parts if isinstance(entry, Dropout)]))
        self._tables = set(split_parameters(self.module)[1])
        self._caller = _Caller(self.module, forward)
        self._load([dict(module.named_parameters()) for module in modules])

    def _join_tables(self, part: nn.Embedding | nn.EmbeddingBag) -> None:
        """Turn an embedding into the table of all models; `_load` sets its weights."""
        levels = part.num_embeddings
        part.__class__ = _Tables if isinstance(part, nn.Embedding) else _Bags
        part.__dict__ |= {"levels": levels, "num_embeddings": levels * self.runs}

    def _load(self, weights: Sequence[Mapping[str, nn.Parameter]]) -> None:
        self._dense: dict[str, nn.Parameter] = {}
        for path, part in self.module.named_modules():
            for last, parameter in list(part.named_parameters(recurse=False)):
                name = f"{path}.{last}".lstrip(".")
                join = torch.cat if name in self._tables else torch.stack
                joined = nn.Parameter(join([one[name].detach() for one in weights]), parameter.requires_grad)
                setattr(part, last, joined)
                if name not in self._tables:
                    self._dense[f"module.{name}"] = joined

    def _recorder(self, layer: str) -> Callable[..., Tensor]:
        def hook(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
            return _for_all_models(lambda outputs: self.seen.setdefault(layer, outputs), output)

        return hook

    def __call__(self, *inputs: Any, train: bool = True) -> Tensor:
        """Return the outputs (R, ...) of all models for their inputs, tensors (R, B, ...) or lists of them."""
        if self.module.training is not train:
            self.module.train(train)
        self.seen = {}
        found: Tensor = vmap(lambda dense, given: functional_call(self._caller, dense, given))(self._dense, inputs)
        return found

    def state_of(self, run: int) -> dict[str, Tensor]:
        """Return the weights and buffers of one model, as its own `state_dict` would."""
        state = self.module.state_dict()
        return {name: self._part(name, tensor, run) for name, tensor in state.items()}

    def optimizer_of(self, state: State, run: int) -> State:
        """Return one model's part of the state of the optimizer of all models."""
        found: State = {}
        for key, value in state.items():
            whole = not isinstance(value, Tensor) or not value.dim()
            found[key] = value if whole else self._part(key.rpartition(":")[0], value, run)  # type: ignore[arg-type]
        return found

    def _part(self, name: str, tensor: Tensor, run: int) -> Tensor:
        if f"module.{name}" in self._dense:
            return tensor[run]
        if name in self._tables:
            return tensor.chunk(self.runs)[run]
        return tensor


def _check(parts: Mapping[str, nn.Module]) -> None:
    for name, part in parts.items():
        if getattr(part, "track_running_stats", False):
            raise ConfigError(
                f"{name} keeps running statistics ({type(part).__name__}), which models in a stack would share; train "
                "its runs apart"
            )
