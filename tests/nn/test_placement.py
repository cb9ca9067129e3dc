"""Placement of networks on one device, or with their tables in main memory."""

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
META = Placement("meta", "cpu")
"""Placement on a device of every machine that computes nothing, with tables in main memory."""


def batch():
    return torch.randn(4, 2), torch.tensor([[0, 0], [4, 6], [1, 2], [3, 3]])


def test_a_configuration_gives_the_placement():
    assert Placement.of(build_config({})) == IN_MEMORY
    config = build_config({"device": "cuda:1", "model": {"embedding_device": "cpu"}})
    assert Placement.of(config) == Placement("cuda:1", "cpu")
    assert Placement.of(build_config({"precision": "bfloat16"})) == Placement(precision="bfloat16")


def test_everything_is_moved_where_tables_are_not_kept_in_main_memory():
    model = Placement("meta").place(TabularBottom(SPEC))
    assert {tensor.device.type for tensor in (*model.parameters(), *model.buffers())} == {"meta"}


@pytest.mark.parametrize("make", [TabularBottom, Wide])
def test_tables_and_the_offsets_of_their_columns_stay_in_main_memory(make):
    model = META.place(make(SPEC))
    assert model.embedding.weight.device.type == model.offsets.device.type == "cpu"
    others = [parameter for name, parameter in model.named_parameters() if not name.startswith("embedding")]
    assert {parameter.device.type for parameter in others} == {"meta"}


def test_a_batch_goes_to_the_device_except_the_ids_of_tables_in_main_memory():
    numbers, ids = META.bring_all(batch())
    assert (numbers.device.type, ids.device.type) == ("meta", "cpu")
    assert {tensor.device.type for tensor in Placement("meta").bring_all(batch())} == {"meta"}
    given = batch()
    assert all(moved is original for moved, original in zip(IN_MEMORY.bring_all(given), given, strict=True))


@pytest.mark.parametrize("make", [TabularBottom, Wide])
def test_vectors_from_tables_are_moved_to_the_device_of_the_network(make):
    model = META.place(make(SPEC))
    for one in (model, copy.deepcopy(model)):
        assert one(*META.bring_all(batch())).device.type == "meta"


def test_weights_that_two_parts_share_are_shared_after_placement():
    model = nn.Sequential(nn.Embedding(3, 2), first := nn.Linear(2, 2), second := nn.Linear(2, 2))
    second.weight = first.weight
    META.place(model)
    assert first.weight is second.weight
    assert first.weight.device.type == "meta"


def test_names_of_weights_do_not_depend_on_where_they_are():
    assert list(META.place(TabularBottom(SPEC)).state_dict()) == list(TabularBottom(SPEC).state_dict())


def test_in_bfloat16_a_network_multiplies_rounded_numbers_and_its_outputs_and_gradients_are_float32():
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


def test_outputs_that_are_not_in_bfloat16_are_not_converted():
    placement = Placement(precision="bfloat16")
    assert placement.forward(lambda: "no tensor") == "no tensor"
    assert placement.forward(lambda x: x, torch.ones(2, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_other_precisions_are_those_of_the_process(precision):
    network, x = nn.Linear(6, 3), torch.randn(5, 6)
    assert torch.equal(Placement(precision=precision).forward(network, x), network(x))


@needs_card
@pytest.mark.parametrize("make", [TabularBottom, Wide])
def test_training_with_tables_in_main_memory_equals_training_on_the_gpu(make):
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
