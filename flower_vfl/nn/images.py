"""A small convolutional bottom model whose cut is a feature map."""

from __future__ import annotations

from torch import Tensor, nn

from flower_vfl.errors import ConfigError
from flower_vfl.nn.tabular import FeatureShape


class ConvBottom(nn.Module):
    """Two convolutions of 3 x 3, each with a ReLU, with a pooling between them where the image is large enough.

    Parameters
    ----------
    spec : FeatureShape
        Of shape (channels, height, width).
    channels : int
        Channels of the first convolution.
    cut : int
        Channels of the feature map at the cut.
    dropout : float
        Of whole channels after the first convolution; bind it to the party's generator with `bind_dropout`.

    Raises
    ------
    ConfigError
        When the features are no images.
    """

    def __init__(self, spec: FeatureShape, *, channels: int = 16, cut: int = 8, dropout: float = 0.0) -> None:
        super().__init__()
        if len(spec.shape) != 3:
            raise ConfigError(f"a model for images needs rows of shape (channels, height, width), given {spec}")
        if channels < 1 or cut < 1:
            raise ConfigError(f"channels must be at least 1, given channels={channels}, cut={cut}")
        depth, height, width = spec.shape
        pooled = min(height, width) >= 4
        self.first = nn.Sequential(nn.Conv2d(depth, channels, 3, padding=1), nn.ReLU())
        self.rest = nn.Sequential(
            nn.MaxPool2d(2) if pooled else nn.Identity(),
            nn.Dropout2d(dropout) if dropout else nn.Identity(),
            nn.Conv2d(channels, cut, 3, padding=1),
            nn.ReLU(),
        )
        self.cut_shape = (cut, height // 2, width // 2) if pooled else (cut, height, width)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to feature maps (B, D, H', W')."""
        z: Tensor = self.rest(self.first(images))
        return z

    def watched_layers(self) -> dict[str, nn.Module]:
        """Return the first convolution with its activation, before pooling."""
        return {"first": self.first[1]}
