"""The study of what is promised of all epochs, docs/results/all_epochs.py, on Gaussians and results that are known."""

import math

import numpy as np
import pytest
from scipy.stats import norm

pytestmark = pytest.mark.usefixtures("beside_the_studies")


def test_readers_reach_what_is_known_of_two_gaussians():
    """Of one covariance both reach Phi(distance / sqrt 2); of one mean only the quadratic one reads. Five errors."""
    from all_epochs_probe import read

    rng, y = np.random.default_rng(0), np.arange(20_000) % 2
    error = 5 * math.sqrt(1 / 6 / 5_000)
    apart = rng.standard_normal((20_000, 3)) + y[:, None] * np.array([0.8, 0.0, 0.0])
    assert read(apart, y) == pytest.approx([norm.cdf(0.8 / math.sqrt(2))] * 2, abs=error)
    stretched = rng.standard_normal((20_000, 1)) * np.where(y == 1, 3.0, 1.0)[:, None]
    linear, quadratic = read(np.concatenate([stretched, apart[:, 1:]], axis=1), y)
    assert linear == pytest.approx(0.5, abs=error)
    assert quadratic == pytest.approx(2 / math.pi * math.atan(3.0), abs=error)  # P(|3 z| > |z'|)


def test_who_knows_few_rows_reads_nearly_as_much_where_there_are_few_numbers():
    from all_epochs_probe import read, read_few

    rng, y = np.random.default_rng(1), np.arange(20_000) % 2
    seen = rng.standard_normal((20_000, 2)) * np.where(y == 1, 3.0, 1.0)[:, None]
    few = read_few(seen.astype(np.float32), y)
    assert read(seen, y)[1] - 0.03 < few < read(seen, y)[1] + 0.01
    assert read_few(rng.standard_normal((20_000, 2)).astype(np.float32), y) == pytest.approx(0.5, abs=0.03)


def test_the_table_sets_the_bound_beside_the_strongest_reader():
    from all_epochs import promises

    entry = {
        "sum_kl_remembered": {"1": 0.25},
        "auc_bound_remembered": {"1": 0.72},
        "linear": {"1": 0.6},
        "quadratic": {"1": 0.55},
        "few": {},
        "remembered": {"norm": {"1": 0.3}, "direction": {"1": 0.65}, "difference": {"2": 0.9}},
    }
    line = promises({"full-rho-0": {"0": entry}}).splitlines()[-1]
    assert "0.700 (norm)" in line  # turned around
    assert line.endswith("| 0.020 |")
