"""Joint attacks in whole runs: measured once at each attacker, on the final model, and after interruptions."""

import re

import pytest

from flower_vfl.apps import run
from flower_vfl.apps.training_client import TrainingClient
from flower_vfl.config import build_config
from flower_vfl.errors import ConfigError
from tests.attacks.longitudinal.test_runs import NoLiveParties, files_left, folders  # noqa: F401 - a fixture
from tests.cases import parametrize
from tests.faults.common import Interrupt
from tests.toys import mixed_data, text_data, toy_config, toy_data

NAMES = ["joint_regression", "joint_reader(k=5)"]
ATTACK = {"names": NAMES, "informed": 0, "monitor": False}


def config_of(*names, kind="inproc", attack=(), **sections):
    return toy_config(
        attack={"names": list(names), "informed": 0, **dict(attack)}, transport={"kind": kind}, **sections
    )


def entries_of(result):
    keys = ("party", "label", "rows_of")
    return {tuple(e[key] for key in keys): e for e in result.summary["leakage"] if e["phase"] == "joint"}


@pytest.fixture(scope="module")
def in_process():
    return entries_of(run(config_of(*NAMES), data=lambda _: mixed_data()))


def test_every_attacker_is_read_on_training_rows_and_on_test_rows(in_process):
    assert set(in_process) == {(party, label, part) for party in "a" for label in NAMES for part in ("train", "test")}
    for (_, label, part), entry in in_process.items():
        known = 10 if label.startswith("joint_reader") and part == "train" else 0
        assert entry["rows"] == (540 - known if part == "train" else 150)
        assert (entry["source"], entry["layer"], entry["q95"], entry["steps"]) == ("attacker", "cut", None, None)
        assert entry["interval95"][0] <= entry["mean"] <= entry["interval95"][1]
        assert entry["advantage"] == pytest.approx(entry["mean"] - entry["baseline"])


@pytest.mark.slow
@pytest.mark.parametrize("informed", [{"informed": 4000}, {"informed": 0}, {"informed": 4000, "audit": False}])
def test_a_simulation_reads_gradients_with_columns_whatever_attacks_are_named(informed):
    result = run(config_of("norm", attack=informed), data=lambda _: toy_data(rows=900))
    found = [e for e in result.summary["leakage"] if "columns" in e.get("sees", ())]
    assert [entry["party"] for entry in found] == (
        ["a", "b", "a+b"] if len(informed) == 1 and informed["informed"] else []
    )
    for entry in found:
        assert (entry["attack"], entry["phase"], entry["source"]) == ("informed", "audit", "monitor")
        assert entry["advantage"] == pytest.approx(entry["mean"] - entry["baseline"])
    if found:  # the label is the sign of a sum over both parties' columns
        assert found[-1]["baseline"] > max(entry["baseline"] for entry in found[:-1]) + 0.05


@pytest.mark.slow
def test_parties_that_collude_put_their_columns_together_for_joint_attacks():
    result = run(config_of(*NAMES, attack={"informed": 4000}), data=lambda _: toy_data(rows=900))
    train = {key[:2]: entry for key, entry in entries_of(result).items() if key[2] == "train"}
    reader = {party: train[party, NAMES[1]] for party in ("a", "b", "a+b")}
    assert {entry["source"] for entry in reader.values()} == {"attacker", "monitor"}
    assert reader["a+b"]["baselines"]["columns"] > max(reader[p]["baselines"]["columns"] for p in "ab")
    assert abs(train["a+b", "joint_regression"]["mean"] - 0.5) > 0.3  # neither class is rarer: the sign is arbitrary
    without = run(config_of(*NAMES), data=lambda _: toy_data(rows=300)).summary["leakage"]
    assert {e["unavailable"] for e in without if e["party"] == "a+b" and e["phase"] == "joint"} == {
        "no rows of these parties were kept: set attack.informed above 0"
    }


@pytest.mark.parametrize("kind", ["stream", "messages"])
def test_every_transport_gives_the_same_entries(kind, in_process):
    assert entries_of(run(config_of(*NAMES, kind=kind), data=lambda _: mixed_data())) == in_process


@parametrize("step", [4, 17], quick=1)
@pytest.mark.parametrize("every", [0, 2])
def test_an_interrupted_run_gives_the_entries_of_an_undisturbed_one(every, step, in_process, folders):  # noqa: F811
    config = config_of(*NAMES, checkpoint={"every": every})
    with pytest.raises(KeyboardInterrupt):
        run(config, out=folders / "run", data=lambda _: mixed_data(), observers=(Interrupt(step),))
    resumed = run(config, out=folders / "run", data=lambda _: mixed_data(), resume=True)
    assert entries_of(resumed) == in_process
    assert files_left(folders) == []


def test_a_party_reads_in_another_process_than_the_one_that_kept_the_rows(in_process, folders, monkeypatch):  # noqa: F811
    initialise = TrainingClient.__init__

    def initialised(client, *args):
        initialise(client, *args)
        client._live = NoLiveParties()

    monkeypatch.setattr(TrainingClient, "__init__", initialised)
    result = run(config_of(*NAMES, kind="messages"), data=lambda _: mixed_data())
    assert entries_of(result) == in_process


@pytest.mark.parametrize(
    "data",
    [lambda: toy_data(rows=300, shape=(1100,)), lambda: text_data(rows=200, test_rows=60)],
    ids=["wide", "text"],
)
def test_texts_are_read_with_their_columns_and_wide_inputs_without(data):
    opened = data()
    positives = [] if opened.labels().classes == 2 else [1]
    network = {"network": "textcnn", "cut": 12} if positives else {"cut": 8, "bottom": [16]}
    training = {"epochs": 2, "batch_size": 64}
    config = build_config({"attack": {**ATTACK, "positives": positives}, "model": network, "training": training})
    found = entries_of(run(config, data=lambda _: opened))
    assert found
    assert all(entry["mean"] is not None for entry in found.values())
    baselines = {name for entry in found.values() for name in entry["baselines"]}
    assert ("columns" in baselines) == (opened.name != "toy")


def test_a_deployment_has_no_labels_to_score_joint_attacks_with():
    config = config_of(*NAMES, attack={"audit": False})
    assert entries_of(run(config, data=lambda _: mixed_data())) == {}


def test_more_known_labels_than_there_are_is_refused():
    with pytest.raises(ConfigError, match=re.escape("joint_reader(k=5000)")):
        run(config_of("joint_reader(k=5000)"), data=lambda _: mixed_data())
