"""Colluding parties behind per-party noise: the divergence of their joined gradients, and its bound over epochs."""

import math

import numpy as np
import pytest
import torch

from flower_vfl.apps import run
from flower_vfl.errors import ConfigError
from flower_vfl.metrics import EpochRelease, auc_bound, leak_auc, together
from flower_vfl.rng import Secret
from flower_vfl.strategies import Iso, Marvell, MarvellFull, VerticalStrategy
from flower_vfl.strategies.gradients.marvell import full
from flower_vfl.strategies.gradients.marvell.full import estimate, optimal_noise
from flower_vfl.strategies.gradients.marvell.isotropic import perturb
from flower_vfl.tracking import read_steps
from tests.toys import toy_config, toy_data

S = 4.0


def defense(kind, widths, classes=2, colluding=("all",), **more):
    base = VerticalStrategy(
        torch.nn.Linear(sum(widths.values()), 1),
        torch.arange(classes),
        parties=list(widths),
        config=toy_config(parties={"colluding": list(colluding)}),
        secret=Secret.for_simulation(0, "label"),
    )
    base.build({party: (width,) for party, width in widths.items()}, None)
    return kind(base, scope="per-party", **more)


def batch(widths, rows=20_000, classes=2, spread=0.3):
    """Return gradients and labels of Gaussian classes: each party has its own distance of means."""
    generator = torch.Generator().manual_seed(1)
    y = (torch.rand(rows, generator=generator) * classes).long()
    means = torch.cat(
        [torch.randn(classes, width, generator=generator) * (k + 1) for k, width in enumerate(widths.values())], dim=1
    )
    return means[y] + spread * torch.randn(rows, means.shape[1], generator=generator), y


def divergence(means, covariances):
    """Return the symmetric divergence of two Gaussians, by whole matrices."""
    inverses = [np.linalg.inv(covariance) for covariance in covariances]
    away = means[1] - means[0]
    traces = sum(np.trace(inverses[c] @ covariances[1 - c]) for c in (0, 1)) - 2 * len(away)
    return 0.5 * (traces + away @ (inverses[0] + inverses[1]) @ away)


def test_the_divergence_of_colluding_parties_is_that_of_their_joined_gradients():
    widths = {"a": 3, "b": 5, "c": 2}
    g, y = batch(widths)
    log = defense(Marvell, widths, s=S).protect(g, y)[1]
    means, covariances = [[], []], [np.zeros((10, 10)) for _ in range(2)]
    low = 0
    for width in widths.values():
        piece = g[:, low : low + width]
        spectrum = perturb(piece, y, s=S, generator=torch.Generator())[1]
        mu = [piece[y == c].double().mean(dim=0).numpy() for c in (0, 1)]
        line = (mu[1] - mu[0]) / np.linalg.norm(mu[1] - mu[0])
        levels = ((spectrum.lam1_neg, spectrum.lam2_neg), (spectrum.lam1_pos, spectrum.lam2_pos))
        for c, (along, across) in enumerate(levels):
            own = float(piece[y == c].double().var(dim=0, correction=0).mean())
            block = (own + across) * np.eye(width) + (along - across) * np.outer(line, line)
            covariances[c][low : low + width, low : low + width] = block
            means[c].append(mu[c])
        low += width
    exact = divergence([np.concatenate(mean) for mean in means], covariances)
    assert log["marvell.sum_kl_after.a+b+c"] == pytest.approx(exact, rel=1e-4)
    assert log["marvell.auc_bound.a+b+c"] == pytest.approx(auc_bound(exact), rel=1e-4)
    powers = [log[f"marvell.noise_power.{party}"] for party in "abc"]
    assert log["marvell.noise_power.a+b+c"] == pytest.approx(sum(powers))


