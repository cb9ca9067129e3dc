"""Residual mixture noise: its variance, the mixed rows of each row, and its correlation between epochs."""

import math

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from scipy import stats
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.metrics import roc_auc_score
from torch import nn

from flower_vfl import build_config, run
from flower_vfl.errors import ConfigError
from flower_vfl.rng import Secret
from flower_vfl.strategies import MarvellFull, VerticalStrategy
from flower_vfl.strategies.gradients.marvell.full import draw_noise, estimate, optimal_noise
from flower_vfl.strategies.gradients.marvell.mixture_noise import MOST_MIXED_ROWS, WIDEST_MIXTURE, ResidualMixture
from flower_vfl.strategies.gradients.noise import Noise
from flower_vfl.testing.subject import same, strategy
from flower_vfl.training.factories import schedule_of
from tests.sampling import generator
from tests.toys import toy_config, toy_data

KEY = bytes(range(16))
ALARM = 1e-6
"""Probability that a statistical comparison fails on correct code."""


def normals(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def mixture_of(deviations, labels):
    """Return a mixture to which these deviations (B, D), of rows 0 to B - 1, were added."""
    rows = np.arange(len(labels))
    mixture = ResidualMixture.begin(
        tuple(torch.bincount(labels, minlength=2).tolist()), deviations, labels, generator(7)
    )
    mixture.add(deviations, labels, rows)
    return mixture


def mixed(mixture, labels, *, rows=None, noise=None, key=KEY, part=0):
    numbers = np.arange(len(labels), dtype=np.uint64) if rows is None else rows
    width = mixture.width
    noise = torch.zeros(len(labels), width, dtype=torch.float64) if noise is None else noise
    return mixture.mixtures(labels, numbers, noise, key=key, part=part)


def alternating(rows):
    return (torch.arange(rows) % 2 == 0).long()


def test_mixtures_have_variance_one_in_every_direction_whatever_the_covariance_of_the_deviations():
    labels, width = alternating(1000), 4
    shape = torch.tensor([[9.0, 0.0, 0.0, 0.0], [3.0, 1.0, 0.0, 0.0], [0.0, 0.5, 1e-3, 0.0], [1.0, 1.0, 1.0, 0.0]])
    mixture = mixture_of(normals(1000, width) @ shape.double(), labels)  # the last direction is empty
    many = torch.zeros(40_000, dtype=torch.long)
    z = mixed(mixture, many, noise=normals(40_000, width, seed=1))
    moments = z.T @ z / len(z)
    # Sixteen deviations weigh each row's mixture: its squares vary little more than those of normal numbers do.
    bound = stats.norm.isf(ALARM / 16) * math.sqrt(3.0 / len(z))
    assert (moments - torch.eye(width)).abs().max() < bound
    assert z.mean(dim=0).abs().max() < stats.norm.isf(ALARM / 4) / math.sqrt(len(z))


def test_a_row_keeps_its_mixture_wherever_it_stands_and_another_key_row_or_part_has_another():
    labels = alternating(600)
    far = torch.where(torch.arange(600) % 24 < 2, 100.0, 1.0).double()[:, None]  # one in twelve, of either class
    mixture = mixture_of(far * normals(600, 3), labels)
    some = torch.ones(200, dtype=torch.long)
    rows = np.arange(200, dtype=np.uint64)
    first = mixed(mixture, some, rows=rows)
    assert torch.allclose(mixed(mixture, some, rows=rows[::-1].copy()).flip(0), first)
    for other in (
        mixed(mixture, some, rows=rows, key=KEY[::-1]),
        mixed(mixture, some, rows=rows + 200),
        mixed(mixture, some, rows=rows, part=1),
    ):
        assert stats.pearsonr(other.flatten(), first.flatten()).pvalue > ALARM
        # The length of a mixture depends on the number of far rows in it, whatever their weights.
        assert stats.spearmanr(other.norm(dim=1), first.norm(dim=1)).pvalue > ALARM


def test_negatives_get_mixtures_of_positives_and_the_other_way_round():
    labels = alternating(400)
    scale = torch.where(labels == 1, 0.0, 1.0)[:, None].double() * torch.tensor([[1.0, 0.0]])
    scale = scale + torch.where(labels == 1, 1.0, 0.0)[:, None].double() * torch.tensor([[0.0, 1.0]])
    mixture = mixture_of(normals(400, 2) * scale, labels)  # negatives vary in the first number, positives in the second
    for label in (0, 1):
        z = mixed(mixture, torch.full((500,), label)).square().mean(dim=0)
        assert z[1 - label] > 0.5
        assert z[label] < 1e-6


def test_mixtures_of_two_epochs_correlate_as_the_mixed_deviations_do_direction_by_direction():
    count, correlations = 4000, torch.tensor([0.9, 0.3, 0.0], dtype=torch.float64)
    labels = (torch.arange(count) < count // 2).long()
    one, other = normals(count, 3), normals(count, 3, seed=1)
    mixture = mixture_of(one, labels)
    many = torch.zeros(20_000, dtype=torch.long)
    first = mixed(mixture, many)
    mixture.add(correlations * one + (1.0 - correlations**2).sqrt() * other, labels, np.arange(count))
    second = mixed(mixture, many)
    found = (first * second).mean(dim=0)
    # The sample correlations of MOST_MIXED_ROWS rows differ this much from those of the law.
    assert (found - correlations).abs().max() < stats.norm.isf(ALARM / 6) * math.sqrt(
        1.0 / MOST_MIXED_ROWS + 2.0 / len(many)
    )


def test_no_two_rows_get_the_same_mixture():
    z = mixed(mixture_of(normals(600, 3), alternating(600)), torch.zeros(20_000, dtype=torch.long))
    assert len(z.unique(dim=0)) == len(z)


def test_the_number_of_kept_rows_is_bounded_and_later_rows_are_not_mixed():
    rows = 2 * MOST_MIXED_ROWS + 10
    labels = alternating(rows)
    mixture = mixture_of(normals(rows, 2), labels)
    before = mixture.state()
    late = np.arange(rows - 8, rows)
    mixture.add(1e6 * torch.ones(8, 2), labels[-8:], late)
    after = mixture.state()
    assert [tuple(d.shape) for d in after["deviations"]] == [(MOST_MIXED_ROWS, 2)] * 2
    assert same(after["deviations"], before["deviations"])


def test_it_goes_on_from_its_state():
    labels = alternating(100)
    one = mixture_of(normals(100, 3), labels)
    other = ResidualMixture.of(one.state())
    for each in (one, other):
        each.add(normals(40, 3, seed=5), labels[60:], np.arange(60, 100))
    assert torch.equal(mixed(one, labels), mixed(other, labels))


@pytest.mark.parametrize("scale", [1e-3, 30.0])
def test_placeholders_of_rows_without_a_batch_are_as_large_as_deviations_of_the_others(scale):
    labels, places = alternating(200), np.arange(200)
    first = normals(200, 5) * torch.where(labels == 1, scale, 1.0).double()[:, None]
    mixture = ResidualMixture.begin((MOST_MIXED_ROWS, MOST_MIXED_ROWS), first, labels, generator(7))
    for label, size in ((0, 1.0), (1, scale)):
        rows = mixture.state()["deviations"][label]
        assert rows.shape == (MOST_MIXED_ROWS, 5)
        # Mean squares of n normal numbers have the relative standard deviation sqrt(2 / n), here of both sides.
        spread = math.sqrt(2.0 / rows.numel() + 2.0 / 500)
        assert abs(float(rows.double().square().mean()) / size**2 - 1.0) < stats.norm.isf(ALARM / 4) * spread
    mixture.add(first, labels, places)
    moments = [(rows.T @ rows).trace() for rows in mixture.state()["deviations"]]
    assert float(moments[1] / moments[0]) == pytest.approx(scale**2, rel=0.2)


def test_normal_numbers_replace_mixtures_of_a_class_whose_rows_never_deviate():
    """The only positive of each batch is its class's mean: negatives get noise of the configured power."""
    defense = MarvellFull(strategy({"a": 4}), s=4.0, imitate=True)
    labels, power = (torch.arange(64) == 3).long(), []
    for step in range(20):
        g = normals(64, 4, seed=step)
        noisy, log = defense.protect(g, labels)
        power.append(float((noisy - g).square().sum(dim=1).mean()) / log["marvell_full.noise_power"])
    # The noise of 20 times 64 rows has few directions: squares vary by at most sqrt(2) a row.
    assert abs(np.mean(power) - 1.0) < stats.norm.isf(ALARM / 2) * math.sqrt(2.0 / 1280)


@pytest.mark.parametrize("seed", range(4))
def test_after_an_epoch_the_kept_rows_are_exactly_the_trained_rows(seed):
    """A tenth of the rows is kept for validation, of whichever classes they are."""
    labels = torch.zeros(600, dtype=torch.long)
    labels[torch.randperm(600, generator=generator(seed))[:40]] = 1
    config = build_config(toy_config().model_dump(), {"seed": seed, "training.batch_size": 60})
    base = VerticalStrategy(nn.Linear(3, 1), labels, config=config, secret=Secret.for_simulation(seed, "label"))
    base.build({"a": (3,)}, None)
    defense, schedule = MarvellFull(base, s=4.0, imitate=True), schedule_of(config, 600, 0)
    defense.prepare_labels(labels)
    for step in schedule.steps_of(1):
        rows = schedule.train_batch(step)
        defense.base.begin_batch(rows)
        defense.protect(normals(len(rows), 3, seed=step), labels[rows])
    state = defense.state()["imitated"]["0"]
    trained = np.sort(schedule.trained_rows(1)).astype(np.int64)
    expected = [trained[labels.numpy()[trained] == label].tolist() for label in (0, 1)]
    assert [len(rows) for rows in state["deviations"]] == [len(rows) for rows in expected]
    assert [sorted(rows.tolist()) for rows in state["rows"]] == expected


def test_what_is_sent_depends_on_the_prepared_labels_alone():
    """Two tables differ in the true label of a row; their prepared labels are equal."""
    labels = (torch.rand(600, generator=generator(3)) < 0.2).long()
    sent = []
    for row in (None, 17):
        true = labels.clone()
        if row is not None:
            true[row] = 1 - true[row]
        base = VerticalStrategy(nn.Linear(4, 1), true, secret=Secret.for_simulation(1, "label"))
        base.build({"a": (4,)}, None)
        defense = MarvellFull(base, s=4.0, rho=0.5, imitate=True)
        defense.prepare_labels(labels.clone())  # as label_dp passes them on
        assert base.prepared.tolist() == labels.tolist()
        rows = np.arange(100, 164)
        defense.base.begin_batch(rows)
        sent.append(defense.protect(normals(64, 4), labels[rows])[0])
    assert torch.equal(*sent)


def epochs(count, width):
    """Return gradients of two epochs, and labels: positives deviate far and recur in part, negatives deviate little."""
    labels = (torch.arange(count) < count // 4).long()
    spread = torch.where(labels == 1, 1.0, 0.1).double()[:, None]
    correlations = torch.linspace(0.95, 0.2, width, dtype=torch.float64)
    first = normals(count, width)
    second = correlations * first + (1.0 - correlations**2).sqrt() * normals(count, width, seed=1)
    means = torch.where(labels == 1, 0.75, -0.25).double()[:, None] * torch.ones(width, dtype=torch.float64)
    return [spread * deviations + means for deviations in (first, second)], labels


def read(sent, labels):
    """Return the AUC of the best reader of all epochs side by side, fitted to half of the rows, scored on the rest."""
    features, fitted_rows = torch.cat(sent, dim=1).numpy(), np.arange(len(labels)) % 2 == 0
    fitted = QuadraticDiscriminantAnalysis(store_covariance=False).fit(features[fitted_rows], labels[fitted_rows])
    return roc_auc_score(labels[~fitted_rows], fitted.decision_function(features[~fitted_rows]))


def released(labels, gradients, **more):
    base = strategy({"a": gradients[0].shape[1]})
    base.labels = type(base.labels)(labels.numpy(), labels.numpy()[:0], 2)
    defense, sent = MarvellFull(base, s=40.0, spread=0.003, **more), []
    for g in gradients:
        base.begin_batch(np.arange(len(g)))
        sent.append(defense.protect(g, labels)[0])
    return sent


def test_a_reader_of_two_epochs_reads_the_labels_behind_other_noise_and_not_behind_mixture_noise():
    gradients, labels = epochs(16_000, 8)
    for rho in (0.0, 0.5, 0.9):
        assert read(released(labels, gradients, rho=rho), labels) > 0.62
    found = read(released(labels, gradients, rho=0.9, imitate=True), labels)
    each = [read([one], labels) for one in released(labels, gradients, rho=0.9, imitate=True)]
    assert found < max(each) + 0.03
    assert found < 0.57


def test_mixtures_change_neither_the_power_nor_the_divergence_of_one_step():
    gradients, labels = epochs(16_000, 6)
    logs = []
    for imitate in (False, True):
        base = strategy({"a": 6})
        base.labels = type(base.labels)(labels.numpy(), labels.numpy()[:0], 2)
        defense = MarvellFull(base, s=4.0, imitate=imitate)
        base.begin_batch(np.arange(len(labels)))
        noisy, log = defense.protect(gradients[0], labels)
        logs.append(log)
        measured = float((noisy - gradients[0]).square().sum(dim=1).mean())
        assert measured == pytest.approx(log["marvell_full.noise_power"], rel=0.1)
    assert logs[0] == logs[1]


def test_mixtures_add_what_one_class_lacks_and_nothing_that_both_get():
    """Compare with whole matrices: mixtures are scaled by the root of the covariance that a class lacks."""
    labels, unit = alternating(400), 0.3
    wide = torch.linspace(0.1, 1.0, 6, dtype=torch.float64)
    g = torch.where(labels[:, None] == 1, 0.5 + wide * normals(400, 6), wide.flip(0) * normals(400, 6, seed=1))
    pair = estimate(g, labels)
    noise = optimal_noise(pair, 4.0 * pair.g)
    numbers = normals(400, 6, seed=3)
    with_numbers, without = (
        draw_noise(g, labels, noise, unit, Noise(generator(7)), imitating=one) for one in (numbers, 0.0 * numbers)
    )
    directions = noise.directions.double().numpy()
    lacks = (noise.levels - noise.levels.amin(dim=0)).numpy()
    assert (lacks.max(axis=1) > 0.0).all()
    for label in (0, 1):
        of_class = (labels == label).numpy()
        root = directions @ np.diag(np.sqrt(lacks[label])) @ directions.T
        expected = unit * numbers.numpy()[of_class] @ root
        assert (with_numbers - without).numpy()[of_class] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("scope", ["joint", "per-party"])
def test_after_a_restore_it_goes_on_with_the_noise_it_had(scope):
    def make():
        return MarvellFull(strategy({"a": 3, "b": 2}), s=4.0, rho=0.5, imitate=True, scope=scope)

    one, other = make(), make()
    for each in (one, other):
        each.begin()
    g, y = normals(64, 5), (torch.arange(64) % 5 == 0).long()
    one.protect(g, y)
    other.restore(one.state())
    for each in (one, other):
        each.base.begin_batch(np.arange(64))
    assert torch.equal(one.protect(2.0 * g, y)[0], other.protect(2.0 * g, y)[0])


def test_a_batch_of_one_class_gets_mixtures_too(monkeypatch):
    defense = MarvellFull(strategy({"a": 4}), s=4.0, imitate=True)
    defense.protect(normals(64, 4), (torch.arange(64) % 5 == 0).long())
    given, mixtures = [], ResidualMixture.mixtures
    monkeypatch.setattr(ResidualMixture, "mixtures", lambda *a, **k: given.append(mixtures(*a, **k)) or 0.0 * given[0])
    g, negatives = normals(64, 4, seed=3), torch.zeros(64, dtype=torch.long)
    before = defense.state()
    without, log = defense.protect(g, negatives)
    assert log["marvell_full.fallback"] == 1.0
    monkeypatch.undo()
    defense.restore(before)
    noisy, _ = defense.protect(g, negatives)
    assert len(given) == 1
    assert ((noisy - without).abs().sum(dim=1) > 0.0).all()


def test_other_values_of_imitate_wide_gradients_and_missing_rows_are_refused():
    with pytest.raises(ConfigError, match="imitate must be true or false, given 1"):
        MarvellFull(strategy(), imitate=1)
    wide = MarvellFull(strategy({"a": WIDEST_MIXTURE + 1}), s=4.0, imitate=True)
    with pytest.raises(ConfigError, match=f"up to {WIDEST_MIXTURE} numbers"):
        wide.protect(normals(64, WIDEST_MIXTURE + 1), (torch.arange(64) % 5 == 0).long())
    lost = MarvellFull(strategy({"a": 4}), s=4.0, imitate=True)
    lost.base.begin_batch(None)
    with pytest.raises(ConfigError, match="call `begin_batch` before `protect`"):
        lost.protect(normals(64, 4), (torch.arange(64) % 5 == 0).long())


def test_there_is_no_bound_over_several_epochs(tmp_path):
    config = build_config(toy_config().model_dump(), {"defenses": "marvell_full(s=4.0, rho=0.9, imitate=true)"})
    run(config, out=tmp_path / "out", data=lambda _: toy_data(200, 50))
    steps = pq.read_table(tmp_path / "out" / "steps.parquet").to_pylist()
    assert config.training.epochs > 1
    assert [step["epoch"] for step in steps if step["metric"] == "marvell_full.sum_kl_remembered"] == [1]
    limited = build_config(config.model_dump(), {"attack.max_bound": 0.9})
    with pytest.raises(ConfigError, match="computed for 1 epochs"):
        run(limited, data=lambda _: toy_data(200, 50))
