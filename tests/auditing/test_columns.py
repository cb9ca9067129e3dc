"""The informed reader with columns: near the best score where that is known, without a gain from pure noise."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from flower_vfl.apps import run
from flower_vfl.attacks.joint import JointView, OwnRows
from flower_vfl.auditing.columns import read_with_columns
from flower_vfl.auditing.halves import SCORE, Split
from flower_vfl.data import MemoryData, array_table
from flower_vfl.data.store.dataset import Labels
from flower_vfl.strategies import GradientDefense
from tests.toys import toy_config, toy_data


def draw(seed, *, rows=4000, shift=1.5):
    """Return a view of columns and of gradients in unit noise, its labels and parts, and the best scores of both."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 2)).astype(np.float32)
    ids = rng.integers(0, 3, (rows, 1))
    logit = x[:, 0] + 1.5 * (ids[:, 0] == 1) - 1.5
    y = (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.int64)
    g = rng.normal(size=(rows, 4))
    g[:, 0] += shift * y
    own = OwnRows((torch.from_numpy(x), torch.from_numpy(ids)), torch.from_numpy(x[:, :1] - x[:, 1:]))
    nobody = OwnRows(tuple(tensor[:0] for tensor in own.inputs), own.embeddings[:0])
    parts = Split(seed).parts(np.arange(rows))
    best = logit + shift * (g[:, 0] - shift / 2)
    return JointView(torch.from_numpy(g).float(), own, nobody), y, parts, logit, best


@pytest.mark.slow
def test_the_reader_comes_near_the_best_score_with_gradients_and_without():
    view, y, parts, logit, best = draw(0)
    entry = read_with_columns(view, y, parts, party="a", defended=True)
    scored = parts == SCORE
    assert (entry["rows"], entry["positives"]) == (scored.sum(), y[scored].sum())
    assert (entry["phase"], entry["source"], entry["sees"]) == (
        "audit",
        "monitor",
        ["columns", "embeddings", "gradients"],
    )
    reached = {name: roc_auc_score(y[scored], score[scored]) for name, score in (("baseline", logit), ("mean", best))}
    for name, value in reached.items():
        assert value - 0.02 < entry[name] < value + 0.01
    low, high = entry["advantage_interval95"]
    assert low < reached["mean"] - reached["baseline"] < high


@pytest.mark.slow
def test_gradients_that_carry_nothing_add_nothing():
    p_values = []
    for seed in range(6):
        view, y, parts, *_ = draw(seed, rows=1500, shift=0.0)
        p_values.append(read_with_columns(view, y, parts, party="a", defended=True)["advantage_p_value"])
    assert sum(p < 0.05 for p in p_values) <= 1


def test_too_few_rows_of_a_class_have_no_number():
    view, y, parts, *_ = draw(1, rows=1500)
    y = np.where(np.arange(1500) < 8, 1, 0 * y)
    entry = read_with_columns(view, y, parts, party="a", defended=True)
    assert entry["mean"] is None
    assert "too few rows" in entry["unavailable"]


@pytest.mark.parametrize("inputs", [True, False], ids=["columns", "embeddings alone"])
def test_a_party_whose_columns_are_too_wide_is_read_by_its_embeddings(inputs):
    view, y, parts, *_ = draw(2, rows=1500)
    own = view.train if inputs else OwnRows((torch.zeros(1500, 1100),), view.train.embeddings)
    entry = read_with_columns(JointView(view.gradients, own, view.test), y, parts, party="a", defended=False)
    assert entry["advantage"] > 0.03


def test_lengths_over_the_epochs_are_read_beside_a_mean_gradient_without_information():
    generator = np.random.default_rng(0)
    y = (generator.random(3000) < 0.3).astype(np.int64)
    noise = [torch.from_numpy(generator.normal(size=(3000, width))).float() for width in (4, 3, 2)]
    nobody = OwnRows((noise[1][:0],), noise[2][:0])
    view = JointView(noise[0], OwnRows((noise[1],), noise[2]), nobody)
    parts = np.repeat([0, 1, 2], 1000).astype(np.int8)
    lengths = torch.from_numpy(y[:, None] + generator.normal(size=(3000, 1))).float()
    without = read_with_columns(view, y, parts, party="a", defended=True)
    found = read_with_columns(view, y, parts, lengths=lengths, party="a", defended=True)
    assert without["mean"] < 0.57
    assert abs(found["mean"] - 0.76) < 0.04  # of two normal classes a standard deviation apart: Phi(1 / sqrt 2)


