"""Weights of a finished training, and the card in each file of weights."""

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from flower_vfl.apps import run
from flower_vfl.apps.model import load_card, load_model, model_path, save_model
from flower_vfl.errors import ConfigError, DataError
from tests.cases import parametrize
from tests.toys import toy_config, toy_data


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A finished run of two feature parties and a label party with columns of its own."""
    out = tmp_path_factory.mktemp("model") / "run"
    data = toy_data(rows=200, label_features=True)
    run(toy_config(), data=lambda _: data, out=out)
    return out


def rewrite(source, target, change):
    """Copy weights with a changed card, and return the path of the copy."""
    with safe_open(source, framework="pt") as file:
        content = json.loads(file.metadata()["flower-vfl"])
    change(content)
    target.parent.mkdir(parents=True, exist_ok=True)
    save_file(load_file(source), target, metadata={"flower-vfl": json.dumps(content)})
    return target


@parametrize("kind", ["inproc", "stream", "messages"], quick=1)
def test_every_party_keeps_the_weights_that_the_result_names(kind, tmp_path):
    data = toy_data(rows=100, test_rows=20)
    config = toy_config(transport={"kind": kind})
    result = run(config, data=lambda _: data, out=tmp_path / "run")
    models = {party: load_model(model_path(tmp_path / "run", party)) for party in ("a", "b", "label")}
    assert {party: kept.digest for party, kept in models.items()} == result.summary["weights"]
    assert len({kept.card.session for kept in models.values()}) == 1
    assert all(kept.card.config == config.fitted(data.alignment.rows) for kept in models.values())
    assert all(kept.card.alignment == data.alignment for kept in models.values())


def test_a_card_says_what_the_weights_need(folder):
    label, party = (load_card(model_path(folder, name)) for name in ("label", "a"))
    assert label.features == ("a", "b")
    assert label.classes == ("0", "1")
    assert label.spec == party.spec == toy_data(rows=200, label_features=True).party("a").spec
    assert (party.features, party.classes) == ((), ())
    assert label.factories == {
        "top": "flower_vfl.apps.factories:default_top",
        "bottom": "flower_vfl.apps.factories:default_bottom",
    }


def test_no_party_keeps_weights_of_another(folder):
    tensors = {party: load_model(model_path(folder, party)).tensors for party in ("a", "b", "label")}
    assert {name.partition(".")[0] for name in tensors["label"]} == {"top", "bottom"}
    assert all(name.startswith("layers.") for name in tensors["a"])


def test_weights_that_were_changed_are_refused(folder, tmp_path):
    source = model_path(folder, "a")
    with safe_open(source, framework="pt") as file:
        metadata = file.metadata()
    tensors = load_file(source)
    next(iter(tensors.values())).view(-1)[0] += 1e-7
    save_file(tensors, tmp_path / "a.safetensors", metadata=metadata)
    with pytest.raises(DataError, match="damaged"):
        load_model(tmp_path / "a.safetensors")


def test_weights_of_another_version_are_refused_and_those_of_a_patch_are_not(folder, tmp_path):
    source = model_path(folder, "a")
    load_card(rewrite(source, tmp_path / "a.safetensors", lambda card: card.update(version="0.1.99")))
    for change in ({"version": "0.2.0"}, {"schema": 2}):
        with pytest.raises(DataError, match="written by flower-vfl"):
            load_card(rewrite(source, tmp_path / "a.safetensors", lambda card, more=change: card.update(more)))


@pytest.mark.parametrize(
    "change",
    [
        lambda card: card.pop("weights"),
        lambda card: card.update(spec={"numeric": -1, "cardinalities": [], "shape": [], "pixels": False}),
        lambda card: card.update(alignment=None),
        lambda card: card["config"].update(seed="x"),
        lambda card: card.update(classes=3),
        lambda card: card.update(factories=[]),
        lambda card: card["alignment"].update(rows=math.inf),
    ],
)
def test_a_card_that_is_wrong_is_refused_with_its_path(folder, tmp_path, change):
    path = rewrite(model_path(folder, "a"), tmp_path / "a.safetensors", change)
    with pytest.raises(DataError, match=r"a\.safetensors"):
        load_card(path)


def test_files_that_are_no_weights_are_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    with pytest.raises(DataError, match="no weights of a finished training"):
        load_model(path)
    path.write_bytes(b"\x80\x04rubbish")
    with pytest.raises(DataError, match="no weights that can be used"):
        load_model(path)
    save_file({"x": torch.ones(1)}, path)
    with pytest.raises(DataError, match="no weights that can be used"):
        load_model(path)


def test_weights_go_into_a_module_that_has_them_and_into_no_other(folder):
    kept = load_model(model_path(folder, "a"))
    with pytest.raises(ConfigError, match="do not fit its model"):
        kept.load_into(torch.nn.Linear(6, 8))


def test_half_a_file_is_never_left(folder, tmp_path, monkeypatch):
    def broken(tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr("safetensors.torch.save_file", broken)
    with pytest.raises(OSError, match="disk full"):
        save_model(tmp_path, load_card(model_path(folder, "a")), torch.nn.Linear(2, 2))
    assert not any((tmp_path / "weights").iterdir())
