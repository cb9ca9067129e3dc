"""Mechanisms of local heads: their draws, their losses, and the state of a resumed run."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom

from flower_vfl.strategies.labels import mechanisms
from flower_vfl.strategies.labels.mechanisms import LABEL_MECHANISMS, Prior, label_loss, target_loss
from tests.sampling import generator, keystream, within
from tests.toys import toy_config

ROWS = 4000


@pytest.mark.parametrize("classes", [2, 3])
def test_target_loss_is_the_cross_entropy_of_any_target_and_of_labels(classes):
    shape = (8,) if classes == 2 else (8, classes)
    logits, targets = torch.randn((2, *shape), generator=generator(1), dtype=torch.float64)
    p = torch.stack([1 - logits.sigmoid(), logits.sigmoid()], 1) if classes == 2 else logits.softmax(1)
    t = torch.stack([1 - targets, targets], 1) if classes == 2 else targets
    torch.testing.assert_close(target_loss(logits, targets), -(t * p.log()).sum(1).mean())
    labels = torch.arange(8) % classes
    clean = labels.double() if classes == 2 else torch.nn.functional.one_hot(labels, classes).double()
    torch.testing.assert_close(label_loss(logits, labels), target_loss(logits, clean))


@pytest.mark.parametrize("name", sorted(LABEL_MECHANISMS))
@pytest.mark.parametrize("classes", [2, 3])
def test_an_untrained_head_learns_the_direction_of_the_labels(name, classes):
    mechanism = LABEL_MECHANISMS[name](4.0, classes)
    mechanism.begin(toy_config(), parties=1)
    labels = torch.arange(ROWS) % classes
    mechanism.draw(labels, keystream(1))
    mechanism.end_epoch()
    logits = torch.zeros(ROWS if classes == 2 else (ROWS, classes), requires_grad=True)
    mechanism.loss(logits, torch.arange(ROWS)).backward()
    raised = -logits.grad if classes == 2 else -logits.grad.gather(1, labels[:, None])[:, 0]
    assert raised[labels == 1].mean() > 0.3 / ROWS
    if classes == 2:
        assert raised[labels == 0].mean() < -0.3 / ROWS


@pytest.mark.parametrize("name", ["posterior", "alibi"])
@pytest.mark.parametrize("classes", [2, 3])
def test_a_head_of_likelihoods_begins_with_the_frequencies_of_labels(name, classes):
    labels, rows = (torch.arange(50_000) % 20 == 0).long(), 50_000
    mechanism = LABEL_MECHANISMS[name](1.0, classes)
    mechanism.draw(labels, keystream(1))
    logits = torch.zeros(rows if classes == 2 else (rows, classes), requires_grad=True)
    mechanism.loss(logits, torch.arange(rows)).backward()
    # The loss of a head that predicts the frequencies is stationary: gradients add up to zero.
    frequencies = torch.bincount(labels, minlength=classes) / rows
    for known in ((labels == 1), (labels == 0)):
        grad = rows * (logits.grad if classes == 2 else logits.grad[:, 1])[known].mean()
        assert (grad < 0) == bool(labels[known][0])
    total = logits.grad.sum() if classes == 2 else logits.grad.sum(dim=0).abs().max()
    assert abs(float(total)) < 0.2 * float(frequencies[1])


def recorded_priors(monkeypatch):
    """Return a list to which each draw with a prior appends this prior, a row for each drawn label."""
    priors, original = [], mechanisms.with_prior

    def with_prior(labels, prior, **named):
        priors.append(prior.clone())
        return original(labels, prior, **named)

    monkeypatch.setattr(mechanisms, "with_prior", with_prior)
    return priors


def two_stages(epochs=4, classes=2, epsilon=1.0):
    made = Prior(epsilon, classes)
    made.begin(toy_config(training={"epochs": epochs}), parties=1)
    return made


def answers(mechanism, classes=2):
    """Return the rows from which a head learns, and the labels that it learns, from the gradients of single rows."""
    logits = torch.zeros(ROWS if classes == 2 else (ROWS, classes), requires_grad=True)
    mechanism.loss(logits, torch.arange(ROWS)).backward()
    grad = logits.grad if classes > 2 else torch.stack([-logits.grad, logits.grad], dim=1)
    return (grad != 0).any(dim=1).numpy(), (-grad).argmax(dim=1).numpy()


def test_the_second_stage_draws_the_remaining_labels_once_with_the_heads_predictions_as_prior(monkeypatch):
    priors, made = recorded_priors(monkeypatch), two_stages(epochs=4)
    labels = (torch.arange(ROWS) % 5 == 0).long()
    made.draw(labels, keystream(1))
    first, drawn = answers(made)
    assert 0.45 < first.mean() < 0.55
    flips = (drawn != labels.numpy())[first].mean()
    assert flips == pytest.approx(1.0 / (1.0 + math.e), abs=0.04)
    rows, keep = torch.arange(ROWS), math.e / (1.0 + math.e)
    wrong = torch.full((ROWS,), 5.0)
    made.loss(wrong, rows)  # predictions of the first epoch are not kept
    made.end_epoch()
    # For even rows the head of flipped labels is certain of class 0, for odd ones it finds both equally likely.
    made.loss(torch.where(rows % 2 == 0, math.log((1 - keep) / keep), 0.0), rows)
    assert priors == []
    made.end_epoch()
    (prior,) = priors
    assert len(prior) == (~first).sum()
    even = (rows % 2 == 0)[torch.from_numpy(~first)]
    torch.testing.assert_close(prior[even], torch.tensor([[1.0, 0.0]]).expand(int(even.sum()), 2), atol=1e-6, rtol=0)
    torch.testing.assert_close(prior[~even], torch.full((int((~even).sum()), 2), 0.5))
    everything, second = answers(made)
    assert everything.all()
    np.testing.assert_array_equal(second[first], drawn[first])
    left = ~first & (np.arange(ROWS) % 2 == 1)
    assert (second[~first & ~left] == 0).all()  # where the prior is certain, the label follows from it
    assert (second != labels.numpy())[left].mean() == pytest.approx(1.0 - keep, abs=0.05)
    made.end_epoch()
    assert len(priors) == 1


def test_labels_of_the_second_stage_are_drawn_once_although_training_is_restored(monkeypatch):
    """A party that returns with other embeddings would otherwise get another draw of each label."""
    priors, made = recorded_priors(monkeypatch), two_stages(epochs=2)
    made.draw((torch.arange(ROWS) % 5 == 0).long(), keystream(1))
    before, rows = made.state(), torch.arange(ROWS)
    found = []
    for logits in (torch.zeros(ROWS), torch.full((ROWS,), 5.0)):
        made.restore(before)
        made.loss(logits, rows)
        made.end_epoch()
        found.append(answers(made)[1])
    np.testing.assert_array_equal(*found)
    assert len(priors) == 1


def test_another_training_with_the_same_secret_draws_other_noise_in_its_second_stage():
    """With the same noise, predictions that a party chooses would show from two answers which label it was."""
    changed = []
    for shift in (0.0, 1e-3):
        made = two_stages(epochs=2)
        made.draw(torch.zeros(ROWS, dtype=torch.int64), keystream(1))
        first = answers(made)[0]
        made.loss(torch.full((ROWS,), shift), torch.arange(ROWS))
        made.end_epoch()
        changed.append(answers(made)[1][~first] == 1)
    one, other = changed
    rate = 1.0 / (1.0 + math.e)
    assert within(int((one & other).sum()), binom(len(one), rate**2))


def test_repeated_steps_matter_until_the_labels_of_the_second_stage_are_drawn():
    made, once = two_stages(epochs=4), LABEL_MECHANISMS["laplace"](1.0, 2)
    found = []
    for mechanism in (made, once):
        mechanism.draw(torch.arange(ROWS) % 2, keystream(1))
    for _ in range(3):
        found.append((made.counts_steps, once.counts_steps))
        made.end_epoch()
    assert found == [(True, False), (True, False), (False, False)]


def test_rows_are_split_whatever_the_labels_are():
    splits = []
    for labels in (torch.zeros(ROWS, dtype=torch.int64), torch.ones(ROWS, dtype=torch.int64)):
        made = two_stages()
        made.draw(labels, keystream(1))
        splits.append(answers(made)[0])
    np.testing.assert_array_equal(*splits)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_restored_mechanism_goes_on_with_the_draws_and_predictions_of_the_first(classes):
    labels = torch.arange(ROWS) % classes
    logits = torch.randn(ROWS if classes == 2 else (ROWS, classes), generator=generator(4))
    made = two_stages(epochs=2, classes=classes)
    made.draw(labels, keystream(1))
    made.loss(logits, torch.arange(ROWS))
    noted = made.state()
    made.end_epoch()
    expected, after = answers(made, classes), made.state()
    for state, ends in ((noted, 1), (after, 0)):
        again = two_stages(epochs=2, classes=classes)
        again.draw(labels, keystream(1))
        again.restore(state)
        for _ in range(ends):
            again.end_epoch()
        for one, other in zip(answers(again, classes), expected, strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_batch_without_drawn_labels_gives_no_gradient():
    made = two_stages()
    made.draw(torch.zeros(ROWS, dtype=torch.int64), keystream(1))
    open_rows = torch.from_numpy(np.flatnonzero(~answers(made)[0]))[:8]
    logits = torch.ones(8, requires_grad=True)
    made.loss(logits, open_rows).backward()
    assert logits.grad.tolist() == [0.0] * 8
