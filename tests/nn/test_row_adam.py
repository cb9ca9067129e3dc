import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from flower_vfl.errors import TrainingError
from flower_vfl.nn.row_adam import RowAdam


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 12), st.sampled_from([1e-3, 0.3]), st.integers(0, 99))
def test_it_equals_sparse_adam_to_the_last_bit(rows, width, steps, lr, seed):
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(rows, width, generator=generator)
    own, expected = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    optimizer, reference = RowAdam([own], lr=lr), torch.optim.SparseAdam([expected], lr=lr)
    for _ in range(steps):
        ids = torch.randint(0, rows, (1, 9), generator=generator)
        values = torch.randn(9, width, generator=generator) * 10.0 ** torch.randint(-9, 3, (9, 1), generator=generator)
        own.grad = torch.sparse_coo_tensor(ids, values, own.shape, check_invariants=True)
        expected.grad = own.grad.clone()
        optimizer.step()
        reference.step()
    assert torch.equal(own, expected)
    moments = optimizer.state[own]["moments"]
    assert torch.equal(moments[:, 0], reference.state[expected]["exp_avg"])
    assert torch.equal(moments[:, 1], reference.state[expected]["exp_avg_sq"])
    assert optimizer.state[own]["step"] == reference.state[expected]["step"]


def test_rows_without_a_gradient_keep_weights_and_moments():
    table = nn.Embedding(6, 2, sparse=True)
    optimizer = RowAdam(table.parameters())
    for ids in ([0, 1], [1, 4]):
        before = table.weight.detach().clone()
        moments = optimizer.state[table.weight]["moments"].clone() if optimizer.state else torch.zeros(6, 2, 2)
        table.zero_grad()
        table(torch.tensor(ids)).sum().backward()
        optimizer.step()
        changed = (table.weight != before).any(1).nonzero().flatten().tolist()
        moved = (optimizer.state[table.weight]["moments"] != moments).flatten(1).any(1).nonzero().flatten().tolist()
        assert changed == moved == ids


def test_an_empty_batch_changes_nothing():
    table = nn.Embedding(6, 2, sparse=True)
    optimizer = RowAdam(table.parameters())
    before = table.weight.detach().clone()
    optimizer.step()
    table(torch.zeros(0, dtype=torch.long)).sum().backward()
    optimizer.step()
    assert torch.equal(table.weight, before)


def test_a_dense_gradient_is_refused():
    table = nn.Embedding(6, 2, sparse=True)
    table.weight.sum().backward()
    with pytest.raises(TrainingError, match="dense gradient"):
        RowAdam(table.parameters()).step()
