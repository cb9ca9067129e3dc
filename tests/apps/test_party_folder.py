"""One session at a time uses a deployed party's folder, and it leaves only files there that are still needed."""

import os
import re

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from flower_vfl.apps import make_client_app, run
from flower_vfl.apps.training_client import TrainingSession
from flower_vfl.checkpoint import save_state
from flower_vfl.config import to_run_config
from flower_vfl.errors import PartyError, ProtocolError
from flower_vfl.files import FolderLock
from flower_vfl.parties.feature import FeatureParty
from flower_vfl.protocol.frame import Frame, Kind
from flower_vfl.transport.messages import bundle, unbundle
from tests.apps.test_node import CONFIG, deploy, folders, nodes_of  # noqa: F401 - `folders` is a fixture
from tests.faults.common import Interrupt
from tests.toys import toy_config, toy_data

MESSAGES = {"kind": "messages"}


@pytest.mark.parametrize("kind", ["stream", "messages"])
def test_a_folder_in_which_another_process_works_is_refused_and_nothing_is_written(
    folders,  # noqa: F811
    monkeypatch,
    tmp_path,
    caplog,
    kind,
):
    root, dataset = folders
    own = tmp_path / "own"
    own.mkdir()
    nodes = nodes_of(folders)
    nodes[0]["out"] = str(own)
    config = CONFIG.model_copy(update={"transport": CONFIG.transport.model_copy(update={"kind": kind})})
    with FolderLock(own):
        message = rf"OutputExistsError: party '{nodes[0]['party']}' could not take part in the training; the log of its"
        with pytest.raises(PartyError, match=message) as caught:
            deploy(nodes, root / dataset.label_party, monkeypatch, tmp_path, config)
        assert str(tmp_path) not in str(caught.value)
        words = rf"party '{nodes[0]['party']}': .*own is in use by process {os.getpid()} on .*another folder as `out`"
        assert re.search(words, caplog.text)
        assert [path.name for path in own.iterdir()] == [FolderLock.NAME]
    (own / "weights").mkdir()
    (own / "weights" / ".a.safetensors.58c2ez4c.tmp").touch()  # as a kill leaves it
    deploy(nodes, root / dataset.label_party, monkeypatch, tmp_path, config)
    assert [path.stem for path in (own / "weights").iterdir()] == [nodes[0]["party"]]


def states_between_messages(folder):
    return sorted(path.parent.name for path in folder.rglob("session*.safetensors"))


@pytest.mark.slow
def test_an_interrupted_run_keeps_one_state_of_each_party_until_it_is_resumed(tmp_path, monkeypatch):
    monkeypatch.setenv("FLOWER_VFL_STATE", str(tmp_path / "state"))
    config = toy_config(transport=MESSAGES, checkpoint={"every": 2})
    out = tmp_path / "run"
    for step in (1, 3, 3):
        with pytest.raises(KeyboardInterrupt):
            run(config, out=out, resume=True, data=lambda _: toy_data(), observers=(Interrupt(step),))
        found = states_between_messages(tmp_path)
        assert found == sorted(set(found))
        assert found
    run(config, out=out, resume=True, data=lambda _: toy_data())
    assert states_between_messages(tmp_path) == []


def test_a_party_that_fails_leaves_nothing_of_its_session(tmp_path, monkeypatch):
    monkeypatch.setenv("FLOWER_VFL_STATE", str(tmp_path / "state"))
    handle = FeatureParty.handle

    def failing(party, frame):
        if frame.kind is Kind.EVALUATE and party.name == "a":
            raise ValueError("no")
        return handle(party, frame)

    monkeypatch.setattr(FeatureParty, "handle", failing)
    with pytest.raises(PartyError):
        run(toy_config(transport=MESSAGES), data=lambda _: toy_data())
    assert not list(tmp_path.rglob("session-*-a.safetensors"))


def test_a_message_of_a_session_that_another_one_replaced_is_refused(tmp_path):
    new, old = (TrainingSession(ConfigRecord({"session": name}), "a", False, tmp_path) for name in ("new", "old"))
    save_state(new.state_path, {"session": new.id, "state": {"step": 3}})
    assert new.load() == {"step": 3}
    assert new.state_path.stat().st_mode & 0o077 == 0
    with pytest.raises(ProtocolError, match=r"another session of party 'a' has begun; this one is over"):
        old.load()


@pytest.mark.parametrize("processes", ["one", "many"])
def test_a_late_message_of_an_earlier_session_changes_nothing_of_the_later_one(tmp_path, processes):
    """Both sessions work in the party's one folder, which is locked within a message alone."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 0  # `Message(...)` reads them
    config, dataset = toy_config(transport=MESSAGES, attack={"names": []}), toy_data()
    only = make_client_app(data=lambda _: dataset)
    node = {"party": "a", "out": str(tmp_path), "train-epochs": 10}
    contexts = [Context(number, 2, node, RecordDict(), to_run_config(config)) for number in (1, 2)]

    def send(number, content, kind):
        app = only if processes == "one" else make_client_app(data=lambda _: dataset)
        return app(Message(content, 2, kind), contexts[number - 1]).content

    def offer(number):
        own = {"kind": "messages", "session": f"s{number}", "wire-dtype": "exact", "training": str(number) * 32}
        send(number, RecordDict({"offer": ConfigRecord({**own, "simulation": False})}), "train")

    def ask(number, frame):
        content = send(number, bundle([frame], f"s{number}", "exact"), "train.frames")
        return [answer.kind for answer in unbundle(content, f"s{number}", "exact", limit=10**8)]

    for number in (1, 2):
        offer(number)
        assert ask(number, Frame(Kind.SAVE, 0)) == [Kind.SAVED]
    kept = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ProtocolError, match="another session of party 'a' has begun; this one is over"):
        ask(1, Frame(Kind.STEP, 0, {"gradient_of": -1}))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == kept
    assert ask(2, Frame(Kind.STEP, 0, {"gradient_of": -1})) == [Kind.EMBEDDING]
    assert ask(2, Frame(Kind.RESTORE, 0, {"count": 1})) == [Kind.RESTORED]
