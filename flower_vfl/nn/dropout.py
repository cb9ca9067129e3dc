"""Dropout that draws from a generator of its party's own, never from torch's global one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from flower_vfl.errors import ConfigError

# Number of trailing dimensions that share one draw: a whole channel is dropped at once.
_SHARED_DIMENSIONS: dict[type[nn.Module], int] = {nn.Dropout: 0, nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}
_ALWAYS_RANDOM = (nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)
_RANDOM_WITH_DROPOUT = (nn.RNNBase, nn.MultiheadAttention)


class Dropout(nn.Module):
    """A dropout layer: while training, it zeros entries with probability `p` and scales the others by 1 / (1 - p).

    The mask is drawn from `generator`, so that a run can be repeated and resumed bit for bit: save
    `generator.get_state()`, a tensor of bytes, and restore it with `generator.set_state`.

    Parameters
    ----------
    p : float
        Probability, 0 <= p < 1.
    generator : torch.Generator
        Generator of the masks, on the device of the input.
    shared_dimensions : int
        Number of trailing dimensions that share one draw: 0 for entries, 2 for the channels of images.

    Raises
    ------
    ConfigError
        When `p` is no such probability.
    """

    def __init__(self, p: float, *, generator: torch.Generator, shared_dimensions: int = 0) -> None:
        super().__init__()
        if not 0.0 <= p < 1.0:
            raise ConfigError(f"dropout must be at least 0 and below 1, given {p}")
        self.p = p
        self.shared_dimensions = shared_dimensions
        self.generator = generator

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` with a fresh mask while training, unchanged otherwise."""
        return x * self.mask(x) if self.training and self.p > 0.0 else x

    def mask(self, x: Tensor) -> Tensor:
        """Return a fresh mask for `x`, with the values 0 and 1 / (1 - p)."""
        kept = x.shape[: x.dim() - self.shared_dimensions]
        mask = torch.empty((*kept, *[1] * self.shared_dimensions), dtype=x.dtype, device=x.device)
        mask.bernoulli_(1.0 - self.p, generator=self.generator)
        return mask.div_(1.0 - self.p)

    def extra_repr(self) -> str:
        """Show the settings in the module's representation."""
        return f"p={self.p}, shared_dimensions={self.shared_dimensions}"

    def __getstate__(self) -> dict[str, Any]:
        # Generators can be neither copied nor pickled: a copy of the module starts at the state of the original.
        state = self.__dict__.copy()
        generator = state.pop("generator")
        return {**state, "_generator": (str(generator.device), generator.get_state())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        device, bits = state.pop("_generator")
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.generator = torch.Generator(device=device)
        self.generator.set_state(bits)


def bind_dropout(module: nn.Module, generator: torch.Generator) -> nn.Module:
    """Make every dropout in `module` draw from `generator`.

    Parameters
    ----------
    module : torch.nn.Module
        Module that is changed in place.
    generator : torch.Generator
        Generator on the device of the module.

    Returns
    -------
    torch.nn.Module
        `module`, or its replacement when it is itself a dropout.

    Raises
    ------
    ConfigError
        When a part of it draws from torch's global generator and cannot be bound; nothing is changed then.
    """
    for name, part in module.named_modules():
        _refuse(name, part)
    fresh: dict[nn.Module, nn.Module] = {}
    for part in list(module.modules()):
        # Not named_children: it yields a module that is in two places only once.
        for name, child in part._modules.items():
            if child is not None:
                setattr(part, name, _replacement(child, generator, fresh))
    return _replacement(module, generator, fresh)


def bound_generators(module: nn.Module) -> list[torch.Generator]:
    """Return the generators that the dropouts in `module` draw from, each once, in the order of its parts."""
    drawn = [part.generator for part in module.modules() if isinstance(part, Dropout)]
    return list({id(generator): generator for generator in drawn}.values())


def _replacement(part: nn.Module, generator: torch.Generator, fresh: dict[nn.Module, nn.Module]) -> nn.Module:
    """Return the replacement of a dropout, always the same for one module; other modules are returned unchanged."""
    if isinstance(part, Dropout):
        part.generator = generator
    if type(part) not in _SHARED_DIMENSIONS:
        return part
    if part not in fresh:
        shared = _SHARED_DIMENSIONS[type(part)]
        fresh[part] = Dropout(float(part.p), generator=generator, shared_dimensions=shared).train(part.training)  # type: ignore[arg-type]
    return fresh[part]


def _refuse(name: str, part: nn.Module) -> None:
    kind = type(part)
    unknown_dropout = isinstance(part, nn.modules.dropout._DropoutNd) and kind not in _SHARED_DIMENSIONS
    with_dropout = isinstance(part, _RANDOM_WITH_DROPOUT) and float(getattr(part, "dropout", 0.0)) > 0.0
    if not (unknown_dropout or with_dropout or isinstance(part, _ALWAYS_RANDOM)):
        return
    cure = "set its dropout to 0" if with_dropout else "use torch.nn.Dropout, Dropout1d, Dropout2d or Dropout3d instead"
    raise ConfigError(
        f"{name or 'the model'} is a {kind.__name__}, which draws from torch's global generator: the run could not be "
        f"repeated or resumed exactly; {cure}"
    )
