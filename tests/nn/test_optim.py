import io
import json
import math
import subprocess
import sys

import pytest
import torch
from torch import nn

from flower_vfl.data.store.dataset import FeatureSpec
from flower_vfl.errors import ConfigError, DataError
from flower_vfl.nn.initialise import seeded_initialisation
from flower_vfl.nn.optim import Optimizers, split_parameters
from flower_vfl.nn.tabular import TabularBottom

SPEC = FeatureSpec(2, (50, 30))


def make(seed=0, **options):
    with seeded_initialisation(seed):
        bottom = TabularBottom(SPEC, hidden=(6,), cut=3)
    return bottom, Optimizers(bottom, options.pop("name", "adam"), learning_rate=0.05, **options)


def advance(bottom, optimizers, step):
    generator = torch.Generator().manual_seed(step)
    numeric = torch.randn(7, 2, generator=generator)
    ids = torch.randint(0, 30, (7, 2), generator=generator)
    optimizers.zero_grad()
    bottom(numeric, ids).pow(2).sum().backward()
    optimizers.step()
    return ids


def weights(module):
    return [parameter.detach().clone() for parameter in module.parameters()]


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_a_step_has_no_entry_in_a_profile(name):
    """An entry would take a tenth of the time of a step."""
    bottom, optimizers = make(name=name)
    with torch.autograd.profiler.profile(use_cpu=True) as profile:
        advance(bottom, optimizers, 0)
    seen = [event.name for event in profile.function_events]
    assert seen
    assert not [name for name in seen if name.startswith("Optimizer.step")]


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_only_the_rows_of_the_batch_are_updated_in_the_embedding_table(name):
    bottom, optimizers = make(name=name, weight_decay=0.1)
    for step in range(3):
        before = bottom.embedding.weight.detach().clone()
        ids = advance(bottom, optimizers, step)
        changed = set((bottom.embedding.weight != before).any(1).nonzero().flatten().tolist())
        assert changed
        assert changed <= set((ids + bottom.offsets).flatten().tolist())


@pytest.mark.parametrize(
    ("name", "kind"), [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.Adam)]
)
def test_where_each_batch_has_every_row_embeddings_decay_as_torch_decays_weights(name, kind):
    # Gradients stay above 0.2: of small ones SparseAdam takes shorter steps than Adam, as it adds eps at another place.
    weights = torch.linspace(0.2, 1.2, 60).view(20, 3)
    table, dense = (nn.Embedding(20, 3, sparse=sparse, _weight=weights.clone()) for sparse in (True, False))
    own = Optimizers(table, name, learning_rate=0.1, embedding_decay=0.3)
    reference = kind(dense.parameters(), lr=0.1, weight_decay=0.3)
    for step in range(5):
        ids = torch.cat([torch.arange(20), torch.arange(step + 2)])  # rows that occur twice decay once
        for model, optimizer in ((table, own), (dense, reference)):
            optimizer.zero_grad()
            model(ids).sin().sum().backward()
            optimizer.step()
    assert torch.allclose(table.weight, dense.weight, atol=1e-5)


def test_rows_without_a_gradient_do_not_decay():
    table = nn.Embedding(6, 2, sparse=True)
    before, optimizers = table.weight.detach().clone(), Optimizers(table, "sgd", embedding_decay=0.5)
    table(torch.tensor([1, 4, 4])).sum().backward()
    optimizers.step()
    assert (table.weight != before).any(dim=1).nonzero().flatten().tolist() == [1, 4]


@pytest.mark.parametrize("fused", [False, True])
def test_dense_weights_are_updated_exactly_as_torch_does_it(fused):
    for name, kind in {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}.items():
        ours, theirs = nn.Linear(4, 3), nn.Linear(4, 3)
        theirs.load_state_dict(ours.state_dict())
        own = Optimizers(ours, name, learning_rate=0.1, weight_decay=0.01, fused=fused)
        reference = kind(theirs.parameters(), lr=0.1, weight_decay=0.01, fused=fused)
        assert own._optimizers[0].defaults["fused"] is (True if fused else None)
        for step in range(4):
            x = torch.randn(5, 4, generator=torch.Generator().manual_seed(step))
            own.zero_grad()
            reference.zero_grad()
            ours(x).pow(2).sum().backward()
            theirs(x).pow(2).sum().backward()
            own.step()
            reference.step()
        assert equal(weights(ours), weights(theirs))


