"""The hint attack: its three measures against scipy, at every scale, and its leak AUC against theory."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from scipy.stats import norm

from flower_vfl.attacks import HintAttack, SideInformation
from flower_vfl.attacks.gradient import cosine, hint, inner_product
from flower_vfl.errors import ConfigError, InputError
from flower_vfl.metrics import leak_auc
from tests.attacks.common import DTYPES, SCALES, auc_error, gradients, transcript_of

MEASURES = ["inner", "cosine", "distance"]


def brute_force(g, hints, measure):
    g, hints = g.double().flatten(1).numpy(), hints.double().flatten(1).numpy()
    if measure == "inner":
        return (g @ hints.T).max(axis=1)
    return (1 - cdist(g, hints, "cosine")).max(axis=1) if measure == "cosine" else -cdist(g, hints).min(axis=1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [1, 3, 5, 64])
@pytest.mark.parametrize("measure", MEASURES)
def test_the_score_is_the_nearness_to_the_nearest_hint(measure, k, dtype):
    g, hints = gradients(dtype=dtype), gradients(1, (k, 8), dtype)
    scores = hint.score(g, hints, measure)
    assert scores.dtype == (torch.float64 if measure == "inner" else dtype)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-13
    np.testing.assert_allclose(scores.numpy(), brute_force(g, hints, measure), rtol=tolerance, atol=tolerance)


def test_inner_products_are_the_default():
    g, hints = gradients(), gradients(1, (3, 8))
    assert torch.equal(hint.score(g, hints), hint.score(g, hints, measure="inner"))
    assert HintAttack().params == {"k": 5, "measure": "inner"}


@pytest.mark.parametrize("measure", MEASURES)
def test_feature_maps_count_as_rows(measure):
    g = gradients(shape=(6, 3, 2, 2))
    flat = g.flatten(1)
    assert torch.equal(hint.score(g, g[:2], measure), hint.score(flat, flat[:2], measure))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("measure", MEASURES)
def test_no_scale_loses_a_score_or_its_rank(measure, scale, dtype):
    g, hints = gradients(dtype=dtype), gradients(1, (5, 8), dtype)
    expected = brute_force(g, hints, measure)
    scores = hint.score(g * scale, hints * scale, measure).double().numpy()
    unit = {"inner": scale**2, "cosine": 1.0, "distance": scale}[measure]
    np.testing.assert_allclose(scores / unit, expected, rtol=1e-5, atol=1e-6)
    assert leak_auc(scores, expected > np.median(expected)) == 1.0


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 38), (torch.float64, 307)])
def test_rows_of_all_scales_in_one_batch_give_no_nan(dtype, most, measure):
    g = (gradients(dtype=torch.float64).sign() * torch.logspace(-most, most, 64, dtype=torch.float64)[:, None]).to(
        dtype
    )
    scores = hint.score(g, g[[0, 20, 63]], measure)
    assert not scores.isnan().any()
    assert torch.isfinite(scores).all() or measure == "inner"


@given(st.integers(0, 20), st.integers(1, 6))
def test_one_hint_is_a_reference_and_another_hint_never_lowers_a_score(seed, k):
    g, hints = gradients(seed), gradients(seed + 1, (k + 1, 8))
    for measure in MEASURES:
        fewer = hint.score(g, hints[:k], measure)
        assert (hint.score(g, hints, measure) >= fewer - 1e-12 * fewer.abs()).all()
        torch.testing.assert_close(hint.score(g, hints, measure), hint.score(g, hints.flip(0), measure))
    torch.testing.assert_close(hint.score(g, hints[:1], "inner"), inner_product.score(g, hints[0]))
    torch.testing.assert_close(hint.score(g, hints[:1], "cosine"), cosine.score(g, hints[0]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_small_distances_keep_their_digits(dtype):
    g = torch.ones(3, 4, dtype=dtype)
    g[:, 0] += torch.tensor([0.0, 2.0, 4.0], dtype=dtype) * torch.finfo(dtype).eps
    distances = -hint.score(g, g[:1], "distance") / torch.finfo(dtype).eps
    assert distances.tolist() == pytest.approx([0.0, 2.0, 4.0], rel=1e-12)


def test_distances_beyond_the_largest_number_are_infinite_and_never_nan():
    for dtype, small in ((torch.float32, 1e-37), (torch.float64, 1e-200)):
        g = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, small]], dtype=dtype)
        g[:2] *= torch.finfo(dtype).max
        scores = hint.score(g, g[:1], "distance")
        assert scores.tolist()[:2] == [0.0, -math.inf]
        assert hint.score(g[2:], g.new_tensor([[1.0, 0.0]]), "distance").item() == pytest.approx(-small)


def test_zero_rows_have_cosine_zero_and_their_hints_length_as_distance():
    g = gradients()
    g[5] = 0
    assert hint.score(g, g[:1], "cosine")[5] == 0
    assert hint.score(g, g[5:6], "cosine").tolist() == [0.0] * 64
    assert hint.score(g, g[:1], "distance")[5] == pytest.approx(-g[0].norm().item())
    assert hint.score(torch.zeros_like(g), g[5:6], "distance").tolist() == [0.0] * 64


@pytest.mark.parametrize("measure", MEASURES)
def test_an_empty_batch_has_no_scores_and_an_empty_width_gives_zeros(measure):
    assert hint.score(torch.zeros(0, 4), torch.ones(2, 4), measure).shape == (0,)
    for dtype in DTYPES:
        assert hint.score(torch.zeros(3, 0, dtype=dtype), torch.zeros(2, 0, dtype=dtype), measure).tolist() == [0.0] * 3


@pytest.mark.parametrize(
    ("hints", "measure", "reason"),
    [
        (torch.zeros(0, 8), "inner", "at least one"),
        (torch.zeros(2, 7), "inner", "width 8"),
        (torch.zeros(8), "inner", "floating point tensor"),
        (torch.zeros(2, 8), "cosin", "did you mean 'cosine'"),
        (torch.zeros(2, 8), None, "inner"),
    ],
)
def test_hints_and_measures_that_do_not_fit_are_refused(hints, measure, reason):
    with pytest.raises(InputError, match=reason):
        hint.score(gradients(), hints, measure)


@pytest.mark.parametrize("k", [0, -1, 1.0, True, "5", None])
def test_a_number_of_hints_that_is_none_is_refused(k):
    with pytest.raises(ConfigError, match=r"hint: k is .*from 1"):
        HintAttack(k=k)


def test_an_unknown_measure_is_refused_with_those_that_there_are():
    with pytest.raises(ConfigError, match=r"'euclid'.*cosine, distance, inner"):
        HintAttack(measure="euclid")


@pytest.mark.parametrize("measure", MEASURES)
def test_the_attack_reads_its_layer_in_the_last_step_and_the_hints(measure):
    cut, first = gradients(1), gradients(2, (64, 5))
    side = SideInformation({"hints": first[:3]}, np.arange(3))
    attack = HintAttack(k=3, measure=measure)
    scores = attack.score(transcript_of(cut=cut, first=first), "first", side)
    assert torch.equal(scores, hint.score(first, first[:3], measure))
    assert (attack.hints, attack.needs) == (3, frozenset({"hints"}))


def test_with_one_noiseless_hint_it_reaches_the_auc_that_theory_gives():
    # Inner products with a hint at m e1 are N(+-m^2, m^2 s^2): AUC = Phi(sqrt(2) m / s). False alarm: 6e-7.
    y = (torch.arange(40_000) % 4 == 0).float()
    g = gradients(4, (40_000, 16))
    g[:, 0] += 0.5 * (2 * y - 1)
    known = torch.zeros(1, 16)
    known[0, 0] = 0.5
    expected = norm.cdf(math.sqrt(2) * 0.5)
    assert abs(leak_auc(hint.score(g, known), y) - expected) < auc_error(expected, 10_000, 30_000)


@pytest.mark.parametrize("measure", MEASURES)
def test_hints_read_labels_where_classes_differ_and_nothing_where_they_do_not(measure):
    y = (torch.arange(4000) % 10 == 0).float()
    g = gradients(5, (4000, 8))
    hints = torch.from_numpy(np.flatnonzero(y.numpy())[:5])
    rest = np.setdiff1d(np.arange(4000), hints.numpy())
    apart = g + 2 * (2 * y[:, None] - 1)
    assert leak_auc(hint.score(apart, apart[hints], measure)[rest], y[rest]) > 0.95
    # Whatever the five hints are, other rows are exchangeable: five standard deviations of the null, 6e-7.
    null_auc = leak_auc(hint.score(g, g[hints], measure)[rest], y[rest])
    assert abs(null_auc - 0.5) < 5 * ((4000 + 1) / (12 * 395 * 3600)) ** 0.5
