"""What Marvell promises about all releases of a row together."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from flower_vfl.apps import run
from flower_vfl.metrics import auc_bound, leak_auc, together
from flower_vfl.rng import Secret
from flower_vfl.strategies import Marvell, MarvellFull, VerticalStrategy
from flower_vfl.strategies.gradients.marvell import accountant
from flower_vfl.strategies.gradients.marvell.accountant import Course
from flower_vfl.strategies.gradients.marvell.estimates import estimate
from flower_vfl.strategies.gradients.marvell.solver import optimal_noise
from flower_vfl.testing.subject import strategy
from flower_vfl.tracking import read_steps
from tests.toys import toy_config, toy_data

ROWS, WIDTH = 512, 6
LABELS = torch.arange(ROWS) % 4 == 0


def gradients(own, seed=0):
    """Gradients of two classes with a common spread; `own` says which rows' deviations come again, (ROWS, WIDTH)."""
    generator = torch.Generator().manual_seed(seed)
    fresh = torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64)
    means = torch.zeros(ROWS, WIDTH, dtype=torch.float64)
    means[:, 0] = LABELS.double() * 2.0
    return means + (own if own is not None else fresh)


def taken(course, g, rows):
    """Let a course see a batch; return its model and its noise."""
    y = LABELS[rows].long()
    classes = estimate(g, y)
    spectrum = optimal_noise(classes.u, classes.v, classes.d, classes.g, classes.p, 4.0 * classes.g)
    course.add(classes, spectrum, g, y, rows)
    return classes, spectrum


def epochs(count, own=None, rho=0.0, step=128):
    """Let a course see epochs, batch by batch; return what it says after each, and what each batch's noise leaves."""
    course, said, left = Course(LABELS.numpy()), [], []
    for epoch in range(count):
        g = gradients(own, seed=epoch)
        order = np.random.default_rng(epoch).permutation(ROWS)
        for low in range(0, ROWS, step):
            rows = order[low : low + step]
            left.append(taken(course, g[rows], rows)[1].sum_kl)
        said.append(course.end_epoch(rho))
    return said, np.array(left)


def test_with_fresh_noise_the_divergences_of_the_epochs_add_up():
    said, left = epochs(5)
    single = left.mean()
    for count, found in enumerate(said, start=1):
        assert found["kept"] == pytest.approx(0.0, abs=0.1)
        assert found["sum_kl"] == pytest.approx(count * single, rel=0.2)


def test_a_release_is_the_mean_of_its_batches_each_in_units_of_its_own_rows():
    """Of any scale, and whatever the line is on which the class means of a batch differ."""
    course, found = Course(LABELS.numpy()), []
    taken(course, gradients(None, seed=9), np.arange(ROWS))
    course.end_epoch(0.0)
    for number, scale in enumerate((1.0, 1e-5, 300.0)):
        rows = np.arange(ROWS)[number::3]
        g = scale * gradients(None, seed=number)[rows].roll(number, dims=1)
        classes, spectrum = taken(course, g, rows)
        square, positive = float(g.square().sum(dim=1).mean()), LABELS[rows]
        apart = (g[positive].mean(dim=0) - g[~positive].mean(dim=0)).numpy() / math.sqrt(square)
        levels = [getattr(spectrum, f"lam{n}_{c}") for n in (1, 2) for c in ("neg", "pos")]
        found.append((apart, np.array([classes.u, classes.v, *levels]) * classes.unit**2 / square))
    course.end_epoch(0.0)
    release, means = course._releases[1], np.mean([numbers for _, numbers in found], axis=0)
    pointing = np.sum([apart for apart, _ in found], axis=0)
    assert release.direction == pytest.approx(pointing / np.linalg.norm(pointing), abs=1e-9)
    assert release.distance == pytest.approx(math.sqrt(np.mean([np.square(apart).sum() for apart, _ in found])))
    assert (*release.spread, *release.along, *release.across) == pytest.approx(means.tolist())


def test_batches_of_another_width_and_batches_of_zeros_teach_nothing_of_a_release():
    course, other = Course(LABELS.numpy()), Course(LABELS.numpy())
    rows = np.arange(ROWS)
    for one in (course, other):
        classes, spectrum = taken(one, gradients(None), rows)
    nothing = replace(classes, g=0.0, u=0.0, v=0.0, rms=0.0)
    assert not course.count(nothing, spectrum, rows)
    assert course.end_epoch(0.0) == other.end_epoch(0.0)
    wider = torch.cat([gradients(None, seed=1)] * 2, dim=1)
    taken(course, gradients(None), rows)
    for one in (course, Course(LABELS.numpy())):
        taken(one, wider, rows)
        assert one.end_epoch(0.0)["kept"] == 0.0
        assert len(one._releases[-1].direction) == 2 * WIDTH


