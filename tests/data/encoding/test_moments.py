import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import skew

from flower_vfl.data.encoding.moments import Moments

pieces = st.lists(st.lists(st.integers(-1000, 1000), max_size=8), min_size=1, max_size=6)


@given(pieces)
def test_moments_of_pieces_add_up_to_those_of_all(parts):
    whole = np.array([float(value) for part in parts for value in part])
    found = Moments()
    for part in parts:
        found += Moments.of(np.array(part, np.float64))
    assert found.count == len(whole)
    if len(whole):
        assert found.mean == pytest.approx(whole.mean(), abs=1e-9)
        assert found.spread == pytest.approx(whole.std(), abs=1e-6)
    if len(whole) and whole.std() > 0:
        assert found.skewness == pytest.approx(skew(whole), abs=1e-6)


@pytest.mark.parametrize("scale", [1e-100, 1e100])
def test_huge_and_tiny_numbers_have_a_skewness(scale):
    values = np.array([0.0] * 9 + [1.0])
    assert Moments.of(values * scale).skewness == pytest.approx(skew(values))
