"""Toy data against closed forms. A correct build fails a check with `SURE` at a probability below one in a million."""

import math

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import binomtest, norm
from sklearn.linear_model import LogisticRegression

from flower_vfl.apps import run
from flower_vfl.attacks.embedding.model_completion import predict, start_at_class_means
from flower_vfl.config import load_config
from flower_vfl.data.sources.catalog import load
from flower_vfl.errors import ConfigError, DataError
from flower_vfl.metrics import leak_auc

SURE = 1e-6
SIGMAS = norm.isf(SURE / 2)


def points(dataset):
    table = dataset.party("a").train
    return table.gather(np.arange(len(table)))[0].numpy().astype(float), dataset.labels().train


def is_consistent(hits, share):
    """Return True if the number of hits is consistent with independent draws of this share."""
    return binomtest(int(hits.sum()), len(hits), share).pvalue > SURE


@pytest.mark.parametrize("overlap", [0.1, 0.4])
def test_the_best_classifier_of_the_gap_gives_10_11_and_its_gaps_are_1_11_and_0(overlap):
    x, y = points(load("toy-gap", options={"rows": 40_000, "overlap": overlap}))
    right = x[:, 0] > 0
    best = 1 / (1 + overlap)
    assert is_consistent(y, 0.5)
    assert is_consistent(y[right], best)
    assert not y[~right].any()
    assert is_consistent(right == y, 1 - overlap / 2)
    # The best classifier on the side, fitted.
    fitted = LogisticRegression(C=1e6).fit(right[:, None], y).predict_proba(right[:, None])[:, 1]
    gaps = np.abs(fitted - y)
    spread = math.sqrt(best * (1 - best) / right.sum())
    assert np.median(gaps[y == 1]) == pytest.approx(overlap / (1 + overlap), abs=SIGMAS * spread)
    assert np.median(gaps[y == 0]) < 1e-3
    # The classes are balanced and the classifier is calibrated, so their mean gaps are equal.
    assert gaps[y == 1].mean() == pytest.approx(overlap / (1 + overlap), abs=SIGMAS * spread)
    assert gaps[y == 0].mean() == pytest.approx(gaps[y == 1].mean(), abs=2 * SIGMAS * spread)
    assert is_consistent(right[y == 0], 1 - leak_auc(gaps, y))


@pytest.mark.slow
def test_a_run_of_the_gap_leaks_nine_tenths_by_norm_and_everything_by_direction(tmp_path):
    config = load_config("toy-gap", {"attack.snapshots": [150]})
    result = run(config, out=tmp_path / "run")
    steps = pq.read_table(tmp_path / "run" / "steps.parquet").to_pylist()
    last = [row for row in steps if (row["epoch"], row["layer"], row["metric"]) == (10, "cut", "auc")]
    leaks = {name: [row["value"] for row in last if row["attack"] == name] for name in ("norm", "cosine")}
    negatives = 1800  # of 3,600 rows, about
    assert np.mean(leaks["norm"]) == pytest.approx(0.9, abs=SIGMAS * math.sqrt(0.1 * 0.9 / negatives))
    assert min(leaks["cosine"]) == 1.0
    assert result.test_auc == pytest.approx(0.95, abs=SIGMAS * math.sqrt(0.1 * 0.9 / 1000) / 2)
    snapshot = pq.read_table(tmp_path / "run" / "snapshots.parquet").to_pylist()
    gaps = {
        group: np.median(
            [abs(row["value"]) for row in snapshot if (row["quantity"], row["group"]) == ("residual", group)]
        )
        for group in ("positive", "negative")
    }
    # 0.01 is added to the statistical tolerance: ten epochs do not train the network to the end.
    assert gaps["positive"] == pytest.approx(1 / 11, abs=SIGMAS * math.sqrt(10 / 121 / 1980) + 0.01)
    assert gaps["negative"] == pytest.approx(0.0, abs=0.01)


def rotated_normal(angle):
    """Return the normal of a boundary that is rotated by an angle."""
    return np.array([np.sin(angle), np.cos(angle)])


@pytest.mark.parametrize("edge", [0.25, 1.0, 4.0])
@pytest.mark.parametrize("angle", [-0.3, -0.05, 0.05, 0.3])
def test_the_error_of_a_rotated_boundary_is_that_of_the_closed_form(edge, angle):
    x, y = points(load("toy-hemispheres", options={"rows": 40_000, "edge": edge}))
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1, rtol=1e-6)
    assert not ((x[:, 1] > 0) != y).any()
    wrong = (x @ rotated_normal(angle) > 0) != y
    exact = (1 - (1 - 2 * abs(angle) / np.pi) ** edge) / 2
    assert is_consistent(wrong, exact)
    small = 2 * abs(angle) * edge / (2 * np.pi)
    assert exact == pytest.approx(small, rel=1.2 * abs(edge - 1) * abs(angle) / np.pi + 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("edge", [0.5, 1.0, 3.0])
def test_errors_of_few_leaked_labels_follow_from_the_density_at_the_boundary(edge):
    count, draws = 100, 600
    x, y = points(load("toy-hemispheres", options={"rows": 200_000, "edge": edge}))
    groups = [torch.from_numpy(x[y == c][: count * draws]).view(draws, count, 2) for c in (0, 1)]
    attacked, truth = torch.from_numpy(x[-10_000:]), torch.from_numpy(y[-10_000:])
    errors = []
    for leaked in zip(*groups, strict=True):
        top = torch.nn.Linear(2, 1).double()
        labels = torch.tensor([0] * count + [1] * count)
        start_at_class_means(top, torch.cat(leaked), labels, classes=2)
        errors.append(float(((predict(top, (attacked,), classes=2) > 0) != truth).double().mean()))

    def mean_of(function):
        return quad(lambda u: function(np.pi / 2 * u ** (1 / edge)), 0, 1)[0]

    spread = math.sqrt(mean_of(lambda t: np.sin(t) ** 2)) / mean_of(np.cos)
    expected = edge / np.pi * spread / math.sqrt(np.pi * count)
    # First order in 1 / sqrt(count): 5 % are added to the error of a mean of absolute normal values.
    noise = SIGMAS * expected * math.sqrt((np.pi / 2 - 1) / draws)
    assert np.mean(errors) == pytest.approx(expected, abs=noise + 0.05 * expected)


def test_the_same_seed_gives_the_same_rows_and_another_seed_others(tmp_path):
    one, same, other = (
        points(load("toy-gap", options={"rows": 50, "seed": seed}, cache=tmp_path / name))[0]
        for seed, name in ((1, "a"), (1, "b"), (2, "a"))
    )
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_impossible_options_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="option edge of toy-hemispheres"):
        load("toy-hemispheres", options={"edge": 0})
    with pytest.raises(ConfigError, match="option overlap of toy-gap"):
        load("toy-gap", options={"overlap": 1.5})
    with pytest.raises(DataError, match="toy-gap is generated and is not read from a path"):
        load("toy-gap", path=tmp_path)
