"""A private loss trains the modules of a defense on true labels, and nothing that is sent depends on them."""

import sys
from pathlib import Path

import pytest
import torch

from flower_vfl.apps import run
from flower_vfl.data.store.dataset import Labels
from flower_vfl.errors import ConfigError
from flower_vfl.strategies import Defense
from flower_vfl.testing import check_defense
from tests.strategies.sent import sent_for
from tests.toys import toy_config, toy_data

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_methods"


@pytest.fixture
def private_head(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLE)
    from own_methods import private_head

    yield private_head
    for name in [name for name in sys.modules if name.split(".")[0] == "own_methods"]:
        del sys.modules[name]


def config(name="own_methods.private_head:PrivateHead", **sections):
    training = {
        "epochs": 6,
        "patience": 0,
        "batch_size": 16,
        "clip_norm": 0.2,
    }  # clipping must not join private and sent gradients
    return toy_config(**{"training": training, "attack": {"names": []}, "defenses": [{"name": name}], **sections})


@pytest.mark.slow
def test_with_the_same_draw_other_true_labels_change_no_message_of_a_users_private_head(private_head, monkeypatch):
    original = private_head.PrivateHead.prepare_labels
    monkeypatch.setattr(
        private_head.PrivateHead, "prepare_labels", lambda defense, labels: original(defense, torch.zeros_like(labels))
    )
    data = toy_data(rows=400, test_rows=200, parties=2, label_features=True)
    truth = data.labels()
    turned = Labels(1 - truth.train, 1 - truth.test, 2)
    (one, many, first), (other, others, second) = (
        sent_for(labels, data, config(), monkeypatch) for labels in (truth, turned)
    )
    assert (one, many) == (other, others)
    assert many > 10
    assert {party: first["weights"][party] for party in "ab"} == {party: second["weights"][party] for party in "ab"}
    assert first["weights"]["label"] != second["weights"]["label"]
    assert min(run["utility"]["last"]["test_auc"] for run in (first, second)) > 0.7  # the shared model knows no label


def test_the_users_private_head_passes_the_checks_of_every_defense(private_head):
    check_defense(private_head.PrivateHead)


class Reached(Defense):
    """A defense with a private loss of modules that its hook `loss` reaches, too."""

    name = "reached"
    params = {}  # noqa: RUF012

    def build(self, cut, device):
        self.modules["scale"] = torch.nn.Linear(1, 1)

    def loss(self, logits, labels, z):
        inner, log = self.strategy.loss(logits, labels, z)
        return inner + self.modules["scale"](z[:, :1]).square().mean(), log

    def private_loss(self, z, true_labels, rows):
        return (self.modules["scale"](z[:, :1])[:, 0] - true_labels).square().mean()


def test_modules_that_learn_from_true_labels_are_refused_in_the_loss_of_sent_gradients():
    with pytest.raises(ConfigError, match=r"reaches modules of Reached.*would depend on true labels"):
        run(config(f"{__name__}:Reached"), data=lambda _: toy_data(rows=60, test_rows=20))
