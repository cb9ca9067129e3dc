import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flower_vfl.errors import ConfigError
from flower_vfl.nn.fusion import fuse, fused_shape

sizes = st.lists(st.integers(1, 5), min_size=1, max_size=3)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), sizes, st.integers(1, 4))
def test_concatenation_joins_on_the_first_dimension_after_the_batch(widths, rest, batch):
    parts = [torch.randn(batch, width, *rest) for width in widths]
    joined = fuse(parts, "concat")
    assert tuple(joined.shape[1:]) == fused_shape([part.shape[1:] for part in parts], "concat")
    assert torch.equal(joined, torch.cat(parts, 1))


@given(st.lists(sizes, min_size=2, max_size=4), st.integers(1, 4))
def test_embeddings_of_different_kinds_are_flattened_to_be_concatenated(shapes, batch):
    shapes = [*shapes, [3], [2, 2, 2]]
    parts = [torch.randn(batch, *shape) for shape in shapes]
    joined = fuse(parts, "concat")
    assert tuple(joined.shape[1:]) == fused_shape(shapes, "concat")
    assert torch.equal(joined, torch.cat([part.reshape(batch, -1) for part in parts], dim=1))


@given(sizes, st.integers(1, 4), st.integers(0, 3))
def test_sum_and_mean_add_in_the_order_of_the_parties(shape, parties, batch):
    parts = [torch.randn(batch, *shape) for _ in range(parties)]
    expected = sum(parts[1:], parts[0])
    assert torch.equal(fuse(parts, "sum"), expected)
    assert torch.equal(fuse(parts, "mean"), expected / parties if parties > 1 else parts[0])
    assert fused_shape([shape] * parties, "mean") == tuple(shape)


@pytest.mark.parametrize("how", ["concat", "sum", "mean"])
def test_gradients_reach_every_party(how):
    parts = [torch.randn(3, 4, requires_grad=True) for _ in range(3)]
    fuse(parts, how).sum().backward()
    assert all(part.grad is not None and (part.grad != 0).all() for part in parts)


@pytest.mark.parametrize(
    ("shapes", "how", "text"),
    [
        ([], "concat", "at least one embedding"),
        ([()], "sum", "at least one dimension"),
        ([(3,), (4,)], "sum", "one shape for 'sum'"),
        ([(3, 2, 2), (3, 2, 4)], "mean", "one shape for 'mean'"),
        ([(3,)], "conct", "did you mean 'concat'"),
    ],
)
def test_what_cannot_be_joined_is_refused_with_the_shapes(shapes, how, text):
    with pytest.raises(ConfigError, match=text):
        fused_shape(shapes, how)


def test_batches_of_different_lengths_are_refused():
    with pytest.raises(ConfigError, match=r"equally many rows, given \[2, 3\]"):
        fuse([torch.zeros(2, 4), torch.zeros(3, 4)], "concat")
