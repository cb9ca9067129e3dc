"""The grid within one process treats a ServerApp and a ClientApp as Flower does."""

import threading
import time

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from flower_vfl.apps.local_grid import LocalGrid
from flower_vfl.errors import DataError, PartyError
from flower_vfl.transport.mailbox import TTL, Mailbox, reason

app = ClientApp()


@app.train()
def count(message, context):
    """Count the messages in the node's own state."""
    seen = int(context.state.config_records.get("seen", {"n": 0})["n"]) + 1
    context.state["seen"] = ConfigRecord({"n": seen})
    record = {"seen": seen, "node": context.node_id, "preset": context.run_config["preset"], **context.node_config}
    return Message(RecordDict({"reply": ConfigRecord(record)}), reply_to=message)


@app.train("fail")
def fail(message, context):
    raise ValueError("the disk is full\nand the printer is on fire")


@pytest.fixture
def grid():
    return LocalGrid(app, 3, {"preset": "census"})


def ask(grid, node, message_type="train"):
    (reply,) = grid.send_and_receive([Message(RecordDict(), node, message_type)], timeout=10)
    return reply


def test_a_node_knows_its_partition_and_the_run_config(grid):
    nodes = list(grid.get_node_ids())
    assert len(set(nodes)) == 3
    for index, node in enumerate(nodes):
        record = ask(grid, node).content["reply"]
        assert (record["node"], record["partition-id"], record["num-partitions"]) == (node, index, 3)
        assert record["preset"] == "census"


def test_the_state_of_a_node_stays_and_belongs_to_it_alone(grid):
    first, second, _ = grid.get_node_ids()
    assert [ask(grid, first).content["reply"]["seen"] for _ in range(3)] == [1, 2, 3]
    assert ask(grid, second).content["reply"]["seen"] == 1
    other = LocalGrid(app, 3, {"preset": "census"})
    assert ask(other, first).content["reply"]["seen"] == 1


def test_one_nodes_changes_of_the_run_config_do_not_reach_another():
    given = {"preset": "census"}
    spoiler = ClientApp()

    @spoiler.train()
    def spoil(message, context):
        before = context.run_config["preset"]
        context.run_config["preset"] = "spoilt"
        return Message(RecordDict({"reply": ConfigRecord({"before": before})}), reply_to=message)

    grid = LocalGrid(spoiler, 2, given)
    assert [ask(grid, node).content["reply"]["before"] for node in grid.get_node_ids()] == ["census", "census"]
    assert given == {"preset": "census"}


def test_every_message_gets_an_id_of_its_own_and_replies_name_it(grid):
    node, *_ = grid.get_node_ids()
    ids = list(grid.push_messages([Message(RecordDict(), node, "train") for _ in range(5)]))
    assert len(set(ids)) == 5
    grid.join(10)
    replies = grid.pull_messages(ids)
    assert {reply.metadata.reply_to_message_id for reply in replies} == set(ids)
    assert {reply.metadata.src_node_id for reply in replies} == {node}


def test_a_reply_is_given_out_once_and_only_to_who_asks_for_it(grid):
    node, *_ = grid.get_node_ids()
    mine, other = grid.push_messages([Message(RecordDict(), node, "train") for _ in range(2)])
    grid.join(10)
    assert len(grid.pull_messages([mine])) == 1
    assert grid.pull_messages([mine, "unknown"]) == []
    assert len(grid.pull_messages([other])) == 1


def test_a_handler_that_raises_becomes_an_error_reply_with_its_reason(grid):
    node, *_ = grid.get_node_ids()
    reply = ask(grid, node, "train.fail")
    assert reply.has_error()
    assert "ValueError: the disk is full" in reply.error.reason
    assert ask(grid, node).content["reply"]["seen"] == 1


@pytest.mark.parametrize(
    ("raised", "ends", "seen"),
    [
        (DataError("no such column"), PartyError("party 'a': no such column"), DataError),
        (ValueError("no input"), PartyError("party 'a': no input"), PartyError),
        (DataError("no such column"), KeyError("something else"), KeyError),
    ],
)
def test_what_a_party_found_wrong_with_its_input_ends_a_run_in_its_own_words(raised, ends, seen):
    failing = ClientApp()

    @failing.train()
    def fail(message, context):
        raise raised

    def train():
        with LocalGrid(failing, 1, {}) as grid:
            ask(grid, *grid.get_node_ids())
            raise ends

    with pytest.raises(seen) as caught:
        train()
    assert caught.value in (raised, ends)


