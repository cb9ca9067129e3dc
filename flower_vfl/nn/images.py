"""Ready-made models for images: convolutions up to the cut, and convolutions and a perceptron from there."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from flower_vfl.errors import ConfigError
from flower_vfl.nn.tabular import FeatureShape, Top

_SMALLEST_POOLED = 4


class ConvBottom(nn.Module):
    """Convolutions of 3 x 3, each with a ReLU, the first ones with a pooling of 2 x 2 behind them, up to the cut.

    A pooling is left out where the feature map is less than 4 pixels high or wide.

    Parameters
    ----------
    spec : FeatureShape
        Features of shape (channels, height, width).
    channels : sequence of int
        Channels of the convolutions before the last one; one at least, or the first layer would be the cut.
    cut : int
        Channels of the last convolution, the feature map at the cut.
    pools : int
        Number of convolutions, from the first one on, with a pooling behind them.
    dropout : float
        Probability of dropping a whole channel, after each convolution but the last; bind it to the party's generator
        with `bind_dropout`.

    Raises
    ------
    ConfigError
        When the features are no images, or a number is out of range.

    References
    ----------
    Li et al., *Label Leakage and Protection in Two-party Split Learning*, ICLR 2022: four convolutions of 64 channels
    before the cut for ISIC 2020.
    """

    def __init__(
        self, spec: FeatureShape, *, channels: Sequence[int] = (16,), cut: int = 8, pools: int = 1, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if len(spec.shape) != 3:
            raise ConfigError(f"a model for images needs rows of shape (channels, height, width), given {spec}")
        if not channels or min(*channels, cut) < 1:
            raise ConfigError(f"each convolution needs at least 1 channel, given channels={list(channels)}, cut={cut}")
        if not 0 <= pools <= len(channels) + 1:
            raise ConfigError(
                f"pools is the number of convolutions to pool after, 0 to {len(channels) + 1}, given {pools}"
            )
        depth, height, width = spec.shape
        parts: list[nn.Module] = []
        for position, (before, after) in enumerate(pairwise((depth, *channels, cut))):
            if position and dropout:
                parts.append(nn.Dropout2d(dropout))
            parts += _convolution(before, after)
            if position < pools and min(height, width) >= _SMALLEST_POOLED:
                parts.append(nn.MaxPool2d(2))
                height, width = height // 2, width // 2
        self.first, self.rest = nn.Sequential(*parts[:2]), nn.Sequential(*parts[2:])

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to feature maps (B, D, H', W')."""
        z: Tensor = self.rest(self.first(images))
        return z

    def watched_layers(self) -> dict[str, nn.Module]:
        """Return the first convolution with its activation, before pooling."""
        return {"first": self.first[1]}


class ConvTop(nn.Module):
    """Convolutions of 3 x 3, each with a ReLU, on the joined feature maps, then a perceptron.

    Parameters
    ----------
    shape : sequence of int
        Shape of one joined feature map, (channels, height, width).
    channels : sequence of int
        Channels of each convolution.
    hidden : sequence of int
        Widths of the hidden layers behind them.
    classes : int
        2 gives one logit (B,), more give logits (B, C).

    Raises
    ------
    ConfigError
        When the cut carries no feature maps, or a number is out of range.
    """

    def __init__(
        self, shape: Sequence[int], *, channels: Sequence[int], hidden: Sequence[int] = (64,), classes: int = 2
    ) -> None:
        super().__init__()
        if len(shape) != 3:
            raise ConfigError(f"convolutions in the top model need feature maps at the cut, given shape {tuple(shape)}")
        if not channels or min(channels) < 1:
            raise ConfigError(f"each convolution needs at least 1 channel, given channels={list(channels)}")
        depth, height, width = shape
        convolutions = [_convolution(before, after) for before, after in pairwise((depth, *channels))]
        self.convolutions = nn.Sequential(*(part for pair in convolutions for part in pair))
        self.top = Top(channels[-1] * height * width, hidden=hidden, classes=classes)

    def forward(self, z: Tensor) -> Tensor:
        """Map joined feature maps (B, C, H, W) to logits, (B,) for two classes and (B, C) for more."""
        logits: Tensor = self.top(self.convolutions(z))
        return logits


def _convolution(before: int, after: int) -> list[nn.Module]:
    return [nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]
