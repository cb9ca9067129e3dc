"""A step of the label party: its gradients and its snapshot, preparation ahead of it, and gradients of other labels."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from flower_vfl.data.store.memory import array_table
from flower_vfl.errors import ConfigError
from flower_vfl.nn.dropout import bind_dropout
from flower_vfl.nn.initialise import seeded_initialisation
from flower_vfl.nn.optim import Optimizers
from flower_vfl.parties.label import LabelParty
from flower_vfl.protocol.schedule import Schedule
from flower_vfl.rng import Secret
from flower_vfl.strategies import Defense, Iso, VerticalStrategy
from tests.toys import toy_config

LABELS = np.random.default_rng(0).integers(0, 2, 40)
THREE_CLASSES = np.random.default_rng(0).integers(0, 3, 40)
OWN = np.random.default_rng(1).normal(size=(40, 2)).astype(np.float32)


def party(*, snapshots=(), labels=LABELS, weights="none", defended=False, own=False, clip=0.0):
    """Return a label party; with `own`, it has columns of its own behind batch normalisation and dropout."""
    schedule = Schedule(0, 40, 0, 16, 16, 1, 0.0)
    with seeded_initialisation(0):
        top = nn.Sequential(nn.Linear(9 if own else 6, 5), nn.Tanh(), nn.Linear(5, 1 if labels is LABELS else 3))
        bottom = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)) if own else None
    network = nn.ModuleDict({"top": top, **({"bottom": bind_dropout(bottom, torch.Generator())} if own else {})})
    config = toy_config(training={"class_weights": weights}, attack={"names": []})
    secret = Secret.for_simulation(0, "label")
    hooks = VerticalStrategy(top, labels, parties=("a", "b"), config=config, secret=secret)
    hooks.prepare_labels(torch.from_numpy(labels))
    hooks = Iso(hooks, t=1.0) if defended else hooks
    hooks.base.build({"a": (4,), "b": (2,)}, None)
    return LabelParty(
        top,
        Optimizers(network, "sgd", learning_rate=0.1, weight_decay=0.0, schedule="constant", steps=3),
        labels,
        hooks,
        schedule,
        ("a", "b"),
        snapshots=snapshots,
        clip_norm=clip,
        bottom=bottom,
        table=array_table("own", OWN, OWN) if own else None,
    )


def embeddings(step):
    generator = torch.Generator().manual_seed(step)
    rows = 16 if step < 2 else 8
    return {name: torch.randn(rows, width, generator=generator) for name, width in (("a", 4), ("b", 2))}


def joint(gradients):
    return torch.cat([gradients[name] for name in ("a", "b")], dim=1)


def test_a_gradient_is_the_residual_times_the_slope_over_the_batch():
    inside = party(snapshots=[0]).train_step(0, embeddings(0)).inside
    residual = torch.sigmoid(inside.logits.double()) - inside.labels
    assert inside.slopes.shape == inside.gradients.shape == (16, 6)
    assert torch.allclose(inside.gradients.double(), residual[:, None] * inside.slopes.double() / 16, atol=1e-9)


def test_slopes_are_those_of_the_logit_whatever_the_loss_weighs():
    plain, weighted = (
        party(snapshots=[0], weights=w).train_step(0, embeddings(0)).inside for w in ("none", "balanced")
    )
    assert torch.equal(plain.slopes, weighted.slopes)
    assert not torch.allclose(plain.gradients, weighted.gradients)


def test_a_snapshot_has_the_gradients_before_any_defense():
    step = party(snapshots=[0], defended=True).train_step(0, embeddings(0))
    assert torch.equal(step.inside.gradients, party(snapshots=[0]).train_step(0, embeddings(0)).inside.gradients)
    sent = torch.cat([step.gradients["a"], step.gradients["b"]], dim=1)
    assert not torch.allclose(sent, step.inside.gradients)


def test_a_loss_of_ones_own_may_be_a_vector_of_one_number():
    plain, label = party().train_step(0, embeddings(0)), party()
    inner = label._hooks.loss
    label._hooks.loss = lambda *arguments: (inner(*arguments)[0].reshape(1), {})
    step = label.train_step(0, embeddings(0))
    assert step.loss == plain.loss
    assert torch.equal(joint(step.gradients), joint(plain.gradients))


@pytest.mark.parametrize("share", [0.5, 2.0])
def test_gradients_are_clipped_together_to_the_limit_and_never_made_longer(share):
    plain = joint(party().train_step(0, embeddings(0)).gradients)
    clipped = joint(party(clip=share * float(plain.norm())).train_step(0, embeddings(0)).gradients)
    torch.testing.assert_close(clipped, min(share, 1.0) * plain)


def test_a_defense_that_works_in_place_does_not_change_the_snapshot():
    label, plain = party(snapshots=[0]), party(snapshots=[0]).train_step(0, embeddings(0))
    label._hooks.protect = lambda grads, labels, step: (grads.zero_(), {})
    step = label.train_step(0, embeddings(0))
    assert not step.gradients["a"].any()
    assert torch.equal(step.inside.gradients, plain.inside.gradients)


def test_only_the_requested_steps_have_a_snapshot():
    label = party(snapshots=[1, 7])
    assert [label.train_step(step, embeddings(step)).inside is not None for step in range(3)] == [False, True, False]


def test_steps_of_more_than_two_classes_have_no_snapshot():
    assert party(snapshots=[0], labels=THREE_CLASSES).train_step(0, embeddings(0)).inside is None


@pytest.mark.parametrize("defended", [False, True])
def test_a_snapshot_changes_neither_gradients_nor_weights(defended):
    watched, plain = party(snapshots=range(3), defended=defended), party(defended=defended)
    for step in range(3):
        seen, unseen = (label.train_step(step, embeddings(step)) for label in (watched, plain))
        assert all(torch.equal(seen.gradients[name], unseen.gradients[name]) for name in ("a", "b"))
        watched.learn()
        plain.learn()
    assert watched.weights == plain.weights


def test_the_own_weights_change_when_it_learns_and_not_before():
    label = party()
    before = label.weights
    label.train_step(0, embeddings(0))
    assert label.weights == before
    label.learn()
    assert label.weights != before


def test_preparing_a_step_ahead_changes_no_bit_of_it():
    ahead, plain = party(own=True), party(own=True)
    for step in range(3):
        found, expected = (label.train_step(step, embeddings(step)) for label in (ahead, plain))
        assert found.loss == expected.loss
        assert all(torch.equal(found.gradients[name], expected.gradients[name]) for name in ("a", "b"))
        ahead.learn()
        plain.learn()
        if step < 2:
            ahead.prepare(step + 1)
        assert ahead.weights != plain.weights or step == 2  # running statistics are ahead too
    assert ahead.weights == plain.weights
    assert torch.equal(ahead.state()["dropout"][0], plain.state()["dropout"][0])


def test_a_restored_party_forgets_what_was_prepared():
    label, plain = party(own=True), party(own=True)
    kept = copy.deepcopy(label.state())
    label.prepare(0)
    label.restore(kept)
    assert label.train_step(0, embeddings(0)).loss == plain.train_step(0, embeddings(0)).loss
    label.learn()
    plain.learn()
    assert label.weights == plain.weights


@pytest.mark.parametrize("clip", [0.0, 0.001])
@pytest.mark.parametrize("weights", ["none", "balanced"])
def test_a_defense_is_given_the_gradients_that_other_labels_would_give(clip, weights):
    """The reference is the same step of a label party with the other labels."""
    results = {}

    class Asks(Defense):
        """A defense that asks for the gradients of its labels and of others."""

        name, params, asks_other_labels = "asks", {}, True

        def protect(self, grads, labels, step=None):
            results["same"], results["other"] = step.gradients_of(labels), step.gradients_of(1 - labels)
            results["b"] = step.of("b").gradients_of(1 - labels)
            results["sent"], results["step"] = grads, step
            return self.strategy.protect(grads, labels, step)

    one, other = party(clip=clip, weights=weights), party(clip=clip, weights=weights)
    one._hooks = Asks(one._hooks)
    one.train_step(0, embeddings(0))
    assert torch.equal(results["same"], results["sent"])
    other._labels = 1 - LABELS  # the class weights stay those of the training labels
    expected = joint(other.train_step(0, embeddings(0)).gradients)
    if clip:
        assert float(results["other"].norm()) == pytest.approx(clip), "clipping acts here"
    torch.testing.assert_close(results["other"], expected, rtol=1e-6, atol=1e-8)
    assert torch.equal(results["b"], results["other"][:, 4:])
    assert results["step"].embeddings["a"].shape == (16, 4)
    assert results["step"].logits.shape == (16,)


def test_without_declaring_it_a_defense_cannot_ask_what_other_labels_would_give():
    class Asks(Defense):
        """A defense that asks without declaring it."""

        name, params = "asks", {}

        def protect(self, grads, labels, step=None):
            return step.gradients_of(1 - labels), {}

    one = party()
    one._hooks = Asks(one._hooks)
    with pytest.raises(ConfigError, match="asks_other_labels = True"):
        one.train_step(0, embeddings(0))
