"""Networks that are a list of stages: the place of the cut does not change the function that they compute."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from torch import nn

from flower_vfl.config.schema import ModelConfig
from flower_vfl.errors import ConfigError, lookup
from flower_vfl.nn.network import Network
from flower_vfl.nn.tabular import FeatureShape, Top

RowShape = tuple[int, ...]
Layers = Callable[[RowShape, int], tuple[nn.Module, RowShape]]
"""A function that returns the layers of a stage, for rows of a shape and an output width, and the output's shape."""

HEAD = "head"
"""The name of the part behind the last stage: one linear layer to the logits."""


@dataclass(frozen=True)
class Stage:
    """Consecutive layers of a network, which can be cut behind them.

    Parameters
    ----------
    name : str
        Name of the stage in `model.split` and `attack.layers`.
    make : Callable
        Function that makes the layers.
    width : int
        The width of its output in the published network: features, or channels of feature maps.
    fixed : bool
        True if the width cannot be changed.
    """

    name: str
    make: Layers
    width: int
    fixed: bool = False


@dataclass(frozen=True)
class StagedNetwork(Network):
    """A network in stages: those up to the cut are the bottom model, the others and a linear layer the top model.

    Parameters and buffers are named after the stages, the same on either side of the cut.

    Parameters
    ----------
    name : str
        Name of the network in a configuration.
    shape : tuple of int
        Shape of an input row.
    stages : tuple of Stage
        Stages in the order of computation.
    split : str
        The stage behind which it is cut by default.
    """

    name: str
    shape: RowShape
    stages: tuple[Stage, ...]
    split: str

    reads: ClassVar[frozenset[str]] = frozenset({"split"})

    def check(self, model: ModelConfig) -> None:
        """Refuse an unknown place of the cut, and another width of a stage whose width is fixed."""
        super().check(model)
        last = self.stages[self._position(model)]
        if last.fixed and model.cut not in (0, last.width):
            raise ConfigError(
                f"model.cut is {model.cut}, but {self.name!r} cut behind {last.name!r} has the width {last.width} and "
                "no other: leave model.cut out"
            )

    def bottom(self, spec: FeatureShape, model: ModelConfig) -> nn.Module:
        """Make the stages up to the cut; the last of them has the width `model.cut`."""
        if spec.shape != self.shape:
            given = f"rows of shape {spec.shape}" if spec.shape else "a table"
            raise ConfigError(
                f"the network {self.name!r} takes rows of shape {self.shape}, this data has {given}; set model.network "
                "to 'auto' or to one that fits"
            )
        position = self._position(model)
        last = self.stages[position]
        cut = replace(last, width=model.cut or last.width)
        return nn.Sequential(_chain((*self.stages[:position], cut), self.shape)[0])

    def top(self, shape: RowShape, classes: int, model: ModelConfig) -> nn.Module:
        """Make the stages behind the cut and the linear layer."""
        parts, shape = _chain(self.stages[self._position(model) + 1 :], shape)
        parts[HEAD] = Top(prod(shape), hidden=(), classes=classes)
        return nn.Sequential(parts)

    def _position(self, model: ModelConfig) -> int:
        places = {stage.name: position for position, stage in enumerate(self.stages)}
        return lookup(f"place to cut {self.name!r} (model.split)", model.split or self.split, places)


def _chain(stages: Iterable[Stage], shape: RowShape) -> tuple[OrderedDict[str, nn.Module], RowShape]:
    """Return the layers of consecutive stages by name, and the shape of the output."""
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    for stage in stages:
        parts[stage.name], shape = stage.make(shape, stage.width)
    return parts, shape
