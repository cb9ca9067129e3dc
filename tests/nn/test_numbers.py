"""Embeddings of numeric columns: the encoding against its definition, the bins against numpy."""

from itertools import pairwise

import numpy as np
import torch

from flower_vfl.data.store.memory import array_table
from flower_vfl.nn.numbers import MOST_BINS, NumericEmbedding
from flower_vfl.nn.tabular import TabularBottom


def _embedding(values, width=3):
    table = array_table("a", values, values[:2])
    torch.manual_seed(0)
    return NumericEmbedding(table.spec.numeric, width, table.spec.quantiles)


def _reference_encoding(x, knots):
    """Return the encoding of Gorishniy et al., equation 1, bin by bin; outer bins extend by twice their width."""
    encoded = np.zeros(MOST_BINS)
    edges = np.unique(knots)
    for t, (low, high) in enumerate(pairwise(edges)):
        least = -2.0 if t == 0 else 0.0
        most = 3.0 if t == len(edges) - 2 else 1.0
        encoded[t] = min(max((x - low) / (high - low), least), most)
    return encoded


def test_each_number_is_encoded_as_the_paper_defines_and_embedded_by_its_column():
    rng = np.random.default_rng(0)
    columns = [rng.normal(size=500), np.repeat([0.0, 1.0], 250), np.full(500, 7.0), rng.integers(0, 5, 500)]
    values = np.stack(columns, axis=1).astype(np.float32)
    module = _embedding(values)
    points = np.concatenate([values[:40], np.full((1, 4), 99.0), np.full((1, 4), -99.0)]).astype(np.float32)
    with torch.no_grad():
        found = module(torch.from_numpy(points)).view(len(points), 4, 3).double().numpy()
        weight, bias = module.weight.double().numpy(), module.bias.double().numpy()
    knots = module.knots.double().numpy()
    for row, point in zip(found, points.astype(np.float64), strict=True):
        for column in range(4):
            expected = np.maximum(
                _reference_encoding(point[column], knots[column]) @ weight[column] + bias[column], 0.0
            )
            np.testing.assert_allclose(row[column], expected, rtol=1e-4, atol=1e-4)


def test_bins_are_quantiles_of_rows_and_of_distinct_values():
    values = np.zeros((1000, 1), dtype=np.float32)
    values[:100, 0] = np.arange(1, 101)  # nine tenths are zero: quantiles of rows alone leave one bin or two
    knots = np.unique(_embedding(values).knots.numpy())
    probabilities = np.linspace(0.0, 1.0, MOST_BINS // 2 + 1)
    expected = np.unique(np.concatenate([np.quantile(v, probabilities) for v in (values[:, 0], np.arange(101.0))]))
    np.testing.assert_allclose(knots, expected.astype(np.float32))
    assert len(knots) > MOST_BINS // 2


def test_a_model_that_is_made_again_without_the_rows_takes_its_bins_from_the_weights():
    values = np.random.default_rng(1).exponential(size=(300, 4)).astype(np.float32)
    spec = array_table("a", values, values[:2]).spec
    model = TabularBottom(spec, numeric_embedding=True)
    bare = TabularBottom(type(spec)(4, ()), numeric_embedding=True)
    assert not torch.equal(model.numbers.knots, bare.numbers.knots)
    bare.load_state_dict(model.state_dict())
    x = torch.from_numpy(values)
    torch.testing.assert_close(bare(x), model(x), rtol=0, atol=0)
