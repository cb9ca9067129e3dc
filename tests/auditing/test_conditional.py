"""The conditional oracle, which knows everything about a row but its label, against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal, norm
from sklearn.metrics import roc_auc_score
from torch import nn

from flower_vfl.apps import run
from flower_vfl.auditing.conditional import ConditionalOracle, log_ratio
from flower_vfl.auditing.noise import WIDEST_COVARIANCE, GaussianNoise, LineNoise, hypotheses
from flower_vfl.reports.leaks import side_information
from flower_vfl.strategies import Iso, Marvell, MarvellFull, MaxNorm, VerticalStrategy
from tests.sampling import generator
from tests.toys import toy_config, toy_data

ROWS = 40_000
ALARM = 4.5
"""Tolerance in standard errors: correct code exceeds it with a probability of 7e-6."""


def labels_of(rows, share=0.25):
    return (torch.rand(rows, generator=generator(7)) < share).long()


def shifted(y, delta):
    """Both hypotheses of rows whose gradient is -delta / 2 with label 0 and delta / 2 with label 1, (2, B, 1)."""
    return torch.tensor([-delta / 2, delta / 2])[:, None, None].expand(2, len(y), 1).double()


def same_noise(variance, width):
    return GaussianNoise((variance, variance), (torch.zeros(width, 0), torch.zeros(width, 0)))


def observed(known, sent, y, noise, **more):
    oracle = ConditionalOracle(["a"], y.numpy(), every=1, record=lambda **_: None)
    oracle.observe(0, 1, np.arange(len(y)), {"a": sent}, known, [noise])
    return oracle.entries()[0]


@pytest.mark.parametrize(("delta", "sigma"), [(0.5, 1.0), (2.0, 1.0), (3e-9, 2e-9)])
def test_the_auc_of_a_scalar_shift_in_normal_noise_is_phi(delta, sigma):
    y = labels_of(ROWS)
    known = shifted(y, delta)
    sent = known[y, torch.arange(ROWS)] + sigma * torch.randn(ROWS, 1, generator=generator(), dtype=torch.float64)
    auc = norm.cdf(delta / (math.sqrt(2) * sigma))
    error = math.sqrt(auc * (1 - auc) / int(y.sum()))  # at least that of Hanley and McNeil
    assert observed(known, sent, y, same_noise(sigma**2, 1))["mean"] == pytest.approx(auc, abs=ALARM * error)


def test_log_ratios_are_those_of_scipys_normal_densities_row_by_row():
    torch.manual_seed(3)
    factors = torch.randn(4, 2).double(), torch.randn(4, 3).double()
    noise = GaussianNoise((0.3, 0.7), factors)
    known, sent = torch.randn(2, 50, 4).double(), torch.randn(50, 4).double()
    columns = torch.tensor([2, 0])
    expected = np.zeros(50)
    for sign, everywhere, factor, mean in zip((-1, 1), noise.everywhere, factors, known, strict=True):
        covariance = (factor @ factor.T + everywhere * torch.eye(4).double())[columns][:, columns].numpy()
        for row in range(50):
            density = multivariate_normal(mean[row, columns].numpy(), covariance)
            expected[row] += sign * density.logpdf(sent[row, columns].numpy())
    assert noise.log_ratio(sent[:, columns], known, columns).numpy() == pytest.approx(expected, abs=1e-8)


def test_noise_along_a_rows_own_line_has_the_density_of_a_normal_number_on_it():
    direction = torch.tensor([[0.6, 0.8]]).double()
    known = torch.stack([0.5 * direction, -1.5 * direction])
    x = torch.tensor([-2.0, -0.4, 0.1, 1.7])[:, None].double() * direction
    ratio = LineNoise(2.0).log_ratio(x, known.expand(2, 4, 2), torch.arange(2))
    along = (x @ direction.T)[:, 0].numpy()
    expected = norm.logpdf(along, -1.5, math.sqrt(4 - 2.25)) - norm.logpdf(along, 0.5, math.sqrt(4 - 0.25))
    assert ratio.numpy() == pytest.approx(expected, rel=1e-6)


def test_a_shift_in_a_direction_without_noise_is_read_without_an_error():
    y = labels_of(500)
    known = torch.stack([torch.zeros(500, 2), torch.tensor([[1.0, 0.01]]).expand(500, 2)])
    sent = known[y, torch.arange(500)].clone()
    sent[:, 0] += 5 * torch.randn(500, generator=generator())
    line = torch.tensor([[5.0], [0.0]])
    assert observed(known, sent, y, GaussianNoise((0.0, 0.0), (line, line)))["mean"] == 1.0


def test_a_gradient_of_the_other_label_differs_by_the_slope():
    torch.manual_seed(0)
    top, z, y = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), torch.randn(6, 3), torch.tensor([0, 1] * 3)

    def gradients(labels):
        leaf = z.clone().requires_grad_()
        loss = nn.functional.binary_cross_entropy_with_logits(top(leaf)[:, 0], labels.float())
        return torch.autograd.grad(loss, leaf)[0]

    zeros, ones = torch.zeros_like(y), torch.ones_like(y)
    change = gradients(ones) - gradients(zeros)
    found = hypotheses(gradients(y), y, change)
    assert torch.allclose(found, torch.stack([gradients(zeros), gradients(ones)]), atol=1e-7)


def strategy(width):
    made = VerticalStrategy(nn.Linear(width, 1), torch.tensor([0, 1]), parties=("a", "b"))
    made.build({"a": (width - 2,), "b": (2,)}, None)
    made.begin_batch(np.arange(600))
    return made


DEFENSES = {
    "iso": lambda s, **more: Iso(s, t=4.0, **more),
    "max_norm": MaxNorm,
    "marvell": lambda s, **more: Marvell(s, s=4.0, **more),
    "marvell_full": lambda s, **more: MarvellFull(s, s=4.0, **more),
}


@pytest.mark.parametrize("scope", ["joint", "per-party"])
@pytest.mark.parametrize("name", DEFENSES)
def test_a_defenses_noise_has_the_law_that_it_describes(name, scope):
    """Each row's noise, whitened by the covariance of its class and party, is standard normal."""
    g, y = torch.randn(600, 5, generator=generator(1), dtype=torch.float64) * 1e-5, labels_of(600)
    g[y == 1] += 2e-5 * torch.tensor([1.0, 0.5, 0.0, -1.0, 0.3])
    base = strategy(5)
    defense = DEFENSES[name](base, scope=scope)
    parts = [slice(0, 5)] if scope == "joint" else [slice(0, 3), slice(3, 5)]
    whitened = [[] for _ in parts]
    for _ in range(20):
        noise = defense.protect(g, y)[0] - g
        for part, (at, found) in enumerate(zip(parts, whitened, strict=True)):
            model, own, clean = defense.noise_model(part), noise[:, at], g[:, at]
            if isinstance(model, LineNoise):
                missing = (model.longest**2 - clean.square().sum(1)).sqrt()
                kept = missing > 0.1 * model.longest
                found.append(((own * clean).sum(1) / clean.norm(dim=1) / missing)[kept])
                continue
            for label in (0, 1):
                factor = model.factors[label].double()
                covariance = factor @ factor.T + model.everywhere[label] * torch.eye(own.shape[1]).double()
                values, vectors = torch.linalg.eigh(covariance)
                kept = values > 1e-9 * values.max()
                found.append(((own[y == label] @ vectors[:, kept]) / values[kept].sqrt()).flatten())
    for found in whitened:
        numbers = torch.cat(found)
        assert float(numbers.mean()) == pytest.approx(0.0, abs=ALARM / math.sqrt(len(numbers)))
        assert float(numbers.var()) == pytest.approx(1.0, abs=ALARM * math.sqrt(2 / len(numbers)))


