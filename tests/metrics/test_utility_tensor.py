"""The utility of many runs at once."""

import numpy as np
import pytest
import torch

from flower_vfl.metrics.utility import utility
from flower_vfl.metrics.utility_tensor import utilities


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