def test_class_means_that_coincide_have_some_direction():
    course = Course(LABELS.numpy())
    classes = replace(estimate(gradients(None), LABELS.long()), g=0.0)
    spectrum = optimal_noise(classes.u, classes.v, classes.d, 1.0, classes.p, 1.0)
    course.add(classes, spectrum, gradients(None), LABELS.long(), np.arange(ROWS))
    assert math.isfinite(course.end_epoch(0.0)["sum_kl"])
    assert course._releases[0].distance == 0.0


def test_what_comes_again_of_each_class_counts_for_that_class():
    """Negatives have the same deviations in each epoch, wide ones; positives have new and narrow ones."""
    course, rows = Course(LABELS.numpy()), np.arange(ROWS)
    own = 2.0 * torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    for seed in range(2):
        fresh = 0.5 * (gradients(None, seed=seed) - gradients(torch.zeros(ROWS, WIDTH)))
        taken(course, gradients(torch.where(LABELS[:, None], fresh, own)), rows)
        said = course.end_epoch(0.0)
    assert said["kept"] == pytest.approx(0.5, abs=0.05)
    shares = np.stack([np.ones((2, 2)), np.eye(2)])
    found, swapped = (together(course._releases, rho=0.0, kept=kept).sum_kl() for kept in (shares, shares[::-1]))
    assert said["sum_kl"] == pytest.approx(found, rel=0.02)
    assert said["sum_kl"] != pytest.approx(swapped, rel=0.2)


def test_a_row_that_comes_once_has_the_release_of_its_own_epoch_alone():
    course = Course(LABELS.numpy(), repeats=False)
    for seed in range(3):
        _, spectrum = taken(course, gradients(None, seed=seed), np.arange(ROWS))
        said = course.end_epoch(1.0)
        assert said == {"sum_kl": pytest.approx(spectrum.sum_kl), "kept": 0.0}
    assert not course._recurrence.state()["now"].numel()  # what comes again is not even looked for


def test_of_batches_whose_rows_are_not_known_nobody_knows_what_comes_again():
    course = Course(LABELS.numpy())
    classes, spectrum = taken(course, gradients(None), np.arange(ROWS))
    assert course.end_epoch(0.0)
    course.add(classes, spectrum, gradients(None), LABELS.long(), None)
    said = course.end_epoch(0.0)
    assert said == {}
    assert course.largest == math.inf


def test_before_its_first_batch_a_course_knows_of_no_divergence():
    course = Course(LABELS.numpy())
    assert course.largest == 0.0
    course.note(replace(optimal_noise(1.0, 1.0, 6, 1.0, 0.3, 1.0), sum_kl=0.01))
    assert course.largest == 0.01


def test_after_one_batch_the_promise_is_what_its_noise_leaves_and_the_largest_is_kept():
    """Of classes that scatter differently, so that each has noise of its own."""
    y = LABELS.long()
    course, left = Course(LABELS.numpy()), []
    for scale in (3.0, 1.0):
        g = gradients(None) * torch.where(LABELS, scale, 0.5)[:, None]
        classes = estimate(g, y)
        spectrum = optimal_noise(classes.u, classes.v, classes.d, classes.g, classes.p, classes.g)
        course.add(classes, spectrum, g, y, np.arange(ROWS))
        left.append(spectrum.sum_kl)
        assert course.largest == max(left)
        found = course.end_epoch(0.0)["sum_kl"]
        if scale == 3.0:
            assert found == pytest.approx(spectrum.sum_kl, rel=1e-9)
        left.append(found)
        assert course.largest == max(left)
    course.note(spectrum)
    assert course.largest == max(left)
    assert left[-1] > left[0]


def test_how_much_of_a_rows_own_deviation_comes_again_is_measured():
    own = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    assert epochs(3, own)[0][-1]["kept"] == pytest.approx(1.0, abs=0.05)
    half = epochs(3, own)[0]
    assert half[0]["kept"] == 0.0  # of one epoch nothing is known


def test_persistent_noise_promises_more_than_fresh_noise():
    fresh, kept = (epochs(5, rho=rho)[0][-1]["sum_kl"] for rho in (0.0, 0.5))
    assert kept < 0.7 * fresh


def test_more_epochs_never_promise_more():
    promised = [found["sum_kl"] for found in epochs(6, rho=0.3)[0]]
    assert all(later >= earlier * 0.99 for earlier, later in pairwise(promised))


