import pytest
import torch
from torch import nn

from flower_vfl.apps.factories import default_bottom, default_top
from flower_vfl.config import load_config
from flower_vfl.data.store.dataset import FeatureSpec
from flower_vfl.errors import ConfigError
from flower_vfl.nn import ConvBottom, ConvTop, watched_layers

CLOTHES = FeatureSpec(0, (), (1, 28, 28), pixels=True)


def kinds(model):
    return [type(part).__name__ for part in model.modules() if not any(part.children())]


@pytest.mark.parametrize("shape", [(1, 8, 4), (3, 8, 8), (1, 2, 2), (1, 9, 9)])
@pytest.mark.parametrize(("channels", "pools"), [((5,), 0), ((5,), 1), ((5, 4), 3)])
def test_images_become_feature_maps_of_the_promised_shape(shape, channels, pools):
    bottom = ConvBottom(FeatureSpec(0, (), shape), channels=channels, cut=6, pools=pools, dropout=0.1)
    pooled = sum(isinstance(part, nn.MaxPool2d) for part in bottom.modules())
    assert bottom(torch.randn(2, *shape)).shape == (2, 6, *(side // 2**pooled for side in shape[1:]))


def test_a_map_that_is_too_small_is_not_pooled_further():
    bottom = ConvBottom(FeatureSpec(0, (), (1, 8, 8)), channels=(2, 2), pools=3)
    assert kinds(bottom).count("MaxPool2d") == 2
    assert bottom(torch.randn(1, 1, 8, 8)).shape[2:] == (2, 2)


def test_the_preset_for_shirts_is_the_network_of_the_paper_at_28_x_28():
    config = load_config("fashion-shirt")
    bottom = default_bottom(CLOTHES, config)
    cut = tuple(bottom(torch.randn(1, *CLOTHES.shape)).shape[1:])
    top = default_top(cut, 2, config)
    block = ["Conv2d", "ReLU"]
    assert kinds(bottom) == [*block, "MaxPool2d", *block, "MaxPool2d", *block, *block]
    assert cut == (64, 7, 7)
    assert kinds(top) == [*block, *block, "Linear", "ReLU", "Linear"]
    convolutions = [part for model in (bottom, top) for part in model.modules() if isinstance(part, nn.Conv2d)]
    assert {(part.out_channels, part.kernel_size, part.padding) for part in convolutions} == {(64, (3, 3), (1, 1))}
    assert [part.out_features for part in top.modules() if isinstance(part, nn.Linear)] == [64, 1]
    assert top(bottom(torch.rand(3, 1, 28, 28))).shape == (3,)


def test_the_first_layer_is_watched_behind_the_activation_and_before_the_pooling():
    bottom = default_bottom(CLOTHES, load_config("fashion-shirt"))
    caught = []
    watched_layers(bottom)["first"].register_forward_hook(lambda _module, _inputs, output: caught.append(output))
    images = torch.rand(2, 1, 28, 28)
    bottom(images)
    assert caught[0].shape == (2, 64, 28, 28)
    assert torch.equal(caught[0], torch.relu(bottom.first[0](images)))


def test_the_top_gives_one_logit_for_two_classes_and_one_a_class_for_more():
    maps = torch.randn(5, 4, 3, 3)
    assert ConvTop((4, 3, 3), channels=(2,))(maps).shape == (5,)
    assert ConvTop((4, 3, 3), channels=(2, 6), hidden=(), classes=10)(maps).shape == (5, 10)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ConvBottom(FeatureSpec(3, ())), "channels, height, width"),
        (lambda: ConvBottom(CLOTHES, cut=0), "cut=0"),
        (lambda: ConvBottom(CLOTHES, channels=()), r"channels=\[\]"),
        (lambda: ConvBottom(CLOTHES, channels=(4, 0)), r"channels=\[4, 0\]"),
        (lambda: ConvBottom(CLOTHES, channels=(4, 4), pools=4), "0 to 3, given 4"),
        (lambda: ConvBottom(CLOTHES, pools=-1), "0 to 2, given -1"),
        (lambda: ConvTop((32,), channels=(4,)), r"feature maps at the cut, given shape \(32,\)"),
        (lambda: ConvTop((4, 3, 3), channels=(0,)), r"channels=\[0\]"),
    ],
)
def test_impossible_sizes_are_refused_by_name(make, text):
    with pytest.raises(ConfigError, match=text):
        make()