def test_colluding_parties_exceed_the_bound_of_one_party_and_stay_below_their_own():
    widths = {"a": 4, "b": 4, "c": 4, "d": 4}
    g, y = batch(widths, spread=0.01)
    sent, log = defense(Marvell, widths, s=S).protect(g, y)
    away = g[y == 1].mean(dim=0) - g[y == 0].mean(dim=0)
    scores = [(piece @ line) / line.square().sum() for piece, line in zip(sent.split(4, 1), away.split(4), strict=True)]
    alone, colluding = leak_auc(scores[0].numpy(), y.numpy()), leak_auc(sum(scores).numpy(), y.numpy())
    bounds = [log[f"marvell.auc_bound.{parties}"] for parties in ("a", "a+b+c+d")]
    assert alone < bounds[0] < colluding < bounds[1]
    assert colluding == pytest.approx(0.5 * (1 + math.erf(math.sqrt(4 / S) / 2)), abs=0.01)


def test_only_configured_groups_are_logged_and_only_where_there_is_a_bound():
    widths = {"a": 3, "b": 3, "c": 3}
    g, y = batch(widths, rows=100)
    log = defense(Marvell, widths, colluding=["b+c"]).protect(g, y)[1]
    assert {key.rsplit(".", 1)[1] for key in log} == {"a", "b", "c", "b+c"}
    assert not [key for key in defense(Iso, widths).protect(g, y)[1] if "+" in key]
    assert not [key for key in defense(Marvell, widths, colluding=[]).protect(g, y)[1] if "+" in key]


def test_a_party_that_gets_zeros_adds_no_divergence_and_is_logged():
    widths = {"a": 3, "b": 3}
    g, y = batch(widths, rows=100)
    g[5, 4] = torch.nan
    log = defense(Marvell, widths).protect(g, y)[1]
    assert log["marvell.sum_kl_after.a+b"] == log["marvell.sum_kl_after.a"]
    assert (log["marvell.withheld.a"], log["marvell.withheld.b"], log["marvell.withheld.a+b"]) == (0.0, 1.0, 1.0)
    assert log["marvell.fallback.a+b"] == 1.0


def test_of_more_classes_the_largest_divergences_add_up():
    widths = {"a": 4, "b": 4}
    log = defense(Marvell, widths, classes=4).protect(*batch(widths, rows=2000, classes=4))[1]
    left = [log[f"marvell.sum_kl_after.{party}"] for party in "ab"]
    assert log["marvell.sum_kl_after.a+b"] == pytest.approx(sum(left))
    assert log["marvell.auc_bound.a+b"] == auc_bound(sum(left)) >= max(log[f"marvell.auc_bound.{p}"] for p in "ab")


def test_over_the_epochs_the_divergence_of_colluding_parties_is_the_sum_of_theirs(tmp_path):
    config = toy_config(defenses=[{"name": "marvell", "scope": "per-party"}], attack={"names": []})
    run(config, out=tmp_path / "run", data=lambda _: toy_data())
    found = {(row["metric"], row["epoch"]): row["value"] for row in read_steps(tmp_path / "run").to_pylist()}
    for epoch in (1, 2):
        a, b, both = (found[f"marvell.sum_kl_remembered.{who}", epoch] for who in ("a", "b", "a+b"))
        assert both == pytest.approx(a + b)
        assert found["marvell.auc_bound_remembered.a+b", epoch] == pytest.approx(auc_bound(both))
    assert ("marvell.kept.a+b", 2) not in found


def joined_divergence(squares, powers, *, same):
    """Return the divergence of parties' releases, with one draw of noise along the means for all, or one for each."""
    line = np.array([1.0])
    releases = [
        EpochRelease(line, math.sqrt(square), (0.0, 0.0), (power, power), (0.0, 0.0))
        for square, power in zip(squares, powers, strict=True)
    ]
    return together(releases, rho=float(same), kept=0.0).sum_kl()


@pytest.mark.parametrize("squares", [[1.0, 1.0], [4.0, 1.0, 0.25, 0.04], [0.5] * 8])
def test_joint_noise_has_the_divergence_of_one_party_and_per_party_noise_the_sum_of_all(squares):
    powers = [S * square for square in squares]
    assert joined_divergence(squares, powers, same=True) == pytest.approx(1 / S)
    assert joined_divergence(squares, powers, same=False) == pytest.approx(len(squares) / S)
    more = [len(squares) * power for power in powers]
    assert joined_divergence(squares, more, same=False) == pytest.approx(1 / S)


