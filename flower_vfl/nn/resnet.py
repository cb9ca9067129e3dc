"""The residual block of networks for CIFAR-10.

He et al., *Deep Residual Learning for Image Recognition*, 2016, section 4.2.
"""

from __future__ import annotations

from torch import Tensor, nn

from flower_vfl.errors import ConfigError


class ResidualBlock(nn.Module):
    """Two convolutions of 3 x 3 with batch normalisation, and a shortcut without weights around them.

    Where the map becomes smaller the shortcut takes every second pixel; new channels are zeros (the paper's option A).

    Parameters
    ----------
    channels, width : int
        Channels of the input, and of the output, which has at least as many.
    stride : int
        Stride of the first convolution.

    Raises
    ------
    ConfigError
        When the input has more channels than the output.
    """

    def __init__(self, channels: int, width: int, stride: int = 1) -> None:
        super().__init__()
        if channels > width:
            raise ConfigError(
                f"a residual block of {width} channels takes no more than these, given {channels}; where feature maps "
                "of several parties are joined, set model.fusion to 'sum' or 'mean'"
            )
        self.layers = nn.Sequential(*convolution(channels, width, stride), nn.ReLU(), *convolution(width, width))
        self.activation = nn.ReLU()
        self._stride, self._new_channels = stride, width - channels

    def forward(self, x: Tensor) -> Tensor:
        """Map feature maps (B, channels, H, W) to (B, width, ceil(H / stride), ceil(W / stride))."""
        shortcut = nn.functional.pad(x[:, :, :: self._stride, :: self._stride], (0, 0, 0, 0, 0, self._new_channels))
        out: Tensor = self.activation(self.layers(x) + shortcut)
        return out


def convolution(channels: int, width: int, stride: int = 1) -> list[nn.Module]:
    """Return a convolution of 3 x 3 without bias, with the initial weights of the paper, and batch normalisation."""
    layer = nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return [layer, nn.BatchNorm2d(width)]