def test_a_batch_that_is_withheld_has_no_noise_model():
    defense = Iso(strategy(5))
    defense.protect(torch.randn(600, 5), labels_of(600))
    assert defense.noise_model() is not None
    defense.protect(torch.full((600, 5), math.inf), labels_of(600))
    assert defense.noise_model() is None


def test_parties_with_noise_of_their_own_multiply_their_ratios_and_joint_noise_is_read_in_one():
    known = torch.randn(2, 30, 5, generator=generator(2)).double()
    sent = {"a": torch.randn(30, 3).double(), "b": torch.randn(30, 2).double()}
    places = {"a": slice(0, 3), "b": slice(3, 5)}
    factor = torch.randn(5, 1, generator=generator(3)).double()
    joint = GaussianNoise((1.0, 1.0), (factor, factor))
    one, other = same_noise(0.5, 3), same_noise(2.0, 2)
    apart = log_ratio(sent, known, [one, other], places)
    alone = [log_ratio({party: sent[party]}, known, [one, other], places) for party in sent]
    assert torch.allclose(apart, sum(alone))
    whole = joint.log_ratio(torch.cat([*sent.values()], dim=1), known, torch.arange(5))
    assert torch.allclose(log_ratio(sent, known, [joint], places), whole)
    assert log_ratio(sent, known, [one, None], places) is None
    assert log_ratio({"a": sent["a"]}, known, [one, None], places) is not None


def test_gradients_that_are_too_wide_have_no_oracle():
    wide = {"a": torch.zeros(2, WIDEST_COVARIANCE + 1)}
    places = {"a": slice(0, WIDEST_COVARIANCE + 1)}
    assert (
        log_ratio(wide, torch.zeros(2, 2, WIDEST_COVARIANCE + 1), [same_noise(1.0, WIDEST_COVARIANCE + 1)], places)
        is None
    )


def conditional(result):
    return [entry for entry in result.summary["leakage"] if entry["attack"] == "conditional_oracle"]


