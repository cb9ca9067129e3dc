"""Objectives of pre-training against slow references: hidden entries, and the loss of reconstruction."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flower_vfl.data.store.dataset import FeatureSpec
from flower_vfl.errors import ConfigError
from flower_vfl.nn.pretraining import BLOCK, IMAGE_RATE, LEVELS, TABLE_RATE, reconstruction_of
from tests.sampling import generator

LARGE = LEVELS + 9


def table(rows):
    numbers = torch.randn(rows, 2, generator=generator(1))
    ids = torch.stack([torch.randint(high, (rows,), generator=generator(2)) for high in (3, LARGE)], dim=1)
    return numbers, ids


def test_a_tables_loss_is_the_mean_over_columns_of_squared_errors_and_cross_entropies():
    objective = reconstruction_of(FeatureSpec(2, (3, LARGE)), (4,), "party 'a'")
    numbers, ids = table(7)
    z = torch.randn(7, 4, generator=generator(3))
    decoded = objective.decoder(z).detach().double().numpy()
    assert decoded.shape == (7, 2 + 3 + LEVELS)
    terms = [np.mean((decoded[:, column] - numbers[:, column].numpy()) ** 2) for column in range(2)]
    for low, levels, column in ((2, 3, 0), (5, LEVELS, 1)):
        logits, targets = decoded[:, low : low + levels], ids[:, column].numpy() % levels
        likelihood = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        terms.append(np.mean(-np.log(likelihood[np.arange(7), targets])))
    assert objective.loss(z, (numbers, ids)).item() == pytest.approx(np.mean(terms), rel=1e-5)


def test_cells_of_a_table_are_replaced_by_values_of_their_own_column():
    objective = reconstruction_of(FeatureSpec(2, (3, LARGE)), (4,), "party 'a'")
    inputs = table(4000)
    found = objective.corrupt(inputs, generator(5))
    for given, corrupted in zip(inputs, found, strict=True):
        for column in range(2):
            assert np.isin(corrupted[:, column].numpy(), given[:, column].numpy()).all()
    changed = (found[0] != inputs[0]).float().mean().item()
    assert changed == pytest.approx(TABLE_RATE, abs=0.03)  # 8,000 draws: six standard deviations
    again = objective.corrupt(inputs, generator(5))
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))
    assert not torch.equal(objective.corrupt(inputs, generator(6))[0], found[0])


@pytest.mark.parametrize(("shape", "embedded"), [((2, 10, 8), (5, 5, 4)), ((2, 10, 8), (6,)), ((7,), (3,))])
def test_the_loss_of_an_array_counts_hidden_entries_only(shape, embedded):
    objective = reconstruction_of(FeatureSpec(0, (), shape), embedded, "party 'a'")
    given = torch.rand(300, *shape, generator=generator(1)) + 1.0
    (shown,) = objective.corrupt((given,), generator(2))
    hidden = (shown == 0).numpy()
    assert hidden.mean() == pytest.approx(IMAGE_RATE, abs=0.06)
    assert torch.equal(shown, torch.where(torch.from_numpy(hidden), 0.0, given))
    if len(shape) == 3:
        block = hidden[:, :, BLOCK : 2 * BLOCK, :BLOCK].reshape(300, -1)
        assert (block.all(axis=1) | ~block.any(axis=1)).all()  # a block is hidden as a whole, in all channels
    z = torch.randn(300, *embedded, generator=generator(3))
    errors = (objective.decoder(z).detach().reshape(given.shape) - given).double().numpy() ** 2
    assert objective.loss(z, (given,)).item() == pytest.approx(errors[hidden].mean(), rel=1e-5)


def test_texts_are_refused_with_what_to_do():
    with pytest.raises(ConfigError, match=r"party 'a' has texts.*set training\.pretrain to 0"):
        reconstruction_of(FeatureSpec(0, (), (12,), vocabulary=30), (6,), "party 'a'")
