"""Correlation between epochs of rows' deviations from their class means, on a sample of the whole table."""

import numpy as np
import pytest
import torch

from flower_vfl.strategies.gradients.deviation_correlation import (
    ENOUGH_ROWS,
    FEWEST_KEPT,
    DeviationCorrelation,
    sample,
    take_in,
)

ROWS, WIDTH, BATCH = 2048, 8, 128
LABELS = (np.arange(ROWS) % 8 == 3).astype(np.int64)
SHARES = (0.8, 0.3)
"""Recurring shares of the deviations of negatives and of positives."""


def epoch(recurring, seed, untrained=0):
    """Yield gradients, labels and rows of each batch; rows of the first `untrained` batches have no recurring part."""
    rng = np.random.default_rng(seed)
    order, shares = rng.permutation(ROWS), np.array(SHARES)[LABELS][:, None]
    g = np.sqrt(shares) * recurring + np.sqrt(1 - shares) * rng.standard_normal((ROWS, WIDTH))
    fresh = order[: untrained * BATCH]
    g[fresh] = rng.standard_normal((len(fresh), WIDTH))
    g += np.where(LABELS == 1, 3.0, -0.5)[:, None]
    for low in range(0, ROWS, BATCH):
        rows = order[low : low + BATCH]
        yield torch.tensor(g[rows]), torch.tensor(LABELS[rows]), rows


def observed(epochs, untrained=0, labels=LABELS):
    recurring = np.random.default_rng(99).standard_normal((ROWS, WIDTH))
    recurrence = DeviationCorrelation(labels)
    for number in range(epochs):
        for g, y, rows in epoch(recurring, number, untrained if number == 0 else 0):
            recurrence.add(g, y, rows)
        recurrence.end_epoch()
    return recurrence


def test_the_recurring_share_is_estimated_for_each_class_and_any_two_epochs():
    """Each entry is within five standard errors, 1 / sqrt(numbers of the class), and the part in the class means."""
    found = observed(3).correlations(3)
    for label, share in enumerate(SHARES):
        numbers = WIDTH * (label == LABELS).sum()
        assert found[label][~np.eye(3, dtype=bool)] == pytest.approx(share, abs=5 / np.sqrt(numbers) + 0.02)
    assert np.diagonal(found, axis1=1, axis2=2) == pytest.approx(1.0)
    assert np.linalg.eigvalsh(found).min() >= -1e-12


@pytest.mark.parametrize("rows", [2, 3, 5])
def test_the_mean_of_a_small_batch_does_not_make_the_recurring_share_smaller(rows):
    """Without the correction the share 0.8 in batches of four, six or ten rows of two classes reads 0.42 to 0.64."""
    count, labels = 4096, np.arange(4096) % 2
    rng = np.random.default_rng(rows)
    recurring, recurrence = rng.standard_normal((count, WIDTH)), DeviationCorrelation(labels)
    for _ in range(2):
        g = np.sqrt(0.8) * recurring + np.sqrt(0.2) * rng.standard_normal((count, WIDTH))
        order = rng.permutation(count)
        for low in range(0, count, 2 * rows):
            part = order[low : low + 2 * rows]
            recurrence.add(torch.tensor(g[part]), torch.tensor(labels[part]), part)
        recurrence.end_epoch()
    assert recurrence.correlations(2)[:, 0, 1] == pytest.approx(0.8, abs=0.05)
    between = recurrence.couplings(2)[:, :WIDTH, WIDTH:]
    assert np.diagonal(between, axis1=1, axis2=2) == pytest.approx(0.8, abs=0.1)


