"""Gradients beside others of their sample, against loops over rows and batches."""

import numpy as np
import pytest
import torch
from sklearn.metrics.pairwise import cosine_similarity

from flower_vfl.auditing.context import NEAREST, REACH, for_products, in_context, in_steps_around, scores_around
from flower_vfl.auditing.readers import WIDEST_READER


def sample(sizes, width, *, seed=0):
    batches = np.repeat(10 + np.arange(len(sizes)), sizes)
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(len(batches), width)).astype(np.float32)), batches


def slow(x, batches):
    """Return the columns row by row, for rows that are read in all their numbers."""
    found = []
    for batch in np.unique(batches):
        own = x[batches == batch]
        others = [x[batches == other] for other in np.unique(batches) if other != batch]
        cosines = cosine_similarity(own)
        opposite = own[np.argmin(cosines, axis=1)]
        np.fill_diagonal(cosines, -2)
        for place, row in enumerate(own):
            nearest = np.argsort(-cosines[place])[:NEAREST]
            there = [rows[place] for rows in others if place < len(rows)]
            mean = np.mean(there, axis=0) if there else np.zeros_like(row)
            around = [own[place - 1], own[(place + 1) % len(own)]]
            differences = [*(row - own[near] for near in nearest), row + opposite[place], row - mean]
            found.append(np.concatenate([row, *differences, *around]))
    return np.stack(found)


def test_the_columns_are_those_of_a_loop():
    x, batches = sample([9, 9, 6], 5)
    np.testing.assert_allclose(in_context(x, batches).numpy(), slow(x.numpy(), batches), rtol=0, atol=1e-6)


@pytest.mark.parametrize("width", [(WIDEST_READER - 2 * REACH) // 8 + 1, 3000])
def test_wide_gradients_are_compared_whole_and_read_in_part(width):
    x, batches = sample([8, 8], width)
    found, whole = in_context(x, batches).numpy(), slow(x.numpy(), batches)
    step = next(step for step in range(2, width) if x[:, ::step].shape[1] * 8 + 2 * REACH <= WIDEST_READER)
    kept = [place for place in range(whole.shape[1]) if place % width % step == 0]
    np.testing.assert_allclose(found, whole[:, kept], rtol=0, atol=1e-6)


def test_batches_of_few_rows_have_columns_too():
    x, batches = sample([1, 2, 3], 4)
    assert in_context(x, batches).shape == (6, 32)
    assert torch.isfinite(in_context(x, batches)).all()
    assert len(in_context(x[:0], batches[:0])) == 0


@pytest.mark.parametrize(("classes", "reach"), [(2, REACH), (3, REACH // 2), (REACH + 1, 1), (REACH + 2, 0)])
def test_the_scores_around_a_row_are_those_of_its_neighbours_in_the_batch(classes, reach):
    scores, batches = sample([20, 7, 1], classes)
    found = scores_around(scores, batches).numpy()
    for row, batch in enumerate(batches):
        own = np.flatnonzero(batches == batch)
        near = [own[(row - own[0] - k) % len(own)] for k in range(-reach, reach + 1) if k]
        around = scores.numpy()[near]
        np.testing.assert_allclose(found[row], (around[:, 1:] - around[:, :1]).ravel())
    assert found.shape[1] <= 2 * REACH


def test_columns_for_products_are_numbers_their_magnitudes_and_the_rows_around():
    x, batches = sample([5, 3], 4)
    x[2, 1] = 0.0
    whole = x.numpy()
    before, after = (np.concatenate([np.roll(whole[:5], k, axis=0), np.roll(whole[5:], k, axis=0)]) for k in (1, -1))
    magnitudes = np.log(np.maximum(np.abs(whole), 1e-6))
    expected = np.concatenate([whole, magnitudes, before, after], axis=1)
    np.testing.assert_allclose(for_products(x, batches).numpy(), expected, atol=1e-6)
    wide, batches = sample([5, 3], 3000)
    assert for_products(wide, batches).shape[1] <= WIDEST_READER


def test_in_steps_around_a_row_are_the_gradients_at_its_position():
    x, _ = sample([4, 3, 2], 5)
    steps = np.repeat([2, 3, 7], [4, 3, 2])
    found, none = in_steps_around(x, steps).numpy(), np.zeros(5)
    before, after = [none, none, none, none, *x[:3]], [*x[4:7], none, none, none, none]
    np.testing.assert_array_equal(found[:, :5], x)
    np.testing.assert_array_equal(found[:7, 5:], np.concatenate([np.stack(before), np.stack(after)], axis=1))
    np.testing.assert_array_equal(found[7:, 5:], 0.0)
    assert in_steps_around(x, np.repeat([2, 4, 7], [4, 3, 2])) is None
    assert in_steps_around(sample([4, 3], 3000)[0], steps[:7]).shape[1] <= WIDEST_READER
