"""The contract of all methods, and the behaviour of these."""

import pytest
import torch
from own_methods.attacks import PeakAttack, score
from own_methods.bottleneck import Bottleneck, divergence
from own_methods.defenses import Quantise, quantise
from own_methods.mixture import LabelMixture
from own_methods.online import OnlineAttack
from own_methods.sparse import RandomTopK, keep_mask
from torch.distributions import Normal, kl_divergence

from flower_vfl.errors import ConfigError
from flower_vfl.strategies import VerticalStrategy
from flower_vfl.testing import check_attack, check_defense


@pytest.mark.parametrize("params", [{}, {"bits": 1}, {"bits": 8, "scope": "per-party"}], ids=str)
def test_the_defense_does_what_every_defense_must(params):
    check_defense(Quantise, **params)


@pytest.mark.parametrize(
    ("defense", "params", "waive"),
    [
        (RandomTopK, {}, ()),
        (RandomTopK, {"share": 0.5, "explore": 0.0}, ()),
        (Bottleneck, {}, ()),
        (Bottleneck, {"weight": 0.0}, ()),
        (LabelMixture, {}, ("zero rows",)),  # zero times two weights is zero
        (LabelMixture, {"most": 1.0, "scope": "per-party"}, ("zero rows",)),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_a_defense_of_several_hooks_trains_resumes_and_predicts_as_every_defense_must(defense, params, waive):
    check_defense(defense, waive=waive, **params)


def test_the_given_number_of_entries_is_kept_and_others_are_explored():
    z = torch.randn(2000, 10, generator=torch.Generator().manual_seed(0))
    largest = keep_mask(z, 3)
    assert torch.equal(largest, z.abs() >= z.abs().topk(3, dim=1).values[:, -1:])
    tried = keep_mask(z, 3, explore=0.2, generator=torch.Generator().manual_seed(1))
    assert (tried.sum(dim=1) == 3).all()
    dropped = (largest & ~tried).sum() / 6000
    assert 0.17 < dropped < 0.23  # 0.2 +- 6 standard deviations of 6,000 draws


def test_the_divergence_is_that_of_torch_distributions():
    mean, log_variance = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0))
    normal = Normal(mean, (0.5 * log_variance).exp())
    expected = kl_divergence(normal, Normal(torch.zeros(()), torch.ones(()))).sum(dim=1).mean()
    assert divergence(mean, log_variance).item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("params", [{}, {"k": 3}], ids=str)
@pytest.mark.parametrize("attack", [PeakAttack, OnlineAttack])
def test_the_attack_does_what_every_attack_must(attack, params):
    check_attack(attack, **params)


def test_no_more_values_than_the_grid_has_points_are_sent():
    sent = quantise(torch.randn(1000, 8), bits=3, generator=torch.Generator().manual_seed(0))
    assert len(sent.unique()) <= 2**3 + 3  # the noise may reach one point beyond each end


def test_the_score_is_the_kth_largest_entry():
    g = torch.tensor([[1.0, -3.0, 2.0], [0.0, 0.5, 0.1]])
    assert score(g).tolist() == [3.0, 0.5]
    assert score(g, k=2).tolist() == pytest.approx([2.0, 0.1])
    assert score(g, k=9).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("bits", [0, 17, 2.5, True])
def test_impossible_numbers_of_bits_are_refused(bits):
    with pytest.raises(ConfigError, match="bits must"):
        Quantise(VerticalStrategy(torch.nn.Linear(4, 1), torch.tensor([0, 1])), bits=bits)
