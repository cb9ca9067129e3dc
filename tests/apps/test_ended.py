"""Files that only a resumed run needs are deleted once a deployed run's results are written, and not before."""

import shutil

import pytest

from flower_vfl.apps.run_state import CHECKPOINTS, PartyStorage
from flower_vfl.config import build_config
from flower_vfl.errors import FlowerVflError, SetupError, StorageError
from flower_vfl.rng import NOISE_KEY_FILE_VARIABLE, SECRET_FILE_VARIABLE
from tests.apps.test_node import CONFIG, deploy, folders, nodes_of  # noqa: F401 - `folders` is a fixture
from tests.cases import parametrize

STATES = ("secret-*", "step-*", "received*", "memory-*")


def left(folder):
    """Return those of the patterns in STATES that match a file in a party's folder of checkpoints."""
    return sorted({name for name in STATES for _ in folder.glob(name)})


@pytest.fixture(params=["stream", "messages"])
def hosts(request, folders, monkeypatch, tmp_path):  # noqa: F811
    """A function that runs a deployment, and the checkpoint folders of the label party and of one feature party."""
    root, dataset = folders
    monkeypatch.setenv(NOISE_KEY_FILE_VARIABLE, str(tmp_path / "noise.key"))
    (tmp_path / "noise.key").write_bytes(bytes(32))
    nodes = nodes_of(folders)
    for node in nodes:
        node["out"] = str(tmp_path / node["party"])
    changes = {"checkpoint": {"every": 1}, "transport": {"kind": request.param}}
    config = build_config({**CONFIG.model_dump(), **changes})

    def start(**changed):
        label = root / dataset.label_party
        return deploy(nodes, label, monkeypatch, tmp_path, config, out=str(tmp_path / "run"), **changed)

    party = nodes[0]["party"]
    return start, tmp_path / "run" / CHECKPOINTS / "label", tmp_path / party / CHECKPOINTS / party


@pytest.fixture
def interrupted(hosts, monkeypatch):
    """The fixture `hosts`, with a run that was interrupted after its last step."""
    start, label, party = hosts

    def full(*_):
        raise StorageError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("flower_vfl.apps.training.save_model", full)
        with pytest.raises(StorageError):
            start()
    return start, label, party


def test_a_finished_run_leaves_no_secret_and_no_state_and_cannot_go_on(hosts, tmp_path):
    start, label, party = hosts
    assert start().status == "finished"
    assert (left(label), left(party)) == ([], [])
    assert (tmp_path / "noise.key").read_bytes() == bytes(32)
    with pytest.raises(SetupError, match=r"has finished and its results are written.* Begin a new run in another"):
        start(resume=True)
    shutil.rmtree(label.parent)  # as a backup without states leaves it
    result = (tmp_path / "run" / "result.json").read_bytes()
    with pytest.raises(SetupError, match=r"the run in \S+ has finished"):
        start(resume=True)
    assert (tmp_path / "run" / "result.json").read_bytes() == result
    (ended,) = party.glob("ended-*")
    with pytest.raises(SetupError, match="nothing is left to go on with"):
        PartyStorage(party, party.name, ended.name.removeprefix("ended-")).check_open()
    (party / "secret-00").write_bytes(b"of a training that never ended")
    PartyStorage(party, party.name, "another").check_open()  # the next training in this folder
    assert not [*party.glob("ended-*"), *party.glob("secret-*")]


def test_a_run_whose_results_could_not_be_written_keeps_all_that_it_needs_to_go_on(interrupted):
    start, label, party = interrupted
    assert {"secret-*", "step-*"} <= set(left(label)) & set(left(party))
    assert start(resume=True).status == "finished"
    assert (left(label), left(party)) == ([], [])


@pytest.mark.parametrize("hosts", ["stream"], indirect=True)
@parametrize("whose", ["label", "party"], quick=1)
def test_a_run_whose_secret_is_lost_or_another_does_not_go_on(interrupted, whose, monkeypatch, tmp_path, caplog):
    """It would draw labels and noise a second time."""
    start, *states = interrupted
    (secret,) = states[["label", "party"].index(whose)].glob("secret-*")
    kept = secret.read_bytes()
    secret.unlink()
    with pytest.raises(FlowerVflError) as caught:
        start(resume=True)
    assert "belongs to a training with another secret" in f"{caught.value} {caplog.text}"
    secret.write_bytes(kept)
    with monkeypatch.context() as patch:
        patch.setenv(SECRET_FILE_VARIABLE, str(tmp_path / "noise.key"))
        with pytest.raises(FlowerVflError):
            start(resume=True)
    assert start(resume=True).status == "finished"


@pytest.mark.parametrize("hosts", ["stream"], indirect=True)
def test_states_of_a_run_killed_after_its_results_are_removed_by_a_resume(hosts, monkeypatch):
    start, label, _ = hosts
    with monkeypatch.context() as patch:
        patch.setattr(PartyStorage, "end", lambda _: None)
        assert start().status == "finished"
    assert {"secret-*", "step-*"} <= set(left(label))
    with pytest.raises(SetupError, match=r"the run in \S+ has finished"):
        start(resume=True)
    assert left(label) == []
