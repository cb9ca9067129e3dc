"""How much of a row's deviation from its class comes again, measured on rows of the whole table."""

import numpy as np
import pytest
import torch

from flower_vfl.strategies.gradients.deviation_correlation import ENOUGH, FEWEST, Recurrence, sample, take_in

ROWS, WIDTH, BATCH = 2048, 8, 128
LABELS = (np.arange(ROWS) % 8 == 3).astype(np.int64)
SHARES = (0.8, 0.3)
"""What of a negative's and of a positive's deviation comes again."""


def epoch(own, seed, untrained=0):
    """Batches of an epoch: gradients, labels, rows; rows of the first `untrained` batches have nothing of their own."""
    rng = np.random.default_rng(seed)
    order, shares = rng.permutation(ROWS), np.array(SHARES)[LABELS][:, None]
    g = np.sqrt(shares) * own + np.sqrt(1 - shares) * rng.standard_normal((ROWS, WIDTH))
    bare = order[: untrained * BATCH]
    g[bare] = rng.standard_normal((len(bare), WIDTH))
    g += np.where(LABELS == 1, 3.0, -0.5)[:, None]
    for low in range(0, ROWS, BATCH):
        rows = order[low : low + BATCH]
        yield torch.tensor(g[rows]), torch.tensor(LABELS[rows]), rows


def seen(epochs, untrained=0, labels=LABELS):
    own = np.random.default_rng(99).standard_normal((ROWS, WIDTH))
    recurrence = Recurrence(labels)
    for number in range(epochs):
        for g, y, rows in epoch(own, number, untrained if number == 0 else 0):
            recurrence.add(g, y, rows)
        recurrence.end_epoch()
    return recurrence


def test_what_comes_again_is_found_for_each_class_and_any_two_epochs():
    """Each entry within five standard errors, 1 / sqrt(numbers of the class), and what the class means take away."""
    found = seen(3).correlations(3)
    for label, share in enumerate(SHARES):
        numbers = WIDTH * (label == LABELS).sum()
        assert found[label][~np.eye(3, dtype=bool)] == pytest.approx(share, abs=5 / np.sqrt(numbers) + 0.02)
    assert np.diagonal(found, axis1=1, axis2=2) == pytest.approx(1.0)
    assert np.linalg.eigvalsh(found).min() >= -1e-12


def test_what_comes_again_is_found_direction_by_direction():
    """Of a negative's eight numbers half come again, mixed with each other; each entry within five standard errors."""
    rng, turn = np.random.default_rng(4), np.linalg.qr(np.random.default_rng(5).standard_normal((WIDTH, WIDTH)))[0]
    stretch, numbers = np.linspace(0.2, 3.0, WIDTH), rng.standard_normal((2, ROWS, WIDTH))
    second = np.concatenate([numbers[0, :, :4], numbers[1, :, 4:]], axis=1)
    recurrence = Recurrence(LABELS)
    for values in (numbers[0] * stretch, (second * stretch) @ turn):
        recurrence.add(torch.tensor(values), torch.tensor(LABELS), np.arange(ROWS))
        recurrence.end_epoch()
    # The symmetric root of the second epoch's covariance turns with it.
    expected = np.diag([1.0] * 4 + [0.0] * 4) @ turn
    for label in (0, 1):
        found = recurrence.couplings(2)[label]
        assert found[:WIDTH, WIDTH:] == pytest.approx(expected, abs=6 / np.sqrt((label == LABELS).sum()))
        assert found[:WIDTH, :WIDTH] == pytest.approx(np.eye(WIDTH))
        assert np.linalg.eigvalsh(found).min() > -1e-9