def test_mean_signs_over_the_epochs_are_read_beside_the_columns():
    generator = np.random.default_rng(1)
    y = (generator.random(3000) < 0.3).astype(np.int64)
    noise = [torch.from_numpy(generator.normal(size=(3000, width))).float() for width in (4, 3, 2)]
    view = JointView(noise[0], OwnRows((noise[1],), noise[2]), OwnRows((noise[1][:0],), noise[2][:0]))
    parts = np.repeat([0, 1, 2], 1000).astype(np.int8)
    signs = torch.from_numpy(y[:, None] + generator.normal(size=(3000, 4)))
    found = read_with_columns(view, y, parts, signs=signs, party="a", defended=True)
    assert found["reader"] == "signs"
    assert found["mean"] == pytest.approx(norm.cdf(2 / np.sqrt(2)), abs=0.03)  # four columns a deviation apart


class RandomLengths(GradientDefense):
    """Sends random directions; lengths are log-normal, and those of positives longer by half a deviation."""

    name = "random_lengths"

    def perturb(self, g, y):
        generator = np.random.default_rng(int(g.abs().sum().view(torch.int32)))
        x = torch.from_numpy(generator.normal(size=g.shape)).float()
        logs = torch.from_numpy(generator.normal(size=len(g))).float() + 0.5 * (y > 0)
        return torch.nn.functional.normalize(x, dim=1) * logs.exp()[:, None], {}


@pytest.mark.slow
def test_a_run_hands_the_reader_with_columns_lengths_and_signs_of_all_epochs():
    """Sixteen lengths are two deviations apart between classes; the mean of random directions carries little."""
    data = toy_data(rows=1500, test_rows=100, parties=1)
    y = (np.random.default_rng(1).random(1600) < 0.4).astype(np.int64)  # columns carry nothing
    config = toy_config(
        training={"epochs": 16, "batch_size": 256, "validation": 0.0},
        attack={"names": [], "informed": 6000},
        defenses=[f"{__name__}:RandomLengths"],
    )
    source = replace(data, target=Labels(y[:1500], y[1500:], 2))
    leakage = run(config, data=lambda _: source).summary["leakage"]
    (entry,) = (one for one in leakage if "columns" in one.get("sees", ()))
    assert entry["mean"] == pytest.approx(norm.cdf(0.5 * np.sqrt(16) / np.sqrt(2)), abs=0.05)
    assert "signs" in {one["reader"] for one in entry["candidates"]}


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "baseline", "gain"), [(1.0, 0.93, 0.09), (30.0, 0.65, 0.41)])
def test_a_gain_is_too_small_where_the_model_memorises_labels(noise, baseline, gain):
    """The example of docs/methods/leak.md: no column knows these labels, so the gain should be 0.5."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(900, 20)).astype(np.float32)
    y = rng.integers(0, 2, 900)
    data = MemoryData("coins", {"a": array_table("a", x[:800], x[800:])}, "label", Labels(y[:800], y[800:], 2))
    training = {"epochs": 40, "patience": 0, "batch_size": 64, "learning_rate": 0.005, "validation": 0.0}
    config = toy_config(
        training=training,
        model={"bottom": [128], "cut": 16, "top": [16]},
        defenses=[{"name": "iso", "t": noise}],
        attack={"names": [], "informed": 8000},
    )
    entries = [e for e in run(config, data=lambda _: data).summary["leakage"] if e["attack"] == "informed"]
    found = {tuple(entry["sees"]): entry for entry in entries}
    assert found["gradients",]["mean"] > 0.98
    assert found["gradients", "embeddings"]["baseline"] == pytest.approx(baseline, abs=0.02)
    assert found["columns", "embeddings", "gradients"]["advantage"] == pytest.approx(gain, abs=0.02)
