"""Ensembles: separate networks with shared weights, whose probabilities are averaged."""

import numpy as np
import pytest
import torch
from scipy.special import expit, logit, softmax
from sklearn.metrics import log_loss
from torch.nn.functional import linear

from flower_vfl.config import build_config
from flower_vfl.data.store.dataset import FeatureSpec, Labels
from flower_vfl.errors import ConfigError
from flower_vfl.nn import TabularBottom
from flower_vfl.nn.ensemble import EnsembleTop, MemberLinear, mixture
from flower_vfl.nn.fusion import fuse
from flower_vfl.nn.networks import network_of
from flower_vfl.strategies import VerticalStrategy

M = 4


def test_each_member_scales_the_rows_and_columns_of_one_matrix():
    layer, x = MemberLinear(5, 3, M).double(), torch.randn(7, M, 5, dtype=torch.float64)
    with torch.no_grad():
        layer.scale_in.normal_()
        layer.scale_out.normal_()
    for m in range(M):
        weight = layer.scale_out[m][:, None] * layer.shared.weight * layer.scale_in[m]
        torch.testing.assert_close(layer(x)[:, m], linear(x[:, m], weight, layer.bias[m]))
    torch.testing.assert_close(layer(x[:, 0]), layer(x[:, :1].expand(-1, M, -1)))  # the same input for all


@pytest.mark.parametrize("how", ["concat", "sum"])
@pytest.mark.parametrize("classes", [2, 5])
def test_a_member_reads_its_own_part_of_every_partys_embedding_and_no_other(how, classes):
    torch.manual_seed(0)
    bottoms = [TabularBottom(FeatureSpec(3, ()), hidden=[6], cut=8, members=M) for _ in range(2)]
    top = EnsembleTop(16 if how == "concat" else 8, M, hidden=[5], classes=classes)
    x = [torch.randn(9, 3) for _ in bottoms]

    def logits():
        return top.members(fuse([bottom(part) for bottom, part in zip(bottoms, x, strict=True)], how))

    before = logits()
    assert before.shape == ((9, M) if classes == 2 else (9, M, classes))
    for party, bottom in enumerate(bottoms):
        for m in range(M):
            with torch.no_grad():
                bottom.layers[2].bias[m] += 1.0 + party
            changed = (logits() != before).reshape(9, M, -1).any(dim=2).any(dim=0)
            assert changed.tolist() == [other == m for other in range(M)]
            with torch.no_grad():
                bottom.layers[2].bias[m] -= 1.0 + party
            before = logits()


def test_the_mixture_has_the_logits_of_the_mean_probabilities():
    rng = np.random.default_rng(0)
    two, many = rng.normal(0, 5, (50, M)), rng.normal(0, 5, (50, M, 3))
    np.testing.assert_allclose(mixture(torch.tensor(two)), logit(expit(two).mean(axis=1)), rtol=1e-9)
    found = mixture(torch.tensor(many)).softmax(dim=1)
    np.testing.assert_allclose(found, softmax(many, axis=2).mean(axis=1), rtol=1e-9)
    far = torch.tensor([[-300.0, -300.0], [300.0, 300.0], [-300.0, 300.0]])
    torch.testing.assert_close(mixture(far), torch.tensor([-300.0, 300.0, 0.0]))
    top, z = EnsembleTop(8, M), torch.randn(6, 8)
    assert torch.equal(top(z), mixture(top.members(z)))


@pytest.mark.parametrize("weights", ["none", "balanced"])
@pytest.mark.parametrize("classes", [2, 3])
def test_the_loss_is_the_mean_of_the_members_losses(classes, weights):
    rng = np.random.default_rng(1)
    y = rng.integers(0, classes, 40)
    config = build_config({"model": {"ensemble": M}, "training": {"class_weights": weights}})
    strategy = VerticalStrategy(torch.nn.Identity(), Labels(y, y[:0], classes), config=config)
    strategy.prepare_labels(torch.tensor(y))
    logits = rng.normal(size=(40, M) if classes == 2 else (40, M, classes))
    found, _ = strategy.loss(torch.tensor(logits), torch.tensor(y), torch.zeros(40, 0))
    share = 40 / classes / np.bincount(y)[y] if weights == "balanced" else np.ones(40)
    chances = expit(logits) if classes == 2 else softmax(logits, axis=2)
    each = [log_loss(y, chances[:, m], sample_weight=share, labels=range(classes)) for m in range(M)]
    assert float(found) == pytest.approx(np.mean(each), rel=1e-6)


def test_members_start_with_different_signs_in_the_first_layer_and_equal_scales_behind_it():
    torch.manual_seed(0)
    bottom, top = TabularBottom(FeatureSpec(20, ()), hidden=[6], cut=8, members=M), EnsembleTop(8, M)
    signs = bottom.layers[0].scale_in
    assert set(signs.flatten().tolist()) == {-1.0, 1.0}
    assert len({tuple(row) for row in signs.tolist()}) == M
    behind = (bottom.layers[0].scale_out, bottom.layers[2].scale_in, top.hidden[0].scale_in, top.hidden[0].scale_out)
    assert all((scale == 1.0).all() for scale in behind)
    assert (top.members(bottom(torch.randn(9, 20))).std(dim=1) > 1e-3).all()


def test_a_cut_that_is_not_divisible_and_images_are_refused():
    model = build_config({"model": {"ensemble": 3, "cut": 8}}).model
    with pytest.raises(ConfigError, match=r"8 numbers .* 3 members .* multiple of model.ensemble = 3"):
        network_of(model).bottom(FeatureSpec(3, ()), model)
    with pytest.raises(ConfigError, match="shared out"):
        network_of(model).top((16,), 2, model)
    with pytest.raises(ConfigError, match=r"model.ensemble is for tables"):
        network_of(model).bottom(FeatureSpec(0, (), (1, 8, 8)), model)
    model = build_config({"model": {"ensemble": 2, "network": "wide-deep"}}).model
    with pytest.raises(ConfigError, match=r"model.ensemble is 2"):
        network_of(model)


def test_logits_of_another_number_of_members_are_refused():
    y, config = np.array([0, 1, 1, 0]), build_config({"model": {"ensemble": M}})
    strategy = VerticalStrategy(torch.nn.Identity(), Labels(y, y[:0], 2), config=config)
    with pytest.raises(ConfigError, match=r"gives logits \(4, 3\)"):
        strategy.loss(torch.zeros(4, 3), torch.tensor(y), torch.zeros(4, 0))
