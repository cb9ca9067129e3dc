"""Noise on targets: its distribution, its privacy, its gradients, and the posteriors that follow from it."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from flower_vfl.metrics import leak_auc
from flower_vfl.strategies.labels.noisy_targets import (
    GRID,
    evidence_of_answers,
    evidence_of_targets,
    noisy_targets,
    posterior,
)
from tests.sampling import keystream


def drawn(labels, epsilon, classes=2):
    return noisy_targets(labels, classes=classes, epsilon=epsilon, draws=keystream(1))


class Largest:
    """A stream that gives the largest number of `Keystream.uniform` to the first of two noises, and 0 to the other."""

    def uniform(self, *shape):
        return np.full(shape, 1.0 - 2.0**-53) * np.array([1.0, 0.0]).reshape(2, *[1] * (len(shape) - 1))


def test_the_tails_end_where_a_noise_has_a_probability_that_no_epsilon_notices():
    """A larger noise would prove its label; numbers of 53 binary digits alone end at 36.7 / epsilon."""
    target = noisy_targets(torch.tensor([0]), classes=2, epsilon=1.0, draws=Largest())
    assert target.item() == pytest.approx(106 * math.log(2), rel=0.01)


@pytest.mark.parametrize(("epsilon", "classes", "scale"), [(0.5, 2, 2.0), (2.0, 2, 0.5), (1.0, 4, 2.0)])
def test_the_noise_has_the_discrete_laplace_law_around_the_label(epsilon, classes, scale):
    rows = 200_000
    x = drawn(torch.ones(rows, dtype=torch.int64), epsilon, classes).double().reshape(rows, -1)
    clean = torch.ones(1) if classes == 2 else torch.nn.functional.one_hot(torch.tensor(1), classes)
    steps = (x - clean).numpy() * GRID
    np.testing.assert_array_equal(steps, np.round(steps))  # on the grid: both labels give the same values
    law = stats.dlaplace(1.0 / (scale * GRID))
    for column in steps.T:
        cuts = law.ppf([0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99])
        found = np.searchsorted(np.sort(column), cuts, side="right") / rows
        np.testing.assert_allclose(found, law.cdf(cuts), atol=5e-3)
    assert abs(steps.mean()) / GRID < 5 * math.sqrt(2.0) * scale / math.sqrt(rows)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_no_target_distinguishes_two_labels_by_more_than_epsilon_and_one_reaches_it(epsilon):
    law = stats.dlaplace(epsilon / GRID)
    grid = np.arange(-3 * GRID, 4 * GRID)
    ratio = law.logpmf(grid - GRID) - law.logpmf(grid)
    assert ratio.max() == pytest.approx(epsilon, rel=1e-9)
    assert ratio.min() == pytest.approx(-epsilon, rel=1e-9)
    found = evidence_of_targets(torch.from_numpy(grid / GRID), epsilon=epsilon)
    np.testing.assert_allclose(found, ratio, atol=1e-9)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_known_gradients_separate_labels_as_the_closed_form_says(epsilon):
    labels = torch.arange(400_000) % 2
    closed = 1.0 - (2.0 + epsilon) * math.exp(-epsilon) / 4.0
    assert leak_auc(drawn(labels, epsilon).numpy(), labels.numpy()) == pytest.approx(closed, abs=3e-3)
    law, steps = stats.dlaplace(epsilon / GRID), np.arange(-40 * GRID, 40 * GRID)
    below = law.cdf(steps + GRID - 1) + law.pmf(steps + GRID) / 2.0  # a target of 0 below one of 1 with this noise
    exact = (law.pmf(steps) * below).sum()
    assert exact == pytest.approx(closed, abs=1e-6)
    assert exact < math.exp(epsilon) / (1.0 + math.exp(epsilon))


def test_gradients_of_noisy_targets_are_on_average_those_of_true_labels():
    rows, draws = 6, 40_000
    y = torch.tensor([0, 1, 1, 0, 1, 0])
    logits = torch.linspace(-2.0, 2.0, rows, dtype=torch.float64)
    targets, leaf = drawn(y, 2.0).double(), logits.clone().requires_grad_()
    torch.nn.functional.binary_cross_entropy_with_logits(leaf, targets, reduction="sum").backward()
    zero, one = torch.sigmoid(logits), torch.sigmoid(logits) - 1.0
    torch.testing.assert_close(leaf.grad, zero + targets * (one - zero), rtol=1e-12, atol=1e-12)
    many = drawn(y.repeat(draws), 2.0).reshape(draws, rows).double()
    mean = (torch.sigmoid(logits) - many).mean(dim=0)
    torch.testing.assert_close(mean, torch.sigmoid(logits) - y, rtol=0.0, atol=5 * math.sqrt(2.0) * 0.5 / draws**0.5)


@pytest.mark.parametrize("classes", [2, 4])
def test_posteriors_of_noisy_targets_are_those_of_bayes(classes):
    epsilon, rows = 1.3, 50
    x = drawn(torch.arange(rows) % classes, epsilon, classes).double()
    shape = (rows,) if classes == 2 else (rows, classes)
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    p = torch.stack([1 - logits.sigmoid(), logits.sigmoid()], 1) if classes == 2 else logits.softmax(1)
    scale = (1.0 if classes == 2 else 2.0) / epsilon
    values = x.numpy()[:, None] if classes == 2 else x.numpy()[:, None, :]
    clean = np.array([[0.0], [1.0]]) if classes == 2 else np.eye(classes)
    likelihood = stats.laplace(scale=scale).pdf(values[..., None] - clean if classes == 2 else values - clean)
    likelihood = likelihood.reshape(rows, classes, -1).prod(axis=2)
    expected = p.numpy() * likelihood
    expected /= expected.sum(axis=1, keepdims=True)
    found = posterior(logits, evidence_of_targets(x, epsilon=epsilon))
    np.testing.assert_allclose(found, expected[:, 1] if classes == 2 else expected, rtol=1e-9)


@pytest.mark.parametrize("classes", [2, 4])
def test_posterior_targets_give_the_gradient_of_the_likelihood_of_the_drawn_answers(classes):
    rows, epsilon = 40, 0.8
    generator = torch.Generator().manual_seed(5)
    answers = torch.randint(0, classes, (rows,), generator=generator)
    logits = torch.randn((rows,) if classes == 2 else (rows, classes), generator=generator, dtype=torch.float64)
    keep = math.exp(epsilon) / (math.exp(epsilon) + classes - 1)
    channel = torch.full((classes, classes), (1.0 - keep) / (classes - 1), dtype=torch.float64).fill_diagonal_(keep)

    leaf = logits.clone().requires_grad_()
    p = torch.stack([1 - leaf.sigmoid(), leaf.sigmoid()], 1) if classes == 2 else leaf.softmax(1)
    likelihood = (p @ channel)[torch.arange(rows), answers]
    expected = torch.autograd.grad(-likelihood.log().sum(), leaf)[0]

    t = posterior(logits, evidence_of_answers(answers, classes=classes, epsilon=epsilon))
    found = (logits.sigmoid() if classes == 2 else logits.softmax(1)) - t
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("classes", [2, 3])
def test_posteriors_are_the_prediction_without_privacy_budget_and_the_label_with_much(classes):
    y = torch.arange(30) % classes
    logits = torch.randn((30,) if classes == 2 else (30, classes), generator=torch.Generator().manual_seed(1))
    prediction = logits.sigmoid() if classes == 2 else logits.softmax(dim=1)
    labels = y.float() if classes == 2 else torch.nn.functional.one_hot(y, classes).float()
    for epsilon, expected, close in ((1e-4, prediction, 1e-4), (100.0, labels, 1e-6)):
        targets = drawn(y, epsilon, classes)
        found = posterior(logits, evidence_of_targets(targets, epsilon=epsilon))
        torch.testing.assert_close(found, expected, rtol=0.0, atol=close)