def test_no_split_of_the_power_over_parties_leaves_less_than_that_by_distances():
    squares = np.array([4.0, 1.0, 0.25, 0.04])
    power = S * squares.sum()
    best = power * np.sqrt(squares) / np.sqrt(squares).sum()
    least = joined_divergence(squares, best, same=False)
    assert least == pytest.approx(np.sqrt(squares).sum() ** 2 / power)
    assert 1 / S < least < len(squares) / S
    rng = np.random.default_rng(0)
    others = [joined_divergence(squares, power * split, same=False) for split in rng.dirichlet(np.ones(4), 300)]
    near = [
        joined_divergence(squares, best * (1 + 0.1 * unit - 0.1 * (best @ unit) / power), same=False)
        for unit in np.eye(4)
    ]
    assert min(*others, *near) > least


def correlated_batch(widths, rows=600):
    """Return gradients and labels: a row's deviations are one number, scaled along each party's own direction."""
    generator = torch.Generator().manual_seed(2)
    y = (torch.arange(rows) % 5 == 0).long()
    total = sum(widths.values())
    common = torch.randn(rows, 1, generator=generator) * torch.where(y == 1, 1.0, 0.2)[:, None]
    g = common * torch.randn(total, generator=generator) + 0.05 * torch.randn(rows, total, generator=generator)
    return (g + y[:, None] * torch.randn(total, generator=generator)).double(), y


def joint_moments(g, y, widths):
    """Return means and covariances of all parties' gradients side by side, with the noise of each party."""
    means = [g[y == c].mean(dim=0).numpy() for c in (0, 1)]
    covariances = [np.cov(g[y == c].numpy().T, bias=True) for c in (0, 1)]
    low = 0
    for width in widths.values():
        pair = estimate(g[:, low : low + width], y)
        noise, unit = optimal_noise(pair, S * pair.g), pair.unit
        for c in (0, 1):
            block = noise.directions @ torch.diag(noise.levels[c]) @ noise.directions.T
            block = block + noise.everywhere * torch.eye(width, dtype=torch.float64)
            block = block + noise.along * torch.outer(noise.line, noise.line)
            covariances[c][low : low + width, low : low + width] += block.numpy() * unit**2
        low += width
    return means, covariances


@pytest.mark.parametrize("widths", [{"a": 3, "b": 5, "c": 2}, {"a": 4, "b": 4}])
def test_marvell_full_uses_the_joint_covariance_of_colluding_parties(widths):
    g, y = correlated_batch(widths)
    log = defense(MarvellFull, widths, s=S).protect(g, y)[1]
    group = "+".join(widths)
    assert log[f"marvell_full.sum_kl_after.{group}"] == pytest.approx(
        divergence(*joint_moments(g, y, widths)), rel=1e-6
    )
    alone = [log[f"marvell_full.sum_kl_after.{party}"] for party in widths]
    assert log[f"marvell_full.sum_kl_after.{group}"] > max(alone)
    # Deviations are correlated between parties.
    assert log[f"marvell_full.sum_kl_after.{group}"] != pytest.approx(sum(alone), rel=0.01)
    powers = [log[f"marvell_full.noise_power.{party}"] for party in widths]
    assert log[f"marvell_full.noise_power.{group}"] == pytest.approx(sum(powers))
    matched = [log[f"marvell_full.matched.{party}"] for party in widths]
    assert max(matched) - min(matched) > 0.01
    assert log[f"marvell_full.matched.{group}"] == pytest.approx(np.average(matched, weights=powers))


def test_without_noise_parties_together_have_no_bound_and_no_matched_share():
    widths = {"a": 3, "b": 3}
    log = defense(MarvellFull, widths, s=0.0).protect(*correlated_batch(widths))[1]
    found = [log[f"marvell_full.{name}.a+b"] for name in ("noise_power", "matched", "sum_kl_after", "auc_bound")]
    assert found == [0.0, 0.0, math.inf, 1.0]