def test_of_fewer_rows_than_directions_all_seems_to_come_again():
    few = (np.arange(ROWS) % 512 == 0).astype(np.int64)
    found = seen(2, labels=few).couplings(2)
    assert np.linalg.eigvalsh(found).min() > -1e-9
    recurrence = Recurrence(few)
    for seed in (0, 1):
        g = torch.tensor(np.random.default_rng(seed).standard_normal((ROWS, WIDTH)))
        recurrence.add(g, torch.tensor(few), np.arange(ROWS))
        recurrence.end_epoch()
    sizes = np.linalg.svd(recurrence.couplings(2)[1][:WIDTH, WIDTH:], compute_uv=False)
    assert sizes[:2] == pytest.approx(1.0, abs=0.01)  # four rows about their mean: three directions in each epoch


def test_the_first_batches_of_a_network_that_knows_nothing_yet_do_not_stand_for_the_epoch():
    """Gradients of a new network are like no later ones; with a sixteenth of the rows there, so much is missing."""
    share = 15 / 16 * SHARES[0]
    assert seen(2, untrained=1).correlations(2)[0, 0, 1] == pytest.approx(share, abs=0.06)


def test_the_sample_is_spread_over_the_table_and_has_enough_of_the_rare_class():
    labels = (np.arange(1_000_000) % 1000 == 0).astype(np.int64)
    for width, most in ((32, 1024), (4096, FEWEST)):
        rows = sample(labels, width)
        assert (np.bincount(labels[rows]) <= most).all()
        assert (np.bincount(labels[rows]) > 0.9 * most).all()
        for label in (0, 1):
            gaps = np.diff(rows[labels[rows] == label], prepend=-1, append=len(labels))
            assert gaps.max() < 1.1 * len(labels) / min(most, 1000) + 1000
    assert sample(np.zeros(5, dtype=np.int64), 4).tolist() == [0, 1, 2, 3, 4]


def test_rows_that_did_not_come_in_each_epoch_are_left_out():
    whole, partly = seen(2), seen(2)
    own = np.random.default_rng(99).standard_normal((ROWS, WIDTH))
    for recurrence in (whole, partly):
        for number, (g, y, rows) in enumerate(epoch(own, 7)):
            if recurrence is whole or number != 3:
                recurrence.add(g, y, rows)
        recurrence.end_epoch()
    assert partly.correlations(3) == pytest.approx(whole.correlations(3), abs=0.05)
    assert (partly.correlations(3) != whole.correlations(3)).any()
    assert (partly.correlations(2)[0, 0, 1] != seen(2).correlations(2)[0, 0, 1]).all()


def test_of_what_never_came_it_is_not_known_whether_it_comes_again():
    assert Recurrence(LABELS).correlations(2) is None
    assert seen(1).couplings(2) is None
    recurrence = seen(1)
    recurrence.end_epoch()
    assert recurrence.correlations(2) is None
    assert recurrence.couplings(2) is None


def test_what_was_resumed_before_anything_came_knows_nothing_either():
    resumed = Recurrence(LABELS)
    resumed.restore(Recurrence(LABELS).state())
    for _ in range(2):
        resumed.end_epoch()
        assert resumed.correlations(1) is None
        assert resumed.couplings(1) is None


@pytest.mark.parametrize("label", [0, 1])
def test_too_few_rows_of_either_class_say_nothing(label):
    """Each row of the class comes in one of two epochs, but for some that come in both."""
    for both, known in ((ENOUGH - 1, False), (ENOUGH, True)):
        recurrence = Recurrence(LABELS)
        rows = np.flatnonzero(label == LABELS)
        always = np.concatenate([rows[:both], np.flatnonzero(label != LABELS)])
        for number, half in enumerate(np.array_split(rows[both:], 2)):
            came = np.sort(np.concatenate([always, half]))
            g = torch.tensor(np.random.default_rng(number).standard_normal((len(came), WIDTH)))
            recurrence.add(g, torch.tensor(LABELS[came]), came)
            recurrence.end_epoch()
        assert (recurrence.correlations(2) is not None) == known
        assert (recurrence.couplings(2) is not None) == known


