"""Hosts align what their owners' settings name, and nothing that the run config names."""

from __future__ import annotations

import logging
import time
from contextlib import suppress

import pytest
from flwr.app import Context, Message, RecordDict

from flower_vfl.apps.alignment import client, conversation, start
from flower_vfl.apps.alignment.owner import IDS_VARIABLE, RESULT_VARIABLE, Owner
from flower_vfl.apps.alignment.place import state_folder
from flower_vfl.apps.alignment.start import align_as_label
from flower_vfl.apps.alignment.wire import AlignmentStage, frame
from flower_vfl.config import build_config
from flower_vfl.data.store.alignment import AlignmentFile
from flower_vfl.errors import ConfigError, DataError, PartyError, ProtocolError, SetupError
from flower_vfl.protocol.frame import from_records, to_records
from flower_vfl.version import software
from tests.apps.alignment.common import WatchedGrid, people, write_people

COMMON = tuple(sorted(people("", 20, 50)))


class Deployment:
    """Two feature parties and a label party, each with a folder of its own."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.nodes = folder, {}
        for party, span in {"label": (0, 60), "a": (20, 90), "b": (5, 50)}.items():
            (folder / party).mkdir()
            ids = write_people(folder / party / "people.csv", people(party, *span), ["label"])
            self.nodes[party] = {"ids": ids, "alignment": str(folder / party / "alignment.parquet")}
        host = self.nodes.pop("label")
        monkeypatch.setenv(IDS_VARIABLE, host["ids"])
        monkeypatch.setenv(RESULT_VARIABLE, host["alignment"])
        monkeypatch.setattr(start, "is_simulation", lambda grid: False)

    def align(self, order=("a", "b"), changes=None, **settings):
        config = build_config({"parties": {"features": ["a", "b"]}}, settings)
        grid = WatchedGrid(config, len(order))
        nodes = {
            party: {"party": party, **node, **(changes or {}).get(party, {})} for party, node in self.nodes.items()
        }
        grid.name_nodes([nodes.get(party, {"party": party} if party else {}) for party in order])
        try:
            return align_as_label(grid, config, None, lambda what, done: None)
        finally:
            grid.join(20)

    def result(self, party):
        return AlignmentFile.read(self.folder / party / "alignment.parquet")


@pytest.fixture
def deployment(tmp_path, monkeypatch):
    return Deployment(tmp_path, monkeypatch)


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a"), ("stranger", "b", "a")])
def test_each_host_reads_and_writes_what_its_owner_says(order, deployment):
    deployment.align(order)
    assert {deployment.result(party).ids for party in ("label", "a", "b")} == {COMMON}


def test_the_run_config_cannot_name_files_of_a_host(deployment, tmp_path):
    mine = write_people(tmp_path / "mine.csv", people("", 0, 90), ["x"])
    options = f'{{"files": {{"a": "{mine}", "b": "{mine}"}}, "labels_file": "{mine}"}}'
    deployment.align(**{"data.name": "files", "data.options": options})
    assert deployment.result("a").ids == COMMON


@pytest.mark.parametrize(
    ("changes", "settings", "text"),
    [
        ({"b": {"align-method": "hash"}}, {}, "this host agrees to an alignment by 'hash' only"),
        ({}, {"align.method": "hash"}, "this host agrees to an alignment by 'psi' only"),
        ({"a": {"align-max-ids": 59}}, {}, r"wants to compare 60 IDs; this host allows 59 \(align-max-ids\)"),
    ],
)
def test_an_owner_agrees_to_what_the_node_config_says_and_no_more(changes, settings, text, deployment):
    with pytest.raises(PartyError, match=text):
        deployment.align(changes=changes, **settings)
    assert not list(deployment.folder.rglob("*alignment.parquet*"))


def test_owners_who_agree_to_hashes_get_them(deployment):
    agreed = {party: {"align-method": "hash"} for party in ("a", "b")}
    deployment.align(changes=agreed, **{"align.method": "hash"})
    assert deployment.result("b").ids == COMMON


def test_a_registered_node_that_refuses_is_named_as_it_is_registered(deployment, monkeypatch):
    from flower_vfl.transport.mailbox import Mailbox

    monkeypatch.setattr(Mailbox, "nodes", lambda self: {2: "a", 3: "b"})
    with pytest.raises(PartyError, match="node 3, registered as 'b', failed"):
        deployment.align(changes={"b": {"ids": ""}})


@pytest.mark.parametrize(
    ("changes", "logged"),
    [
        ({"ids": "/nowhere/secret-place.csv"}, "there is no file /nowhere/secret-place.csv"),
        ({"ids-column": "person"}, "has no column 'person'"),
        ({"ids-column": "person"}, "In a deployment ids and ids-column in --node-config name the file and its column"),
        ({"ids": ""}, "this host does not say which IDs may be aligned"),
        ({"alignment": ""}, "this host does not say which IDs may be aligned"),
        ({"align-method": "md5"}, "align-method of this node is 'md5'; --node-config allows 'psi' or 'hash'"),
        ({"align-max-ids": "many"}, "align-max-ids of this node is 'many'; a whole number"),
        *(({"align-max-ids": value}, f"align-max-ids of this node is '{value}'") for value in (-1, 0, True)),
        ({"align_max_ids": 9}, "no key 'align_max_ids'; did you mean 'align-max-ids'"),
    ],
)
def test_an_error_of_a_host_is_logged_there_and_not_sent_to_the_label_party(changes, logged, deployment, caplog):
    with pytest.raises(PartyError, match=r"party 'b' could not take part .* the log of its host says why") as caught:
        deployment.align(changes={"b": changes})
    assert logged not in str(caught.value)
    assert "secret-place" not in str(caught.value)
    assert logged in caplog.text


def test_the_text_of_an_unknown_error_is_neither_sent_nor_logged(deployment, monkeypatch, caplog):
    from flower_vfl.apps.alignment.feature import FeatureSide

    def fail(self, message):
        raise ValueError("person-0001 is not in list")

    monkeypatch.setattr(FeatureSide, "_match", fail)
    caplog.set_level(logging.DEBUG)
    with pytest.raises(PartyError) as caught:
        deployment.align()
    assert "person-0001" not in str(caught.value) + caplog.text
    assert "ValueError" in caplog.text
    assert "test_deployed.py" in caplog.text


def test_the_log_of_a_host_has_the_parties_and_their_numbers_of_ids(deployment, caplog):
    caplog.set_level(logging.INFO)
    deployment.align()
    assert "alignment by psi, party a: 70 IDs here, 60 at label" in caplog.text


def test_a_node_logs_where_flower_writes_its_own_log(monkeypatch):
    """Flower starts a process for each message, in which nobody has set up our log."""
    from flower_vfl.apps.flower_log import log_as_flower_does

    ours, flower = logging.getLogger("flower_vfl"), logging.getLogger("flwr")
    monkeypatch.setattr(ours, "hasHandlers", lambda: False)
    for name, value in {"handlers": [], "level": 0, "propagate": True}.items():
        monkeypatch.setattr(ours, name, value)
    log_as_flower_does()
    assert ours.handlers == flower.handlers
    assert ours.isEnabledFor(logging.INFO)
    assert not ours.propagate


def test_a_node_that_is_registered_under_another_name_is_refused(deployment, monkeypatch):
    from flower_vfl.transport.mailbox import Mailbox

    monkeypatch.setattr(Mailbox, "nodes", lambda self: {2: "a", 3: "b"})
    deployment.align(order=("a", "b"))
    for party in ("label", "a", "b"):
        (deployment.folder / party / "alignment.parquet").unlink()
    with pytest.raises(PartyError, match="registered as 'a' says that it is party 'b'"):
        deployment.align(order=("b", "a"))
    assert not list(deployment.folder.rglob("*alignment.parquet*"))


def test_a_name_that_a_party_claims_without_proof_is_logged(deployment, caplog):
    deployment.align()
    assert "claims to be party 'a' without proof" in caplog.text


def test_another_version_of_the_package_is_refused_with_what_to_do(deployment, monkeypatch):
    monkeypatch.setattr("flower_vfl.apps.alignment.label.software", lambda: {"version": "0.0.9"})
    words = r"the label party's host has flower-vfl 0\.0\.9 \(build unknown\), the host of party .* has the older one"
    with pytest.raises(PartyError, match=words):
        deployment.align()


def test_a_second_alignment_needs_the_owners_consent(deployment):
    deployment.align()
    (deployment.folder / "label" / "alignment.parquet").unlink()
    with pytest.raises(PartyError, match="the log of its host says why"):
        deployment.align()
    assert not (deployment.folder / "label" / "alignment.parquet").exists()
    (deployment.folder / "a" / "alignment.parquet").unlink()
    (deployment.folder / "b" / "alignment.parquet").unlink()
    deployment.align()


def test_a_party_that_is_not_there_is_named(deployment, monkeypatch):
    monkeypatch.setattr("flower_vfl.apps.alignment.conversation._CONNECT_SECONDS", 0.3)
    with pytest.raises(SetupError, match="no node is party b; start"):
        deployment.align(order=("a",))
    with pytest.raises(SetupError, match="no node is party b; start"):
        deployment.align(order=("a", "bee"))


def test_an_alignment_does_not_wait_for_a_busy_node_that_takes_no_part(deployment, monkeypatch, caplog):
    result, genuine, ended = deployment.folder / "label" / "alignment.parquet", client._party, []

    def party_of(request, context):
        deadline = time.monotonic() + 20
        while context.node_config["party"] == "stranger" and not result.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        ended.append(result.exists())
        return genuine(request, context)

    monkeypatch.setattr(client, "_party", party_of)
    monkeypatch.setattr(conversation, "_OTHERS_SECONDS", 0.1)
    deployment.align(("stranger", "b", "a"))
    assert deployment.result("a").ids == COMMON
    assert ended.count(True) == 1
    assert "the alignment continues without an answer of node 2" in caplog.text


@pytest.mark.parametrize("reason", ["no ID is common", "it failed elsewhere"])
def test_only_the_parties_learn_that_no_id_is_common_and_only_where_that_is_the_reason(reason, deployment, monkeypatch):
    ended, genuine, write = [], client.answer_alignment, AlignmentFile.write

    def answer(message, context, config):
        fields = from_records(message.content, str(message.content["header"]["session"])).fields
        if "reason" in fields:
            ended.append((context.node_config["party"], fields["reason"]))
        return genuine(message, context, config)

    def fail(self, path):
        if "label" in path.parts:
            raise DataError("a full disk")
        write(self, path)

    monkeypatch.setattr("flower_vfl.apps.client_app.answer_alignment", answer)
    if reason == "no ID is common":
        write_people(deployment.folder / "label" / "people.csv", people("", 100, 130), ["label"])
    else:
        monkeypatch.setattr(AlignmentFile, "write", fail)
    with pytest.raises(DataError, match=r"no ID is common|a full disk"):
        deployment.align(("stranger", "b", "a"))
    assert sorted(ended) == [("a", reason), ("b", reason)]


@pytest.mark.parametrize("stage", [AlignmentStage.ABORT, AlignmentStage.QUERY, AlignmentStage.HELLO])
def test_a_message_of_another_alignment_leaves_the_one_under_way_as_it_is(stage, deployment):
    def ask(session, stage, **fields):
        given = {
            "parties": '["a"]',
            "label_party": "label",
            "method": "psi",
            "ids": 5,
            "piece": 9,
            **software(),
            **fields,
        }
        content = to_records(frame(stage, 0, given), session * 32)
        node = {"party": "a", **deployment.nodes["a"]}
        context = Context(run_id=1, node_id=2, node_config=node, state=RecordDict(), run_config={})
        return client.answer_alignment(Message(content, 2, "query.align"), context, build_config({}))

    state = state_folder(deployment.folder / "a" / "alignment.parquet")
    ask("a", AlignmentStage.HELLO)
    kept = {path.name: path.read_bytes() for path in state.iterdir()}
    with suppress(ProtocolError):
        ask("b", stage, reason="over", method="hash")
    assert {path.name: path.read_bytes() for path in state.iterdir()} == kept
    ask("a", AlignmentStage.ABORT, reason="over")
    assert not state.exists()


def test_a_node_without_a_party_is_refused(deployment):
    with pytest.raises(PartyError, match="this node has no party: start its SuperNode"):
        deployment.align(order=("a", ""))


@pytest.mark.parametrize("variable", [IDS_VARIABLE, RESULT_VARIABLE])
def test_the_label_partys_host_must_say_what_to_align(variable, deployment, monkeypatch):
    monkeypatch.delenv(variable)
    with pytest.raises(
        ConfigError, match=r"set FLOWER_VFL_IDS to .* FLOWER_VFL_ALIGNMENT to .*environment of the SuperL"
    ):
        deployment.align()


def test_the_column_of_the_label_partys_ids_can_have_another_name(monkeypatch):
    monkeypatch.setenv(IDS_VARIABLE, "/srv/labels.csv")
    monkeypatch.setenv(RESULT_VARIABLE, "/srv/alignment.parquet")
    assert Owner.of_this_host().source.column == "id"
    monkeypatch.setenv("FLOWER_VFL_IDS_COLUMN", "customer")
    assert Owner.of_this_host().source.column == "customer"


def test_the_parties_must_be_named(deployment):
    with pytest.raises(ConfigError, match=r"parties\.features must name"):
        deployment.align(**{"parties.features": "[]"})
    with pytest.raises(ConfigError, match="party 'a' cannot be the label party and a feature party"):
        deployment.align(**{"data.options.label_party": "a"})
    with pytest.raises(ConfigError, match=r"data\.options\.label_party: 'My Bank' is no party name"):
        deployment.align(**{"data.options.label_party": "My Bank"})


def test_a_label_host_that_cannot_be_read_stops_before_anybody_is_asked(deployment):
    (deployment.folder / "label" / "people.csv").unlink()
    from flower_vfl.errors import DataError

    with pytest.raises(DataError, match="there is no file"):
        deployment.align()
    assert not list(deployment.folder.rglob("*.state"))
