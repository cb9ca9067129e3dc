"""Networks are on one device, or with their tables in main memory."""

import copy

import pytest
import torch
from torch import nn

from flower_vfl.config import build_config
from flower_vfl.data.store.dataset import FeatureSpec
from flower_vfl.nn import Optimizers, TabularBottom, Wide
from flower_vfl.nn.placement import IN_MEMORY, Placement
from tests.card import needs_card

SPEC = FeatureSpec(2, (5, 7))
NOWHERE = Placement("meta", "cpu")
"""A device that every machine has, on which nothing is computed."""


def batch():
    return torch.randn(4, 2), torch.tensor([[0, 0], [4, 6], [1, 2], [3, 3]])


def test_a_configuration_says_where():
    assert Placement.of(build_config({})) == IN_MEMORY
    config = build_config({"device": "cuda:1", "model": {"embedding_device": "cpu"}})
    assert Placement.of(config) == Placement("cuda:1", "cpu")
    assert Placement.of(build_config({"precision": "bfloat16"})) == Placement(precision="bfloat16")


def test_everything_is_moved_where_no_table_stays():
    model = Placement("meta").place(TabularBottom(SPEC))
    assert {tensor.device.type for tensor in (*model.parameters(), *model.buffers())} == {"meta"}


@pytest.mark.parametrize("make", [TabularBottom, Wide])
def test_tables_and_where_their_columns_begin_stay_in_main_memory(make):
    model = NOWHERE.place(make(SPEC))
    assert model.embedding.weight.device.type == model.offsets.device.type == "cpu"
    others = [parameter for name, parameter in model.named_parameters() if not name.startswith("embedding")]
    assert {parameter.device.type for parameter in others} == {"meta"}


def test_a_batch_goes_to_the_device_but_what_is_looked_up():
    numbers, ids = NOWHERE.bring_all(batch())
    assert (numbers.device.type, ids.device.type) == ("meta", "cpu")
    assert {tensor.device.type for tensor in Placement("meta").bring_all(batch())} == {"meta"}
    given = batch()
    assert all(mine is theirs for mine, theirs in zip(IN_MEMORY.bring_all(given), given, strict=True))


@pytest.mark.parametrize("make", [TabularBottom, Wide])
def test_what_is_looked_up_travels_to_the_rest_of_the_network(make):
    model = NOWHERE.place(make(SPEC))
    for one in (model, copy.deepcopy(model)):
        assert one(*NOWHERE.bring_all(batch())).device.type == "meta"


def test_weights_that_two_parts_share_are_shared_where_they_go():
    model = nn.Sequential(nn.Embedding(3, 2), first := nn.Linear(2, 2), second := nn.Linear(2, 2))
    second.weight = first.weight
    NOWHERE.place(model)
    assert first.weight is second.weight
    assert first.weight.device.type == "meta"


def test_names_of_weights_do_not_depend_on_where_they_are():
    assert list(NOWHERE.place(TabularBottom(SPEC)).state_dict()) == list(TabularBottom(SPEC).state_dict())


def test_in_bfloat16_a_network_multiplies_rounded_numbers_and_gives_and_learns_whole_ones():
    torch.manual_seed(0)
    network, x = nn.Linear(6, 3), torch.randn(5, 6)
    whole, rounded = Placement().forward(network, x), Placement(precision="bfloat16").forward(network, x)
    weight, bias = network.weight.bfloat16(), network.bias.bfloat16()
    assert rounded.dtype == torch.float32
    assert torch.equal(rounded, nn.functional.linear(x.bfloat16(), weight, bias).float())
    assert not torch.equal(rounded, whole)
    assert torch.allclose(rounded, whole, atol=0.05)
    rounded.sum().backward()
    assert network.weight.grad.dtype == torch.float32
    assert torch.allclose(network.weight.grad, x.sum(dim=0).expand(3, 6), atol=0.05)


def test_what_is_no_tensor_in_bfloat16_comes_as_the_network_gave_it():
    placement = Placement(precision="bfloat16")
    assert placement.forward(lambda: "no tensor") == "no tensor"
    assert placement.forward(lambda x: x, torch.ones(2, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_other_precisions_are_those_of_the_process(precision):
    network, x = nn.Linear(6, 3), torch.randn(5, 6)
    assert torch.equal(Placement(precision=precision).forward(network, x), network(x))


@needs_card
@pytest.mark.parametrize("make", [TabularBottom, Wide])
def test_training_with_tables_in_main_memory_equals_training_on_the_card(make):
    torch.manual_seed(0)
    start, trained = make(SPEC), []
    for placement in (Placement("cuda"), Placement("cuda", "cpu")):
        model = placement.place(copy.deepcopy(start))
        optimizers = Optimizers(model, "adam", learning_rate=0.01)
        generator = torch.Generator().manual_seed(1)
        for _ in range(5):
            given = torch.randn(4, 2, generator=generator), torch.randint(0, 5, (4, 2), generator=generator)
            optimizers.zero_grad()
            model(*placement.bring_all(given)).square().sum().backward()
            optimizers.clip_grad(1.0)
            optimizers.step()
        trained.append({name: value.cpu() for name, value in model.state_dict().items()})
    for name, value in trained[0].items():
        torch.testing.assert_close(trained[1][name], value, rtol=1e-4, atol=1e-6)
