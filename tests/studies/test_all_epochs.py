"""The study of bounds over all epochs, studies/all_epochs/study.py, on known Gaussians and known results."""

import math

import numpy as np
import pytest
from scipy.stats import norm

pytestmark = pytest.mark.usefixtures("beside_the_studies")


def test_readers_reach_the_known_aucs_of_two_gaussians():
    """With one covariance both reach Phi(distance / sqrt 2); with one mean the quadratic one alone reads."""
    from studies.all_epochs.probe import read

    rng, y = np.random.default_rng(0), np.arange(20_000) % 2
    error = 5 * math.sqrt(1 / 6 / 5_000)
    apart = rng.standard_normal((20_000, 3)) + y[:, None] * np.array([0.8, 0.0, 0.0])
    assert read(apart, y) == pytest.approx([norm.cdf(0.8 / math.sqrt(2))] * 2, abs=error)
    stretched = rng.standard_normal((20_000, 1)) * np.where(y == 1, 3.0, 1.0)[:, None]
    linear, quadratic = read(np.concatenate([stretched, apart[:, 1:]], axis=1), y)
    assert linear == pytest.approx(0.5, abs=error)
    assert quadratic == pytest.approx(2 / math.pi * math.atan(3.0), abs=error)  # P(|3 z| > |z'|)


def of_seed(strongest, quadratic):
    apart = {f"remembered_{kind}(k=256,reads=epochs)": {"1": 0.6} for kind in ("network", "fit")}
    return {
        "sum_kl_remembered": {"1": 0.25},
        "auc_bound_remembered": {"1": 0.72},
        "linear": {"1": 0.6},
        "quadratic": {"1": 0.55},
        "test_auc": 0.9,
        "remembered": {
            "remembered_norm": {"1": 1 - strongest},  # reversed scores
            "remembered_difference": {"2": 0.9},
            "remembered_quadratic(k=256,reads=epochs)": {"1": quadratic},
            **apart,
        },
    }


def test_the_table_sets_the_bound_beside_the_strongest_reader_of_each_seed():
    from studies.all_epochs.study import promises

    lines = promises({"full-rho-0": {"0": of_seed(0.7, 0.62), "1": of_seed(0.66, 0.71)}}).splitlines()
    assert len(lines) == 3  # no row without values of later epochs
    cells = [cell.strip() for cell in lines[-1].strip("|").split("|")]
    assert cells[:3] == ["full-rho-0", "2", "1"]
    assert cells[5].startswith("0.680 ± ")
    assert cells[5].endswith("(remembered_norm)")
    assert cells[7].startswith("0.665 ± ")
    assert cells[-1] == "0.010"


def test_without_a_bound_the_table_has_dashes_and_still_the_leak():
    from studies.all_epochs.study import promises

    silent = {**of_seed(0.7, 0.62), "auc_bound_remembered": {}, "sum_kl_remembered": {}}
    cells = [cell.strip() for cell in promises({"full": {"0": silent}}).splitlines()[-1].strip("|").split("|")]
    assert (cells[3], cells[4], cells[-1]) == ("–", "–", "–")
    assert cells[5] == "0.700 (remembered_norm)"


def test_the_frontier_has_the_strongest_of_all_readers_and_its_gain_over_the_epochs():
    from studies.all_epochs.study import frontier

    one = of_seed(0.7, 0.62)
    for values in one["remembered"].values():
        values["10"] = 0.5
    one |= {"linear": {"1": 0.6, "10": 0.65}, "quadratic": {"1": 0.55, "10": 0.81}}
    cells = [cell.strip() for cell in frontier({"full": {"0": one}}).splitlines()[-1].strip("|").split("|")]
    assert cells == ["full", "1", "0.9000", "0.700", "0.810 (quadratic, half of the labels known)", "0.110"]
