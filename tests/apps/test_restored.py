"""A prediction is refused where the rebuilt label party computes otherwise than the trained one."""

from __future__ import annotations

import pyarrow.csv as pa_csv
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

from flower_vfl.apps import predict, run
from flower_vfl.apps.model import load_card, model_path
from flower_vfl.errors import ConfigError, NotRestoredError
from flower_vfl.parties.predictor import Predictor
from flower_vfl.protocol.frame import Kind
from flower_vfl.strategies.base import Defense
from tests.cases import parametrize
from tests.toys import toy_config, toy_data


class Changing(Defense):
    """A defense that changes embeddings."""

    @property
    def params(self):
        return {}

    def change(self, z):
        raise NotImplementedError

    def embed(self, z, *, party="", train=True):
        inner, log = self.strategy.embed(z, party=party, train=train)
        return self.change(inner), log


class Learned(Changing):
    """Learns a layer of its own, outside the network."""

    name = "learned"

    def __init__(self, strategy):
        super().__init__(strategy)
        self.layer = nn.Linear(8, 8)
        self.optimizer = torch.optim.SGD(self.layer.parameters(), lr=0.1)

    def begin_batch(self, rows):
        self.optimizer.step()
        self.optimizer.zero_grad()

    def change(self, z):
        return self.layer(z)


class Vector(Changing):
    """Learns a tensor of its own."""

    name = "vector"

    def __init__(self, strategy):
        super().__init__(strategy)
        self.scale = torch.ones(8, requires_grad=True)

    def end_epoch(self):
        with torch.no_grad():
            self.scale.sub_(0.1 * self.scale.grad.sign())
        return {}

    def change(self, z):
        return z * self.scale


class Counting(Changing):
    """Counts batches in a plain number; it has no tensor with a gradient."""

    name = "counting"

    def __init__(self, strategy):
        super().__init__(strategy)
        self.batches = 0

    def begin_batch(self, rows):
        self.batches += 1

    def change(self, z):
        return z + 0.1 * self.batches


class Begun(Changing):
    """Sets its scale only when a training begins."""

    name = "begun"

    def begin(self):
        self.scale = 2.0

    def change(self, z):
        return z * self.scale


class Fixed(Changing):
    """Has a layer with fixed weights that is never trained, and draws noise."""

    name = "fixed"

    def __init__(self, strategy):
        super().__init__(strategy)
        self.layer = nn.Linear(8, 8)
        with torch.no_grad():
            self.layer.weight.copy_(torch.eye(8))

    def change(self, z):
        noise = torch.randn(z.shape, generator=self.generator(z.device))
        return z @ self.layer.weight.T + 0.001 * noise


class Hooked(Changing):
    """Changes no embedding, but the output of the top model, from the end of the first epoch on."""

    name = "hooked"

    def __init__(self, strategy):
        super().__init__(strategy)
        make, self.made = self.base.top, []
        self.base.top = lambda shape: self.made.append(make(shape)) or self.made[-1]

    def change(self, z):
        return z

    def end_epoch(self):
        self.made[-1].register_forward_hook(lambda module, given, output: output + 0.5)
        return {}


class Wrapping(Changing):
    """Learns a layer inside the top model, with which the layer is restored."""

    name = "wrapping"

    def __init__(self, strategy):
        super().__init__(strategy)
        top = self.base.top
        self.base.top = lambda shape: nn.Sequential(nn.Linear(*shape, *shape), top(shape))

    def change(self, z):
        return 2 * z


def trained(defense, folder, **sections):
    data = toy_data(rows=200, **sections)
    named = defense if isinstance(defense, dict) else {"name": f"{__name__}:{defense.__name__}"}
    result = run(toy_config(defenses=[named]), data=lambda _: data, out=folder)
    return data, result


@pytest.mark.parametrize("label_features", [False, True])
@parametrize("defense", [Learned, Vector, Counting, Begun, Hooked], quick=1)
def test_what_a_defense_learned_and_cannot_be_restored_is_refused(defense, label_features, tmp_path):
    data, _ = trained(defense, tmp_path / "run", label_features=label_features)
    with pytest.raises(NotRestoredError, match=f"'{defense.name}'.*self.modules.*result.json") as caught:
        predict(tmp_path / "run", tmp_path / "scores.csv", data=lambda _: data)
    assert isinstance(caught.value, ConfigError)
    assert not (tmp_path / "scores.csv").exists()


@parametrize("kind", ["stream", "messages"], quick=1)
def test_it_is_refused_on_every_transport_before_a_row_is_asked_for(kind, tmp_path, monkeypatch):
    data = toy_data(rows=200)
    config = toy_config(defenses=[{"name": f"{__name__}:Learned"}], transport={"kind": kind})
    run(config, data=lambda _: data, out=tmp_path / "run")
    asked, handle = [], Predictor.handle
    monkeypatch.setattr(Predictor, "handle", lambda party, frame: asked.append(frame.kind) or handle(party, frame))
    with pytest.raises(NotRestoredError, match="'learned'"):
        predict(tmp_path / "run", tmp_path / "scores.csv", data=lambda _: data)
    assert not asked
    run(toy_config(transport={"kind": kind}), data=lambda _: data, out=tmp_path / "other")
    predict(tmp_path / "other", tmp_path / "scores.csv", data=lambda _: data)
    assert Kind.PREDICT in asked


def test_a_run_whose_defense_learned_warns_at_its_end_and_one_that_did_not_is_silent(tmp_path, caplog):
    trained(Learned, tmp_path / "learned")
    assert "the defense 'learned' changes embeddings and holds trainable tensors" in caplog.text
    caplog.clear()
    trained({"name": "potential_energy"}, tmp_path / "built-in")
    assert "trainable tensors" not in caplog.text


@pytest.mark.parametrize("defense", [Fixed, Wrapping])
def test_a_defense_that_can_be_rebuilt_predicts_also_where_it_draws_noise(defense, tmp_path):
    data, result = trained(defense, tmp_path / "run")
    predict(tmp_path / "run", tmp_path / "scores.csv", data=lambda _: data)
    scores = pa_csv.read_csv(tmp_path / "scores.csv")["score"].to_numpy()
    apart = 0.01 if defense is Fixed else 1e-12  # it draws other noise
    assert roc_auc_score(data.target.test, scores) == pytest.approx(result.test_auc, abs=apart)


def test_where_the_network_answers_no_fixed_inputs_only_other_embeddings_are_refused(tmp_path):
    class Positive(nn.Module):
        """A top model that takes no negative number."""

        def __init__(self, width):
            super().__init__()
            self.layer = nn.Linear(width, 1)

        def forward(self, z):
            if bool((z < 0).any()):
                raise ValueError("a negative number")
            return self.layer(z)

    def top(shape, classes, config):
        return Positive(shape[0])

    def bottom(spec, config):
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU())

    data = toy_data(rows=200)
    for name, defenses in (("plain", []), ("counting", [{"name": f"{__name__}:Counting"}])):
        config = toy_config(defenses=defenses)
        run(config, data=lambda _: data, out=tmp_path / name, top=top, bottom=bottom)
        assert load_card(model_path(tmp_path / name, "label")).answer == ()
    predict(tmp_path / "plain", tmp_path / "plain.csv", data=lambda _: data, top=top, bottom=bottom)
    with pytest.raises(NotRestoredError, match="cannot be checked whether the defense 'counting'"):
        predict(tmp_path / "counting", tmp_path / "scores.csv", data=lambda _: data, top=top, bottom=bottom)