def test_means_of_batches_that_are_the_whole_table_take_nothing_away():
    """They recur with their rows; with half of the table in a batch they do so in half of the cases."""
    labels, found = (np.arange(400) < 200).astype(np.int64), []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        recurring, recurrence = rng.standard_normal((400, WIDTH)), DeviationCorrelation(labels)
        for _ in range(2):
            g = np.sqrt(0.5) * recurring + np.sqrt(0.5) * rng.standard_normal((400, WIDTH))
            recurrence.add(torch.tensor(g), torch.tensor(labels), np.arange(400))
            recurrence.end_epoch()
        found.append(recurrence.correlations(2)[:, 0, 1])
    assert np.mean(found) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("batch", [40, 20])
def test_of_a_rare_class_in_large_batches_the_recurring_share_is_not_too_large(batch):
    """With 4 of 40 rows in each whole batch, a division by 1 - 1 / n would read 0.7 of a share of 0.5."""
    labels, found = (np.arange(40) % 10 == 0).astype(np.int64), []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        recurring, recurrence = rng.standard_normal((40, WIDTH)), DeviationCorrelation(labels)
        for _ in range(2):
            g = np.sqrt(0.5) * recurring + np.sqrt(0.5) * rng.standard_normal((40, WIDTH))
            order = rng.permutation(40)
            for low in range(0, 40, batch):
                part = order[low : low + batch]
                recurrence.add(torch.tensor(g[part]), torch.tensor(labels[part]), part)
            recurrence.end_epoch()
        found.append(recurrence.correlations(2)[1, 0, 1])
    assert np.mean(found) == pytest.approx(0.5, abs=0.05)


def test_batches_without_two_rows_of_a_class_tell_nothing_of_its_deviations():
    labels = (np.arange(64) == 7).astype(np.int64)
    recurrence = DeviationCorrelation(labels)
    for _ in range(2):
        recurrence.add(torch.randn(64, WIDTH), torch.tensor(labels), np.arange(64))
        recurrence.end_epoch()
    assert recurrence.correlations(2) is None
    assert recurrence.couplings(2) is None


def test_the_recurring_part_is_estimated_direction_by_direction():
    """Half of a row's eight numbers recur, rotated; each entry is within six standard errors."""
    rng, rotation = np.random.default_rng(4), np.linalg.qr(np.random.default_rng(5).standard_normal((WIDTH, WIDTH)))[0]
    scales, numbers = np.linspace(0.2, 3.0, WIDTH), rng.standard_normal((2, ROWS, WIDTH))
    second = np.concatenate([numbers[0, :, :4], numbers[1, :, 4:]], axis=1)
    recurrence = DeviationCorrelation(LABELS)
    for values in (numbers[0] * scales, (second * scales) @ rotation):
        recurrence.add(torch.tensor(values), torch.tensor(LABELS), np.arange(ROWS))
        recurrence.end_epoch()
    # The symmetric root of the second epoch's covariance rotates with it.
    expected = np.diag([1.0] * 4 + [0.0] * 4) @ rotation
    for label in (0, 1):
        found = recurrence.couplings(2)[label]
        assert found[:WIDTH, WIDTH:] == pytest.approx(expected, abs=6 / np.sqrt((label == LABELS).sum()))
        assert found[:WIDTH, :WIDTH] == pytest.approx(np.eye(WIDTH))
        assert np.linalg.eigvalsh(found).min() > -1e-9


def test_with_fewer_rows_than_directions_all_deviations_seem_to_recur():
    few = (np.arange(ROWS) % 512 == 0).astype(np.int64)
    found = observed(2, labels=few).couplings(2)
    assert np.linalg.eigvalsh(found).min() > -1e-9
    recurrence = DeviationCorrelation(few)
    for seed in (0, 1):
        g = torch.tensor(np.random.default_rng(seed).standard_normal((ROWS, WIDTH)))
        recurrence.add(g, torch.tensor(few), np.arange(ROWS))
        recurrence.end_epoch()
    sizes = np.linalg.svd(recurrence.couplings(2)[1][:WIDTH, WIDTH:], compute_uv=False)
    assert sizes[:2] == pytest.approx(1.0, abs=0.01)  # four rows about their mean: three directions in each epoch