def test_weight_decay_shrinks_dense_weights_and_leaves_embeddings_alone():
    bottom, optimizers = make(name="sgd", weight_decay=0.5)
    before = {name: value.detach().clone() for name, value in bottom.named_parameters()}
    optimizers.zero_grad()
    z = bottom(torch.zeros(2, 2), torch.zeros(2, 2, dtype=torch.long))
    (z * 0).sum().backward()
    optimizers.step()
    after = dict(bottom.named_parameters())
    assert torch.equal(after["embedding.weight"], before["embedding.weight"])
    assert torch.allclose(after["layers.0.weight"], before["layers.0.weight"] * (1 - 0.05 * 0.5))


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [1.0] * 5),
        ("linear", [1.0, 0.75, 0.5, 0.25, 0.0]),
        ("cosine", [0.5 * (1 + math.cos(math.pi * done / 4)) for done in range(5)]),
        ("step", [1.0, 1.0, 1.0, 0.1, 0.01]),
    ],
)
def test_the_learning_rate_follows_the_schedule_by_the_count_of_steps(schedule, expected):
    bottom, optimizers = make(schedule=schedule, steps=4)
    rates = []
    for step in range(5):
        rates.append(optimizers.learning_rate)
        advance(bottom, optimizers, step)
        assert all(group["lr"] == rates[-1] for part in optimizers._optimizers for group in part.param_groups)
    assert rates == pytest.approx([0.05 * factor for factor in expected])
    assert optimizers.state_dict()["steps"] == 5


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_training_continues_bit_for_bit_after_its_state_was_stored_as_tensors_and_json(name, fused):
    bottom, optimizers = make(name=name, schedule="cosine", steps=10, fused=fused)
    for step in range(4):
        advance(bottom, optimizers, step)
    state = optimizers.state_dict()
    tensors = {key: value for key, value in state.items() if isinstance(value, torch.Tensor)}
    plain = json.loads(json.dumps({key: value for key, value in state.items() if key not in tensors}))
    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    buffer.seek(0)
    stored = {**plain, **torch.load(buffer, weights_only=True)}
    other, resumed = make(seed=1, name=name, schedule="cosine", steps=10, fused=fused)
    other.load_state_dict(bottom.state_dict())
    resumed.load_state_dict(stored)
    for step in range(4, 8):
        advance(bottom, optimizers, step)
        advance(other, resumed, step)
    assert equal(weights(bottom), weights(other))


def test_a_loaded_state_is_a_copy():
    bottom, optimizers = make()
    advance(bottom, optimizers, 0)
    state = optimizers.state_dict()
    kept = {key: value.clone() for key, value in state.items() if isinstance(value, torch.Tensor)}
    another, other = make()
    other.load_state_dict({**state, **kept})
    frozen = {key: value.clone() for key, value in kept.items()}
    advance(another, other, 1)
    assert all(torch.equal(kept[key], frozen[key]) for key in kept)


@pytest.mark.parametrize(
    "change",
    [
        {"steps": -1},
        {"steps": None},
        {"nonsense": 1},
        {"other.weight:exp_avg": torch.zeros(2)},
        {"layers.0.weight:exp_avg": torch.zeros(2)},
    ],
)
def test_the_state_of_another_model_is_refused_and_nothing_changes(change):
    bottom, optimizers = make()
    advance(bottom, optimizers, 0)
    before = {key: value for key, value in optimizers.state_dict().items() if not isinstance(value, torch.Tensor)}
    with pytest.raises(DataError, match="optimizer's state"):
        optimizers.load_state_dict({**optimizers.state_dict(), **change})
    assert optimizers.state_dict()["steps"] == 1
    assert before == {
        key: value for key, value in optimizers.state_dict().items() if not isinstance(value, torch.Tensor)
    }


def test_clipping_bounds_the_joint_norm_and_counts_repeated_rows_once():
    def gradients(bottom):
        return torch.cat([parameter.grad.to_dense().flatten() for parameter in bottom.parameters()])

    bottom, optimizers = make()
    bottom(torch.randn(9, 2), torch.ones(9, 2, dtype=torch.long)).pow(2).sum().backward()
    full = gradients(bottom)
    optimizers.clip_grad(1e9)
    assert torch.allclose(gradients(bottom), full)
    optimizers.clip_grad(0.25)
    assert gradients(bottom).norm().item() == pytest.approx(0.25, rel=1e-5)
    assert torch.allclose(gradients(bottom), full * (0.25 / full.norm()), rtol=1e-4)


def test_a_module_without_parameters_or_gradients_is_left_alone():
    empty = Optimizers(nn.ReLU())
    empty.zero_grad()
    empty.step()
    empty.clip_grad(1.0)
    bottom, optimizers = make()
    before = weights(bottom)
    optimizers.step()
    assert equal(weights(bottom), before)


def test_frozen_weights_are_not_touched():
    bottom, _ = make()
    bottom.layers[0].weight.requires_grad_(False)
    dense, sparse = split_parameters(bottom)
    assert "layers.0.weight" not in dense
    assert list(sparse) == ["embedding.weight"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"name": "adm"}, "did you mean 'adam'"),
        ({"schedule": "cosin", "steps": 3}, "did you mean 'cosine'"),
        ({"schedule": "linear"}, "needs the number of steps"),
        ({"learning_rate": 0.0}, "learning rate must be above 0"),
        ({"learning_rate": float("nan")}, "learning rate must be above 0"),
        ({"weight_decay": -1.0}, "weight_decay"),
    ],
)
def test_impossible_settings_are_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        Optimizers(TabularBottom(SPEC), options.pop("name", "adam"), **options)


def test_no_optimizer_imports_the_compiler():
    """The import of the compiler takes as long as PyTorch's own, in every process of every party."""
    code = """
import sys, torch
from flower_vfl.nn.optim import Optimizers
for name in ("adam", "adamw", "sgd"):
    for fused in (False, True):
        model = torch.nn.Sequential(torch.nn.Embedding(9, 2, sparse=True), torch.nn.Flatten(), torch.nn.Linear(2, 1))
        optimizers = Optimizers(model, name, fused=fused)
        model(torch.arange(3)[:, None]).sum().backward()
        optimizers.clip_grad(1.0)
        optimizers.step()
        optimizers.zero_grad()
        optimizers.load_state_dict(optimizers.state_dict())
        if "torch._dynamo" in sys.modules:
            sys.exit(f"{name}, fused: {fused}")
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
