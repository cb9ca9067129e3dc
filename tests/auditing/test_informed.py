"""The informed audit catches defenses that no named attack breaks, and raises no false alarms."""

import copy
import re
from functools import partial, wraps

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from flower_vfl.auditing import informed
from flower_vfl.checkpoint import load_state, save_state
from tests.auditing.runs import WIDTH, audit_of, entries_of, entry_of_gradients, follow, noise
from tests.cases import parametrize

N = 4000
Y = (np.arange(N) % 5 == 0).astype(np.int64)
Z = np.random.default_rng(9).normal(size=(N, WIDTH)).astype(np.float32)


def in_all_bits(send):
    """Return a sender whose numbers use all their bits: after a sum some do not, which alone reveals a class."""

    @wraps(send)
    def divided(step, rows):
        z, g = send(step, rows)
        return z, g / np.float32(3)

    return divided


@in_all_bits
def shifted(step, rows):
    """Return normal gradients, those of positives shifted by half a standard deviation."""
    g = noise(step, rows)
    g[:, 0] += 0.5 * Y[rows]
    return Z[rows], g


@in_all_bits
def turned(step, rows):
    """Return gradients with a shift in another direction in each batch: batches cannot be read together."""
    g, direction = noise(step, rows), noise(step, rows[:1], salt=1)[0]
    g += 4 * Y[rows][:, None] * direction / np.linalg.norm(direction)
    return Z[rows], g


def paired(step, rows):
    """Return gradients in which the product of two coordinates has the label's sign, while neither depends on it."""
    g = noise(step, rows)
    g[:, 1] = np.abs(g[:, 1]) * np.sign(g[:, 0]) * (2 * Y[rows] - 1)
    return Z[rows], g


def sparse(step, rows):
    """Return gradients of one length with an exact zero in a column that depends on the label."""
    g = noise(step, rows)
    g[np.arange(len(rows)), np.where(Y[rows], 3, 5)] = 0.0
    return Z[rows], g / np.linalg.norm(g, axis=1, keepdims=True)


def rounded(step, rows):
    """Return noise on a fine grid, which is offset by half a cell for positives."""
    cells = np.floor(noise(step, rows, width=32) / 0.05)
    return np.zeros_like(cells), (0.05 * (cells + 0.5 * Y[rows][:, None])).astype(np.float32)


def finely_rounded(step, rows):
    """Return noise on a grid with more cells than positives of a batch have numbers, offset by half a cell for them."""
    cells = np.floor(noise(step, rows, width=32) / 0.002)
    return np.zeros_like(cells), (0.002 * (cells + 0.5 * Y[rows][:, None])).astype(np.float32)


def tied(step, rows):
    """Return coordinates with other pairs in each batch, which mostly agree in sign for positives and else do not."""
    g, draws = noise(step, rows, width=32), np.random.default_rng([step, 3])
    first, second = draws.permutation(32).reshape(2, 16)
    agree = np.where(draws.random((len(rows), 16)) < 0.8, 1, -1) * (2 * Y[rows] - 1)[:, None]
    g[:, second] = np.abs(g[:, second]) * np.sign(g[:, first]) * agree
    return np.zeros_like(g), g


@in_all_bits
def opposite(step, rows):
    """Return noise of one power, which positives of a batch receive in pairs of opposite sign."""
    g = noise(step, rows, width=32)
    positives = np.flatnonzero(Y[rows])
    half = len(positives) // 2
    g[positives[half : 2 * half]] = -g[positives[:half]] + 0.1 * noise(step, rows[:half], width=32, salt=1)
    return np.zeros_like(g), g


def heavy(step, rows):
    """Return noise of Cauchy's distribution, around an eighth of its scale for positives."""
    draws = np.random.default_rng([step, 5])
    return Z[rows], (draws.standard_cauchy((len(rows), WIDTH)) + Y[rows][:, None] / 8).astype(np.float32)


