import pytest
import torch
from torch import nn

from flower_vfl.apps.factories import default_bottom, default_top
from flower_vfl.config import build_config, load_config
from flower_vfl.data.sources.catalog import RECIPES
from flower_vfl.data.store.dataset import FeatureSpec
from flower_vfl.errors import ConfigError
from flower_vfl.nn import NETWORKS, StagedNetwork, seeded_initialisation, watched_layers
from tests.cases import parametrize

STAGED = {name: network for name, network in NETWORKS.items() if isinstance(network, StagedNetwork)}
CUTS = [(name, stage.name) for name, network in STAGED.items() for stage in network.stages]


def config_of(name, split="", **model):
    return build_config({"model": {"network": name, "split": split, **model}})


def halves(name, split="", classes=10, **model):
    """Return a bottom model, the top model on it and six images."""
    config, shape = config_of(name, split, **model), STAGED[name].shape
    images = torch.rand(6, *shape, generator=torch.Generator().manual_seed(5))
    with seeded_initialisation(0):
        bottom = default_bottom(FeatureSpec(0, (), shape), config)
        with torch.no_grad():
            cut = tuple(bottom.eval()(images).shape[1:])
        top = default_top(cut, classes, config)
    return bottom.train(), top, images


def linear_relu(x, layer, slope):
    out = x.flatten(1) @ layer.weight.T + layer.bias
    return torch.where(out > 0, out, slope * out)


@parametrize(("name", "split"), CUTS, quick=4)
def test_a_network_computes_the_same_function_at_every_cut(name, split):
    bottom, top, images = halves(name)
    weights = {**bottom.state_dict(), **top.state_dict()}
    other_bottom, other_top, _ = halves(name, split)
    for part in (other_bottom, other_top):
        part.load_state_dict({key: weights.pop(key) for key in part.state_dict()})
    assert not weights
    for train in (True, False):
        for part in (bottom, top, other_bottom, other_top):
            part.train(train)
        assert torch.equal(top(bottom(images)), other_top(other_bottom(images)))


def test_the_network_for_mnist_is_that_of_the_paper():
    bottom, top, images = halves("mnist")
    linear = [part for model in (bottom, top) for part in model.modules() if isinstance(part, nn.Linear)]
    assert [(part.in_features, part.out_features) for part in linear] == [(784, 128), (128, 32), (32, 10)]
    z = linear_relu(linear_relu(images, linear[0], 0.01), linear[1], 0.01)
    assert torch.allclose(bottom(images), z, atol=1e-6)
    assert torch.allclose(top(z), z @ linear[2].weight.T + linear[2].bias, atol=1e-6)


def test_the_network_for_fashion_is_that_of_the_paper():
    bottom, top, images = halves("fashion")
    one, two = (part for part in bottom.modules() if isinstance(part, nn.Conv2d))
    assert [(c.in_channels, c.out_channels, c.kernel_size) for c in (one, two)] == [(1, 32, (5, 5)), (32, 64, (3, 3))]
    z = images
    for layer in (one, two):
        z = nn.functional.max_pool2d(nn.functional.conv2d(z, layer.weight, layer.bias).clamp(min=0), 2)
    dense = bottom.dense[1]
    assert torch.allclose(bottom(images), torch.tanh(z.flatten(1) @ dense.weight.T + dense.bias), atol=1e-6)
    assert dense.out_features == 128
    assert top(bottom(images)).shape == (6, 10)


def test_resnet_20_has_the_layers_and_as_many_weights_as_published():
    bottom, top, images = halves("resnet20")
    parts = [part for model in (bottom, top) for part in model.modules()]
    assert sum(isinstance(part, nn.Conv2d) for part in parts) == 19
    # 19 convolutions without bias, a scale and a shift for each of their channels, 64 x 10 + 10 of the linear layer
    assert sum(weight.numel() for model in (bottom, top) for weight in model.parameters()) == 269_722
    assert bottom(images).shape == (6, 64)
    caught = {}
    for name in ("stem", "group1", "group2"):
        getattr(bottom, name).register_forward_hook(lambda _m, _i, out, name=name: caught.update({name: out.shape[1:]}))
    bottom(images)
    assert caught == {"stem": (16, 32, 32), "group1": (16, 32, 32), "group2": (32, 16, 16)}


def test_the_network_for_isic_is_that_of_the_paper():
    bottom, top, images = halves("isic", classes=2)
    assert bottom(images).shape == (6, 64, 5, 5)
    sizes = [tuple(part.weight.shape) for half in (bottom, top) for part in half.modules() if hasattr(part, "weight")]
    assert sizes == [(64, 3, 3, 3), *[(64, 64, 3, 3)] * 5, (64, 64), (1, 64)]
    z = images
    for layer in [part for half in (bottom, top) for part in half.modules() if isinstance(part, nn.Conv2d)]:
        z = nn.functional.max_pool2d(torch.conv2d(z, layer.weight, layer.bias, padding=1).clamp(min=0), 2)
    assert z.shape == (6, 64, 1, 1)
    dense = [part for part in top.modules() if isinstance(part, nn.Linear)]
    expected = dense[1](dense[0](z.flatten(1)).clamp(min=0)).squeeze(1)
    assert torch.allclose(top(bottom(images)), expected, atol=1e-6)


