"""Features of a batch's gradients: residual lengths as by scipy, and a side of the line that a resume keeps."""

import numpy as np
import torch
from scipy.linalg import svd
from sklearn.metrics.pairwise import cosine_similarity

from flower_vfl.auditing.features import DIRECTIONS, MORE_QUANTITIES, GradientFeatures
from flower_vfl.auditing.members import Members
from tests.attacks.gradient.test_direction import batches

RESIDUAL, NEAREST, OPPOSITE, ALONG = (place - MORE_QUANTITIES for place in (2, 6, 7, 8))


def test_the_residual_column_is_what_scipys_principal_directions_leave():
    g, _ = next(iter(batches(1, rows=300, width=12)))
    x = g.double().numpy() / np.sqrt((g.double().numpy() ** 2).mean())
    centred = x - x.mean(axis=0)
    vectors = svd(centred)[2][:DIRECTIONS]
    expected = np.log(np.linalg.norm(centred - centred @ vectors.T @ vectors, axis=1) / np.sqrt(12))
    np.testing.assert_allclose(GradientFeatures().of(g)[:, RESIDUAL].numpy(), expected, rtol=0, atol=1e-4)


def test_the_nearest_and_the_opposite_row_are_those_of_scikit_learns_cosines():
    g, _ = next(iter(batches(1, rows=300, width=12)))
    g[7] = 0.0
    cosines = cosine_similarity(g.double().numpy())
    np.fill_diagonal(cosines, 0.0)
    found = GradientFeatures().of(g).numpy()
    np.testing.assert_allclose(found[:, NEAREST], cosines.max(axis=1), rtol=0, atol=1e-5)
    np.testing.assert_allclose(found[:, OPPOSITE], cosines.min(axis=1), rtol=0, atol=1e-5)
    assert GradientFeatures().of(g[:1])[0, [NEAREST, OPPOSITE]].tolist() == [0.0, 0.0]


def test_restored_features_continue_on_the_side_that_the_first_batches_settled():
    seen = [g for g, _ in batches(12, rows=300, width=12)]
    undisturbed, restored = GradientFeatures(), GradientFeatures()
    for g in seen:
        undisturbed.of(g)
    restored.restore(undisturbed.state())
    turned = -seen[-1]  # by itself, this batch has the rarer class on the other side
    expected = undisturbed.of(turned)
    assert torch.equal(restored.of(turned), expected)
    assert torch.dot(GradientFeatures().of(turned)[:, ALONG], expected[:, ALONG]) < 0.0


def test_rounded_rows_end_in_more_zero_bits():
    """Half precision leaves 13 of 23 bits unused; of random bits one more than none is unused on average."""
    g = torch.randn(4, 5000, generator=torch.Generator().manual_seed(0))
    g[1], g[2], g[3] = g[1].half().float(), 0.0, -4.0
    found = GradientFeatures().of(g)[:, -1]
    np.testing.assert_allclose(found.numpy(), [1.0, 14.0, 23.0, 23.0], atol=0.1)
    assert torch.equal(GradientFeatures(Members(("a", "b"), (3000, 2000))).of(g)[:, 5000 + MORE_QUANTITIES - 1], found)
