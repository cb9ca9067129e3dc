"""The norm attack at every scale, and its leak AUC on gradients as the paper models them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flower_vfl.attacks import NormAttack
from flower_vfl.attacks.gradient import norm
from flower_vfl.errors import InputError
from flower_vfl.metrics import leak_auc
from flower_vfl.protocol.transcript import StepTrace, Transcript
from tests.attacks.common import gradients


def test_the_score_is_the_euclidean_norm():
    g = gradients(dtype=torch.float64)
    expected = [sum(x * x for x in row) ** 0.5 for row in g.tolist()]
    assert norm.score(g).tolist() == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("shape", [(6, 3, 2, 2), (6, 1), (6, 12)])
def test_further_dimensions_are_flattened(shape):
    g = gradients(shape=shape)
    assert torch.equal(norm.score(g), norm.score(g.reshape(6, -1)))
    assert norm.score(g).shape == (6,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1.0, 1e30])
def test_no_scale_loses_a_score_or_its_rank(scale, dtype):
    g = gradients(dtype=dtype)
    scores = norm.score(g * scale)
    assert torch.isfinite(scores).all()
    assert (scores > 0).all()
    assert torch.equal(scores.argsort(), norm.score(g).argsort())
    torch.testing.assert_close(scores / scale, norm.score(g), rtol=1e-5, atol=0)


@pytest.mark.parametrize(("dtype", "exponents"), [(torch.float32, (-37, 37)), (torch.float64, (-300, 300))])
def test_rows_of_very_different_scales_in_one_batch_keep_their_order(dtype, exponents):
    lengths = torch.logspace(*exponents, 40, dtype=torch.float64)
    g = (torch.ones(40, 4, dtype=torch.float64) * lengths[:, None]).to(dtype)
    scores = norm.score(g)
    assert torch.isfinite(scores).all()
    assert (scores.diff() > 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_zero_rows_give_zero(dtype):
    g = gradients(shape=(4, 3), dtype=torch.float64).to(dtype)
    g[1] = 0
    scores = norm.score(g)
    assert scores[1] == 0
    assert (scores[[0, 2, 3]] > 0).all()
    assert norm.score(torch.zeros(5, 3, dtype=dtype)).tolist() == [0.0] * 5


@given(st.integers(-100, 60), st.integers(0, 5))
def test_a_power_of_two_changes_no_comparison(power, seed):
    g = gradients(seed)
    assert torch.equal(norm.score(g * 2.0**power), norm.score(g) * 2.0**power)


def test_half_precision_is_not_ranked_in_half_precision():
    g = torch.tensor([[1.0, 0.03125], [1.0, 0.0]], dtype=torch.bfloat16)
    scores = norm.score(g)
    assert scores.dtype == torch.float32
    assert scores[0] > scores[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
def test_an_empty_batch_and_an_empty_width_have_scores_too(shape, dtype):
    assert norm.score(torch.zeros(shape, dtype=dtype)).tolist() == [0.0] * shape[0]


def test_gradients_are_not_changed_and_no_graph_is_kept():
    g = gradients().requires_grad_()
    before = g.detach().clone()
    assert not norm.score(g).requires_grad
    assert torch.equal(g, before)


@pytest.mark.parametrize("g", [torch.zeros(3), torch.zeros(3, 2, dtype=torch.int64), torch.tensor(1.0)])
def test_what_has_no_row_for_each_example_is_refused(g):
    with pytest.raises(InputError, match="floating point tensor"):
        norm.score(g)


def test_the_attack_reads_the_last_step_at_the_layer_that_it_is_asked_for():
    transcript, cut, first = Transcript(), gradients(1), gradients(2, (64, 5))
    for step in range(2):
        transcript.record(StepTrace(step, 0, np.arange(64), cut, {"cut": cut * (1 + step), "first": first}))
    attack = NormAttack()
    assert torch.equal(attack.score(transcript, "cut"), norm.score(cut * 2))
    assert torch.equal(attack.score(transcript, "first"), norm.score(first))
    assert (attack.name, attack.params, attack.needs) == ("norm", {}, frozenset())


def test_it_reads_the_labels_of_a_rare_class_and_nothing_from_noise():
    generator = torch.Generator().manual_seed(0)
    y = (torch.rand(4096, generator=generator) < 0.08).float()
    p = torch.sigmoid(torch.randn(4096, generator=generator) - 3)
    g = (p - y)[:, None] * (torch.randn(4096, 16, generator=generator) * 0.3 + 1) / 4096
    assert leak_auc(norm.score(g), y) > 0.97
    assert abs(leak_auc(norm.score(torch.randn(4096, 16, generator=generator)), y) - 0.5) < 0.06
