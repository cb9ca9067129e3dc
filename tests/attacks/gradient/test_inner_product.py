"""The inner product attack against numpy, at every scale, and against the AUC that it must reach."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from flower_vfl.attacks import InnerProductAttack, SideInformation
from flower_vfl.attacks.gradient import inner_product
from flower_vfl.errors import InputError
from flower_vfl.metrics import leak_auc
from tests.attacks.common import DTYPES, SCALES, auc_error, gradients, transcript_of


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, *DTYPES])
def test_the_score_is_the_inner_product_in_double_precision(dtype):
    g, reference = (gradients(seed, shape, torch.float64).to(dtype) for seed, shape in ((0, (64, 8)), (1, (8,))))
    expected = [math.fsum(a * b for a, b in zip(row, reference.tolist(), strict=True)) for row in g.tolist()]
    scores = inner_product.score(g, reference)
    assert scores.dtype == torch.float64
    assert scores.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("shape", [(6, 3, 2, 2), (6, 1)])
def test_feature_maps_count_as_rows(shape):
    g = gradients(shape=shape)
    assert torch.equal(inner_product.score(g, g[2]), inner_product.score(g.flatten(1), g[2].flatten()))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("reference_scale", SCALES)
def test_no_scale_loses_a_score_or_its_rank(scale, reference_scale, dtype):
    g, reference = gradients(dtype=dtype), gradients(1, (8,), dtype)
    expected = g.double().numpy() @ reference.double().numpy()
    scores = inner_product.score(g * scale, reference * reference_scale).numpy()
    np.testing.assert_allclose(scores / scale / reference_scale, expected, rtol=1e-5, atol=1e-6)
    assert (scores.argsort() == expected.argsort()).all()


@given(st.integers(0, 5), st.integers(-60, 60))
def test_it_is_linear_in_both(seed, power):
    g, reference = gradients(seed, dtype=torch.float64), gradients(seed + 1, (8,), torch.float64)
    scores = inner_product.score(g, reference)
    torch.testing.assert_close(inner_product.score(g * 2.0**power, -reference), -scores * 2.0**power)
    torch.testing.assert_close(inner_product.score(g, reference + g[0]), scores + inner_product.score(g, g[0]))


def test_even_the_largest_numbers_give_no_nan():
    for dtype in DTYPES:
        largest = torch.finfo(dtype).max
        g = torch.tensor([[1.0, -1.0], [1.0, 1.0], [0.0, 0.0], [-1.0, -1.0]], dtype=dtype) * largest
        scores = inner_product.score(g, g[1])
        assert not scores.isnan().any()
        assert scores[3] < scores[0] == scores[2] == 0 < scores[1]


def test_zero_rows_score_zero():
    g = gradients()
    g[5] = 0
    assert inner_product.score(g, g[0])[5] == 0
    assert inner_product.score(g, torch.zeros(8)).tolist() == [0.0] * 64


@pytest.mark.parametrize("reference", [torch.zeros(3), torch.zeros(8, dtype=torch.int64), torch.zeros(2, 8)])
def test_a_reference_that_does_not_fit_is_refused(reference):
    with pytest.raises(InputError, match="give"):
        inner_product.score(gradients(), reference)


def test_the_attack_reads_its_layer_in_the_last_step_and_the_reference():
    cut, first, reference = gradients(1), gradients(2, (64, 5)), gradients(3, (5,))
    side = SideInformation({"reference": reference}, np.array([0]))
    attack = InnerProductAttack()
    scores = attack.score(transcript_of(cut=cut, first=first), "first", side)
    assert torch.equal(scores, inner_product.score(first, reference))
    assert (attack.name, attack.params, attack.needs) == ("inner_product", {}, frozenset({"reference"}))


@pytest.mark.parametrize("separation", [0.2, 0.5, 1.0])
def test_on_two_gaussian_classes_it_reaches_the_auc_that_theory_gives(separation):
    # The scores of the classes are N(+-m, s^2): AUC = Phi(sqrt(2) m / s). False alarm: 6e-7 a case.
    y = (torch.arange(40_000) % 4 == 0).float()
    g = gradients(int(10 * separation), (40_000, 16))
    g[:, 0] += separation * (2 * y - 1)
    reference = torch.zeros(16)
    reference[0] = 1.0
    expected = norm.cdf(math.sqrt(2) * separation)
    measured = leak_auc(inner_product.score(g * 1e-20, reference * 1e-20), y)
    assert abs(measured - expected) < auc_error(expected, 10_000, 30_000)
