"""The residual attack against principal components by numpy and scikit-learn, and its leak AUC behind Marvell."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from flower_vfl.attacks import ResidualAttack, make_attack
from flower_vfl.attacks.gradient import norm, residual
from flower_vfl.errors import ConfigError, InputError
from flower_vfl.metrics import leak_auc
from flower_vfl.strategies.gradients.marvell import isotropic
from tests.attacks.common import DTYPES, SCALES, gradients, transcript_of


def low_rank(seed=0, shape=(512, 32), rank=4, noise=0.01, dtype=torch.float64):
    """Return rows near a few directions that differ clearly in variance, around a common mean."""
    rows, width = shape
    generator = torch.Generator().manual_seed(seed)
    spread = 4.0 ** -torch.arange(rank, dtype=torch.float64) * 50.0
    g = torch.randn(rows, rank, generator=generator, dtype=torch.float64) * spread
    basis = torch.linalg.qr(torch.randn(width, rank, generator=generator, dtype=torch.float64)).Q
    g = g @ basis.T + torch.randn(width, generator=generator, dtype=torch.float64)
    return (g + noise * torch.randn(rows, width, generator=generator, dtype=torch.float64)).to(dtype)


def lengths_by_pca(g, r):
    x = g.double().flatten(1).numpy()
    fitted = PCA(n_components=r, svd_solver="full").fit(x)
    return np.linalg.norm(x - fitted.inverse_transform(fitted.transform(x)), axis=1)


def split_logarithms(lengths):
    """Split the logarithms where the sums of squares within both parts are least; the smaller part is positive."""
    logs, odd = np.log(lengths), len(lengths) // 100
    ordered = np.sort(logs)
    ordered[:odd], ordered[len(logs) - odd :] = ordered[odd], ordered[len(logs) - odd - 1]
    spread = [ordered[:k].var() * k + ordered[k:].var() * (len(ordered) - k) for k in range(1, len(logs))]
    k = 1 + int(np.argmin(spread))
    return (logs - (ordered[k - 1] + ordered[k]) / 2) * (1 if len(logs) - k <= k else -1)


@pytest.mark.parametrize("shape", [(512, 32), (40, 200), (64, 64), (300, 100), (100, 300)])
@pytest.mark.parametrize("r", [1, 4])
def test_the_score_is_the_log_of_the_length_that_principal_components_leave(shape, r):
    g = low_rank(shape=shape, rank=r)
    g[::7] += 0.3 * gradients(3, g[::7].shape, torch.float64) / shape[1] ** 0.5
    expected = split_logarithms(lengths_by_pca(g, r))
    tolerance = 1e-8 if min(shape) <= residual.ALL_DIRECTIONS else 1e-3  # larger ones are found by iteration
    np.testing.assert_allclose(residual.score(g, r=r).numpy(), expected, rtol=0, atol=tolerance)
    np.testing.assert_allclose(residual.score(g.float(), r=r).numpy(), expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("shape", [(1024, 256), (200, 600)])
def test_iteration_takes_out_nearly_what_all_principal_components_do(shape):
    g = low_rank(shape=shape, rank=60, noise=0.0)  # variances fall by a factor of 16
    found = residual._lengths_beyond_most(g[None], 4)[0].square().sum()
    assert 1.0 - 1e-9 < float(found) / float((lengths_by_pca(g, 4) ** 2).sum()) < 1.0001


def two_kinds(seed, shape=(400, 24), positives=40):
    """Return rows and labels: positives in a plane, negatives with noise in all directions added."""
    y = torch.zeros(shape[0])
    y[:positives] = 1.0
    g = low_rank(seed, shape, rank=2, noise=0.0)
    return torch.where(y[:, None] == 1, g, g + 0.1 * gradients(seed + 1, shape, torch.float64)), y


@pytest.mark.parametrize("shape", [(400, 24), (400, 300), (60, 300)])
@pytest.mark.parametrize("share", [0.02, 0.1, 0.4, 0.6, 0.9])
def test_one_class_in_a_plane_beside_one_with_noise_in_all_directions_is_read_from_either_side(shape, share):
    g, y = two_kinds(0, shape, positives=round(share * shape[0]))
    rare = y if share < 0.5 else 1 - y  # the rarer kind counts as positive, whichever has the noise
    assert leak_auc(residual.score(g), rare) == 1.0
    assert leak_auc(residual.score(g.float()), rare) == 1.0


@pytest.mark.parametrize("width", [32, 128])
@pytest.mark.parametrize("share", [0.03, 0.08, 0.25])
def test_it_reads_what_the_published_marvell_hides_from_the_norm(width, share):
    generator = torch.Generator().manual_seed(1)
    y = (torch.arange(1024) < share * 1024).float()
    p = torch.sigmoid(torch.randn(1024, generator=generator) + 2 * y - 2)
    basis = torch.randn(3, width, generator=generator)
    weights = torch.tensor([1.0, 0.3, 0.1]) * torch.randn(1024, 3, generator=generator) + torch.tensor([1.0, 0.0, 0.0])
    g = (p - y)[:, None] * (weights @ basis) / 1024
    sent, noise = isotropic.perturb(g, y, s=4.0, generator=generator)
    assert min(noise.lam2_neg, noise.lam2_pos) == 0.0 < max(noise.lam2_neg, noise.lam2_pos)
    assert leak_auc(residual.score(sent), y) > 0.99
    assert leak_auc(norm.score(sent), y) < 0.6


@pytest.mark.parametrize("width", [4, 8])
def test_at_a_narrow_cut_it_reads_the_published_marvell_with_the_right_sign(width):
    found, lengths = [], []
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        y = (torch.arange(1024) < 80).float()
        p = torch.sigmoid(torch.randn(1024, generator=generator) + 2 * y - 2)
        slopes = torch.randn(width, generator=generator) + 0.3 * torch.randn(1024, width, generator=generator)
        sent, _ = isotropic.perturb((p - y)[:, None] * slopes / 1024, y, s=4.0, generator=generator)
        found.append(leak_auc(residual.score(sent), y))
        lengths.append(leak_auc(torch.from_numpy(lengths_by_pca(sent, width // 2)), y))
    assert max(lengths) < 0.4 < 0.6 < min(found)  # positives are shorter


def test_a_few_outlying_lengths_do_not_form_a_class():
    y = (torch.arange(400) < 60).float()
    g = low_rank(0, (400, 24), rank=2, noise=0.0)
    noisy = g + (0.1 + 0.4 * y)[:, None] * gradients(1, (400, 24), torch.float64)
    noisy[-3:] = noisy[:-3].mean(dim=0)  # their residuals are rounding errors
    assert leak_auc(residual.score(noisy), y) > 0.95


def test_noise_alone_gives_chance():
    y = (torch.arange(4000) < 400).float()
    assert abs(leak_auc(residual.score(gradients(5, (4000, 16))), y) - 0.5) < 0.06


@given(st.integers(-100, 100), st.integers(0, 5), st.sampled_from([(64, 8), (80, 70)]))
@settings(max_examples=60)
def test_a_power_of_two_changes_nothing(power, seed, shape):
    g = low_rank(seed, shape, rank=3, noise=1.0, dtype=torch.float32)
    torch.testing.assert_close(residual.score(g * 2.0**power), residual.score(g), rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("shape", [(128, 16), (128, 80)])
def test_no_scale_changes_the_order(scale, dtype, shape):
    g = gradients(0, shape, dtype)
    scores = residual.score(g * scale)
    assert scores.dtype == dtype
    torch.testing.assert_close(scores, residual.score(g), rtol=1e-3, atol=1e-4)


@given(st.integers(0, 10))
@settings(max_examples=10)
def test_neither_a_shift_nor_a_rotation_nor_the_order_of_rows_matters(seed):
    g = low_rank(seed, (90, 12), rank=4, noise=0.5)
    scores = residual.score(g)
    rotation = torch.linalg.qr(gradients(seed, (12, 12), torch.float64)).Q
    torch.testing.assert_close(residual.score(g @ rotation + 3.0), scores, rtol=0, atol=1e-9)
    order = torch.randperm(90, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(residual.score(g[order]), scores[order], rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_not_ranked_in_half_precision(dtype):
    g = low_rank(noise=1.0).to(dtype)
    scores = residual.score(g)
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, residual.score(g.double()).float())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, *DTYPES])
@pytest.mark.parametrize("value", [0.0, 0.1, -3e4])
@pytest.mark.parametrize("shape", [(9, 7), (80, 100), (1000, 70)])
def test_equal_rows_give_zeros(shape, value, dtype):
    assert residual.score(torch.full(shape, value, dtype=dtype)).tolist() == [0.0] * shape[0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(100, 40), (200, 90), (10, 90), (70, 900)])
def test_where_no_more_than_r_directions_are_used_rounding_errors_are_not_ranked(shape, dtype):
    g = torch.zeros(shape, dtype=dtype)
    g[:, :4] = gradients(2, (shape[0], 4), dtype) * 1e-12
    assert residual.score(g).tolist() == [0.0] * shape[0]


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (1, 5), (1, 1), (1, 200), (2, 6), (2, 1)])
def test_batches_with_nothing_to_compare_have_scores_too(shape):
    scores = residual.score(gradients(shape=shape))
    assert scores.shape == shape[:1]
    assert scores.abs().max().item() < 1e-5 if shape[0] else True


@pytest.mark.parametrize("width", [1, 2])
def test_of_one_or_two_columns_no_more_than_half_are_taken_out(width):
    g = torch.zeros(20, width)
    g[:, 0] = 100.0 * gradients(4, (20, 1))[:, 0] if width > 1 else 0.0
    g[3, -1] = 1.0
    assert residual.score(g).argmax() == 3


def test_values_that_are_not_finite_make_their_batch_nan_and_no_other():
    g = gradients(0, (3, 50, 8))
    g[0, 4, 1], g[2, 7, 0] = torch.nan, torch.inf
    scores = ResidualAttack().rate(g, None)
    assert scores.isnan().all(dim=1).tolist() == [True, False, True]
    assert torch.equal(scores[1], residual.score(g[1]))


def test_it_draws_from_no_global_generator_and_changes_nothing():
    g = gradients(3, (100, 120)).requires_grad_()
    before, state = g.detach().clone(), torch.get_rng_state()
    first = residual.score(g)
    residual._start.cache_clear()
    assert torch.equal(residual.score(g), first)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(g, before)
    assert not first.requires_grad


def test_further_dimensions_are_flattened():
    g = gradients(shape=(30, 3, 2, 2))
    assert torch.equal(residual.score(g), residual.score(g.flatten(1)))


@pytest.mark.parametrize("g", [torch.zeros(3), torch.zeros(3, 2, dtype=torch.int64)])
def test_what_has_no_row_for_each_example_is_refused(g):
    with pytest.raises(InputError, match="floating point tensor"):
        residual.score(g)


@pytest.mark.parametrize("r", [0, -1, 1.5, True, "4", None])
def test_a_number_of_directions_that_is_none_is_refused(r):
    with pytest.raises(InputError, match="whole number from 1"):
        residual.score(gradients(), r=r)
    with pytest.raises(ConfigError, match=r"residual: r is .*whole number from 1"):
        ResidualAttack(r=r)


def test_the_attack_reads_its_layer_in_the_last_step_and_needs_nothing():
    cut, first = gradients(1), gradients(2, (64, 12))
    attack = make_attack("residual", r=2)
    assert torch.equal(attack.score(transcript_of(cut=cut, first=first), "first"), residual.score(first, r=2))
    assert (attack.label, attack.params, attack.needs) == ("residual(r=2)", {"r": 2}, frozenset())
    assert make_attack("residual").label == "residual"
