"""Features of a batch's gradients: residual lengths as by scipy, and a side of the line that a resume keeps."""

import numpy as np
import torch
from scipy.linalg import svd

from flower_vfl.auditing.features import DIRECTIONS, MORE, GradientFeatures
from tests.attacks.gradient.test_direction import batches

RESIDUAL, ALONG = -MORE + 2, -MORE + 6


def test_the_residual_column_is_what_scipys_principal_directions_leave():
    g, _ = next(iter(batches(1, rows=300, width=12)))
    x = g.double().numpy() / np.sqrt((g.double().numpy() ** 2).mean())
    centred = x - x.mean(axis=0)
    vectors = svd(centred)[2][:DIRECTIONS]
    expected = np.log(np.linalg.norm(centred - centred @ vectors.T @ vectors, axis=1) / np.sqrt(12))
    np.testing.assert_allclose(GradientFeatures().of(g)[:, RESIDUAL].numpy(), expected, rtol=0, atol=1e-4)


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