@pytest.mark.parametrize(("largest", "logged"), [(6, True), (5, False)])
def test_groups_whose_joined_gradients_are_too_wide_are_not_logged(monkeypatch, largest, logged):
    widths = {"a": 3, "b": 3}
    monkeypatch.setattr(full, "LARGEST_COVARIANCE", largest)
    log = defense(MarvellFull, widths, s=S).protect(*correlated_batch(widths))[1]
    assert ("marvell_full.sum_kl_after.a+b" in log) == logged


def test_the_best_reader_of_colluding_parties_stays_below_their_bound():
    """The reader is the likelihood ratio with the covariances of the model; its AUC is of 12,000 noisy rows."""
    widths = {"a": 3, "b": 3}
    g, y = correlated_batch(widths)
    means, covariances = joint_moments(g, y, widths)
    strategy, scores = defense(MarvellFull, widths, s=S), []
    for _ in range(20):
        sent, log = strategy.protect(g, y)
        deviations = [sent.numpy() - mean for mean in means]
        distances = [
            np.einsum("ni,ij,nj->n", d, np.linalg.inv(c), d) for d, c in zip(deviations, covariances, strict=True)
        ]
        scores.append(distances[0] - distances[1])
    leak = leak_auc(np.concatenate(scores), y.repeat(20).numpy())
    assert log["marvell_full.auc_bound.a"] > 0.6
    assert 0.6 < leak < log["marvell_full.auc_bound.a+b"]


def test_marvell_full_has_a_bound_of_colluding_parties_over_the_epochs(tmp_path):
    config = toy_config(defenses=[{"name": "marvell_full", "scope": "per-party"}], attack={"names": []})
    config = config.model_copy(update={"parties": config.parties.model_copy(update={"colluding": ["all"]})})
    run(config, out=tmp_path / "run", data=lambda _: toy_data())
    found = {(row["metric"], row["epoch"]): row["value"] for row in read_steps(tmp_path / "run").to_pylist()}
    for epoch in (1, 2):
        a, b, both = (found[f"marvell_full.sum_kl_remembered.{who}", epoch] for who in ("a", "b", "a+b"))
        assert both > max(a, b)
        assert found["marvell_full.auc_bound_remembered.a+b", epoch] == auc_bound(both)
    assert ("marvell_full.kept.a+b", 2) in found


def test_a_party_without_an_estimate_leaves_colluding_parties_without_a_bound():
    widths = {"a": 3, "b": 3}
    g, y = correlated_batch(widths, rows=100)
    strategy = defense(MarvellFull, widths)
    assert strategy.protect(g, y)[1]["marvell_full.auc_bound.a+b"] < 1.0
    g[5, 4] = torch.nan
    log = strategy.protect(g, y)[1]
    assert (log["marvell_full.auc_bound.a+b"], log["marvell_full.fallback.a+b"]) == (1.0, 1.0)
    log = strategy.protect(g[:, :3].repeat(1, 2), torch.zeros_like(y))[1]
    assert (log["marvell_full.auc_bound.a+b"], log["marvell_full.fallback.a+b"]) == (1.0, 1.0)


def test_gradients_that_are_too_wide_together_have_no_bound_and_no_budget():
    widths = {"a": 400, "b": 300}
    strategy = defense(MarvellFull, widths)
    log = strategy.protect(*correlated_batch(widths, rows=40))[1]
    assert not [key for key in log if key.endswith("a+b")]
    with pytest.raises(ConfigError, match="a\\+b collude and get 700 numbers a row"):
        strategy.check_bound(1)
    defense(MarvellFull, widths, colluding=[]).check_bound(1)
    defense(MarvellFull, {"a": 40, "b": 30}).check_bound(9)
    with pytest.raises(ConfigError, match="for 9 epochs of gradients this wide, and 10 are planned"):
        defense(MarvellFull, {"a": 40, "b": 30}).check_bound(10)
