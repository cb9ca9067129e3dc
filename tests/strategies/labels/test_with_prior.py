"""Randomised response with a prior: its privacy, and its optimal rate of right answers."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from flower_vfl.errors import ConfigError
from flower_vfl.strategies.labels.label_dp import rate_of
from flower_vfl.strategies.labels.with_prior import response_probabilities, with_prior, without_flips
from tests.sampling import keystream


def channel(prior, epsilon):
    """Return the probabilities (C, C) of each answer, given each label."""
    prior = torch.as_tensor(prior, dtype=torch.float64)
    return response_probabilities(torch.arange(len(prior)), prior, epsilon=epsilon).numpy()


@st.composite
def priors(draw):
    """Draw a prior of 2 to 6 classes, some of which have no chance."""
    weights = draw(st.lists(st.integers(0, 20), min_size=2, max_size=6).filter(any))
    return np.array(weights) / sum(weights)


@given(priors(), st.floats(0.01, 12.0))
@settings(max_examples=200)
def test_no_answer_distinguishes_two_labels_by_more_than_epsilon(prior, epsilon):
    found = channel(prior, epsilon)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-12)
    assert (found.max(axis=0) <= math.exp(epsilon) * found.min(axis=0) * (1.0 + 1e-12)).all()


def best_by_linear_programme(prior, epsilon):
    """Return the highest probability of a right answer that any private channel M[label, answer] has."""
    classes = len(prior)
    index = np.arange(classes * classes).reshape(classes, classes)
    private, total = [], np.zeros((classes, classes * classes))
    for answer in range(classes):
        for one in range(classes):
            for other in set(range(classes)) - {one}:
                row = np.zeros(classes * classes)
                row[index[one, answer]], row[index[other, answer]] = 1.0, -math.exp(epsilon)
                private.append(row)
    for label in range(classes):
        total[label, index[label]] = 1.0
    gain = -np.diag(prior).ravel()
    return -linprog(gain, np.array(private), np.zeros(len(private)), total, np.ones(classes), bounds=(0, 1)).fun


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0])
@pytest.mark.parametrize(
    "prior", [(0.7, 0.3), (0.2, 0.5, 0.3), (0.6, 0.25, 0.1, 0.05), (0.25,) * 4, (0.1, 0.05, 0.6, 0.25)]
)
def test_no_private_answer_is_right_more_often(prior, epsilon):
    right = float(np.array(prior) @ np.diag(channel(prior, epsilon)))
    assert right == pytest.approx(best_by_linear_programme(np.array(prior), epsilon), abs=1e-8)


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_a_uniform_prior_gives_plain_randomised_response(classes, epsilon):
    rate = rate_of(epsilon, classes)
    plain = np.full((classes, classes), rate / (classes - 1))
    np.fill_diagonal(plain, 1.0 - rate)
    np.testing.assert_allclose(channel(np.full(classes, 1.0 / classes), epsilon), plain, rtol=1e-12)


def test_where_the_prior_is_more_certain_than_the_response_the_answer_is_constant():
    np.testing.assert_array_equal(channel((0.7, 0.3), 0.5), [[1.0, 0.0], [1.0, 0.0]])
    kept = math.e / (1.0 + math.e)
    np.testing.assert_allclose(channel((0.7, 0.3), 1.0), [[kept, 1.0 - kept], [1.0 - kept, kept]], rtol=1e-12)


def test_answers_are_drawn_with_these_probabilities_and_never_outside_of_the_likely_classes():
    prior = torch.tensor([0.6, 0.25, 0.1, 0.05])
    labels = torch.arange(4).repeat_interleave(100_000)
    drawn = with_prior(labels, prior, epsilon=1.0, draws=keystream(3))
    expected = channel(prior.numpy(), 1.0)
    found = np.stack([np.bincount(drawn[labels == label].numpy(), minlength=4) for label in range(4)]) / 100_000
    np.testing.assert_allclose(found, expected, atol=5e-3)
    assert (found[expected == 0.0] == 0.0).all()
    assert (expected == 0.0).any()


def test_a_single_label_is_answered():
    prior = torch.tensor([[0.5, 0.4, 0.1]])
    assert with_prior(torch.tensor([1]), prior, epsilon=9.0, draws=keystream(1)).tolist() == [1]


def test_each_label_has_the_prior_of_its_own_row():
    prior = torch.tensor([[0.99, 0.01], [0.01, 0.99]]).repeat(50, 1)
    for label in (0, 1):
        drawn = with_prior(torch.full((100,), label), prior, epsilon=1.0, draws=keystream(1))
        assert drawn.tolist() == [0, 1] * 50


def test_undoing_flips_finds_the_probabilities_of_labels():
    prior = torch.tensor([[0.7, 0.2, 0.1], [1.0, 0.0, 0.0]], dtype=torch.float64)
    plain = torch.from_numpy(channel(np.full(3, 1 / 3), 1.5))
    torch.testing.assert_close(without_flips(prior @ plain, rate=rate_of(1.5, 3)), prior)


@pytest.mark.parametrize(
    ("prior", "words"),
    [
        (torch.tensor([0.5, 0.4]), "add up to 1"),
        (torch.tensor([1.5, -0.5]), "at least 0"),
        (torch.full((3, 2), 0.5), r"given \(3, 2\) for 2 labels"),
        (torch.tensor([1.0]), "at least 2 classes"),
    ],
)
def test_an_invalid_prior_is_refused(prior, words):
    with pytest.raises(ConfigError, match=words):
        response_probabilities(torch.tensor([0, 1]), prior, epsilon=1.0)
