"""The papers' networks for images.

Those of Zheng et al., *Protecting Split Learning by Potential Energy Loss*, and that of Li et al., *Label Leakage and
Protection in Two-party Split Learning*, for ISIC 2020. Details that Zheng et al. do not print are chosen here: the
convolutions of "fashion" have no padding and a ReLU each.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from torch import nn

from flower_vfl.errors import ConfigError
from flower_vfl.nn.resnet import ResidualBlock, convolution
from flower_vfl.nn.staged import Layers, RowShape, Stage, StagedNetwork

_BLOCKS = 3
"""Residual blocks of a group: 6 x 3 convolutions, the first one and the linear layer make ResNet-20."""


def _dense(activation: Callable[[], nn.Module]) -> Layers:
    """Return a function that makes a linear layer on flattened rows, with its activation."""

    def make(shape: RowShape, width: int) -> tuple[nn.Module, RowShape]:
        return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), width), activation()), (width,)

    return make


def _pooled(kernel: int, padding: int = 0) -> Layers:
    """Return a function that makes a convolution with its activation and a pooling of 2 x 2."""

    def make(shape: RowShape, width: int) -> tuple[nn.Module, RowShape]:
        channels, *sizes = _checked_maps(shape, smallest=kernel + 1 - 2 * padding)
        layers = nn.Sequential(nn.Conv2d(channels, width, kernel, padding=padding), nn.ReLU(), nn.MaxPool2d(2))
        return layers, (width, *((size + 2 * padding - kernel + 1) // 2 for size in sizes))

    return make


def _stem(shape: RowShape, width: int) -> tuple[nn.Module, RowShape]:
    """Make the first convolution of a residual network."""
    channels, *sizes = _checked_maps(shape)
    return nn.Sequential(*convolution(channels, width), nn.ReLU()), (width, *sizes)


def _group(stride: int, *, pooled: bool = False) -> Layers:
    """Return a function that makes residual blocks of one width; `pooled` adds a pooling over the whole map."""

    def make(shape: RowShape, width: int) -> tuple[nn.Module, RowShape]:
        channels, *sizes = _checked_maps(shape)
        blocks: list[nn.Module] = [ResidualBlock(channels, width, stride)]
        blocks += [ResidualBlock(width, width) for _ in range(_BLOCKS - 1)]
        if pooled:
            return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten()), (width,)
        return nn.Sequential(*blocks), (width, *(-(-size // stride) for size in sizes))

    return make


def _checked_maps(shape: RowShape, smallest: int = 1) -> RowShape:
    """Return a shape (channels, height, width) after a check that it can be convolved."""
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise ConfigError(
            f"a convolution needs feature maps (channels, height, width) of at least {smallest} x {smallest}, given "
            f"rows of shape {shape}"
        )
    return shape


MNIST = StagedNetwork(
    "mnist",
    (1, 28, 28),
    (Stage("layer1", _dense(nn.LeakyReLU), 128), Stage("layer2", _dense(nn.LeakyReLU), 32)),
    "layer2",
)
FASHION = StagedNetwork(
    "fashion",
    (1, 28, 28),
    (Stage("conv1", _pooled(5), 32), Stage("conv2", _pooled(3), 64), Stage("dense", _dense(nn.Tanh), 128)),
    "dense",
)
ISIC = StagedNetwork(
    "isic",
    (3, 84, 84),
    (
        *(Stage(f"conv{number}", _pooled(3, padding=1), 64) for number in range(1, 7)),
        Stage("dense", _dense(nn.ReLU), 64),
    ),
    "conv4",
)
"""The network of Li et al. for ISIC 2020: six convolutions with a pooling each, cut behind the fourth, 64 x 5 x 5."""
RESNET20 = StagedNetwork(
    "resnet20",
    (3, 32, 32),
    (
        Stage("stem", _stem, 16, fixed=True),
        Stage("group1", _group(1), 16, fixed=True),
        Stage("group2", _group(2), 32, fixed=True),
        Stage("group3", _group(2, pooled=True), 64, fixed=True),
    ),
    "group3",
)
