"""Random sequences of batches: each batch is as likely as any other, and a state goes on where it was."""

import math

import numpy as np
import pytest

from flower_vfl.strategies.gradients.marvell.chains import CHAINS, Chains


def drawn(chains, batches):
    """Run an epoch of numbered batches; return the numbers of the batches that were made."""
    made = []
    for number in range(batches):
        chains.add(lambda number=number: made.append(number) or number)
    assert chains.end_epoch()
    return made


def test_each_batch_of_an_epoch_is_as_likely_as_any_other():
    """Each batch's count in 300 epochs is within five standard errors of that of a fair draw."""
    chains, count, total, seen = Chains(), 300, 12, np.zeros(12)
    for _ in range(count):
        made = drawn(chains, total)
        assert len(set(made)) == CHAINS
        seen[made] += 1
    share = CHAINS / total
    assert np.abs(seen - count * share).max() < 5 * math.sqrt(count * share * (1 - share))
    assert all(len({chain[epoch] for chain in chains.sequences}) == CHAINS for epoch in range(count))


@pytest.mark.parametrize("count", [8, 3])
def test_a_chain_puts_any_batch_of_an_epoch_behind_any_batch_of_the_one_before(count):
    """The number of repeated places in each chain is within five standard errors of that of a fair draw."""
    chains, epochs = Chains(), 200
    for _ in range(epochs):
        drawn(chains, count)
    places = np.array(chains.sequences)
    shares = [np.bincount(epoch, minlength=count) for epoch in places.T]
    assert all(sorted(share) == sorted(len(range(first, CHAINS, count)) for first in range(count)) for share in shares)
    repeated = np.array(shares[0]) @ np.array(shares[0]) / CHAINS**2
    found = (places[:, 1:] == places[:, :-1]).sum(axis=1)
    assert np.abs(found - (epochs - 1) * repeated).max() < 5 * math.sqrt((epochs - 1) * repeated * (1 - repeated))


def test_an_epoch_without_a_batch_adds_nothing():
    chains = Chains()
    assert not chains.end_epoch()
    assert chains.sequences == [[]] * CHAINS


def test_restored_in_the_middle_of_an_epoch_it_goes_on_as_without_a_break():
    alone, first = Chains(), Chains()
    for chains in (alone, first):
        drawn(chains, 20)
        for number in range(11):
            chains.add(lambda number=number: number)
    restored = Chains()
    restored.restore(first.state(lambda number: {"value": number}), lambda saved: saved["value"])
    for chains in (alone, restored):
        for number in range(11, 30):
            chains.add(lambda number=number: number)
        chains.end_epoch()
    assert restored.sequences == alone.sequences
