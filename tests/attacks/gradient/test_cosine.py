"""The cosine attack against numpy, at every scale, and against the AUC that it must reach on Gaussian classes."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate
from scipy.spatial.distance import cdist
from scipy.stats import nct

from flower_vfl.attacks import CosineAttack, SideInformation
from flower_vfl.attacks.gradient import cosine
from flower_vfl.errors import InputError
from flower_vfl.metrics import leak_auc
from tests.attacks.common import DTYPES, SCALES, auc_error, gradients, transcript_of


def brute_force(g, reference):
    rows, known = g.double().flatten(1).numpy(), reference.double().flatten().numpy()
    return np.array([row @ known / (np.linalg.norm(row) * np.linalg.norm(known)) for row in rows])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_score_is_the_cosine(dtype):
    g, reference = gradients(dtype=dtype), gradients(1, (8,), dtype)
    scores = cosine.score(g, reference)
    assert scores.dtype == dtype
    tolerance = 1e-6 if dtype == torch.float32 else 1e-14
    np.testing.assert_allclose(scores.numpy(), brute_force(g, reference), rtol=0, atol=tolerance)
    expected = 1 - cdist(g.double().numpy(), reference.double().numpy()[None], "cosine")[:, 0]
    np.testing.assert_allclose(scores.numpy(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("shape", [(6, 3, 2, 2), (6, 1), (6, 12)])
def test_feature_maps_count_as_rows(shape):
    g = gradients(shape=shape)
    assert torch.equal(cosine.score(g, g[2]), cosine.score(g.flatten(1), g[2].flatten()))
    assert cosine.score(g, g[2])[2] == pytest.approx(1.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("reference_scale", SCALES)
def test_no_scale_of_gradients_or_reference_changes_a_cosine(scale, reference_scale, dtype):
    g, reference = gradients(dtype=dtype), gradients(1, (8,), dtype)
    expected = brute_force(g, reference)
    scores = cosine.score(g * scale, reference * reference_scale)
    np.testing.assert_allclose(scores.numpy(), expected, rtol=0, atol=1e-6)


@given(st.integers(0, 5), st.integers(-100, 60), st.floats(0.1, 10))
def test_it_depends_on_directions_only(seed, power, factor):
    g, reference = gradients(seed), gradients(seed + 1, (8,))
    lengths = torch.rand(64, 1, generator=torch.Generator().manual_seed(seed)) + 0.1
    scores = cosine.score(g, reference)
    torch.testing.assert_close(cosine.score(g * lengths * factor, reference * 2.0**power), scores)
    torch.testing.assert_close(cosine.score(g, -reference), -scores)
    assert scores.abs().max() <= 1 + 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, *DTYPES])
def test_zero_rows_and_a_zero_reference_have_cosine_zero(dtype):
    g = gradients(dtype=torch.float64).to(dtype)
    g[5] = 0
    assert cosine.score(g, g[0])[5] == 0
    assert cosine.score(g, torch.zeros(8, dtype=dtype)).tolist() == [0.0] * 64
    assert cosine.score(torch.zeros_like(g), g[0]).tolist() == [0.0] * 64


def test_the_smallest_and_the_largest_numbers_have_cosines_too():
    for dtype in DTYPES:
        smallest, largest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps, torch.finfo(dtype).max
        g = torch.tensor([[1.0, 1.0], [-1.0, 1.0]], dtype=dtype)
        for unit in (smallest, largest):
            scores = cosine.score(g * unit, torch.tensor([unit, 0.0], dtype=dtype))
            np.testing.assert_allclose(scores.numpy(), [0.5**0.5, -(0.5**0.5)], rtol=1e-6)


def test_rows_that_point_the_same_way_are_ties():
    g = gradients(shape=(1, 8)) * torch.logspace(-3, 3, 50)[:, None]
    assert cosine.score(g, gradients(1, (8,))).unique().numel() <= 3


@pytest.mark.parametrize("shape", [(0, 8), (1, 8)])
def test_small_batches_have_scores(shape):
    assert cosine.score(gradients(shape=shape), gradients(1, (8,))).shape == shape[:1]


def test_gradients_are_not_changed_and_no_graph_is_kept():
    g, reference = gradients().requires_grad_(), gradients(1, (8,)).requires_grad_()
    before = g.detach().clone()
    assert not cosine.score(g, reference).requires_grad
    assert torch.equal(g, before)


@pytest.mark.parametrize(
    ("g", "reference", "reason"),
    [
        (torch.zeros(3), torch.zeros(3), "floating point tensor"),
        (torch.zeros(3, 2, dtype=torch.int64), torch.zeros(2), "floating point tensor"),
        (torch.zeros(3, 2), torch.zeros(3), "gradients' width 2"),
        (torch.zeros(3, 2), torch.zeros(2, dtype=torch.int64), "floating point tensor"),
    ],
)
def test_what_does_not_fit_is_refused(g, reference, reason):
    with pytest.raises(InputError, match=reason):
        cosine.score(g, reference)


def test_the_attack_reads_its_layer_in_the_last_step_and_the_reference():
    cut, first, reference = gradients(1), gradients(2, (64, 5)), gradients(3, (5,))
    side = SideInformation({"reference": reference}, np.array([0]))
    attack = CosineAttack()
    assert torch.equal(attack.score(transcript_of(cut=cut, first=first), "first", side), cosine.score(first, reference))
    assert (attack.name, attack.params, attack.needs) == ("cosine", {}, frozenset({"reference"}))


def closed_form(separation, width):
    """Return P(T+ > T-) of the cosines of N(+-m e1, s^2 I) with e1.

    A cosine increases with X1 / |rest| sqrt(D - 1), a noncentral t of D - 1 degrees of freedom around +-m / s.
    """
    positive, negative = nct(width - 1, separation), nct(width - 1, -separation)
    grid = np.linspace(*positive.ppf([1e-9, 1 - 1e-7]), 20_001)
    return integrate.trapezoid(negative.cdf(grid) * positive.pdf(grid), grid)


@pytest.mark.parametrize(("separation", "width"), [(0.3, 4), (0.7, 8), (1.5, 32)])
def test_on_two_gaussian_classes_it_reaches_the_auc_that_theory_gives(separation, width):
    # False alarm: 6e-7 a case (five standard deviations).
    y = (torch.arange(40_000) % 4 == 0).float()
    g = gradients(int(10 * separation), (40_000, width), torch.float64)
    g[:, 0] += separation * (2 * y - 1)
    reference = torch.zeros(width, dtype=torch.float64)
    reference[0] = 1.0
    expected = closed_form(separation, width)
    measured = leak_auc(cosine.score(g * 1e-9, reference), y)
    assert 0.6 < expected < 0.99
    assert abs(measured - expected) < auc_error(expected, 10_000, 30_000)
