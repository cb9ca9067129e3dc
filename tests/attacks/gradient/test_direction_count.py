"""The direction count against all pairs one by one, in tiles and at every scale, and its leak AUC."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import norm

from flower_vfl.attacks import DirectionCountAttack
from flower_vfl.attacks.gradient import direction_count
from flower_vfl.errors import ConfigError, InputError
from flower_vfl.metrics import leak_auc
from tests.attacks.common import DTYPES, SCALES, auc_error, gradients, transcript_of


def brute_force(g):
    """Count in exact arithmetic: no rounding, no scale."""
    rows = [[Fraction(x) for x in row] for row in g.double().flatten(1).tolist()]
    counts = [0] * len(rows)
    for i, j in itertools.permutations(range(len(rows)), 2):
        counts[i] += sum(a * b for a, b in zip(rows[i], rows[j], strict=True)) > 0
    return counts


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(40, 3), (40, 1), (7, 2, 2, 2), (2, 3), (1, 3), (0, 3), (3, 0)])
def test_the_score_counts_the_others_on_the_same_side(shape, dtype):
    g = gradients(shape=shape, dtype=dtype)
    scores = direction_count.score(g)
    assert scores.dtype == torch.float32
    assert (-scores).tolist() == brute_force(g)
    assert direction_count.score(g, minority="negative").tolist() == brute_force(g)


@given(hnp.arrays(np.int8, st.tuples(st.integers(1, 30), st.integers(1, 5)), elements=st.integers(-2, 2)))
@settings(max_examples=200)
def test_pairs_at_right_angles_and_zero_rows_are_not_counted(values):
    g = torch.from_numpy(values).float()
    assert (-direction_count.score(g)).tolist() == brute_force(g)
    assert (-direction_count.score(g * 3e-39)).tolist() == brute_force(g)


@pytest.mark.parametrize("rows", [255, 256, 257, 600, 1024])
@pytest.mark.parametrize("width", [32, 128])
def test_tiles_and_number_formats_change_no_count(rows, width):
    g = gradients(rows, (rows, width))
    products = g.double().numpy() @ g.double().numpy().T
    np.fill_diagonal(products, 0.0)
    doubtful = np.abs(products) < 1e-5 * np.outer(*2 * (g.norm(dim=1).numpy(),))
    counts = -direction_count.score(g).numpy()
    wrong = counts != (products > 0).sum(axis=1)
    assert (wrong <= (doubtful.sum(axis=1) > 1)).all()  # the diagonal is always doubtful
    assert wrong.sum() <= 4
    assert (-direction_count.score(g.double()).numpy() == (products > 0).sum(axis=1)).all()


def test_in_a_large_batch_right_angles_are_right_angles():
    g = torch.eye(1024, 128)
    g[512:] = torch.eye(512, 128) * 7.0
    assert (-direction_count.score(g)).tolist() == ((g @ g.T > 0).sum(dim=1) - (g != 0).any(dim=1).long()).tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", SCALES)
def test_no_scale_changes_a_count(scale, dtype):
    g = gradients(dtype=dtype)
    assert torch.equal(direction_count.score(g * scale), direction_count.score(g))


@pytest.mark.parametrize("rows", [40, 600])
def test_rows_of_all_scales_count_like_rows_of_one(rows):
    g = gradients(shape=(rows, 16), dtype=torch.float64)
    for dtype, most in ((torch.float32, 36), (torch.float64, 306)):
        lengths = torch.logspace(-most, most, rows, dtype=torch.float64)[:, None]
        assert torch.equal(direction_count.score((g * lengths).to(dtype)), direction_count.score(g))


@pytest.mark.parametrize("rows", [40, 1024])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_smallest_and_the_largest_numbers_are_counted(dtype, rows):
    g = gradients(shape=(rows, 16), dtype=dtype).sign()
    smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    largest = torch.finfo(dtype).max / (2 - torch.finfo(dtype).eps)  # a power of two: right angles stay right angles
    for unit in (smallest, largest):
        assert torch.equal(direction_count.score(g * unit), direction_count.score(g))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_not_counted_in_half_precision(dtype):
    g = gradients(shape=(300, 40)).to(dtype)
    assert torch.equal(direction_count.score(g), direction_count.score(g.double()))


@given(st.integers(0, 20))
@settings(max_examples=20)
def test_counts_are_symmetric_and_follow_the_order_of_the_rows(seed):
    g = gradients(seed, (50, 6))
    order = torch.randperm(50, generator=torch.Generator().manual_seed(seed))
    scores = direction_count.score(g)
    assert torch.equal(direction_count.score(g[order]), scores[order])
    assert torch.equal(direction_count.score(-g), scores)
    assert int(scores.sum()) % 2 == 0  # each pair is counted twice


def test_the_minority_decides_the_sign_of_the_count():
    g = torch.tensor([[1.0, 0.1], [1.0, 0.0], [1.0, -0.1], [-1.0, 0.0]])
    assert direction_count.score(g).argmax() == 3
    assert direction_count.score(g, minority="negative").argmin() == 3
    assert DirectionCountAttack(minority="negative").params == {"minority": "negative"}


@pytest.mark.parametrize("minority", ["positives", None, 1])
def test_an_unknown_minority_is_refused(minority):
    with pytest.raises(InputError, match=r"positive"):
        direction_count.score(gradients(), minority=minority)
    with pytest.raises(ConfigError, match=r"minority is .*negative, positive"):
        DirectionCountAttack(minority=minority)


@pytest.mark.parametrize("g", [torch.zeros(3), torch.zeros(3, 2, dtype=torch.int64)])
def test_what_has_no_row_for_each_example_is_refused(g):
    with pytest.raises(InputError, match="floating point tensor"):
        direction_count.score(g)


def test_the_attack_reads_its_layer_in_the_last_step_and_needs_nothing():
    cut, first = gradients(1), gradients(2, (64, 5))
    attack = DirectionCountAttack()
    assert torch.equal(attack.score(transcript_of(cut=cut, first=first), "first"), direction_count.score(first))
    assert (attack.name, attack.label, attack.needs) == ("direction_count", "direction_count", frozenset())


def test_in_one_dimension_it_reads_exactly_the_sign():
    # In one dimension the count is a function of the sign: AUC = Phi(m / s). False alarm: 6e-7.
    y = (torch.arange(4000) % 5 == 0).float()
    g = gradients(7, (4000, 1)) + (1 - 2 * y[:, None]) * 0.8
    expected = norm.cdf(0.8)
    assert abs(leak_auc(direction_count.score(g), y) - expected) < auc_error(expected, 800, 3200)


def test_it_reads_the_rare_class_from_gradients_as_the_paper_models_them():
    generator = torch.Generator().manual_seed(0)
    y = (torch.rand(1024, generator=generator) < 0.08).float()
    p = torch.sigmoid(torch.randn(1024, generator=generator) - 3)
    g = (p - y)[:, None] * (torch.randn(1024, 16, generator=generator) * 0.3 + 1) / 1024
    assert leak_auc(direction_count.score(g), y) == 1.0
    null_auc = leak_auc(direction_count.score(torch.randn(1024, 16, generator=generator)), y)
    positives = int(y.sum())
    # Nothing to read: five standard deviations of the null, 6e-7.
    assert abs(null_auc - 0.5) < 5 * math.sqrt(1025 / (12 * positives * (1024 - positives)))
