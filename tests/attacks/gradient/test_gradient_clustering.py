"""Clusters of gradients: the groups, their accuracy, and that of random groups."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from flower_vfl.attacks import GradientClusteringAttack, SideInformation
from flower_vfl.attacks.embedding.clustering import matched
from flower_vfl.attacks.gradient import gradient_clustering
from flower_vfl.auditing.audit_labels import AuditLabels
from flower_vfl.auditing.evaluator import AttackEvaluator
from flower_vfl.auditing.recorder import NoRecorder
from flower_vfl.errors import InputError
from flower_vfl.testing import check_attack
from tests.attacks.common import gradients, transcript_of


def softmax_gradients(seed=0, rows=200, classes=10, width=16, confidence=1.0):
    """Return gradients of a linear top model's cross-entropy, as in a real run, and the labels."""
    generator = torch.Generator().manual_seed(seed)
    top = torch.randn(width, classes, generator=generator)
    y = torch.randint(0, classes, (rows,), generator=generator)
    logits = torch.randn(rows, classes, generator=generator)
    logits[torch.arange(rows), y] += confidence
    errors = logits.softmax(dim=1) - torch.nn.functional.one_hot(y, classes)
    return errors @ top.T, y


def test_gradients_of_a_cross_entropy_reveal_the_classes():
    g, y = softmax_gradients()
    found = gradient_clustering.groups(g, classes=10)
    assert matched(found, y, classes=10)[0] > 0.9


def test_lengths_do_not_count_unless_they_are_asked_for():
    g, y = softmax_gradients(classes=4)
    lengths = torch.exp(3 * torch.randn(len(g), 1, generator=torch.Generator().manual_seed(1)))
    directions = gradient_clustering.groups(g, classes=4)
    assert adjusted_rand_score(directions, gradient_clustering.groups(g * lengths, classes=4)) == 1.0
    whole = gradient_clustering.groups(g * lengths, classes=4, directions=False)
    assert matched(whole, y, classes=4)[0] < 0.7 < matched(directions, y, classes=4)[0]


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e30])
def test_no_scale_changes_the_groups(scale):
    g, _ = softmax_gradients(classes=3)
    assert torch.equal(gradient_clustering.groups(g * scale, classes=3), gradient_clustering.groups(g, classes=3))


def test_a_batch_that_cannot_be_grouped_is_one_group():
    assert gradient_clustering.groups(torch.ones(3, 4), classes=10).tolist() == [0, 0, 0]
    broken = gradients()
    broken[3, 2] = torch.inf
    assert not gradient_clustering.groups(broken, classes=2).any()
    with pytest.raises(InputError):
        gradient_clustering.groups(torch.ones(4), classes=2)


def test_it_passes_the_checks_of_every_attack():
    check_attack(GradientClusteringAttack)
    check_attack(GradientClusteringAttack, directions=False)


def test_it_groups_the_last_step_into_as_many_groups_as_there_are_classes():
    g, _ = softmax_gradients(classes=5)
    found = GradientClusteringAttack().score(transcript_of(cut=g), "cut", SideInformation(classes=5))
    assert torch.equal(found, gradient_clustering.groups(g, classes=5))


def test_the_scorer_measures_accuracy_beside_that_of_the_same_groups_in_random_order():
    g, y = softmax_gradients(rows=60)
    audit = AuditLabels.of(y.numpy(), classes=10)
    scorer = AttackEvaluator(
        [GradientClusteringAttack()],
        ["cut"],
        audit,
        party="a",
        source="attacker",
        defended=False,
        recorder=NoRecorder(),
    )
    scorer.score(transcript_of(cut=g))
    (entry,) = scorer.entries()
    groups = gradient_clustering.groups(g, classes=10)
    assert (entry["metric"], entry["steps"]) == ("accuracy", 1)
    assert entry["mean"] == matched(groups, y, classes=10)[0]
    by_chance = [matched(np.random.default_rng(seed).permutation(groups), y, classes=10)[0] for seed in range(200)]
    assert min(by_chance) <= entry["q95_null"] <= max(by_chance) < entry["mean"]
    assert entry["q95_null"] > 0.15  # far above one in ten, the chance of a label that is guessed
    assert np.isnan(scorer.latest)  # an accuracy is no leak AUC, and leak limits do not apply to it