def test_a_course_goes_on_as_if_it_had_not_been_interrupted():
    g, rows = gradients(None), np.arange(ROWS)
    classes = estimate(g, LABELS.long())
    spectrum = optimal_noise(classes.u, classes.v, classes.d, classes.g, classes.p, classes.g)
    course, other = (Course(LABELS.numpy()) for _ in range(2))
    course.add(classes, spectrum, g, LABELS.long(), rows)
    course.end_epoch(0.5)
    course.add(classes, spectrum, 1.1 * g, LABELS.long(), rows)
    other.restore(course.state())
    assert other.end_epoch(0.5) == course.end_epoch(0.5)
    course.add(classes, spectrum, g, LABELS.long(), rows)
    other.restore(course.state())
    assert other.end_epoch(0.5) == course.end_epoch(0.5)


def test_what_was_promised_before_an_interruption_counts_after_it():
    course, again = (Course(LABELS.numpy()) for _ in range(2))
    course.largest = 1.25
    again.restore(course.state())
    assert again.largest == 1.25


def test_before_anything_was_sent_nothing_is_promised():
    assert Marvell(strategy()).bound() == 1.0


def test_after_so_many_epochs_that_it_would_take_long_nothing_is_said(monkeypatch):
    monkeypatch.setattr(accountant, "LARGEST", 4)
    assert [bool(found) for found in epochs(4)[0]] == [True, True, False, False]
    y, course = LABELS.long(), Course(LABELS.numpy())
    known = []
    for _ in range(3):
        classes = estimate(gradients(None), y)
        spectrum = optimal_noise(classes.u, classes.v, classes.d, classes.g, classes.p, classes.g)
        course.add(classes, spectrum, gradients(None), y, np.arange(ROWS))
        course.end_epoch(0.0)
        known.append(math.isfinite(course.largest))
    assert known == [True, True, False]


def rare(defense, count, width):
    """Train on batches of which few have one of six positives; each row's gradient is the same in all epochs.

    Return what was logged and promised after each epoch, and what a party reads that adds up what it got.
    """
    rows, batch = 1000, 50
    y = torch.zeros(rows, dtype=torch.int64)
    y[torch.from_numpy(np.random.default_rng(0).permutation(rows)[:6])] = 1
    g = torch.randn(rows, width, generator=torch.Generator().manual_seed(0)) * torch.where(y == 1, 0.05, 1.0)[:, None]
    g[y == 1, 0] += 1.0
    base = VerticalStrategy(nn.Linear(width, 1), y, secret=Secret.for_simulation(0, "label"))
    base.widths = {"a": width}
    defended, promised, total = defense(base, s=4.0), [], torch.zeros(rows, width)
    for epoch in range(count):
        for mine in np.random.default_rng(epoch).permutation(rows).reshape(-1, batch):
            defended.begin_batch(mine)
            total[mine] += defended.protect(g[mine], y[mine])[0]
        promised.append((defended.end_epoch(), defended.bound()))
    return promised, leak_auc(-total.norm(dim=1), y)


@pytest.mark.parametrize("defense", [Marvell, MarvellFull])
def test_where_few_batches_have_both_classes_it_is_not_known_what_comes_again_and_nothing_is_promised(defense):
    promised, read = rare(defense, 4, 128)
    assert read > 0.95
    assert promised[1:] == [({}, 1.0)] * 3


def test_an_epoch_without_both_classes_says_nothing():
    course = Course(LABELS.numpy())
    assert course.end_epoch(0.0) == {}
    assert course.largest == math.inf
    base = Marvell(strategy())
    base.begin_batch(np.arange(4))
    base.protect(torch.ones(4, 8), torch.zeros(4, dtype=torch.int64))
    assert base.end_epoch() == {}


@pytest.mark.parametrize("scope", ["joint", "per-party"])
def test_a_run_logs_the_promise_after_each_epoch_beside_that_of_its_steps(tmp_path, scope):
    config = toy_config(
        training={"epochs": 3}, defenses=[{"name": "marvell", "s": 4.0, "scope": scope}], attack={"names": ["norm"]}
    )
    run(config, out=tmp_path / "run", data=lambda _: toy_data())
    steps = read_steps(tmp_path / "run").to_pylist()
    found = [row for row in steps if row["metric"].startswith("marvell.auc_bound_remembered")]
    assert {row["metric"].replace("_remembered", "") for row in found} <= {row["metric"] for row in steps}
    assert {row["epoch"] for row in found} == {1, 2, 3}
    kls = [row["value"] for row in steps if row["metric"].startswith("marvell.sum_kl_remembered")]
    assert all(math.isclose(row["value"], auc_bound(kl)) for row, kl in zip(found, kls, strict=True))


def test_more_classes_than_two_have_no_promise_over_epochs(tmp_path):
    config = toy_config(training={"epochs": 1}, defenses=[{"name": "marvell"}], attack={"names": []})
    run(config, out=tmp_path / "run", data=lambda _: toy_data(classes=3))
    assert not [m for m in read_steps(tmp_path / "run")["metric"].to_pylist() if "remembered" in m]
