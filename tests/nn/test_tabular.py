import numpy as np
import pytest
import torch

from flower_vfl.data.store.dataset import FeatureSpec
from flower_vfl.data.store.source import ArraySource
from flower_vfl.errors import ConfigError, TrainingError
from flower_vfl.nn import ConvBottom, TabularBottom, Top
from flower_vfl.nn.fusion import fuse, fused_shape
from flower_vfl.nn.optim import Optimizers
from tests.cases import parametrize

TABLE = FeatureSpec(3, (4, 6, 2))


def batch(spec, rows=8, seed=0):
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(size=(rows, spec.numeric))] if spec.numeric else []
    if spec.cardinalities:
        arrays.append(np.stack([rng.integers(0, size, rows) for size in spec.cardinalities], 1))
    return ArraySource(*arrays).gather(np.arange(rows))


@pytest.mark.parametrize("spec", [TABLE, FeatureSpec(5, ()), FeatureSpec(0, (3, 3))])
@pytest.mark.parametrize("hidden", [(), (16,), (16, 8)])
def test_a_table_becomes_an_embedding_of_the_width_of_the_cut(spec, hidden):
    bottom = TabularBottom(spec, hidden=hidden, cut=5, dropout=0.1)
    z = bottom(*batch(spec))
    assert z.shape == (8, 5)
    assert (z >= 0).all()


def test_equal_ids_of_different_columns_have_rows_of_their_own():
    bottom = TabularBottom(FeatureSpec(0, (4, 4)), embedding_width=2)
    assert bottom.embedding.num_embeddings == 8
    bottom.layers = torch.nn.Identity()
    with torch.no_grad():
        bottom.embedding.weight.copy_(torch.arange(16.0).reshape(8, 2))
    assert bottom(torch.tensor([[1, 1], [3, 0]])).tolist() == [[2, 3, 10, 11], [6, 7, 8, 9]]


def test_the_embedding_of_unseen_values_starts_at_zero():
    bottom = TabularBottom(TABLE)
    buckets = torch.tensor([0, 4, 10])
    assert (bottom.embedding.weight[buckets] == 0).all()
    assert (bottom.embedding.weight.abs().sum(1) > 0).sum() == 12 - 3


def test_the_wrong_number_of_tensors_is_refused():
    with pytest.raises(TrainingError, match="takes 2 tensors"):
        TabularBottom(TABLE)(torch.zeros(2, 3))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: TabularBottom(FeatureSpec(0, (), (1, 2, 2))), "numeric or categorical"),
        (lambda: TabularBottom(TABLE, cut=0), "cut=0"),
        (lambda: TabularBottom(TABLE, hidden=(4, 0)), r"hidden=\[4, 0\]"),
        (lambda: TabularBottom(TABLE, embedding_width=0), "embedding_width=0"),
        (lambda: Top(4, classes=1), "at least two classes"),
        (lambda: Top(0), "in_width=0"),
    ],
)
def test_impossible_sizes_are_refused_by_name(make, text):
    with pytest.raises(ConfigError, match=text):
        make()


@pytest.mark.parametrize("hidden", [(), (7,)])
def test_the_top_gives_one_logit_for_two_classes_and_one_a_class_for_more(hidden):
    assert Top(6, hidden=hidden)(torch.randn(5, 6)).shape == (5,)
    assert Top(6, hidden=hidden)(torch.randn(1, 6)).shape == (1,)
    assert Top(24, hidden=hidden, classes=3)(torch.randn(5, 2, 3, 4)).shape == (5, 3)


def train(make_bottoms, batches, how, *, split):
    """Train a few steps, cut at the embeddings or joined in one graph, and return all weights."""
    torch.manual_seed(5)
    bottoms = make_bottoms()
    cuts = [tuple(bottom(*mine).shape[1:]) for bottom, mine in zip(bottoms, batches[0][0], strict=True)]
    width = int(np.prod(fused_shape(cuts, how)))
    modules = [*bottoms, Top(width)]
    optimizers = [Optimizers(module, "adam", learning_rate=0.01) for module in modules]
    for inputs, y in batches:
        for optimizer in optimizers:
            optimizer.zero_grad()
        sent = [bottom(*mine) for bottom, mine in zip(bottoms, inputs, strict=True)]
        received = [z.detach().requires_grad_() for z in sent] if split else sent
        logits = modules[-1](fuse(received, how))
        torch.nn.functional.binary_cross_entropy_with_logits(logits, y).backward()
        if split:
            for z, arrived in zip(sent, received, strict=True):
                z.backward(arrived.grad)
        for optimizer in optimizers:
            optimizer.step()
    return [parameter.detach() for module in modules for parameter in module.parameters()]


@parametrize("how", ["concat", "sum", "mean"], quick=1)
@pytest.mark.parametrize("parties", [1, 2, 4])
@pytest.mark.parametrize("kind", ["vectors", "feature maps"])
def test_the_cut_changes_no_bit_of_any_weight(how, parties, kind):
    spec = TABLE if kind == "vectors" else FeatureSpec(0, (), (1, 8, 4))

    def make_bottoms():
        return [TabularBottom(spec) if kind == "vectors" else ConvBottom(spec) for _ in range(parties)]

    def inputs(seed):
        torch.manual_seed(seed)
        return batch(spec, seed=seed) if kind == "vectors" else (torch.rand(8, 1, 8, 4),)

    batches = [
        ([inputs(10 * step + party) for party in range(parties)], torch.tensor([0.0, 1.0] * 4)) for step in range(3)
    ]
    joined = train(make_bottoms, batches, how, split=False)
    cut = train(make_bottoms, batches, how, split=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(joined, cut, strict=True))
