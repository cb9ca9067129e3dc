"""Sessions open when every party has arrived once; otherwise the error names the setting to change."""

import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import grpc
import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from flower_vfl.apps.local_grid import LocalGrid
from flower_vfl.config.schema import TransportConfig
from flower_vfl.errors import (
    ConfigError,
    InputError,
    OutputExistsError,
    PartyError,
    ProtocolError,
    SessionError,
    SetupError,
    UnreachableError,
)
from flower_vfl.protocol.frame import Frame, Kind
from flower_vfl.transport.dialling import attend
from flower_vfl.transport.messages import bundle
from flower_vfl.transport.sessions import OFFER, OPEN, REPLY, Sessions
from tests.transport.fakes import FakeParty, client_app, converse, fit

KINDS = ["inproc", "stream", "messages"]


def opening(sessions, kind, parties, **settings):
    """Open sessions, close them without a step, and return them."""
    with sessions(kind, parties, **settings) as opened:
        return opened


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 4])
def test_every_party_gets_a_link_in_the_order_of_the_run_however_they_arrive(sessions, kind, count):
    parties = [FakeParty(name) for name in "abcd"[:count]]
    opened = opening(sessions, kind, parties[::-1], names=[party.name for party in parties])
    assert list(opened.links) == [party.name for party in parties]
    assert [link.party for link in opened.links.values()] == list(opened.links)


@pytest.mark.parametrize("kind", KINDS)
def test_the_greeting_of_a_party_is_seen_and_its_token_is_not(sessions, kind):
    link = opening(sessions, kind, [FakeParty("a", width=9)]).links["a"]
    assert link.hello == Frame(Kind.HELLO, fields={"party": "a", "width": 9})


def test_an_offer_that_nobody_took_up_opens_nothing_once_all_parties_are_here(sessions):
    offers = []

    def spare(message):
        offers.append(message.content[OFFER])
        content = RecordDict({REPLY: ConfigRecord({"status": "spare", "reason": "not needed"})})
        return Message(content, reply_to=message)

    with sessions("stream", [spare, FakeParty("a")], names=["a"]) as opened:
        with pytest.raises(SessionError, match=r"PERMISSION_DENIED.* showed no valid token"):
            attend(offers[0], offers[0]["session"], FakeParty("a"), timeout=5)
        assert len(converse(opened.links, 3)) == 3
        opened.finish(10)


@pytest.mark.parametrize("kind", KINDS)
def test_spare_nodes_are_ignored(sessions, kind):
    parties = [None, FakeParty("a"), None, FakeParty("b")]
    with sessions(kind, parties) as opened:
        assert len(converse(opened.links, 3)) == 3
        opened.finish(10)


def test_a_run_without_feature_parties_needs_no_node(sessions):
    assert opening(sessions, "inproc", [], names=[]).links == {}


def test_too_few_nodes_in_a_simulation_give_the_exact_setting(sessions):
    with pytest.raises(SetupError) as caught:
        opening(sessions, "stream", [FakeParty("a")], names=["a", "b", "c"], connect_timeout=0.1)
    text = str(caught.value)
    assert "1 nodes are connected, the run has 3 feature parties (a, b, c)" in text
    assert '--federation-config "num-supernodes=3 client-resources-num-cpus=1 init-args-num-cpus=3"' in text
    assert isinstance(caught.value, InputError)
    assert isinstance(caught.value, SessionError)


def test_too_few_nodes_in_a_deployment_give_another_advice_and_how_to_check_the_host(sessions):
    words = r"start one SuperNode a party.*`flower-vfl doctor --dial 127\.0\.0\.1:\d+` checks that host"
    with pytest.raises(SetupError, match=words):
        opening(sessions, "stream", [FakeParty("a")], names=["a", "b"], simulation=False, connect_timeout=0.1)