@in_all_bits
def shared(step, rows):
    """Return a shift of positives under noise that is 100 times as long, and the same in four rows of the batch."""
    parts = -(-len(rows) // 4)
    g = 100 * np.tile(noise(step, rows[:parts], width=32), (4, 1))[: len(rows)]
    return np.zeros_like(g), g + noise(step, rows, width=32, salt=1) + 2 * Y[rows][:, None].astype(np.float32)


@in_all_bits
def reseeded(step, rows):
    """Return a shift of positives under noise that is 100 times as long, and the same in each step."""
    g = 100 * np.random.default_rng(5).normal(size=(256, 32))[: len(rows)].astype(np.float32)
    return np.zeros_like(g), g + noise(step, rows, width=32, salt=1) + Y[rows][:, None].astype(np.float32)


def averaged(step, rows):
    """Return the mean of each row's gradient with that of the next row of the batch."""
    draws = np.random.default_rng([step, 6])
    slope = draws.uniform(0.1, 1, size=len(rows)) * (2 * Y[rows] - 1)
    g = slope[:, None] * (np.ones(WIDTH) + 0.3 * draws.normal(size=(len(rows), WIDTH)))
    return np.zeros_like(g), ((g + np.roll(g, -1, axis=0)) / 2).astype(np.float32)


def beside(step, rows):
    """Return four zeros in each row, which lie beside each other for positives and anywhere for others."""
    g, draws = noise(step, rows, width=16), np.random.default_rng([step, 7])
    run = (draws.integers(16, size=(len(rows), 1)) + np.arange(4)) % 16
    anywhere = draws.random(g.shape).argsort(axis=1)[:, :4]
    np.put_along_axis(g, np.where(Y[rows][:, None], run, anywhere), 0.0, axis=1)
    return np.zeros_like(g), g


def following(step, rows):
    """Return noise that correlates with the row before it in the batch, by 0.7 for positives and -0.7 for others."""
    g = noise(step, rows, width=16)
    for place, sign in enumerate(2 * Y[rows[1:]] - 1, start=1):
        g[place] = 0.7 * sign * g[place - 1] + 0.51**0.5 * g[place]
    return np.zeros_like(g), g


def late():
    """Return a sender of shifted gradients, at the same positions of the next step."""
    kept = [np.zeros((0, WIDTH), dtype=np.float32)]

    @in_all_bits
    def send(step, rows):
        before, g = kept[0], noise(step, rows, salt=1)
        both = min(len(before), len(g))
        g[:both] = before[:both]
        kept[0] = noise(step, rows) + 3 * Y[rows][:, None].astype(np.float32)
        return np.zeros_like(g), g

    return send


def averaged_over_steps():
    """Return a sender of a moving average, position by position, of shifted gradients."""
    kept = [np.zeros((0, WIDTH), dtype=np.float32)]

    @in_all_bits
    def send(step, rows):
        before, g = kept[0], noise(step, rows) + 3 * Y[rows][:, None].astype(np.float32)
        both = min(len(before), len(g))
        g[:both] = 0.9 * before[:both] + 0.1 * g[:both]
        kept[0] = g
        return np.zeros_like(g), g

    return send


def halved(step, rows):
    """Return noise that has half precision in the rows of positives."""
    g = noise(step, rows)
    return np.zeros_like(g), np.where(Y[rows][:, None], g.astype(np.float16).astype(np.float32), g)


@in_all_bits
def cancelling(step, rows):
    """Return shifted gradients whose noise is, in one half of the batch, the opposite of that in the other half."""
    g, half = noise(step, rows), len(rows) // 2
    g[half : 2 * half] = -g[:half]
    return np.zeros_like(g), g + 0.02 * Y[rows][:, None].astype(np.float32)


def masked(step, rows):
    """Return gradients whose sign reveals the label only together with the embedding."""
    g = noise(step, rows)
    g[:, 2] = np.abs(g[:, 2]) * np.sign(Z[rows][:, 2]) * (2 * Y[rows] - 1)
    return Z[rows], g


@in_all_bits
def slow(step, rows):
    """Return gradients with a shift of 0.3 standard deviations of the noise, which is drawn anew in each epoch."""
    g = noise(step, rows)
    g[:, 0] += 0.3 * Y[rows]
    return Z[rows], g


@parametrize(
    ("send", "least"),
    [
        *[(turned, 0.9), (paired, 0.98), (sparse, 0.95), (rounded, 0.97), (tied, 0.85), (opposite, 0.95)],
        *[(shared, 0.95), (reseeded, 0.95), (averaged, 0.985)],
        *[
            (beside, 0.95),
            (following, 0.97),
            (late(), 0.93),
            (averaged_over_steps(), 0.95),
            (halved, 0.98),
            (finely_rounded, 0.97),
            (cancelling, 0.9),
        ],
    ],
    ids=[
        "a direction a batch",
        "a product of two",
        "zeros at chosen places",
        "a grid",
        "pairs a batch",
        "opposite rows",
        "noise of four rows",
        "noise of all steps",
        "means with the next row",
        "zeros beside each other",
        "correlation with the row before",
        "gradients of the step before",
        "a moving average over steps",
        "half precision",
        "a fine grid",
        "noise that cancels",
    ],
    quick=1,
)
def test_a_defense_that_no_named_attack_breaks_is_caught(send, least):
    alone = entry_of_gradients(Y, send)
    assert alone["mean"] > least
    assert alone["interval95"][0] > 0.5
    assert alone["p_value"] < 1e-6


def test_noise_that_another_row_cancels_is_removed_before_a_gradient_is_read():
    found = entry_of_gradients(Y, cancelling)["candidates"]
    assert next(one["auc"] for one in found if one["reader"] == "context") > 0.85


def test_a_reader_that_is_mostly_wrong_is_turned_around():
    """Rows lie opposite to others of their class where each class has the same mean in a batch."""
    y = np.arange(N) % 2

    @in_all_bits
    def send(step, rows):
        g = noise(step, rows, width=32)
        for label in (0, 1):
            g[y[rows] == label] -= g[y[rows] == label].mean(axis=0)
        return np.zeros_like(g), g

    alone = entry_of_gradients(y, send)
    assert alone["mean"] > 0.58
    assert alone["interval95"][0] > 0.55
    assert alone["span"] == "batch"


def test_the_auc_of_a_shift_of_means_is_its_closed_form():
    alone = entry_of_gradients(Y, shifted)
    best = norm.cdf(0.5 / np.sqrt(2))
    low, high = alone["interval95"]
    assert low < best < high + 0.02
    assert alone["rows"] == pytest.approx(N / 2, rel=0.1)


def test_where_few_of_many_steps_are_sampled_two_in_a_row_are(monkeypatch):
    """The gradients of the step before are read only there."""
    monkeypatch.setattr(informed, "FEW_ROWS", N // 16)
    thinned = entry_of_gradients(Y, shifted, every=5)
    assert "around" in {one["reader"] for one in thinned["candidates"]}


@pytest.mark.slow
def test_an_epoch_of_few_rows_is_sampled_whole_however_few_steps_are_scored():
    whole, sparse = (entry_of_gradients(Y, shifted, every=every)["candidates"] for every in (1, 16))
    assert sparse == whole


def test_readers_of_gradients_alone_are_candidates_with_embeddings_too():
    """Embeddings of noise must not make a reader worse that need not use them."""
    alone, joint = entries_of(Y, shifted)
    names = {one["reader"] for one in alone["candidates"] if one["span"] == "epoch"}
    assert names <= {one["reader"] for one in joint["candidates"]}


@pytest.mark.slow
def test_where_a_discriminant_separates_the_classes_no_tree_and_no_network_is_fitted():
    def parted(step, rows):
        return Z[rows], noise(step, rows) + 8 * Y[rows][:, None].astype(np.float32)

    closed = {"linear", "quadratic", "bounded", "context", "pairs", "around"}
    for send, readers in ((shifted, closed | {"trees", "network"}), (parted, closed)):
        alone = entry_of_gradients(Y, send)
        assert {one["reader"] for one in alone["candidates"] if one["span"] == "epoch"} == readers


@pytest.mark.slow
def test_baselines_without_gradients_always_have_trees_and_a_network(monkeypatch):
    def send(step, rows):
        apart = 8 * Y[rows][:, None].astype(np.float32)
        return Z[rows] + apart, noise(step, rows) + apart

    widths = {name: [] for name in informed.LEARNERS}

    def noted(name, fit, x, *rest, **more):
        widths[name].append(x.shape[1])
        return fit(x, *rest, **more)

    recorded = {name: partial(noted, name, fit) for name, fit in informed.LEARNERS.items()}
    monkeypatch.setattr(informed, "LEARNERS", recorded)
    entries_of(Y, send, epochs=2)
    assert widths == {name: [WIDTH] * 2 for name in widths}  # embeddings of one epoch and of the rows of all


@pytest.mark.slow
def test_a_group_reads_what_its_member_with_all_the_signal_does():
    y, widths = Y[:1600], (8, 64)

    @in_all_bits
    def send(step, rows):
        g = noise(step, rows, width=sum(widths))
        g[:, : widths[0]] += 2.5 / np.sqrt(2 * widths[0]) * y[rows][:, None]  # over two epochs 2.5 deviations
        return np.zeros_like(g), g

    group, joint = entries_of(y, send, epochs=2, members=("a", "b"), widths=widths)
    best = norm.cdf(2.5 / np.sqrt(2))
    for entry in (group, joint):
        assert entry["member"] == "a"
        assert entry["mean"] == pytest.approx(best, abs=0.02)
    together = max(one["auc"] for one in group["candidates"] if "member" not in one)
    assert together < best - 0.03  # noise of many numbers hides a signal of a few


@pytest.mark.slow
def test_noise_that_is_drawn_anew_is_averaged_over_epochs():
    alone = entry_of_gradients(Y, slow, epochs=16)
    assert alone["span"] == "epochs"
    assert alone["mean"] > norm.cdf(0.3 * np.sqrt(16) / np.sqrt(2)) - 0.06


@pytest.mark.slow
def test_noise_without_a_mean_is_averaged_over_epochs():
    """The sign of a coordinate has the mean shift 2 / pi / 8 and variance 1; WIDTH coordinates, 16 epochs."""
    alone = entry_of_gradients(Y, heavy, epochs=16)
    shift = 2 / np.pi * np.arctan(1 / 8)
    assert alone["mean"] > norm.cdf(shift * np.sqrt(16 * WIDTH) / np.sqrt(2)) - 0.04


@pytest.mark.slow
def test_lengths_of_many_epochs_are_read_where_directions_say_nothing():
    """The best score is the mean of 16 normal logarithms of lengths, whose classes lie 0.5 deviations apart."""

    def send(step, rows):
        g = noise(step, rows)
        lengths = np.exp(noise(step, rows, width=1, salt=1) + 0.5 * Y[rows][:, None])
        return Z[rows], (g / np.linalg.norm(g, axis=1, keepdims=True) * lengths).astype(np.float32)

    alone = entry_of_gradients(Y, send, epochs=16)
    assert alone["span"] == "epochs"
    assert alone["mean"] == pytest.approx(norm.cdf(0.5 * np.sqrt(16) / np.sqrt(2)), abs=0.03)


@pytest.mark.slow
def test_the_order_in_which_a_sign_changes_over_epochs_is_read():
    """The gradients of all rows have the mean 0, one length, and opposite signs in the first and the last epoch."""
    fixed = np.random.default_rng(8).normal(size=(N, WIDTH)).astype(np.float32)
    signs = np.array([[1, -1, 1, -1], [1, 1, -1, -1]])

    def send(step, rows):
        epoch = 4 * step // schedule.steps
        return Z[rows], signs[Y[rows], epoch][:, None] * fixed[rows] + 0.3 * noise(step, rows)

    audit, schedule = audit_of(Y, epochs=4)
    follow(audit, schedule, send)
    audit.finish()
    assert audit.entries()[1]["span"] == "epochs"
    assert audit.entries()[1]["mean"] > 0.99


def test_a_label_that_only_embeddings_unlock_is_a_gain_over_them():
    alone, joint = entries_of(Y, masked)
    assert alone["mean"] < 0.6
    assert joint["mean"] > 0.95
    assert joint["baseline"] < 0.6
    assert joint["advantage"] == pytest.approx(joint["mean"] - joint["baseline"])
    assert joint["advantage_p_value"] < 1e-6


def test_of_several_classes_the_gain_is_that_of_the_class_which_gradients_reveal():
    """The class that embeddings give away has the largest AUC, with gradients and without."""
    y = np.arange(N) % 5

    def send(step, rows):
        z, g = Z[rows].copy(), noise(step, rows)
        z[:, 0] += 6 * (y[rows] == 0)
        g[:, 2] = np.abs(g[:, 2]) * np.sign(z[:, 2]) * (2 * (y[rows] == 3) - 1)
        return z, g

    joint = entries_of(y, send, classes=5, positives=range(5))[1]
    assert joint["positive_class"] == 3
    assert joint["advantage"] > 0.3


def test_what_embeddings_tell_by_themselves_is_no_gain():
    def send(step, rows):
        z = Z[rows].copy()
        z[:, 0] += 2 * Y[rows]
        return z, noise(step, rows)

    _, joint = entries_of(Y, send)
    exact = norm.cdf(2 / np.sqrt(2))
    assert joint["baseline"] == pytest.approx(exact, abs=0.03)
    assert joint["advantage_interval95"][0] < 0.005


@pytest.mark.slow
def test_an_audit_that_was_interrupted_reads_what_an_undisturbed_one_does():
    whole, schedule = audit_of(Y, epochs=2)
    follow(whole, schedule, shifted)
    half, _ = audit_of(Y, epochs=2)
    follow(half, schedule, shifted, range(19))
    state = copy.deepcopy(half.state())
    after, _ = audit_of(Y, epochs=2)
    after.restore(state)
    follow(after, schedule, shifted, range(19, schedule.steps))
    for audit in (whole, after):
        audit.finish()
    assert after.entries() == whole.entries()


def test_a_class_with_too_few_rows_gives_a_reason_and_no_number():
    y = np.zeros(N, dtype=np.int64)
    y[:30] = 1
    alone, joint = entries_of(y, lambda step, rows: (Z[rows], noise(step, rows)))
    for entry in (alone, joint):
        assert entry["mean"] is None
        assert "too few rows" in entry["unavailable"]
        assert "class 1" in entry["unavailable"]


def test_of_three_classes_the_one_that_leaks_is_named():
    y = np.arange(N // 2) % 3

    def send(step, rows):
        g = noise(step, rows)
        g[:, 0] += 2.0 * (y[rows] == 2)
        return Z[rows], g

    alone = entry_of_gradients(y, send, classes=3, positives=(0, 1, 2))
    assert alone["positive_class"] == 2
    assert alone["mean"] == pytest.approx(norm.cdf(2 / np.sqrt(2)), abs=0.04)


def test_batches_of_zeros_do_not_keep_others_from_being_read():
    def send(step, rows):
        g = shifted(step, rows)[1]
        g[:, 0] += 2.0 * Y[rows]
        return Z[rows], g * 0 if step % 3 == 0 else g

    alone = entry_of_gradients(Y, send)
    assert 0.75 < alone["mean"] < norm.cdf(2.5 / np.sqrt(2))  # below the AUC if no batch were zeros


def test_classes_with_too_few_rows_for_a_reader_are_named():
    rng = np.random.default_rng(8)
    y = rng.choice(4, size=N, p=[0.5, 0.49, 0.005, 0.005])
    alone, joint = entries_of(y, lambda step, rows: (Z[rows], noise(step, rows)), classes=4, positives=range(4))
    for entry in (alone, joint):
        assert entry["mean"] is not None
        assert re.match(r"too few rows to .*class 2 .*; likewise for 1 further class$", entry["unread"])


def test_in_time_order_the_rows_of_all_days_are_read_not_those_of_one_day():
    def send(step, rows):
        g = noise(step, rows)
        g[:, 0] += 1.2 * Y[rows]
        return Z[rows], g

    alone = entry_of_gradients(Y, send, periods=(N // 8,) * 8, seed=1)
    low, high = alone["interval95"]
    assert (alone["span"], alone["rows"] > 1000) == ("epochs", True)  # of one day about 240 rows are scored
    assert high - low < 0.06
    assert alone["mean"] == pytest.approx(norm.cdf(1.2 / np.sqrt(2)), abs=0.03)


def test_what_tells_the_day_of_a_row_tells_no_label():
    """The gradients show the day, whose share of positives rises from one to nine of ten, and nothing of a row."""
    days, generator = np.repeat(np.arange(8), 256), np.random.default_rng(6)
    y = (generator.random(2048) < np.where(days < 4, 0.1, 0.9)).astype(np.int64)

    def send(step, rows):
        g = 0.1 * noise(step, rows)
        rare = np.random.default_rng(step).random(len(rows)) < 0.1
        g[:, 0] += np.where(rare, -9.0, 1.0) * (1 if days[rows[0]] < 4 else -1)
        return Z[rows % N], g

    audit, schedule = audit_of(y, rows=8192, periods=(256,) * 8)
    follow(audit, schedule, send)
    audit.finish()
    (along,) = direction_entries(audit)
    alone = next(entry for entry in audit.entries() if entry["attack"] == "informed")
    assert abs(along["values"][-1] - 0.5) < 0.1
    assert abs(alone["mean"] - 0.5) < 0.12


def test_of_a_long_stream_the_panel_has_whole_batches_that_lose_nothing_of_a_leak():
    """With rows drawn one by one, 512 of 64 batches are 8 of each, and ranks among 8 rows hide a part of the leak."""
    y = (np.random.default_rng(8).random(64 * 256) < 0.3).astype(np.int64)

    def send(step, rows):
        g = 0.1 * noise(step, rows)
        g[:, 0] += noise(step, rows, salt=1)[:, 0] + 3.0 * y[rows]
        return Z[rows % N], g

    audit, schedule = audit_of(y, rows=4096, periods=(2048,) * 8)
    follow(audit, schedule, send)
    (along,) = direction_entries(audit)
    assert along["values"][-1] == pytest.approx(norm.cdf(3.0 / np.sqrt(2)), abs=0.02)


def direction_entries(audit):
    return [entry for entry in audit.entries() if entry["attack"] == "remembered_direction"]


def test_the_panel_is_read_by_its_first_direction_without_a_label():
    audit, schedule = audit_of(Y, epochs=4)

    def send(step, rows):
        g = noise(step, rows)
        g[:, 0] += 2.0 * Y[rows]
        return Z[rows], g

    follow(audit, schedule, send)
    (entry,) = direction_entries(audit)
    sums = np.zeros((N, WIDTH), dtype=np.float64)
    for step in range(schedule.steps):
        rows = schedule.train_batch(step)
        sums[rows] += send(step, rows)[1]
    x = sums - sums.mean(axis=0)
    along = x @ np.linalg.svd(x, full_matrices=False)[2][0]
    exact = roc_auc_score(Y, along)
    assert entry["values"][-1] == pytest.approx(max(exact, 1 - exact), abs=0.02)
    assert entry["epochs"] == [1, 2, 3, 4]


def test_with_several_classes_the_direction_is_that_of_the_class_it_reads_most_clearly(tmp_path):
    y = np.random.default_rng(3).choice(3, size=N, p=[0.6, 0.3, 0.1])

    def send(step, rows):
        g = noise(step, rows)
        g[:, 0] += 1.5 * (y[rows] == 1)
        return Z[rows], g

    audit, schedule = audit_of(y, epochs=2, classes=3, positives=(0, 1, 2))
    first = len(schedule.steps_of(1)) + 3
    follow(audit, schedule, send, range(first))
    save_state(tmp_path / "state", audit.state())
    resumed, _ = audit_of(y, epochs=2, classes=3, positives=(0, 1, 2))
    resumed.restore(load_state(tmp_path / "state"))
    follow(resumed, schedule, send, range(first, schedule.steps))
    follow(audit, schedule, send, range(first, schedule.steps))
    (entry,) = direction_entries(audit)
    assert direction_entries(resumed) == [entry]
    assert (entry["class"], entry["classes"]) == (1, 3)
    sums = np.zeros((N, WIDTH), dtype=np.float64)
    for step in range(schedule.steps):
        rows = schedule.train_batch(step)
        sums[rows] += send(step, rows)[1]
    x = sums - sums.mean(axis=0)
    exact = roc_auc_score(y == 1, x @ np.linalg.svd(x, full_matrices=False)[2][0])
    assert entry["values"][-1] == pytest.approx(max(exact, 1 - exact), abs=0.02)


@parametrize("classes", [2, 5], quick=1)
@pytest.mark.parametrize("periods", [(), (64,) * 16], ids=["all rows in each epoch", "more rows with each day"])
def test_of_60_panels_of_noise_at_most_8_are_called_leaking(classes, periods, monkeypatch):
    """At a rate of 5 % more than 8 have a probability of 0.3 %."""
    from flower_vfl.auditing.p_values import practical_p_value

    monkeypatch.setattr(informed, "DISCRIMINANTS", {})  # the panel is read without them
    shares = {2: [0.9, 0.1], 5: [0.5, 0.2, 0.15, 0.1, 0.05]}[classes]
    y, alarms = np.random.default_rng(4).choice(classes, size=1024, p=shares), 0
    positives = range(classes) if classes > 2 else (1,)
    for seed in range(60):
        audit, schedule = audit_of(
            y, epochs=2, classes=classes, positives=positives, seed=seed, rows=4096, periods=periods
        )
        follow(audit, schedule, lambda step, rows, seed=seed: (Z[rows], noise(step, rows, salt=seed)))
        (entry,) = direction_entries(audit)
        alarms += practical_p_value(entry) <= 0.05
    assert alarms <= 8


def test_wide_gradients_are_kept_in_bounded_memory():
    from flower_vfl.auditing.informed import MOST_BYTES, informed_rows

    assert informed_rows(65_536, 3200) * 3200 * 4 <= MOST_BYTES
    assert informed_rows(65_536, 72) == 65_536


def test_gradients_in_half_precision_are_read():
    alone = entry_of_gradients(Y, lambda step, rows: tuple(torch.as_tensor(t).bfloat16() for t in shifted(step, rows)))
    assert alone["mean"] > 0.55
