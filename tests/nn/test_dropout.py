import copy
import pickle

import pytest
import torch
from torch import nn

from flower_vfl.errors import ConfigError
from flower_vfl.nn.dropout import Dropout, bind_dropout


def generator(seed=3):
    return torch.Generator().manual_seed(seed)


def test_the_same_generator_gives_the_same_mask_and_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    first = Dropout(0.5, generator=generator())(torch.ones(64, 9))
    second = Dropout(0.5, generator=generator())(torch.ones(64, 9))
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)


def test_kept_entries_are_scaled_so_that_the_mean_stays():
    out = Dropout(0.25, generator=generator())(torch.ones(400, 400))
    assert out.unique().tolist() == pytest.approx([0.0, 1 / 0.75])
    assert out.mean().item() == pytest.approx(1.0, abs=0.01)


def test_nothing_is_dropped_in_evaluation_or_with_probability_zero():
    x = torch.randn(8, 8)
    assert Dropout(0.9, generator=generator()).eval()(x) is x
    assert Dropout(0.0, generator=generator())(x) is x


@pytest.mark.parametrize("p", [-0.1, 1.0, float("nan")])
def test_an_impossible_probability_is_refused(p):
    with pytest.raises(ConfigError, match="dropout must be"):
        Dropout(p, generator=generator())


@pytest.mark.parametrize(
    ("kind", "shape"), [(nn.Dropout1d, (6, 40, 5)), (nn.Dropout2d, (6, 40, 5, 5)), (nn.Dropout3d, (6, 40, 2, 3, 4))]
)
def test_channel_dropout_drops_whole_channels(kind, shape):
    model = nn.Sequential(kind(0.5))
    bind_dropout(model, generator())
    channels = model(torch.ones(shape)).flatten(2)
    assert torch.equal(channels.amin(2), channels.amax(2))
    assert 0 < (channels.amax(2) == 0).sum() < 240


def test_an_example_without_a_batch_dimension_drops_whole_channels():
    model = nn.Sequential(nn.Dropout2d(0.5))
    bind_dropout(model, generator())
    out = model(torch.ones(40, 3, 3))
    assert 0 < (out.amax((1, 2)) == 0).sum() < 40


def test_binding_replaces_every_dropout_however_deep_and_keeps_modes():
    shared = nn.Dropout(0.5)
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Dropout(0.2)), shared, shared, nn.Dropout2d(0.3))
    model[1][1].eval()
    own = generator()
    assert bind_dropout(model, own) is model
    bound = [part for part in model.modules() if isinstance(part, Dropout)]
    assert [(part.p, part.shared_dimensions) for part in bound] == [(0.2, 0), (0.5, 0), (0.3, 2)]
    assert all(part.generator is own for part in bound)
    assert model[2] is model[3]
    assert not model[1][1].training
    assert model[2].training
    assert not any(isinstance(part, nn.modules.dropout._DropoutNd) for part in model.modules())


def test_binding_a_dropout_itself_returns_its_replacement():
    bound = bind_dropout(nn.Dropout(0.4), generator())
    assert isinstance(bound, Dropout)
    assert bound.p == 0.4


def test_binding_again_moves_to_the_new_generator():
    model = nn.Sequential(nn.Dropout(0.5))
    bind_dropout(model, generator(1))
    second = generator(2)
    bind_dropout(model, second)
    assert model[0].generator is second


@pytest.mark.parametrize(
    "part",
    [
        nn.AlphaDropout(0.1),
        nn.FeatureAlphaDropout(0.1),
        nn.RReLU(),
        nn.FractionalMaxPool2d(2, output_size=2),
        nn.LSTM(4, 4, num_layers=2, dropout=0.1),
        nn.TransformerEncoderLayer(4, 2, dropout=0.1),
        type("MyDropout", (nn.Dropout,), {})(0.1),
    ],
    ids=lambda part: type(part).__name__,
)
def test_a_module_that_draws_from_the_global_generator_is_refused_and_nothing_is_changed(part):
    model = nn.Sequential(nn.Dropout(0.5), part)
    with pytest.raises(ConfigError, match=r"^1.* draws from torch's global generator"):
        bind_dropout(model, generator())
    assert type(model[0]) is nn.Dropout


def test_a_recurrent_module_without_dropout_is_accepted():
    bind_dropout(nn.Sequential(nn.LSTM(4, 4)), generator())


def test_the_state_of_the_generator_can_be_saved_and_put_back():
    own = generator()
    model = bind_dropout(nn.Sequential(nn.Dropout(0.5)), own)
    model(torch.ones(10, 10))
    saved = own.get_state().clone()
    first = model(torch.ones(10, 10))
    own.set_state(saved)
    assert torch.equal(model(torch.ones(10, 10)), first)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda part: pickle.loads(pickle.dumps(part))])
def test_a_copy_continues_from_the_state_of_the_original_with_a_generator_of_its_own(duplicate):
    original = Dropout(0.5, generator=generator())
    original(torch.ones(5))
    copied = duplicate(original)
    assert torch.equal(copied(torch.ones(99)), original(torch.ones(99)))
    assert copied.generator is not original.generator
