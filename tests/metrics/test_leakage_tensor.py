"""The leak of many score vectors at once."""

import numpy as np
import pytest
import torch

from flower_vfl.metrics import separation
from flower_vfl.metrics.leakage_tensor import separations


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
