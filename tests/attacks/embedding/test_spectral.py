"""The spectral attack against a full decomposition, at every scale, on training steps and on the trained model."""

import numpy as np
import pytest
import torch

from flower_vfl.attacks.embedding import spectral
from flower_vfl.attacks.embedding.inference import TrainedView
from flower_vfl.attacks.embedding.spectral import SpectralAttack
from flower_vfl.attacks.rows import normalised, raw_features
from flower_vfl.errors import InputError
from flower_vfl.metrics import leak_auc
from flower_vfl.protocol.transcript import StepTrace, Transcript
from tests.attacks.common import DTYPES, SCALES, auc_error, gradients


def two_classes(rows=400, width=8, share=0.2, *, apart=6.0, seed=0, dtype=torch.float64):
    """Return two Gaussian clouds, apart along a random direction and far from the origin; the rarer is positive."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.rand(rows, generator=generator) < share
    direction = torch.randn(width, generator=generator, dtype=torch.float64)
    noise = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    return (noise + 20.0 + apart * y[:, None] * direction / direction.norm()).to(dtype), y.long()


def by_decomposition(z):
    """Return the projections on the first right-singular vector of the centred rows, up to sign."""
    x = z.double().numpy().reshape(len(z), -1)
    x = x - x.mean(axis=0)
    return torch.from_numpy(x @ np.linalg.svd(x, full_matrices=False)[2][0])


@pytest.mark.parametrize("shape", [(300, 8), (8, 300), (40, 1), (2, 5), (50, 3, 2, 2), (7, 7)])
def test_the_score_is_the_projection_on_the_first_singular_vector(shape):
    z = gradients(1, shape, torch.float64) + 3.0
    found, expected = spectral.score(z), by_decomposition(z)
    torch.testing.assert_close(found.abs(), expected.abs(), rtol=1e-9, atol=1e-12)
    assert abs(float(torch.corrcoef(torch.stack([found, expected]))[0, 1])) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("shape", [(60, 20), (20, 60)])
def test_large_batches_find_the_same_direction_by_another_method(shape, monkeypatch):
    z = gradients(2, shape, torch.float64)
    expected = spectral.score(z)
    monkeypatch.setattr(spectral, "MOST_DECOMPOSED", 4)
    torch.testing.assert_close(spectral.score(z), expected, rtol=1e-8, atol=1e-8)
    assert torch.equal(spectral.score(z), spectral.score(z))


def test_batches_too_large_for_float64_lose_little_accuracy(monkeypatch):
    z, _ = two_classes(dtype=torch.float32)
    expected = spectral.score(z)
    monkeypatch.setattr(spectral, "MOST_FLOAT64", 0)
    torch.testing.assert_close(spectral.score(z), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("share", [0.05, 0.2, 0.4])
@pytest.mark.parametrize("turn", [1.0, -1.0])
def test_the_rarer_class_scores_higher_whichever_way_the_embeddings_point(share, turn):
    z, y = two_classes(share=share)
    scores = spectral.score(z * turn)
    assert int((scores > 0).sum()) <= len(y) / 2
    assert leak_auc(scores, y) > 0.99


def test_with_equally_many_rows_on_both_sides_the_longer_tail_is_positive():
    along = torch.tensor([-2.0, -2.0, -1.0, 0.5, 0.5, 4.0], dtype=torch.float64)
    z = torch.outer(along, torch.tensor([0.6, 0.8], dtype=torch.float64))
    for turned in (z, -z):
        torch.testing.assert_close(spectral.score(turned), along)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", SCALES)
def test_no_scale_changes_the_order(scale, dtype):
    z = two_classes()[0].to(dtype)
    scores = spectral.score(z * scale)
    assert scores.dtype == dtype
    torch.testing.assert_close(scores / scale, spectral.score(z), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("power", [-900, 900])
def test_float64_keeps_its_whole_range(power):
    z = two_classes()[0]
    assert torch.equal(spectral.score(z * 2.0**power), spectral.score(z) * 2.0**power)


def test_differences_that_no_float64_holds_are_read_too():
    z = torch.tensor([[1.7e308], [-1.7e308], [-1.7e308], [-1.6e308]], dtype=torch.float64)
    scores = spectral.score(z)
    assert scores[0] > 0
    assert (scores[1:] < 0).all()


@pytest.mark.parametrize("shape", [(50, 6), (6, 50)])
def test_only_the_smaller_of_the_two_products_is_ever_made(shape, monkeypatch):
    made, real = [], torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda matrix: made.append(matrix.shape) or real(matrix))
    spectral.score(gradients(10, shape))
    assert made == [(6, 6)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_read_and_ranked_in_float32(dtype):
    z, y = two_classes(apart=40.0)
    scores = spectral.score(z.to(dtype))
    assert scores.dtype == torch.float32
    assert leak_auc(scores, y) > 0.99


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, *DTYPES])
@pytest.mark.parametrize("value", [0.0, 0.1, -3e4])
def test_equal_rows_give_zeros(value, dtype):
    assert spectral.score(torch.full((9, 7), value, dtype=dtype)).tolist() == [0.0] * 9


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (1, 5)])
def test_an_empty_batch_an_empty_width_and_one_row_have_scores_too(shape):
    assert spectral.score(torch.ones(shape)).tolist() == [0.0] * shape[0]


def test_embeddings_are_not_changed_and_no_graph_is_kept():
    z = gradients(3).requires_grad_()
    before = z.detach().clone()
    assert not spectral.score(z).requires_grad
    assert torch.equal(z, before)


@pytest.mark.parametrize("z", [torch.zeros(3), torch.zeros(3, 2, dtype=torch.int64)])
def test_what_has_no_row_for_each_example_is_refused(z):
    with pytest.raises(InputError, match="floating point tensor"):
        spectral.score(z)


def test_noise_gives_chance():
    y = torch.arange(4000) % 4 == 0
    auc = leak_auc(spectral.score(gradients(4, (4000, 16))), y)
    assert abs(auc - 0.5) < auc_error(0.5, 1000, 3000)


def test_while_training_the_attack_reads_the_outputs_of_the_last_step_at_the_layer_that_it_is_asked_for():
    transcript, cut, first = Transcript(), gradients(5), gradients(6, (64, 5))
    for factor in (3.0, 1.0):
        outputs = {"first": first * factor}
        zeros = {"cut": torch.zeros(64, 8), "first": torch.zeros(64, 5)}
        transcript.record(StepTrace(0, 0, np.arange(64), cut * factor, zeros, outputs))
    attack = SpectralAttack()
    assert torch.equal(attack.score(transcript, "cut"), spectral.score(cut))
    assert torch.equal(attack.score(transcript, "first"), spectral.score(first))
    assert attack.sees == "embeddings"


def test_once_trained_it_reads_all_rows_and_its_baseline_the_raw_inputs():
    z, x = gradients(7, (30, 4)), (gradients(8, (30, 3)), torch.arange(60).reshape(30, 2) % 5)
    view = TrainedView(z, 2, inputs=x)
    assert torch.equal(SpectralAttack().infer(view), spectral.score(z))
    assert torch.equal(SpectralAttack(normalise=True).infer(view), spectral.score(normalised(z)))
    assert torch.equal(SpectralAttack().baseline(view), spectral.score(raw_features(x)))
    assert SpectralAttack().baseline(TrainedView(z, 2)) is None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e30])
def test_normalised_rows_are_those_of_layer_normalisation_at_every_scale(scale, dtype):
    z = gradients(9, (12, 3, 4), dtype)
    expected = torch.nn.functional.layer_norm(z.double(), (3, 4), eps=1e-12).to(dtype)
    torch.testing.assert_close(normalised(z * scale), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [0.0, 0.1, 7.0, 1e30])
def test_a_constant_row_normalises_to_zeros(value, dtype):
    for width in range(1, 30):
        assert normalised(torch.full((2, width), value, dtype=dtype)).tolist() == [[0.0] * width] * 2


def test_raw_features_are_the_numbers_and_a_column_for_each_frequent_value():
    numbers, ids = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[7, 0], [9, 1], [7, 2]])
    found = raw_features((numbers, ids))
    assert found[:, 0].tolist() == [1.0, 2.0, 3.0]
    assert found[:, 1].tolist() == [1.0, 0.0, 1.0]  # the more frequent value comes first
    assert found[:, 3:].sum(dim=1).tolist() == [1.0] * 3
    rare = torch.cat([torch.arange(100), torch.arange(30)])[:, None]
    assert raw_features((rare,)).shape == (130, 64)
    assert raw_features((rare,))[:30].sum(dim=1).tolist() == [1.0] * 30
    assert raw_features((gradients(1, (2, 3, 4, 4)),)).shape == (2, 48)
    assert raw_features((torch.arange(300)[:, None].repeat(1, 200),)).shape == (300, 1000)
    with pytest.raises(InputError, match="no inputs"):
        raw_features(())