def test_the_first_batches_of_an_untrained_network_do_not_decide_for_the_epoch():
    """Gradients of a new network correlate with no later ones; a sixteenth of the rows has such gradients."""
    share = 15 / 16 * SHARES[0]
    assert observed(2, untrained=1).correlations(2)[0, 0, 1] == pytest.approx(share, abs=0.06)


def test_the_sample_is_spread_over_the_table_and_has_enough_of_the_rare_class():
    labels = (np.arange(1_000_000) % 1000 == 0).astype(np.int64)
    for width, most in ((32, 1024), (4096, FEWEST_KEPT)):
        rows = sample(labels, width)
        assert (np.bincount(labels[rows]) <= most).all()
        assert (np.bincount(labels[rows]) > 0.9 * most).all()
        for label in (0, 1):
            gaps = np.diff(rows[labels[rows] == label], prepend=-1, append=len(labels))
            assert gaps.max() < 1.1 * len(labels) / min(most, 1000) + 1000
    assert sample(np.zeros(5, dtype=np.int64), 4).tolist() == [0, 1, 2, 3, 4]


def test_rows_that_are_missing_in_an_epoch_are_left_out():
    whole, partly = observed(2), observed(2)
    recurring = np.random.default_rng(99).standard_normal((ROWS, WIDTH))
    for recurrence in (whole, partly):
        for number, (g, y, rows) in enumerate(epoch(recurring, 7)):
            if recurrence is whole or number != 3:
                recurrence.add(g, y, rows)
        recurrence.end_epoch()
    assert partly.correlations(3) == pytest.approx(whole.correlations(3), abs=0.05)
    assert (partly.correlations(3) != whole.correlations(3)).any()
    assert (partly.correlations(2)[0, 0, 1] != observed(2).correlations(2)[0, 0, 1]).all()


def test_without_batches_in_two_epochs_the_correlation_is_unknown():
    assert DeviationCorrelation(LABELS).correlations(2) is None
    assert observed(1).couplings(2) is None
    recurrence = observed(1)
    recurrence.end_epoch()
    assert recurrence.correlations(2) is None
    assert recurrence.couplings(2) is None


def test_after_a_resume_before_the_first_batch_the_correlation_is_unknown():
    resumed = DeviationCorrelation(LABELS)
    resumed.restore(DeviationCorrelation(LABELS).state())
    for _ in range(2):
        resumed.end_epoch()
        assert resumed.correlations(1) is None
        assert resumed.couplings(1) is None


@pytest.mark.parametrize("label", [0, 1])
def test_with_too_few_rows_of_either_class_the_correlation_is_unknown(label):
    """Each row of the class is in one of two epochs, except the first few, which are in both."""
    for both, known in ((ENOUGH_ROWS - 1, False), (ENOUGH_ROWS, True)):
        recurrence = DeviationCorrelation(LABELS)
        rows = np.flatnonzero(label == LABELS)
        always = np.concatenate([rows[:both], np.flatnonzero(label != LABELS)])
        for number, half in enumerate(np.array_split(rows[both:], 2)):
            present = np.sort(np.concatenate([always, half]))
            g = torch.tensor(np.random.default_rng(number).standard_normal((len(present), WIDTH)))
            recurrence.add(g, torch.tensor(LABELS[present]), present)
            recurrence.end_epoch()
        assert (recurrence.correlations(2) is not None) == known
        assert (recurrence.couplings(2) is not None) == known


def test_half_of_the_rows_are_enough_for_a_class_with_few_rows():
    few = (np.arange(ROWS) % 512 == 0).astype(np.int64)  # four rows
    assert observed(2, labels=few).correlations(2) is not None
    for missing, known in ((2, True), (3, False)):
        recurrence, positives = observed(1, labels=few), np.flatnonzero(few)
        present = np.setdiff1d(np.arange(ROWS), positives[:missing])
        recurrence.add(torch.ones(len(present), WIDTH), torch.tensor(few[present]), present)
        recurrence.end_epoch()
        assert (recurrence.correlations(2) is not None) == known


