"""The leak and the utility of many runs at once."""

import numpy as np
import pytest
import torch

from flower_vfl.metrics import separation
from flower_vfl.metrics.of_many_runs import separations, utilities
from flower_vfl.metrics.utility import utility


@pytest.mark.parametrize(("rows", "levels"), [(2, 2), (40, 3), (500, 10**6)])
def test_each_vector_gets_the_very_numbers_that_it_gets_alone_ties_and_left_out_rows_included(rows, levels):
    generator = torch.Generator().manual_seed(rows)
    scores = torch.randint(0, levels, (30, rows), generator=generator).float()
    positive, kept = (torch.rand(30, rows, generator=generator) < share for share in (0.2, 0.9))
    auc, error = separations(scores, positive, kept)
    for run in range(30):
        alone = separation(scores[run][kept[run]].numpy(), positive[run][kept[run]].numpy())
        assert np.array_equal((auc[run].item(), error[run].item()), alone, equal_nan=True)


def test_infinite_scores_are_in_order_and_a_missing_class_has_no_number():
    positive = torch.tensor([[True, False], [True, True]])
    auc, error = separations(torch.tensor([[torch.inf, -torch.inf]]), positive, torch.ones_like(positive))
    assert auc[0] == 1.0
    assert error[0] == 0.0
    assert auc[1].isnan()
    assert error[1].isnan()


@pytest.mark.parametrize(("rows", "levels"), [(7, 3), (100, 5), (1001, 10**6)])
def test_each_run_gets_the_numbers_that_it_gets_alone_ties_included(rows, levels):
    generator = torch.Generator().manual_seed(rows)
    logits = torch.randint(-levels, levels, (20, rows), generator=generator).float() * (4 / levels)
    labels = (torch.rand(20, rows, generator=generator) < 0.3).long()
    labels[3] = 0  # one class alone
    found = utilities(logits, labels)
    for run in range(20):
        alone = utility(logits[run], labels[run].numpy().astype(np.int64), 2)
        assert {name: values[run].item() for name, values in found.items()} == pytest.approx(
            alone, rel=1e-10, abs=1e-12, nan_ok=True
        )
