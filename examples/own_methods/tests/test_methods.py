"""What every method must do, and what these two do."""

import pytest
import torch
from own_methods.attacks import PeakAttack, score
from own_methods.defenses import Quantise, quantise

from flower_vfl.errors import ConfigError
from flower_vfl.strategies import VerticalStrategy
from flower_vfl.testing import check_attack, check_defense


@pytest.mark.parametrize("params", [{}, {"bits": 1}, {"bits": 8, "scope": "per-party"}], ids=str)
def test_the_defense_does_what_every_defense_must(params):
    check_defense(Quantise, **params)


@pytest.mark.parametrize("params", [{}, {"k": 3}], ids=str)
def test_the_attack_does_what_every_attack_must(params):
    check_attack(PeakAttack, **params)


def test_no_more_values_than_the_grid_has_points_are_sent():
    sent = quantise(torch.randn(1000, 8), bits=3, generator=torch.Generator().manual_seed(0))
    assert len(sent.unique()) <= 2**3 + 3  # the noise may reach one point beyond each end


def test_the_entry_that_counts_is_the_kth_largest():
    g = torch.tensor([[1.0, -3.0, 2.0], [0.0, 0.5, 0.1]])
    assert score(g).tolist() == [3.0, 0.5]
    assert score(g, k=2).tolist() == pytest.approx([2.0, 0.1])
    assert score(g, k=9).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("bits", [0, 17, 2.5, True])
def test_impossible_numbers_of_bits_are_refused(bits):
    with pytest.raises(ConfigError, match="bits must"):
        Quantise(VerticalStrategy(torch.nn.Linear(4, 1), torch.tensor([0, 1])), bits=bits)