def test_an_epoch_without_deviations_does_not_change_the_correlation_of_the_others():
    recurring = torch.tensor(np.random.default_rng(99).standard_normal((ROWS, WIDTH)))
    recurrence = DeviationCorrelation(LABELS)
    for g in (recurring, torch.zeros(ROWS, WIDTH), recurring):
        recurrence.add(g, torch.tensor(LABELS), np.arange(ROWS))
        recurrence.end_epoch()
    expected = np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 1.0]])
    assert recurrence.correlations(3) == pytest.approx(np.stack([expected] * 2))


def test_it_goes_on_as_if_it_had_not_been_interrupted():
    recurring, straight, other = np.random.default_rng(99).standard_normal((ROWS, WIDTH)), observed(2), None
    for number, (g, y, rows) in enumerate(epoch(recurring, 2)):
        straight.add(g, y, rows)
        if number == 5:
            other = DeviationCorrelation(LABELS)
            other.restore(straight.state())
        elif number > 5:
            other.add(g, y, rows)
    for recurrence in (straight, other):
        recurrence.end_epoch()
    assert (straight.correlations(3) == other.correlations(3)).all()


def class_deviations(g, labels):
    """Return the rows' deviations from the mean of their class, by numpy."""
    found = g.copy()
    for label in (0, 1):
        found[labels == label] -= g[labels == label].mean(axis=0)
    return found


def test_of_a_large_table_each_row_of_the_sample_is_kept_in_its_place_and_no_other():
    labels, width, size = (np.arange(6000) % 3 == 1).astype(np.int64), 64, 500
    rows, rng = sample(labels, width), np.random.default_rng(0)
    assert len(rows) == 1000
    assert rows[-1] < len(labels) - 1
    recurrence, expected = DeviationCorrelation(labels), np.full((len(labels), width), np.nan)
    for batch in rng.permutation(len(labels))[: 8 * size].reshape(8, size):
        g = rng.standard_normal((size, width))
        expected[batch] = class_deviations(g, labels[batch])
        recurrence.add(torch.tensor(g), torch.tensor(labels[batch]), batch)
    np.testing.assert_allclose(recurrence.state()["now"], expected[rows], atol=1e-6)


def test_runs_that_train_together_in_changing_groups_keep_what_each_keeps_alone():
    rng, tables = np.random.default_rng(0), [(np.arange(40 + 8 * run) % 4 == 0).astype(np.int64) for run in range(3)]
    together, alone = ([DeviationCorrelation(labels) for labels in tables] for _ in range(2))
    groups = [(0, 1), (1, 2), (0, 1), (2, 0), (1,), (0, 2, 1), (0, 1, 2)]
    for group in groups * 2:
        batches = [rng.choice(len(tables[run]), 10, replace=False) for run in group]
        deviations = torch.from_numpy(rng.standard_normal((len(group), 10, 3)))
        take_in([together[run] for run in group], deviations, batches)
        for run, of_run, batch in zip(group, deviations, batches, strict=True):
            take_in([alone[run]], of_run[None], [batch])
        for stacked, single in zip(together, alone, strict=True):
            np.testing.assert_array_equal(stacked.state()["now"], single.state()["now"])


def test_a_state_is_not_changed_by_the_objects_that_go_on_from_it():
    recurrence, again = DeviationCorrelation(LABELS), DeviationCorrelation(LABELS)
    (first, second, *_) = epoch(np.zeros((ROWS, WIDTH)), 1)
    recurrence.add(*first)
    state = recurrence.state()
    kept = state["now"].clone()
    again.restore(state)
    for one in (recurrence, again):
        one.add(*second)
    assert torch.equal(state["now"].nan_to_num(), kept.nan_to_num())