@pytest.mark.parametrize("name", sorted(STAGED.keys() - {"isic"}))
def test_the_paper_cuts_before_one_linear_layer(name):
    _, top, _ = halves(name)
    weighted = [part for part in top.modules() if any(True for _ in part.parameters(recurse=False))]
    assert [type(part) for part in weighted] == [nn.Linear]


@pytest.mark.parametrize(("name", "split"), CUTS)
def test_two_classes_give_one_logit(name, split):
    bottom, top, images = halves(name, split, classes=2)
    assert top(bottom(images)).shape == (6,)


@pytest.mark.parametrize(
    ("name", "split", "shape"),
    [("mnist", "layer1", (4,)), ("mnist", "layer2", (4,)), ("fashion", "conv1", (4, 12, 12)), ("fashion", "", (4,))],
)
def test_the_width_of_the_cut_can_be_set_wherever_it_lies(name, split, shape):
    bottom, top, images = halves(name, split, cut=4)
    assert bottom(images).shape[1:] == shape
    assert top(bottom(images)).shape == (6, 10)


@pytest.mark.parametrize(("name", "split"), CUTS)
def test_every_stage_can_be_watched_by_name_and_the_first_layer_is_one_of_them(name, split):
    bottom, _, images = halves(name, split)
    stages = [stage.name for stage in STAGED[name].stages]
    assert [part for part, _ in bottom.named_children()] == stages[: stages.index(split) + 1]
    caught = []
    watched_layers(bottom)["first"].register_forward_hook(lambda _module, _inputs, output: caught.append(output))
    bottom(images)
    weighted = next(part for part in bottom.modules() if isinstance(part, nn.Linear | nn.Conv2d))
    assert caught[0].shape[1] == weighted.weight.shape[0]  # behind its activation, before any pooling
    if caught[0].dim() == 4:
        assert caught[0].shape[2] >= 24


def test_a_top_model_for_another_layer_has_the_same_architecture():
    config = config_of("resnet20", "group2")
    maps = torch.rand(3, 16, 32, 32)
    assert default_top((16, 32, 32), 10, config)(maps).shape == (3, 10)
    assert default_top((16, 32, 32), 10, config_of("resnet20"))(maps).shape == (3, 10)
    with pytest.raises(ConfigError, match=r"feature maps .*given rows of shape \(64,\)"):
        default_top((64,), 10, config)


SPEC = {name: FeatureSpec(0, (), network.shape) for name, network in STAGED.items()}


@pytest.mark.parametrize(
    ("model", "spec", "text"),
    [
        ({"network": "resnet"}, SPEC["mnist"], "did you mean 'resnet20'.* auto, fashion, isic, mnist, resnet20"),
        ({"network": "mnist", "split": "layer3"}, SPEC["mnist"], r"cut 'mnist' \(model.split\).*: layer1, layer2"),
        ({"network": "resnet20", "split": "head"}, SPEC["resnet20"], "group1, group2, group3, stem"),
        ({"network": "mnist"}, SPEC["resnet20"], r"takes rows of shape \(1, 28, 28\), this data has .*\(3, 32, 32\)"),
        ({"network": "resnet20"}, SPEC["fashion"], r"takes rows of shape \(3, 32, 32\)"),
        ({"network": "fashion"}, FeatureSpec(3, (4,)), "this data has a table; set model.network to 'auto'"),
        ({"network": "resnet20", "cut": 32}, SPEC["resnet20"], "model.cut is 32, .*'group3' has the width 64 and no"),
        ({"network": "mnist", "top": [3]}, SPEC["mnist"], r"model.top is \[3\], .*; it has model.cut, model.split"),
        ({"network": "fashion", "dropout": 0.5}, SPEC["fashion"], "model.dropout is 0.5"),
        ({"split": "layer1"}, SPEC["mnist"], "model.split is 'layer1', which the network 'auto' does not have"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(model, spec, text):
    with pytest.raises(ConfigError, match=text):
        default_bottom(spec, build_config({"model": model}))


def test_the_fixed_width_may_be_given():
    assert default_bottom(SPEC["resnet20"], config_of("resnet20", cut=64)) is not None


def test_too_many_joined_channels_for_a_residual_block_are_refused():
    assert default_top((64, 16, 16), 10, config_of("resnet20", "group2"))(torch.rand(2, 64, 16, 16)).shape == (2, 10)
    with pytest.raises(ConfigError, match=r"64 channels takes no more than these, given 96; .*'sum' or 'mean'"):
        default_top((96, 16, 16), 10, config_of("resnet20", "group2"))


@pytest.mark.parametrize("name", ["mnist", "fashion", "cifar10"])
@pytest.mark.parametrize("size", ["", "-small"])
def test_the_presets_have_the_papers_network_and_optimizer(name, size):
    config = load_config(name + size)
    network = {"mnist": "mnist", "fashion": "fashion", "cifar10": "resnet20"}[name]
    assert config.model == config_of(network).model
    assert (config.training.optimizer, config.training.learning_rate) == ("adam", 1e-3)
    assert size or config.training.epochs == 100
    assert default_bottom(FeatureSpec(0, (), RECIPES[config.data.name].shape), config) is not None
