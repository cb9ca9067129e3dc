"""Marvell for more than two classes: noise of the promised covariance, batches without some classes, persistence."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from scipy.stats import chi2, norm
from torch import nn

from flower_vfl.apps import run
from flower_vfl.checkpoint import load_state, save_state
from flower_vfl.errors import ConfigError, UnprotectedBatchError
from flower_vfl.metrics import accuracy_bound, auc_bound, leak_auc, one_against_rest_bound
from flower_vfl.strategies import Marvell, VerticalStrategy
from flower_vfl.strategies.gradients.marvell.multiclass import ManyEstimates, estimate, perturb, principal_axes
from tests.cases import parametrize
from tests.sampling import ALARM, generator, within
from tests.toys import toy_config, toy_data

C, D, SHARES = 4, 6, (0.1, 0.2, 0.3, 0.4)


def batch(rows=40_000, *, seed=1, spreads=(0.3, 0.5, 0.8, 0.4)):
    """Return gradients and labels of Gaussian classes in exact shares, shuffled; their means span three axes of six."""
    source = generator(seed)
    y = torch.cat([torch.full((round(share * rows),), c) for c, share in enumerate(SHARES)])
    y = y[torch.randperm(len(y), generator=source)]
    means = torch.zeros(C, D, dtype=torch.float64)
    means[1, 0], means[2, 1], means[3, 2] = 2.0, 1.4, 0.6
    g = torch.randn(len(y), D, generator=source, dtype=torch.float64) * torch.tensor(spreads).double().sqrt()[y, None]
    return g + means[y], y


def defense(**more):
    strategy = VerticalStrategy(nn.Linear(D, C), torch.arange(C), config=toy_config(attack={"names": []}))
    return Marvell(strategy, **more)


def mean_distance(g, y):
    """Return the mean squared distance of two class means, from the definition."""
    means = torch.stack([g[y == c].double().mean(dim=0) for c in y.unique()])
    return float(torch.pdist(means).square().mean())


@pytest.fixture(scope="module")
def noisy():
    g, y = batch()
    sent, noise = perturb(g, y, classes=C, s=1.5, generator=generator())
    return g, y, sent - g, noise


def test_the_model_follows_the_definitions():
    g, y = batch()
    model = estimate(g, y, ManyEstimates(C))
    axes = model.axes
    assert torch.allclose(axes.T @ axes, torch.eye(3, dtype=torch.float64), atol=1e-12)
    for c in range(C):
        rows = g[y == c] / model.unit
        along = rows @ axes
        across = rows - along @ axes.T
        assert model.problem.variances[:3, c] == pytest.approx(along.var(dim=0, unbiased=False).numpy(), rel=1e-9)
        spread = (across - across.mean(dim=0)).square().sum(dim=1).mean() / (D - 3)
        assert model.problem.variances[3, c] == pytest.approx(float(spread), rel=1e-9)
        for k in range(C):
            apart = (g[y == c].mean(dim=0) - g[y == k].mean(dim=0)) / model.unit
            assert model.problem.distances[:, c, k].sum() == pytest.approx(float(apart.square().sum()), rel=1e-9)
    assert model.problem.shares == pytest.approx(np.array(SHARES))
    assert model.problem.sizes.tolist() == [1.0, 1.0, 1.0, 3.0]


@pytest.mark.parametrize("label", range(C))
def test_each_class_has_the_covariance_of_its_levels(noisy, label):
    g, y, noise, found = noisy
    axes = estimate(g, y, ManyEstimates(C)).axes
    rows, levels = noise[y == label], found.levels[:, label]
    along = rows @ axes
    across = rows - along @ axes.T
    noisy_axes = np.flatnonzero(levels[:3])
    assert len(noisy_axes) >= 2
    for axis in range(3):
        squares = along[:, axis].square().sum().item()
        assert within(squares / levels[axis], chi2(len(rows))) if levels[axis] > 0.0 else squares < 1e-9
    if levels[3] > 0.0:
        assert within(across.square().sum().item() / levels[3], chi2(len(rows) * (D - 3)))
    else:
        assert across.abs().max() < 1e-9
    white = along[:, noisy_axes] / torch.from_numpy(levels[noisy_axes]).sqrt()
    covariance = (white.T @ white / math.sqrt(len(rows)))[np.triu_indices(len(noisy_axes), 1)]
    assert covariance.abs().max() < norm.isf(ALARM / 6)


def test_noise_has_the_promised_mean_power_and_is_unbiased(noisy):
    g, y, noise, found = noisy
    sizes = np.array([1.0, 1.0, 1.0, 3.0])
    promised = float(sizes @ found.levels @ np.array(SHARES))
    assert promised == pytest.approx(1.5 * mean_distance(g, y), rel=1e-9)
    assert float(noise.square().sum(dim=1).mean()) == pytest.approx(promised, rel=0.05)
    for c in range(C):
        rows = noise[y == c]
        assert (rows.mean(dim=0) * math.sqrt(len(rows)) / rows.std(dim=0)).abs().max() < norm.isf(ALARM / 12)


def test_the_best_readers_of_the_modelled_classes_stay_below_the_bounds(noisy):
    g, y, noise, found = noisy
    sent = g + noise
    model = estimate(g, y, ManyEstimates(C))
    rotated = sent @ torch.cat([model.axes, torch.linalg.qr(model.axes, mode="complete")[0][:, 3:]], dim=1)
    spread = np.repeat(model.problem.variances * model.unit**2 + found.levels, [1, 1, 1, 3], axis=0)
    columns = []
    for c in range(C):
        deviations = rotated - rotated[y == c].mean(dim=0)
        scale = torch.from_numpy(spread[:, c].copy())
        columns.append(-0.5 * (deviations.square() / scale + scale.log()).sum(dim=1) + math.log(SHARES[c]))
    log_posteriors = torch.stack(columns, dim=1)
    accuracy = float((log_posteriors.argmax(dim=1) == y).double().mean())
    assert 0.4 < accuracy < accuracy_bound(found.divergences, SHARES) < 1.0
    for c in range(C):
        rest = log_posteriors[:, [k for k in range(C) if k != c]].logsumexp(dim=1)
        assert leak_auc(log_posteriors[:, c] - rest, y == c) < one_against_rest_bound(found.divergences, SHARES)
    pair = (y == 0) | (y == 1)
    assert leak_auc((log_posteriors[:, 1] - log_posteriors[:, 0])[pair], y[pair] == 1) < auc_bound(
        found.divergences[0, 1]
    )


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float32, 1e-12), (torch.float32, 1e12), (torch.float64, 1e-100)])
def test_the_scale_of_gradients_changes_nothing(dtype, scale):
    g, y = batch(rows=400)
    plain, one = perturb(g, y, classes=C, s=2.0, generator=generator(5))
    sent, other = perturb((g * scale).to(dtype), y, classes=C, s=2.0, generator=generator(5))
    assert sent.dtype == dtype
    assert other.levels.sum() / scale / scale == pytest.approx(one.levels.sum(), rel=1e-4)
    assert other.divergences == pytest.approx(one.divergences, rel=1e-3)
    assert plain.isfinite().all()
    assert sent.isfinite().all()


def test_axes_are_the_rank_of_the_means_and_no_more():
    line = np.outer([0.0, 1.0, 5.0, -2.0], np.ones(7))
    assert [matrix.shape for matrix in principal_axes(line, 2e-16)] == [(7, 1), (4, 1)]
    assert principal_axes(np.ones((3, 7)), 2e-16)[0].shape == (7, 0)
    assert principal_axes(np.eye(3), 2e-16)[0].shape == (3, 2)
    one = np.array([[1.0], [2.0], [4.0]])
    axes, places = principal_axes(one, 2e-16)
    assert axes @ places.T + one.mean() == pytest.approx(one.T)


def test_one_coordinate_is_enough():
    g, y = batch(rows=200)
    sent, noise = perturb(g[:, :1], y, classes=C, s=1.0, generator=generator())
    assert noise.levels.shape == (1, C)
    assert (sent != g[:, :1]).any()


def test_two_classes_of_three_are_as_two_classes():
    from flower_vfl.strategies.gradients.marvell.isotropic import perturb as perturb_two

    rows = torch.randn(300, D, generator=generator(3), dtype=torch.float64)
    y = torch.arange(300) % 2
    # Spread equally in all directions, as the model for two classes has it, up to the sample.
    g = torch.linalg.qr(rows - rows.mean(dim=0))[0] * 10
    g[y == 1] += 1.0
    _, two = perturb_two(g, y, s=2.0, generator=generator())
    _, three = perturb(g, y, classes=3, s=2.0, generator=generator())
    assert three.levels.shape == (2, 2)
    assert three.largest == pytest.approx(two.sum_kl, rel=0.1)


@pytest.mark.parametrize("label", [0, 2])
def test_one_class_and_broken_values_are_refused(label):
    with pytest.raises(UnprotectedBatchError, match="one class"):
        perturb(torch.randn(5, D), torch.full((5,), label), classes=C, s=1.0, generator=generator())
    g, y = batch(rows=100)
    g[7, 1] = math.nan
    with pytest.raises(UnprotectedBatchError, match="not finite"):
        perturb(g, y, classes=C, s=1.0, generator=generator())


def test_classes_that_differ_around_the_same_mean_are_not_sent_without_noise():
    g = torch.tensor([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 2.0], [0.0, -2.0]], dtype=torch.float64)
    y = torch.tensor([0, 1, 1, 2, 2])
    with pytest.raises(UnprotectedBatchError, match="means coincide"):
        perturb(g, y, classes=3, s=1.0, generator=generator())


def test_impossible_labels_strengths_and_shapes_are_refused():
    g, y = batch(rows=100)
    with pytest.raises(ConfigError, match="labels of 3 classes are 0 to 2; 0 to 3 came"):
        perturb(g, y, classes=3, s=1.0, generator=generator())
    with pytest.raises(ConfigError, match="s must be"):
        perturb(g, y, classes=C, s=-1.0, generator=generator())
    with pytest.raises(ConfigError, match=r"give \(B, D\) and \(B,\)"):
        perturb(g, y[1:], classes=C, s=1.0, generator=generator())


@pytest.mark.parametrize(
    "strength", [{"s": 2.0}, {"P": 3.0}, {"sum_kl": 0.5}, {"detection_error": 0.3}], ids=lambda s: next(iter(s))
)
def test_all_four_strengths_are_kept(strength):
    g, y = batch(rows=2000)
    sent, log = defense(**strength).protect(g, y)
    if "s" in strength:
        assert log["marvell.noise_power"] == pytest.approx(2.0 * mean_distance(g, y), rel=1e-9)
    elif "P" in strength:
        assert log["marvell.noise_power"] == pytest.approx(3.0, rel=1e-9)
    else:
        target = strength.get("sum_kl", (2 - 4 * 0.3) ** 2)
        assert 0.999 * target < log["marvell.sum_kl_after"] <= target
    assert log["marvell.sum_kl_after"] < log["marvell.sum_kl_before"]
    assert 0.5 < log["marvell.auc_bound"] <= auc_bound(log["marvell.sum_kl_after"]) <= 1.0
    assert max(SHARES) < log["marvell.accuracy_bound"] < 1.0
    assert (log["marvell.fallback"], log["marvell.withheld"]) == (0.0, 0.0)
    power = float((sent - g).square().sum(dim=1).mean())
    assert power == pytest.approx(log["marvell.noise_power"], rel=0.2)


def test_a_class_that_the_batch_lacks_has_its_running_estimates():
    g, y = batch(rows=2000)
    strategy = defense()
    for _ in range(3):
        strategy.protect(g, y)
    fewer, labels = batch(rows=400, seed=9)
    kept = labels != 2
    model = estimate(fewer[kept], labels[kept], strategy._estimates[""])
    assert model.known.tolist() == [0, 1, 2, 3]
    assert model.problem.shares[2] == pytest.approx(0.3 / 1.3, rel=1e-9)
    whole = estimate(g, y, ManyEstimates(C))
    assert model.means[2] * model.unit == pytest.approx(whole.means[2] * whole.unit, rel=0.2, abs=0.05)
    spread, expected = (float(m.problem.sizes @ m.problem.variances[:, 2]) * m.unit**2 for m in (model, whole))
    assert spread == pytest.approx(expected, rel=0.2)
    # Without running estimates the model has the other classes only.
    assert estimate(fewer[kept], labels[kept], ManyEstimates(C)).known.tolist() == [0, 1, 3]


def test_a_batch_with_one_row_of_each_class_has_the_running_spreads():
    g, y = batch(rows=2000)
    memory = ManyEstimates(C)
    whole = estimate(g, y, memory)
    memory.add(whole, y)
    single = [int((y == label).nonzero()[0]) for label in range(C)]
    model = estimate(g[single], y[single], memory)
    spread, expected = (m.problem.sizes @ m.problem.variances / m.rms**2 for m in (model, whole))
    assert spread == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("present", [[0, 1, 3], [3]])
def test_the_logged_power_is_that_of_the_rows_of_the_batch(present):
    """Noise is also computed for a class that the batch lacks, but its power is not logged."""
    strategy = defense(s=2.0)
    strategy.protect(*batch(rows=2000))
    g, y = batch(rows=4000, seed=9)
    g, y = g[torch.isin(y, torch.tensor(present))], y[torch.isin(y, torch.tensor(present))]
    memory = strategy._estimates[""]
    model = estimate(g, y, memory) if len(present) > 1 else memory.recall(g, y)
    noise = model.noise("s", 2.0)
    assert model.known.tolist() == [0, 1, 2, 3]
    of_class = model.problem.sizes @ noise.levels * model.unit**2
    sent, log = strategy.protect(g, y)
    assert log["marvell.noise_power"] == pytest.approx(of_class[y.numpy()].mean(), rel=1e-9)
    assert float((sent - g).square().sum(dim=1).mean()) == pytest.approx(of_class[y.numpy()].mean(), rel=0.1)


@pytest.mark.parametrize("scale", [1.0, 1e-6])
def test_recalled_classes_have_their_mean_spread_in_all_directions(scale):
    g, y = batch(rows=2000)
    memory = ManyEstimates(C)
    assert memory.recall(g, y) is None
    memory.add(estimate(scale * g, y, memory), y)
    model = memory.recall(scale * g, y)
    for c in range(C):
        of_class = scale * g[y == c].numpy()
        assert model.means[c] * model.unit == pytest.approx(of_class.mean(axis=0), rel=1e-6, abs=1e-9 * scale)
        expected = np.full(4, of_class.var(axis=0).mean())
        assert model.problem.variances[:, c] * model.unit**2 == pytest.approx(expected, rel=1e-6)
    apart = model.problem.distances.sum(axis=0) * model.unit**2
    assert apart.sum() / (C * (C - 1)) == pytest.approx(mean_distance(scale * g, y), rel=1e-6)


@pytest.mark.parametrize("longer", [0.1, 5.0])
def test_recalled_classes_have_the_usual_scale_or_that_of_longer_rows(longer):
    g, y = batch(rows=400)
    memory, usual = ManyEstimates(C), float(g.square().sum(dim=1).mean().sqrt())
    for _ in range(3):
        memory.add(estimate(g, y, memory), y)
    model = memory.recall(longer * g, y)
    assert model.unit == pytest.approx(max(longer, 1.0) * usual)
    assert model.means * model.unit == pytest.approx(
        max(longer, 1.0) * estimate(g, y, ManyEstimates(C)).means * float(g.abs().max())
    )


@parametrize("strength", [4.0, 100.0], quick=1)
def test_bounds_use_the_class_frequencies_of_the_batch(strength):
    """Small batches of ten classes, one of them frequent: a reader that always names that one stays below the bound."""
    source = np.random.default_rng(0)
    labels = source.choice(10, size=1600, p=[0.7, *[0.3 / 9] * 9])
    guarded = Marvell(VerticalStrategy(nn.Linear(16, 10), torch.arange(10)), s=strength)
    memory = ManyEstimates(10)
    fewer = 0
    for rows in np.split(source.permutation(1600), 100):
        y = torch.from_numpy(labels[rows])
        g = 0.3 * torch.randn(16, 16, generator=generator(int(rows[0]))) + torch.eye(10, 16)[y]
        shares = np.bincount(y.numpy(), minlength=10) / 16
        log = guarded.protect(g, y)[1]
        assert log["marvell.accuracy_bound"] >= shares.max()
        if shares.max() == 1.0:
            assert log["marvell.accuracy_bound"] == 1.0
            continue
        model = estimate(g, y, memory)
        memory.add(model, y)
        left, present = model.noise("s", strength).divergences, shares[model.known]
        assert log["marvell.accuracy_bound"] == pytest.approx(accuracy_bound(left, present))
        assert log["marvell.auc_bound"] == pytest.approx(one_against_rest_bound(left, present))
        fewer += (present == 0.0).any()
    assert fewer > 50  # batches that lack a class for which noise is computed


def test_estimates_of_a_class_without_new_rows_stay_and_are_dropped_after_many_batches():
    """Batches of two classes of three: noise covers the third for some 260 batches, and then the two alone."""
    memory, never = ManyEstimates(3), ManyEstimates(3)
    y = torch.arange(120) % 3
    memory.add(estimate(torch.randn(120, D, generator=generator()) + 3 * torch.eye(3, D)[y], y, memory), y)
    was = memory.of_width(D)
    y = torch.arange(120) % 2
    g = torch.randn(120, D, generator=generator(1)) + 3 * torch.eye(3, D)[y]
    usual = estimate(g, y, never)
    for batches in range(1, 8001):
        memory.add(usual, y)
        if batches in (1, 100, 250):
            now, model = memory.of_width(D), estimate(g, y, memory)
            assert now.means[2] == pytest.approx(was.means[2], rel=1e-9)
            assert now.spreads[2] == pytest.approx(was.spreads[2], rel=1e-9)
            assert model.known.tolist() == [0, 1, 2]
            assert model.noise("s", 4.0).gap < 1e-6
        if batches in (300, 1000, 8000):
            model = estimate(g, y, memory)
            assert model.known.tolist() == [0, 1]
            assert np.array_equal(model.noise("s", 4.0).levels, usual.noise("s", 4.0).levels)
    assert memory.recall(g, torch.full((120,), 2)) is None
    y = torch.arange(120) % 3
    memory.add(estimate(g, y, memory), y)
    assert memory.of_width(D).known.all()


def test_a_missing_class_is_dropped_too_where_each_batch_uses_its_running_estimates():
    memory = ManyEstimates(C)
    g, y = batch(rows=100)
    memory.add(estimate(g, y, memory), y)
    kept = y != 2
    for _ in range(300):
        memory.add(estimate(g[kept], y[kept], memory), y[kept])
    assert memory.of_width(D).known.tolist() == [True, True, False, True]


def test_a_batch_of_zeros_changes_no_running_estimate():
    memory = ManyEstimates(C)
    g, y = batch(rows=100)
    memory.add(estimate(g, y, memory), y)
    before = memory.of_width(D)
    memory.add(estimate(0.0 * g, y, memory), y)
    for found, expected in zip(memory.of_width(D), before, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_single_row_of_a_class_gives_its_mean_and_not_its_spread():
    g, y = batch(rows=100)
    one = torch.nonzero(y == 0)[:1, 0]
    kept = torch.cat([one, torch.nonzero(y != 0)[:, 0]])
    model = estimate(g[kept], y[kept], ManyEstimates(C))
    assert (model.problem.variances[:, 0] > 0).all()
    assert model.means[0] * model.unit == pytest.approx(g[one[0]].numpy(), rel=1e-9)
    memory = ManyEstimates(C)
    memory.add(estimate(*batch(rows=4000, spreads=(5.0, 0.5, 0.8, 0.4)), memory), batch(rows=4000)[1])
    remembered = estimate(g[kept], y[kept], memory)
    assert remembered.problem.variances[3, 0] > 4 * model.problem.variances[3, 0]


@pytest.mark.parametrize("longer", [1e-3, 1.0, 50.0])
def test_a_batch_of_one_class_gets_the_noise_of_the_running_estimates(longer):
    strategy = defense()
    g, y = batch(rows=4000)
    _, usual = strategy.protect(g, y)
    rows = longer * g[y == 3][:50]
    sent, log = strategy.protect(rows, torch.full((50,), 3))
    assert (log["marvell.fallback"], log["marvell.withheld"]) == (1.0, 0.0)
    assert log["marvell.accuracy_bound"] == 1.0
    assert strategy.fallbacks == 1
    assert log["marvell.noise_power"] == pytest.approx(float((sent - rows).square().sum(dim=1).mean()), rel=0.5)
    assert (sent != rows).any(dim=1).all()
    if longer <= 1.0:  # shorter rows get the noise of rows of usual length
        assert usual["marvell.noise_power"] / 4 < log["marvell.noise_power"] < 4 * usual["marvell.noise_power"]
    else:
        assert log["marvell.noise_power"] > 100 * usual["marvell.noise_power"]


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [2, 2, 2, 2]])
def test_zeros_replace_gradients_that_are_not_finite_also_where_their_classes_have_estimates(value, labels):
    strategy = defense()
    strategy.protect(*batch(rows=200))
    g = torch.ones(4, D, dtype=torch.float64)
    g[1, 2] = value
    sent, log = strategy.protect(g, torch.tensor(labels))
    assert not sent.any()
    assert log["marvell.withheld"] == 1.0


def test_zeros_are_sent_where_a_class_has_no_estimate():
    strategy = defense()
    rows, labels = torch.ones(4, D), torch.full((4,), 1)
    sent, log = strategy.protect(rows, labels)
    assert not sent.any()
    assert (log["marvell.withheld"], log["marvell.accuracy_bound"], log["marvell.auc_bound"]) == (1.0, 1.0, 0.5)
    g, y = batch(rows=200)
    strategy.protect(g[y != 1], y[y != 1])
    assert not strategy.protect(rows.double(), labels)[0].any()  # the others are known, this one is not
    strategy.protect(g, y)
    assert strategy.protect(rows.double(), labels)[0].any()


def test_the_log_has_the_same_numbers_in_every_step():
    strategy = defense()
    g, y = batch(rows=100)
    first = strategy.protect(g, y)[1]
    fallback = strategy.protect(g[y == 0], y[y == 0])[1]
    withheld = defense().protect(g[y == 0], y[y == 0])[1]
    assert first.keys() == fallback.keys() == withheld.keys()
    assert strategy.protect(torch.zeros(0, D), torch.zeros(0))[0].shape == (0, D)


def test_the_state_goes_through_a_file_and_back(tmp_path):
    g, y = batch(rows=200)
    strategy, restored = defense(), defense()
    strategy.protect(g, y)
    save_state(tmp_path / "state", strategy.state())
    restored.restore(load_state(tmp_path / "state"))
    rows, labels = g[y == 2], y[y == 2]
    (sent, log), (again, restored_log) = strategy.protect(rows, labels), restored.protect(rows, labels)
    assert torch.equal(sent, again)
    assert log == restored_log


def test_parties_that_are_defended_apart_have_estimates_of_their_own():
    g, y = batch(rows=400)
    strategy = defense(scope="per-party")
    strategy.base.build({"a": (D,), "b": (D,)}, None)
    _, log = strategy.protect(torch.cat([g, 1e3 * g], dim=1), y)
    assert log["marvell.noise_power.b"] == pytest.approx(1e6 * log["marvell.noise_power.a"], rel=1e-6)
    assert set(strategy.state()["estimates"]) == {"a", "b"}


def test_persistent_noise_stays_similar_when_the_axes_rotate():
    g, y = batch(rows=300)
    strategy = defense(rho=1.0)
    rotation = torch.linalg.qr(torch.randn(D, D, generator=generator(4), dtype=torch.float64))[0]
    noises = []
    for batch_g in (g, -g, g @ rotation):  # other means, other axes with other signs
        strategy.base.begin_batch(np.arange(len(y)))
        noises.append(strategy.protect(batch_g, y)[0] - batch_g)
    cosines = [torch.nn.functional.cosine_similarity(noises[0], other, dim=1).mean() for other in noises[1:]]
    assert cosines[0] > 0.999
    assert cosines[1] > 0.5
    strategy.base.begin_batch(np.arange(len(y)) + 1000)
    fresh = strategy.protect(g, y)[0] - g
    assert torch.nn.functional.cosine_similarity(noises[0], fresh, dim=1).mean().abs() < 0.2


def test_a_run_of_four_classes_is_defended(tmp_path):
    config = toy_config(
        attack={"names": ["norm", "cosine"]},
        defenses=[{"name": "marvell", "s": 4.0, "rho": 0.5}],
        training={"epochs": 2, "batch_size": 32},
    )
    result = run(config, data=lambda config: toy_data(classes=4), out=tmp_path / "run")
    assert result.leak() < 0.95
    content = json.loads((tmp_path / "run" / "result.json").read_text())
    params = {"s": 4.0, "rho": 0.5, "scope": "joint"}
    assert content["defenses"] == [{"name": "marvell", "params": params, "read_by": ["residual"]}]
    assert 0.5 < content["log"]["marvell.auc_bound"] <= 1.0