def test_a_run_reports_it_as_an_oracle_at_the_cadence_of_the_attacks():
    data = toy_data(rows=400)
    config = {"attack": {"names": ["norm"], "every": 2}, "defenses": [{"name": "iso", "t": 4.0}]}
    result = run(toy_config(**config), data=lambda _: data)
    found = conditional(result)
    entry = found[0]
    assert [one["party"] for one in found] == ["a", "b", "a+b"]
    norms = next(
        e for e in result.summary["leakage"] if (e["attack"], e["party"], e["defended"]) == ("norm", "a", True)
    )
    assert (entry["phase"], entry["source"], entry["layer"], entry["defended"]) == ("train", "monitor", "cut", True)
    assert (entry["steps"], entry["q95_null"]) == (norms["steps"], pytest.approx(norms["q95_null"]))
    assert entry["mean"] > norms["mean"]
    assert side_information(result.summary, entry) == (True, 0)


@pytest.mark.parametrize(
    "config",
    [
        {"attack": {"names": []}},
        {"attack": {"names": ["norm"], "monitor": False}},
        {"attack": {"names": ["norm"], "audit": False}},
        {"attack": {"names": ["norm"]}, "defenses": []},
        {"attack": {"names": ["norm"]}, "defenses": [{"name": "marvell_full", "imitate": True}]},
        {"attack": {"names": ["norm"]}, "defenses": [{"name": "iso"}, {"name": "marvell"}]},
        {"attack": {"names": ["norm"]}, "defenses": [{"name": "label_dp"}]},
        {"attack": {"names": ["norm"]}, "defenses": [{"name": "iso"}, {"name": "distance_correlation"}]},
        {"attack": {"names": ["norm"]}, "defenses": [{"name": "potential_energy"}, {"name": "iso"}]},
    ],
)
def test_the_oracle_is_left_out_where_it_does_not_apply(config):
    data = toy_data(rows=200)
    result = run(toy_config(**{"defenses": [{"name": "iso"}], **config}), data=lambda _: data)
    assert conditional(result) == []


@pytest.mark.parametrize("training", [{}, {"class_weights": "balanced"}, {"clip_norm": 1e-4}])
def test_both_gradients_that_the_oracle_gets_are_those_of_a_linear_top_model(monkeypatch, training):
    """They are p and p - 1 times the weights of the class and of the top model: on one line, with p from 0 to 1."""
    seen = []
    monkeypatch.setattr(ConditionalOracle, "observe", lambda self, *given: seen.append(given))
    data = toy_data(rows=400)
    config = toy_config(attack={"names": ["norm"]}, defenses=[{"name": "iso"}], training={"epochs": 1, **training})
    run(config, data=lambda _: data, top=lambda shape, *_: nn.Linear(shape[0], 1))
    counts = np.bincount(data.target.train)
    weights = len(data.target.train) / (2 * counts) if "class_weights" in training else np.ones(2)
    assert len(seen) == 6
    for given in seen:
        rows, known = given[2], given[4].double()
        y = data.target.train[rows]
        line = (known[1] - known[0]).mean(0)
        place = known @ line / line.square().sum()
        assert torch.allclose(place[..., None] * line, known, atol=1e-6 * float(known.abs().max()))
        p, q = -place[0] / weights[0], place[1] / weights[1]  # of every row p + q is the same number
        assert (p + q).numpy() == pytest.approx(np.full(len(y), float((p + q).mean())), rel=1e-4)
        assert float(p.min()) > 0
        assert float(q.min()) > 0


def test_the_oracle_changes_no_weight_and_is_restored_from_its_state():
    data = toy_data(rows=300)
    defended = {"defenses": [{"name": "marvell_full"}]}
    with_it, without = (
        run(toy_config(attack={"names": ["norm"], "monitor": monitor}, **defended), data=lambda _: data)
        for monitor in (True, False)
    )
    assert with_it.summary["weights"] == without.summary["weights"]
    y = labels_of(200)
    oracle, again = (ConditionalOracle(["a"], y.numpy(), every=1, record=lambda **_: None) for _ in range(2))
    for step in range(3):
        sent = torch.randn(200, 1, generator=generator(step))
        oracle.observe(step, 1, np.arange(200), {"a": sent}, shifted(y, 1.0), [same_noise(1.0, 1)])
    again.restore(oracle.state())
    assert again.entries() == oracle.entries()
    again.restore({})
    assert again.entries() == []


def test_each_value_in_the_log_is_the_auc_of_the_ratio():
    y, seen = labels_of(300), []
    oracle = ConditionalOracle(["a"], y.numpy(), every=1, record=lambda **row: seen.append(row))
    sent = torch.randn(300, 1, generator=generator(5)) + y[:, None]
    rows = np.arange(299, -1, -1)
    oracle.observe(4, 2, rows, {"a": sent[rows.copy()]}, shifted(y, 1.0), [same_noise(1.0, 1)])
    first = seen[0]
    assert (first["step"], first["epoch"], first["metric"]) == (4, 2, "monitor_auc")
    assert first["value"] == pytest.approx(roc_auc_score(y.numpy(), sent[:, 0].numpy()))
