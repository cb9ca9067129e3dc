"""Samples of rows, compact embeddings that keep all inner products, and angles against scipy."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist

from flower_vfl.errors import InputError
from flower_vfl.metrics import compact, pair_angles, sample_rows


def generator(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize(("count", "expected"), [(30, [10, 10, 5]), (8, [2, 2, 2]), (1, [1, 1, 1]), (0, [0, 0, 0])])
def test_each_class_gets_an_equal_share_of_the_sample_and_at_least_one_row(count, expected):
    y = np.array([0] * 500 + [1] * 40 + [2] * 5)
    rows = sample_rows(y, count, generator=generator())
    assert np.bincount(y[rows], minlength=3).tolist() == expected
    assert sorted(set(rows.tolist())) == rows.tolist()


def test_every_row_of_a_class_is_drawn_equally_often_and_the_generator_decides():
    y = np.arange(40) % 2
    counts = np.bincount(
        np.concatenate([sample_rows(y, 10, generator=generator(s)) for s in range(2000)]), minlength=40
    )
    # 2000 draws of 5 in 20: five standard deviations are 97.
    assert np.abs(counts - 500).max() < 97
    assert sample_rows(y, 10, generator=generator(1)).tolist() == sample_rows(y, 10, generator=generator(1)).tolist()
    assert sample_rows([], 10, generator=generator()).size == 0


@pytest.mark.parametrize("shape", [(20, 3), (20, 20), (20, 21), (20, 8, 7, 7), (3, 500)])
def test_a_sample_takes_no_more_room_than_its_rows_squared_and_keeps_every_inner_product(shape):
    z = generator().normal(size=shape)
    found = compact(torch.from_numpy(z))
    flat = z.reshape(shape[0], -1)
    assert found.shape == (shape[0], min(shape[0], flat.shape[1]))
    assert found.dtype == np.float32
    scale = np.abs(flat @ flat.T).max()
    assert np.allclose(found.astype(float) @ found.astype(float).T, flat @ flat.T, atol=1e-5 * scale)


def test_narrow_embeddings_are_unchanged():
    z = generator().normal(size=(20, 3)).astype(np.float32)
    assert compact(z).tolist() == z.tolist()
    assert compact(torch.from_numpy(z).bfloat16()).tolist() == torch.from_numpy(z).bfloat16().float().tolist()


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_angles_are_those_of_scipys_cosine_distance_by_pairs_of_one_class_and_of_two(scale):
    z, y = generator().normal(size=(40, 6)), generator(1).integers(0, 3, 40)
    same, different = pair_angles((z * scale).astype(np.float32), y)
    expected = np.arccos(1 - pdist(z, "cosine"))
    same_class = pdist(y[:, None], "hamming") == 0
    assert np.allclose(same, expected[same_class], atol=1e-5)
    assert np.allclose(different, expected[~same_class], atol=1e-5)


def test_a_row_of_zeros_is_at_right_angles_and_equal_or_opposite_rows_are_not_lost_to_rounding():
    z = np.array([[0.0, 0.0], [0.1, 0.3], [-0.2, -0.6]], dtype=np.float32)
    same, different = pair_angles(z, [0, 0, 1])
    assert same.tolist() == [np.pi / 2]
    assert different == pytest.approx([np.pi / 2, np.pi], abs=1e-7)
    assert all(angles.size == 0 for angles in pair_angles(np.zeros((1, 2)), [0]))


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match=r"give \(n, d\) and \(n,\)"):
        pair_angles(np.zeros((3, 2)), [0, 1])