def test_nodes_that_connect_late_are_waited_for(sessions, caplog):
    caplog.set_level("INFO", "flower_vfl")
    parties = [FakeParty("a"), FakeParty("b")]
    grid = LocalGrid(client_app(parties), 2, {})
    nodes, started = list(grid.get_node_ids()), time.monotonic()
    grid.get_node_ids = lambda: nodes if time.monotonic() - started > 0.3 else nodes[:1]
    assert list(opening(sessions, "inproc", parties, grid=grid).links) == ["a", "b"]
    assert caplog.messages[:2] == ["waiting for a, b", "all parties have arrived: a, b"]


@pytest.mark.parametrize("kind", KINDS)
def test_two_nodes_that_claim_one_party_are_refused(sessions, kind):
    with pytest.raises(PartyError, match="two nodes claim to be party 'a'; give each its own `party` in --node-config"):
        opening(sessions, kind, [FakeParty("a"), FakeParty("a")], names=["a", "b"])


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_party_is_refused_and_the_known_ones_are_named(sessions, kind):
    with pytest.raises(PartyError, match="a party 'z' arrived; this run has a, b"):
        opening(sessions, kind, [FakeParty("z")] * 2, names=["a", "b"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_node_that_fails_while_opening_is_named_with_its_reason(sessions, kind):
    with pytest.raises(PartyError, match=r"node 3 could not open its session: .*the file columns\.csv is missing"):
        opening(sessions, kind, [FakeParty("a"), ValueError("the file columns.csv is missing")], names=["a", "b"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_party_that_does_not_arrive_is_named_after_the_timeout(sessions, kind):
    release = threading.Event()

    def silent(message):
        release.wait(20)
        return Message(RecordDict(), reply_to=message)

    started = time.monotonic()
    try:
        with pytest.raises(
            SetupError, match=r"after 0\.3 s these parties have not arrived: b; all of them must run at"
        ):
            opening(sessions, kind, [FakeParty("a"), silent], names=["a", "b"], connect_timeout=0.3)
        assert time.monotonic() - started < 4
    finally:
        release.set()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_party_that_does_not_fit_is_refused_and_every_handler_returns(sessions, kind):
    def check(link):
        raise PartyError(f"party {link.party!r} does not fit")

    parties = [FakeParty("a"), FakeParty("b")]
    grid = LocalGrid(client_app(parties), 2, {})
    with pytest.raises(PartyError, match="does not fit"):
        opening(sessions, kind, parties, check=check, grid=grid)
    grid.join(10)  # one that dials only after the endpoint has closed gives up after its own 5 s
    assert not any(thread.is_alive() for thread in grid._threads)


@pytest.mark.parametrize("status", ["finished", "open", "", 3, None])
def test_an_answer_that_makes_no_sense_while_sessions_open_is_refused(sessions, status):
    def odd(message):
        record = {} if status is None else {"status": status}
        return Message(RecordDict({REPLY: ConfigRecord(record)}), reply_to=message)

    with pytest.raises(ProtocolError, match="node 2 answered its offer with"):
        opening(sessions, "stream", [odd], names=["a"])


@pytest.mark.parametrize(
    ("kind", "count", "words"),
    [
        ("messages", 0, "node 2 should have sent one greeting, it sent 0"),
        ("messages", 2, "node 2 should have sent one greeting, it sent 2"),
        ("stream", 1, "node 2 answered its offer with 'open'"),
    ],
    ids=["none", "two", "no fallback"],
)
def test_greetings_in_messages_are_refused_unless_there_is_one_and_it_is_allowed(sessions, kind, count, words):
    def odd(message):
        content = bundle([FakeParty("a").hello()] * count, message.content[OFFER]["session"], "exact")
        content[REPLY] = ConfigRecord({"status": OPEN})
        return Message(content, reply_to=message)

    with pytest.raises(ProtocolError, match=words):
        opening(sessions, kind, [odd], names=["a"])


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_frame_of_a_party_must_be_its_greeting(sessions, kind):
    party = FakeParty("a")
    party.hello = lambda: Frame(Kind.EMBEDDING, fields={"party": "a"})
    if kind == "stream":  # always sends a HELLO: only its fields can be wrong
        party.hello = lambda: Frame(Kind.HELLO, fields={"party": "b"})
    with pytest.raises(PartyError, match="arrived; this run has a"):
        opening(sessions, kind, [party])


def failures_of(grid):
    grid.join(5)
    return [str(failure) for failure in grid.failures]


@pytest.mark.parametrize("kind", KINDS)
def test_a_party_that_is_refused_gets_the_reason_on_its_own_host(sessions, kind):
    def check(link):
        raise PartyError("party 'a' does not fit: its version is '0', here it is '1'; install the same on both hosts")

    parties = [FakeParty("a")]
    grid = LocalGrid(client_app(parties), 1, {})
    with pytest.raises(PartyError, match="does not fit"):
        opening(sessions, kind, parties, check=check, grid=grid)
    assert failures_of(grid) == [
        "the label party ended the session: party 'a' does not fit: its version is '0', here it is '1'; install the "
        "same on both hosts"
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_parties_that_have_arrived_get_the_names_of_those_that_are_missing(sessions, kind):
    parties = [FakeParty("a")]
    grid = LocalGrid(client_app(parties), 1, {})
    with pytest.raises(SetupError, match="1 nodes are connected"):
        opening(sessions, kind, parties, names=["a", "b", "c"], grid=grid, connect_timeout=0.7)
    assert failures_of(grid) == ["the label party ended the session: these parties have not arrived: b, c"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_node_that_connects_when_others_have_their_offers_gets_one_too(sessions, kind):
    parties = [FakeParty("a"), FakeParty("b")]
    grid = LocalGrid(client_app(parties), 2, {})
    nodes, started = list(grid.get_node_ids()), time.monotonic()
    silent = max(nodes) + 1  # a node that is listed and never answers, as after its host's power was cut
    grid._contexts[silent] = grid._contexts[nodes[0]]
    handle, grid._handle = grid._handle, lambda message: message.metadata.dst_node_id == silent or handle(message)
    grid.get_node_ids = lambda: [nodes[0], silent, *(nodes[1:] if time.monotonic() - started > 0.4 else [])]
    assert list(opening(sessions, kind, parties, grid=grid).links) == ["a", "b"]


def registered(grid, names):
    grid.get_nodes = lambda: [
        SimpleNamespace(node_id=node, name=name) for node, name in zip(grid.get_node_ids(), names, strict=True)
    ]
    return grid


@pytest.mark.parametrize("kind", ["stream", "messages"])
def test_a_party_that_claims_the_name_of_another_is_refused_by_the_registered_name_of_its_node(sessions, kind):
    impostor = FakeParty("a")
    grid = registered(LocalGrid(client_app([impostor]), 1, {}), ["b"])
    with pytest.raises(PartyError, match="the node that is registered as 'b' says that it is party 'a'"):
        opening(sessions, kind, [impostor], names=["a"], grid=grid, simulation=False)
    assert "registered as 'b' says that it is party 'a'" in failures_of(grid)[0]


def test_a_node_that_is_asked_again_cannot_be_another_party_by_its_earlier_offer(sessions, monkeypatch):
    monkeypatch.setattr("flower_vfl.transport.sessions._INVITE_SECONDS", 1.0)
    impostor, offers, threads, refusals = FakeParty("a"), [], [], []

    def dial_again(offer):
        time.sleep(0.3)  # its handler has ended by now, and its node is not asked again yet
        with pytest.raises(SessionError) as caught:
            attend(offer, offer["session"], impostor, timeout=5.0)
        refusals.append(str(caught.value))

    def dies_and_dials(message):
        offers.append(message.content[OFFER])
        if len(offers) > 1:
            return app(message, grid._contexts[message.metadata.dst_node_id])
        threads.append(threading.Thread(target=dial_again, args=offers, daemon=True))
        threads[0].start()
        return Message(Error(ErrorCode.NODE_UNAVAILABLE, "its process was killed"), reply_to=message)

    app = client_app([FakeParty("b")])
    grid = registered(LocalGrid(lambda message, _: dies_and_dials(message), 1, {}), ["b"])
    limits = {"connect_timeout": 2.0, "rejoin_timeout": 2.0}
    with pytest.raises(SetupError, match=r"1 nodes are connected, the run has 2 feature parties \(a, b\)"):
        opening(sessions, "stream", [], names=["a", "b"], grid=grid, simulation=False, **limits)
    assert len(offers) == 2
    threads[0].join(10)
    assert ["showed no valid token" in refusal for refusal in refusals] == [True]
    assert impostor.seen == []


@pytest.mark.parametrize("kind", ["stream", "messages"])
def test_nodes_with_the_right_registered_names_are_admitted_without_a_warning(sessions, kind, caplog):
    parties = [FakeParty("a"), FakeParty("b")]
    grid = registered(LocalGrid(client_app(parties), 2, {}), ["a", "b"])
    assert list(opening(sessions, kind, parties, grid=grid, simulation=False).links) == ["a", "b"]
    assert "without proof" not in caplog.text


def test_in_a_deployment_a_node_without_a_registered_name_is_admitted_with_a_warning(sessions, caplog):
    opening(sessions, "stream", [FakeParty("a")], simulation=False)
    assert "node 2 claims to be party 'a' without proof: flwr supernode register KEY --name a" in caplog.text


def offers_of(sessions, kind, **settings):
    seen = []

    def record(message):
        seen.append(dict(message.content[OFFER]))
        raise ValueError("only looking")

    for _ in range(2):
        with pytest.raises(PartyError, match="only looking"):
            opening(sessions, kind, [record], names=["a"], **settings)
    return seen


@pytest.mark.parametrize("kind", KINDS)
def test_every_offer_has_a_session_of_its_own_and_states_its_kind(sessions, kind):
    first, second = offers_of(sessions, kind, simulation=False)
    assert (first["kind"], first["simulation"]) == (kind, False)
    assert first["session"] != second["session"]
    assert len(first["session"]) == 32


def test_fields_that_the_caller_adds_to_an_offer_cannot_replace_its_own():
    grid = LocalGrid(client_app([]), 0, {})
    added = {"out": "folder", "fallback": "pigeon", "kind": "pigeon", "session": "mine", "simulation": "yes"}
    with Sessions(grid, [], TransportConfig(), simulation=False, offer=added) as opened:
        own = {"kind": "inproc", "session": opened.session, "simulation": False, "fallback": "none"}
        assert opened._offer == {"out": "folder", **own}


class CableCut(grpc.RpcError):
    def code(self):
        return grpc.StatusCode.UNAVAILABLE

    def details(self):
        return "the cable was cut"


def test_the_reason_that_a_node_gives_afterwards_joins_the_error(sessions):
    def cut():
        raise CableCut

    with pytest.raises(PartyError, match=r"party 'a' broke.*SessionError: .* the cable was cut"):  # noqa: SIM117
        with sessions("stream", [FakeParty(at={0: cut})]) as opened:
            converse(opened.links, 1)


def test_sessions_close_the_port_when_a_run_fails(sessions):
    for _ in range(2):
        with suppress(KeyError), sessions("stream", [FakeParty()]) as opened:
            port = int(opened._endpoint.address.rpartition(":")[2])
            raise KeyError("something else")
    settings = TransportConfig(kind="stream", port=port)
    with Sessions(LocalGrid(client_app([]), 0, {}), [], settings, simulation=True) as opened:
        assert opened._endpoint.address == f"127.0.0.1:{port}"


def test_a_port_in_use_is_an_input_error_that_names_the_setting(sessions):
    with sessions("stream", [FakeParty()]) as opened:
        port = int(opened._endpoint.address.rpartition(":")[2])
        with pytest.raises(SetupError, match=rf"127\.0\.0\.1:{port}.*transport\.port"):
            opening(sessions, "stream", [FakeParty()], port=port)


def test_fit_sets_the_frame_limit_of_a_link(sessions):
    link = opening(sessions, "inproc", [FakeParty()]).links["a"]
    before = link.frame_limit
    fit(link, rows=100)
    assert link.frame_limit > before


def process_dies(party, times):
    """Return a node's handler that ends `times` times like that of a killed process, then greets."""
    left = [times]

    def train(message):
        left[0] -= 1
        if left[0] >= 0:
            return Message(Error(ErrorCode.NODE_UNAVAILABLE, "its process was killed"), reply_to=message)
        content = bundle([party.hello()], message.content[OFFER]["session"], message.content[OFFER]["wire-dtype"])
        content[REPLY] = ConfigRecord({"status": OPEN})
        return Message(content, reply_to=message)

    return train


def test_a_node_whose_process_dies_while_sessions_open_is_asked_again(sessions, caplog):
    parties = [process_dies(FakeParty("a"), 2), FakeParty("b")]
    links = opening(sessions, "messages", parties, names=["a", "b"], simulation=False).links
    assert list(links) == ["a", "b"]
    assert caplog.text.count("node 2 is asked again: its process was killed") == 2


@pytest.mark.parametrize(("times", "simulation"), [(4, False), (1, True)])
def test_a_node_whose_process_dies_again_and_again_or_is_not_replaced_ends_the_opening(sessions, times, simulation):
    parties = [process_dies(FakeParty("a"), times), FakeParty("b")]
    with pytest.raises(PartyError, match="node 2 could not open its session: its process was killed"):
        opening(sessions, "messages", parties, names=["a", "b"], simulation=simulation)


@pytest.mark.parametrize("kind", ["stream", "messages"])
def test_a_party_that_was_let_go_is_asked_again_whatever_it_still_answers(sessions, kind):
    parties = [FakeParty("a"), FakeParty("b")]
    with sessions(kind, parties) as opened:
        for link in opened.links.values():  # with `messages`, their answers are under way
            link.send(Frame(Kind.STEP, 0, {"gradient_of": -1}))
            link.flush()
        first = dict(opened.links)
        opened.drop_all("party 'a' was lost")
        assert opened.links == {}
        opened.rejoin()
        assert list(opened.links) == ["a", "b"]
        assert not set(opened.links.values()) & set(first.values())
        assert len(converse(opened.links, 3)) == 3


def fails_after_opening(party, *errors):
    """Return a node's handler that greets, then answers further offers with the errors in turn, then greets again."""
    answers = iter([None, *errors])

    def train(message):
        if (error := next(answers, None)) is not None:
            raise error
        content = bundle([party.hello()], message.content[OFFER]["session"], message.content[OFFER]["wire-dtype"])
        content[REPLY] = ConfigRecord({"status": OPEN})
        return Message(content, reply_to=message)

    return train


def test_a_party_that_comes_back_with_a_configuration_error_ends_the_run_with_its_message(sessions):
    parties = [fails_after_opening(FakeParty("a"), *[ConfigError("data-path is no prepared data")] * 9), FakeParty("b")]
    with sessions("messages", parties, names=["a", "b"], simulation=False, rejoin_timeout=9.0) as opened:
        opened.drop("a")
        with pytest.raises(PartyError, match="node 2 could not open its session: ConfigError: data-path is no prep"):
            opened.rejoin()


def test_a_party_that_comes_back_before_its_earlier_process_has_ended_is_asked_until_it_has(sessions):
    held = OutputExistsError("party 'a': out is in use by process 7: wait until that run has ended")
    parties = [fails_after_opening(FakeParty("a"), held, held, UnreachableError("the line is down")), FakeParty("b")]
    with sessions("messages", parties, names=["a", "b"], simulation=False) as opened:
        opened.drop("a")
        opened.rejoin()
        assert list(opened.links) == ["a", "b"]


def test_the_error_about_a_party_that_stays_lost_has_the_last_report_of_its_node(sessions):
    held = OutputExistsError("party 'a': out is in use by process 7")
    parties = [fails_after_opening(FakeParty("a"), *[held] * 9), FakeParty("b")]
    with sessions("messages", parties, names=["a", "b"], simulation=False, rejoin_timeout=1.0) as opened:
        opened.drop("a")
        with pytest.raises(PartyError, match=r"did not come back .*: a; .*; node 2 reported: .* in use by process 7"):
            opened.rejoin()


def test_a_node_that_was_no_party_and_fails_does_not_keep_a_lost_one_from_coming_back(sessions, caplog):
    parties = [fails_after_opening(FakeParty("a")), ConfigError("this node says it is party 'c'")]
    grid = LocalGrid(client_app(parties), 2, {})
    nodes = list(grid.get_node_ids())
    grid.get_node_ids = lambda: nodes[:1]
    with sessions("messages", parties, names=["a"], grid=grid, simulation=False) as opened:
        opened.drop("a")
        grid.get_node_ids = lambda: nodes[1:] if "takes no part" not in caplog.text else nodes
        opened.rejoin()
        assert list(opened.links) == ["a"]
    assert caplog.text.count("node 3 takes no part: ConfigError: this node says it is party 'c'") == 1


@pytest.mark.parametrize("kind", KINDS)
def test_parties_that_were_invited_early_are_there_when_sessions_open(kind):
    grid = LocalGrid(client_app([FakeParty("a"), FakeParty("b")]), 2, {})
    with Sessions(grid, ["a", "b"], TransportConfig(kind=kind), simulation=True) as opened:
        opened.invite()
        time.sleep(0.3)
        assert len(converse(opened.open(fit), 3)) == 3
        opened.finish(10)
    opened.__exit__(None, None, None)  # closing twice is harmless
    assert failures_of(grid) == []


def invite_and_fail(grid, kind, parties):
    with Sessions(grid, parties, TransportConfig(kind=kind), simulation=False) as opened:
        opened.invite()
        raise ValueError("3 of 4 labels are 1")


@pytest.mark.parametrize("after", [0.0, 0.5])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_fails_early_ends_the_sessions_of_invited_nodes_even_of_late_ones(kind, after):
    def late(message):
        time.sleep(after)
        return app(message, grid._contexts[message.metadata.dst_node_id])

    app = client_app([FakeParty("a"), FakeParty("b"), None])
    grid = LocalGrid(lambda message, _: late(message), 3, {})
    started = time.monotonic()
    with pytest.raises(ValueError, match="3 of 4 labels are 1"):
        invite_and_fail(grid, kind, ["a", "b"])
    grid.join(1)
    assert time.monotonic() - started < 5
    message = "the label party ended the session: it failed before training began; the reason is in its own log"
    assert failures_of(grid) == [message, message]


def test_a_node_that_never_arrives_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr("flower_vfl.transport.sessions._TURN_AWAY_SECONDS", 0.3)
    monkeypatch.setattr("flower_vfl.transport.sessions._SETTLE_SECONDS", 0.1)
    release = threading.Event()
    grid = LocalGrid(client_app([lambda message: Message(RecordDict(), reply_to=release.wait(20) and message)]), 1, {})
    started = time.monotonic()
    try:
        with pytest.raises(ValueError, match="3 of 4 labels are 1"):
            invite_and_fail(grid, "stream", ["a"])
        assert time.monotonic() - started < 4
    finally:
        release.set()
