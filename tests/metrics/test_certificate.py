"""The bound of Theorem 1, against Gaussians whose AUC is known."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from flower_vfl.metrics import ArgumentError, auc_bound


@given(st.floats(0, 10))
def test_no_pair_of_shifted_gaussians_passes_the_bound(sum_kl):
    shift = math.sqrt(sum_kl)  # KL both ways is shift^2 / 2 for unit variance, and AUC = Phi(shift / sqrt 2)
    assert norm.cdf(shift / math.sqrt(2)) <= auc_bound(sum_kl)


@given(st.floats(0, 4), st.floats(0, 4))
def test_more_divergence_never_lowers_the_bound(first, second):
    low, high = sorted([first, second])
    assert 0.5 <= auc_bound(low) <= auc_bound(high) <= 1


def test_known_values():
    assert auc_bound(0.0) == 0.5
    assert auc_bound(0.25) == 0.71875
    assert auc_bound(1.0) == 0.875


@pytest.mark.parametrize("sum_kl", [4.0, 7.5, math.inf])
def test_from_four_on_it_says_nothing(sum_kl):
    assert auc_bound(sum_kl) == 1.0


@pytest.mark.parametrize("sum_kl", [-1e-9, -math.inf, math.nan])
def test_what_is_no_divergence_is_refused(sum_kl):
    with pytest.raises(ArgumentError, match="divergence"):
        auc_bound(sum_kl)
