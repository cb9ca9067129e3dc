"""A user's own model and optimizer, on every transport."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from flower_vfl.apps import run
from flower_vfl.errors import ConfigError, PartyError
from tests.cases import parametrize
from tests.toys import toy_config, toy_data


def momentum(module, config):
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, nesterov=True)


def bottom(spec, config):
    return nn.Sequential(nn.Linear(spec.numeric, 12), nn.Tanh(), nn.Dropout(0.1), nn.Linear(12, 5))


def top(shape, classes, config):
    return nn.Linear(shape[0], 1)


@parametrize("clip_norm", [0.0, 0.01], quick=1)
def test_a_users_own_optimizer_trains_every_party_equally_on_every_transport(clip_norm):
    data = toy_data(rows=400)
    weights = []
    for kind in ("inproc", "stream", "messages"):
        config = toy_config(transport={"kind": kind}, training={"clip_norm": clip_norm, "epochs": 4})
        result = run(config, data=lambda _: data, bottom=bottom, top=top, optimizer=momentum)
        weights.append(result.summary["weights"])
        assert result.test_auc > (0.8 if not clip_norm else 0.5)
    assert weights[0] == weights[1] == weights[2]


def test_the_optimizer_matters():
    data = toy_data(rows=200)
    own, configured = (
        run(toy_config(), data=lambda _: data, bottom=bottom, top=top, optimizer=optimizer).summary["weights"]
        for optimizer in (momentum, None)
    )
    assert own != configured


def test_a_party_restored_before_every_message_keeps_the_state_of_its_own_optimizer(monkeypatch):
    from flower_vfl.apps import training_client

    data, config = toy_data(rows=200), toy_config(transport={"kind": "messages"})
    kept = run(config, data=lambda _: data, bottom=bottom, top=top, optimizer=momentum).summary["weights"]
    genuine = training_client.TrainingClient._store

    def forgetful(self, *arguments, **more):
        genuine(self, *arguments, **more)
        self._live.clear()

    monkeypatch.setattr(training_client.TrainingClient, "_store", forgetful)
    restored = run(config, data=lambda _: data, bottom=bottom, top=top, optimizer=momentum).summary["weights"]
    assert restored == kept


@pytest.mark.parametrize("kind", ["inproc", "stream", "messages"])
def test_an_error_of_a_users_own_model_is_reported_in_full_and_is_the_cause(kind):
    def narrow(spec, config):
        raise RuntimeError("my model needs\nat least 10 columns")

    with pytest.raises(PartyError, match="RuntimeError: my model needs at least 10 columns") as caught:
        run(toy_config(transport={"kind": kind}), data=lambda _: toy_data(rows=200), bottom=narrow)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_model_that_two_parties_would_share_is_refused():
    shared, data = nn.Linear(6, 5), toy_data(rows=200)
    with pytest.raises((ConfigError, PartyError), match=r"model of party '[ab]' has weights that a model factory gave"):
        run(
            toy_config(),
            data=lambda _: data,
            bottom=lambda spec, config: nn.Sequential(shared, nn.ReLU()),
            top=top,
        )


def test_a_model_of_the_last_run_is_refused_and_one_that_is_new_or_copied_is_not():
    given, data, config = nn.Linear(5, 1), toy_data(rows=200, parties=1), toy_config(attack={"names": []})

    def start(top):
        return run(config, data=lambda _: data, bottom=bottom, top=top).summary["weights"]["label"]

    first = start(lambda *_: copy.deepcopy(given))
    assert start(lambda *_: given) == first
    with pytest.raises(ConfigError, match=r"the top model has weights that a model factory gave before.*deepcopy"):
        start(lambda *_: given)
    again = [start(top) for _ in range(2)]
    assert again[0] == again[1]


def test_weights_that_are_not_trained_may_be_shared():
    frozen, data = nn.Linear(6, 5).requires_grad_(False), toy_data(rows=200)
    for _ in range(2):
        run(
            toy_config(attack={"names": []}),
            data=lambda _: data,
            bottom=lambda spec, config: nn.Sequential(frozen, nn.Linear(5, 4)),
            top=top,
        )


@pytest.mark.parametrize(
    ("optimizer", "returned"),
    [(lambda module, _: None, "NoneType"), (lambda module, _: torch.optim.LBFGS(module.parameters()), "LBFGS")],
    ids=["none", "closure"],
)
def test_an_optimizer_that_cannot_be_used_is_named_before_the_first_step(optimizer, returned):
    words = f"the optimizer function returned {returned}: a torch.optim.Optimizer is needed"
    with pytest.raises((ConfigError, PartyError), match=words):
        run(toy_config(), data=lambda _: toy_data(), optimizer=optimizer)
