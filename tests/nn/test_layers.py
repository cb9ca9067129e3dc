import pytest
import torch
from torch import nn

from flower_vfl.data.store.dataset import FeatureSpec
from flower_vfl.errors import ConfigError
from flower_vfl.nn import ConvBottom, TabularBottom
from flower_vfl.nn.layers import watched_layers


def output_of(module, run):
    caught = []
    handle = module.register_forward_hook(lambda _module, _inputs, output: caught.append(output))
    run()
    handle.remove()
    assert len(caught) == 1
    return caught[0]


def test_the_first_layer_of_a_table_is_the_linear_one_after_the_embeddings_with_its_activation():
    bottom = TabularBottom(FeatureSpec(2, (5, 6)), hidden=(7, 9), cut=3)
    numeric, ids = torch.randn(4, 2), torch.tensor([[1, 2]] * 4)
    first = output_of(watched_layers(bottom)["first"], lambda: bottom(numeric, ids))
    joined = torch.cat([numeric, bottom.embedding(ids + bottom.offsets).flatten(1)], 1)
    assert torch.equal(first, torch.relu(bottom.layers[0](joined)))
    assert first.shape == (4, 7)


def test_the_first_layer_of_images_is_the_convolution_with_its_activation_before_pooling():
    bottom = ConvBottom(FeatureSpec(0, (), (1, 8, 4)), channels=(5,), cut=2)
    images = torch.randn(3, 1, 8, 4)
    first = output_of(watched_layers(bottom)["first"], lambda: bottom(images))
    assert torch.equal(first, torch.relu(bottom.first[0](images)))


def test_the_first_layer_of_a_sequential_is_the_activation_behind_the_first_weights():
    relu, tanh = nn.ReLU(), nn.Tanh()
    plain = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), relu, nn.Linear(4, 4), tanh)
    normed = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout2d(0.1), tanh, nn.MaxPool2d(2))
    nested = nn.Sequential(nn.Sequential(nn.Conv2d(1, 2, 3)), nn.Sequential(relu), nn.Linear(2, 2))
    assert watched_layers(plain)["first"] is relu
    assert watched_layers(normed)["first"] is tanh
    assert watched_layers(nested)["first"] is relu


def test_the_first_layer_without_an_activation_right_behind_it_is_the_module_itself():
    pooled = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.ReLU())
    bare = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.ReLU())
    alone = nn.Linear(3, 3)
    assert watched_layers(pooled)["first"] is pooled[0]
    assert watched_layers(bare)["first"] is bare[0]
    assert watched_layers(alone)["first"] is alone


def test_an_activation_that_is_used_twice_is_not_watched_because_it_has_two_outputs():
    relu = nn.ReLU()
    model = nn.Sequential(nn.Linear(3, 3), relu, nn.Linear(3, 3), relu)
    assert watched_layers(model)["first"] is model[0]


def test_embeddings_do_not_count_and_a_model_without_parameters_has_no_first_layer():
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(4, 2), nn.ReLU())
    assert watched_layers(model)["first"] is model[3]
    assert watched_layers(nn.Sequential(nn.Flatten())) == {}


def test_a_model_may_name_its_own_watched_layers():
    class Own(nn.Sequential):
        def watched_layers(self):
            return {"second": self[1]}

    model = Own(nn.Linear(2, 2), nn.Linear(2, 2))
    assert watched_layers(model) == {"second": model[1]}


@pytest.mark.parametrize("answer", [None, {"first": nn.ReLU()}, {1: None}, {"cut": None}])
def test_a_model_that_names_anything_but_its_own_modules_is_refused(answer):
    class Own(nn.Sequential):
        def watched_layers(self):
            return answer

    with pytest.raises(ConfigError, match="modules of the model itself"):
        watched_layers(Own(nn.Linear(2, 2)))
