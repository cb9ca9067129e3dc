import pytest
import torch
from torch import nn

from flower_vfl.nn import seeded_initialisation
from flower_vfl.nn.resnet import ResidualBlock


def reference_block(block, x, stride):
    """Return the output of the paper's block with batch statistics, computed without a module."""
    one, two = (part for part in block.modules() if isinstance(part, nn.Conv2d))

    def normalised(t):
        return (t - t.mean((0, 2, 3), keepdim=True)) / (t.var((0, 2, 3), correction=0, keepdim=True) + 1e-5).sqrt()

    inner = normalised(nn.functional.conv2d(x, one.weight, stride=stride, padding=1)).clamp(min=0)
    shortcut = torch.zeros(len(x), two.out_channels, *(-(-size // stride) for size in x.shape[2:]))
    shortcut[:, : x.shape[1]] = x[:, :, ::stride, ::stride]
    return (normalised(nn.functional.conv2d(inner, two.weight, padding=1)) + shortcut).clamp(min=0)


@pytest.mark.parametrize(("channels", "width", "stride"), [(4, 4, 1), (4, 8, 2), (3, 5, 1), (5, 5, 2)])
@pytest.mark.parametrize("size", [(8, 8), (7, 5)])
def test_a_block_adds_its_input_to_two_normalised_convolutions(channels, width, stride, size):
    with seeded_initialisation(3):
        block = ResidualBlock(channels, width, stride)
    x = torch.randn(6, channels, *size, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(block(x), reference_block(block, x, stride), atol=1e-5)


def test_initial_weights_keep_the_variance_of_gradients():
    with seeded_initialisation(0):
        first = next(part for part in ResidualBlock(32, 64).modules() if isinstance(part, nn.Conv2d))
    assert first.weight.std().item() == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.05)
    assert first.bias is None