def test_a_class_with_few_rows_is_known_by_half_of_them():
    few = (np.arange(ROWS) % 512 == 0).astype(np.int64)  # four rows
    assert seen(2, labels=few).correlations(2) is not None
    for missing, known in ((2, True), (3, False)):
        recurrence, positives = seen(1, labels=few), np.flatnonzero(few)
        came = np.setdiff1d(np.arange(ROWS), positives[:missing])
        recurrence.add(torch.ones(len(came), WIDTH), torch.tensor(few[came]), came)
        recurrence.end_epoch()
        assert (recurrence.correlations(2) is not None) == known


def test_an_epoch_in_which_nothing_deviates_does_not_hide_what_comes_again_in_the_others():
    own = torch.tensor(np.random.default_rng(99).standard_normal((ROWS, WIDTH)))
    recurrence = Recurrence(LABELS)
    for g in (own, torch.zeros(ROWS, WIDTH), own):
        recurrence.add(g, torch.tensor(LABELS), np.arange(ROWS))
        recurrence.end_epoch()
    expected = np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 1.0]])
    assert recurrence.correlations(3) == pytest.approx(np.stack([expected] * 2))


def test_it_goes_on_as_if_it_had_not_been_interrupted():
    own, straight, other = np.random.default_rng(99).standard_normal((ROWS, WIDTH)), seen(2), None
    for number, (g, y, rows) in enumerate(epoch(own, 2)):
        straight.add(g, y, rows)
        if number == 5:
            other = Recurrence(LABELS)
            other.restore(straight.state())
        elif number > 5:
            other.add(g, y, rows)
    for recurrence in (straight, other):
        recurrence.end_epoch()
    assert (straight.correlations(3) == other.correlations(3)).all()


def away_from_means(g, labels):
    """How rows deviate from the mean of their class, by numpy."""
    found = g.copy()
    for label in (0, 1):
        found[labels == label] -= g[labels == label].mean(axis=0)
    return found


def test_of_a_large_table_each_row_of_the_sample_is_kept_in_its_place_and_no_other():
    labels, width, size = (np.arange(6000) % 3 == 1).astype(np.int64), 64, 500
    rows, rng = sample(labels, width), np.random.default_rng(0)
    assert len(rows) == 1000
    assert rows[-1] < len(labels) - 1
    recurrence, expected = Recurrence(labels), np.full((len(labels), width), np.nan)
    for batch in rng.permutation(len(labels))[: 8 * size].reshape(8, size):
        g = rng.standard_normal((size, width))
        expected[batch] = away_from_means(g, labels[batch])
        recurrence.add(torch.tensor(g), torch.tensor(labels[batch]), batch)
    np.testing.assert_allclose(recurrence.state()["now"], expected[rows], atol=1e-6)


def test_runs_that_train_together_in_changing_company_keep_what_each_keeps_alone():
    rng, tables = np.random.default_rng(0), [(np.arange(40 + 8 * run) % 4 == 0).astype(np.int64) for run in range(3)]
    together, alone = ([Recurrence(labels) for labels in tables] for _ in range(2))
    companies = [(0, 1), (1, 2), (0, 1), (2, 0), (1,), (0, 2, 1), (0, 1, 2)]
    for company in companies * 2:
        batches = [rng.choice(len(tables[run]), 10, replace=False) for run in company]
        away = torch.from_numpy(rng.standard_normal((len(company), 10, 3)))
        take_in([together[run] for run in company], away, batches)
        for run, deviations, batch in zip(company, away, batches, strict=True):
            take_in([alone[run]], deviations[None], [batch])
        for mine, theirs in zip(together, alone, strict=True):
            np.testing.assert_array_equal(mine.state()["now"], theirs.state()["now"])


def test_a_state_is_not_written_into_by_who_goes_on():
    recurrence, again = Recurrence(LABELS), Recurrence(LABELS)
    (first, second, *_) = epoch(np.zeros((ROWS, WIDTH)), 1)
    recurrence.add(*first)
    state = recurrence.state()
    kept = state["now"].clone()
    again.restore(state)
    for one in (recurrence, again):
        one.add(*second)
    assert torch.equal(state["now"].nan_to_num(), kept.nan_to_num())