def test_at_its_end_a_grid_waits_for_the_handlers_that_still_run():
    slow, ended = ClientApp(), []

    @slow.train()
    def work(message, context):
        time.sleep(0.2)
        ended.append(context.node_id)
        return Message(RecordDict(), reply_to=message)

    with LocalGrid(slow, 2, {}) as grid:
        nodes = list(grid.get_node_ids())
        grid.push_messages([Message(RecordDict(), node, "train") for node in nodes])
    assert sorted(ended) == nodes


def test_the_label_partys_app_gets_the_grid_and_a_run_config_of_its_own():
    server, given = ServerApp(), {"preset": "census"}

    @server.main()
    def main(grid, context):
        seen.append((grid, context.run_id, context.run_config["preset"]))
        context.run_config["preset"] = "changed"

    seen, grid = [], LocalGrid(app, 1, given)
    grid.serve(server)
    grid.serve(server)
    assert (seen, given) == ([(grid, 1, "census")] * 2, {"preset": "census"})


def test_an_unknown_message_type_and_an_unknown_node_become_error_replies(grid):
    node, *_ = grid.get_node_ids()
    assert ask(grid, node, "query").has_error()
    assert ask(grid, 77).has_error()


def test_pushing_does_not_wait_and_the_handlers_run_side_by_side():
    together, meeting = ClientApp(), threading.Barrier(4)

    @together.train()
    def meet(message, context):
        meeting.wait(20)
        return Message(RecordDict(), reply_to=message)

    grid = LocalGrid(together, 3, {})
    ids = grid.push_messages([Message(RecordDict(), node, "train") for node in grid.get_node_ids()])
    assert grid.pull_messages(ids) == []
    meeting.wait(20)
    grid.join(10)
    assert [reply.has_error() for reply in grid.pull_messages(ids)] == [False] * 3


def test_receiving_stops_at_its_timeout_with_what_has_come():
    patient, release = ClientApp(), threading.Event()

    @patient.train()
    def wait(message, context):
        if context.node_config["partition-id"] == 1:
            release.wait(20)
        return Message(RecordDict(), reply_to=message)

    grid = LocalGrid(patient, 2, {})
    first, second = grid.get_node_ids()
    started = time.monotonic()
    replies = grid.send_and_receive([Message(RecordDict(), node, "train") for node in (first, second)], timeout=0.5)
    assert [reply.metadata.src_node_id for reply in replies] == [first]
    assert time.monotonic() - started < 10
    release.set()
    grid.join(10)


def test_messages_can_be_made_in_any_thread_before_a_grid_has_sent_anything(grid):
    made = []
    thread = threading.Thread(target=lambda: made.append(Message(RecordDict(), 2, "train")))
    thread.start()
    thread.join()
    assert made[0].metadata.dst_node_id == 2
    created = grid.create_message(RecordDict(), "train", 3, "group", ttl=5.0)
    assert (created.metadata.dst_node_id, created.metadata.group_id, created.metadata.ttl) == (3, "group", 5.0)


def test_the_content_and_the_type_of_a_message_arrive(grid):
    echo = ClientApp()

    @echo.train("words")
    def words(message, context):
        return Message(message.content, reply_to=message)

    grid = LocalGrid(echo, 1, {})
    content = RecordDict({"c": ConfigRecord({"x": [1, 2], "b": b"\0"})})
    (reply,) = grid.send_and_receive([Message(content, next(iter(grid.get_node_ids())), "train.words")])
    assert reply.content["c"] == content["c"]
    assert reply.metadata.message_type == "train.words"


def test_a_mailbox_keeps_the_replies_of_other_nodes_until_they_are_asked_for(grid):
    nodes = list(grid.get_node_ids())
    mailbox = Mailbox(grid)
    for node in nodes:
        mailbox.push(node, RecordDict(), "train")
    assert mailbox.busy == set(nodes)
    grid.join(10)
    for node in reversed(nodes):
        assert mailbox.take(node).content["reply"]["node"] == node
        assert mailbox.take(node) is None
    assert mailbox.busy == set()


def test_a_message_lives_long_enough_for_a_long_training(grid):
    sent = []
    grid.push_messages, push = lambda messages: sent.extend(messages) or push(messages), grid.push_messages
    Mailbox(grid).push(next(iter(grid.get_node_ids())), RecordDict(), "train")
    assert sent[0].metadata.ttl == TTL >= 14 * 24 * 3600


def test_the_reason_of_an_error_reply_is_one_line(grid):
    reply = ask(grid, next(iter(grid.get_node_ids())), "train.fail")
    assert "\n" not in reason(reply)
    assert reason(reply)
