"""Files, folders and result entries are named after parties: those of two parties never coincide."""

import json
from dataclasses import replace

import pytest

from flower_vfl.apps import run
from flower_vfl.apps.local import run_alone
from flower_vfl.errors import ConfigError
from tests.cases import parametrize
from tests.toys import toy_config, toy_data

ONE_EPOCH = {"training": {"epochs": 1, "batch_size": 64}}


class Renamed:
    """A user's own class of data, with renamed parties; unlike `MemoryData` it checks no name."""

    def __init__(self, data, names, label_party):
        self._data, self._old = data, dict(zip(names, data.parties, strict=True))
        self.name, self.parties, self.label_party, self.alignment = data.name, tuple(names), label_party, data.alignment

    def party(self, name):
        return replace(self._data.party(self._old[name]), name=name)

    def labels(self):
        return self._data.labels()


@pytest.mark.parametrize("features", [[], ["label"], ["label", "b"]])
def test_a_feature_party_called_as_the_label_partys_results_are_is_refused(tmp_path, features):
    data = Renamed(toy_data(rows=200), ["label", "b"], "owner")
    with pytest.raises(ConfigError, match="a feature party cannot be called 'label', as results and files of the"):
        run(toy_config(parties={"features": features}, **ONE_EPOCH), out=tmp_path / "run", data=lambda _: data)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["ids", "labels", "../b", "a+b", ""])
def test_names_of_data_of_ones_own_are_checked_too(name):
    data = Renamed(toy_data(rows=200), ["a", name], "owner")
    with pytest.raises(
        ConfigError, match=f"'{name}' is no party name: .*; name it otherwise in toy".replace("+", r"\+")
    ):
        run(toy_config(**ONE_EPOCH), data=lambda _: data)


@parametrize("label_party", ["label", "owner", "a"], quick=1)
def test_every_party_has_weights_states_and_digests_of_its_own(tmp_path, label_party):
    """This holds where one name begins with another, and for every name of the label party."""
    names = ["a", "a-label", "label-a", "weights"]
    data = Renamed(toy_data(rows=200, parties=4), names, label_party)
    config = toy_config(parties={"features": names, "label_features": False}, checkpoint={"every": 1}, **ONE_EPOCH)
    run(config, out=tmp_path, data=lambda _: data)
    parties = {"label", *names}
    weights = json.loads((tmp_path / "result.json").read_text())["weights"]
    assert weights.keys() == parties
    assert len(set(weights.values())) == len(parties)
    assert {path.stem for path in (tmp_path / "weights").iterdir()} == parties
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} >= parties


def test_a_label_party_called_label_can_train_on_its_own_columns_alone():
    data = toy_data(rows=200, label_features=True)
    alone = run_alone(toy_config(**ONE_EPOCH), "label", data=lambda _: data)
    assert len(set(alone.summary["weights"].values())) == 2
