"""A party that violates the protocol gets an error of this package, and no party gets a wrong result."""

from __future__ import annotations

import json

import pytest
import torch

from flower_vfl.alignment.group import Key
from flower_vfl.alignment.workers import multiply_all
from flower_vfl.apps.alignment.feature import FeatureSide, Terms
from flower_vfl.apps.alignment.place import state_folder
from flower_vfl.apps.alignment.wire import AlignmentStage, blocks_of, frame
from flower_vfl.data.sources.id_sources import IdSource
from flower_vfl.errors import DataError, OutputExistsError, PartyError, ProtocolError
from tests.apps.alignment.common import changed, federation, people, run, with_tensor, write_people
from tests.cases import parametrize

SPANS = {"label": (0, 30), "a": (10, 50), "b": (0, 25)}
NO_POINT = torch.full((30, 32), 255, dtype=torch.uint8)  # above the field's prime, whatever the last byte
NO_POINT[:, 31] = torch.arange(30)


def on(stage, change):
    """Return a function with which party a changes its answers of one stage."""

    def spoil(party, answer):
        return change(answer) if party == 0 and answer.fields["stage"] == stage else answer

    return spoil


def longer(name):
    return lambda answer: with_tensor(answer, name, torch.cat([answer.tensors[name], answer.tensors[name][:1]]))


def shorter(name):
    return lambda answer: with_tensor(answer, name, answer.tensors[name][1:])


def twice(answer):
    points = answer.tensors["points"].clone()
    points[1] = points[0]
    return with_tensor(answer, "points", points)


@parametrize(
    ("stage", "change", "text"),
    [
        ("hello", lambda answer: changed(answer, ids=0), "a count of 0 IDs; 1 to 10000000 are allowed"),
        ("hello", lambda answer: changed(answer, ids=10**9), "a count of 1000000000 IDs"),
        ("hello", lambda answer: changed(answer, ids="many"), "integer field 'ids'"),
        ("hello", lambda answer: changed(answer, party="z"), "claims to be 'z'"),
        ("hello", lambda answer: changed(answer, party="b"), "two nodes claim to be party 'b'"),
        ("hello", shorter("key"), r"'key' of step 0 must be uint8 \(1, 32\)"),
        ("hello", lambda answer: with_tensor(answer, "key", NO_POINT[:1]), "no point of the curve"),
        ("hello", lambda answer: changed(answer, stage="match"), "answered match 0 to hello 0"),
        ("hello", lambda answer: changed(answer, stage="bribe"), "nothing that is known"),
        ("query", longer("points"), r"'points' of step 0 must be uint8 \(30, 32\), given uint8 \(31, 32\)"),
        ("query", shorter("points"), r"given uint8 \(29, 32\)"),
        ("query", lambda answer: with_tensor(answer, "points", NO_POINT), "no point of the curve"),
        ("query", lambda answer: with_tensor(answer, "points", torch.zeros(30, 32)), "given float32"),
        ("query", twice, "a point twice"),
        ("table", longer("table"), "'table' of step 0 must be"),
        ("table", shorter("table"), "'table' of step 0 must be"),
        ("table", lambda answer: with_tensor(answer, "seed", torch.zeros((2, 16), dtype=torch.uint8)), "'seed'"),
        ("match", lambda answer: changed(answer, proof="0" * 64), "party 'a' found other common IDs"),
        ("finish", lambda answer: changed(answer, stage="query"), "answered query 0 to finish 0"),
    ],
    quick=4,
)
def test_a_feature_party_that_sends_what_it_must_not_ends_the_alignment(stage, change, text, tmp_path):
    _, error = run(federation(tmp_path, SPANS), tmp_path / "out", 2, on(stage, change))
    assert isinstance(error, ProtocolError | PartyError)
    with pytest.raises(type(error), match=f"{text}.*align again"):
        raise error
    left = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert stage == "finish" or not left


def test_a_table_of_noise_makes_an_empty_result_and_no_wrong_one(tmp_path):
    noise = on("table", lambda answer: with_tensor(answer, "table", torch.randint_like(answer.tensors["table"], 256)))
    _, error = run(federation(tmp_path, SPANS), tmp_path / "out", 2, noise)
    assert "no ID is common" in str(error)


def test_hashes_of_the_wrong_number_are_refused(tmp_path):
    config = federation(tmp_path, SPANS, method="hash")
    _, error = run(config, tmp_path / "out", 2, on("hashes", longer("hashes")))
    assert "'hashes' of step 0 must be" in str(error)


def test_a_party_with_more_ids_than_allowed_is_refused(tmp_path):
    _, error = run(federation(tmp_path, SPANS, max_ids=39), tmp_path / "out", 2)
    assert "a count of 40 IDs; 1 to 39 are allowed (align.max_ids)" in str(error)


def test_a_party_that_never_answers_is_named_after_the_timeout(tmp_path, monkeypatch):
    import threading

    release = threading.Event()
    genuine = FeatureSide._query

    def sleep(self, message):
        if self.terms.party == "b":
            release.wait(30)
        return genuine(self, message)

    monkeypatch.setattr(FeatureSide, "_query", sleep)
    monkeypatch.setattr("flower_vfl.apps.alignment.conversation._ABORT_SECONDS", 0.5)
    from flower_vfl.apps.alignment.start import align_as_label
    from tests.apps.alignment.common import WatchedGrid

    config = federation(tmp_path, SPANS, timeout=1.5)
    grid = WatchedGrid(config, 2)
    with pytest.raises(PartyError, match=r"party 'b' did not answer within 1\.5 s: .*align\.timeout, and align again"):
        align_as_label(grid, config, tmp_path / "out", lambda what, done: None)
    release.set()
    grid.join(20)


def test_a_failure_is_reported_at_once_while_another_party_is_silent(tmp_path, monkeypatch):
    import threading

    release, genuine = threading.Event(), FeatureSide._query

    def block(self, message):
        if self.terms.party == "a":
            release.wait(30)
        if self.terms.party == "b":
            raise MemoryError
        return genuine(self, message)

    monkeypatch.setattr(FeatureSide, "_query", block)
    monkeypatch.setattr("flower_vfl.apps.alignment.conversation._ABORT_SECONDS", 0.2)
    from flower_vfl.apps.alignment.start import align_as_label
    from tests.apps.alignment.common import WatchedGrid

    config = federation(tmp_path, SPANS, timeout=600)
    grid = WatchedGrid(config, 2)
    timer = threading.Timer(25, release.set)
    timer.start()
    with pytest.raises(PartyError, match="party 'b' failed"):
        align_as_label(grid, config, tmp_path / "out", lambda what, done: None)
    assert not release.is_set()
    timer.cancel()
    release.set()
    grid.join(20)


class Target:
    """A feature party with 40 IDs, and the methods of a hostile label party that announced 30."""

    def __init__(self, folder, method="psi", piece=20):
        write_people(folder / "a.csv", people("a", 10, 50), ["x"])
        self.path = folder / "out" / "alignment.parquet"
        self.source = IdSource((folder / "a.csv",), "id")
        terms = Terms("0" * 32, "a", "label", ("a", "b"), method, 30, piece)
        self.side, self.hello = FeatureSide.begin(self.source, self.path, terms)
        blocks = b"".join(number.to_bytes(32, "big") for number in range(50))
        self.points = multiply_all(Key(3), blocks, hashed=True)

    def ask(self, stage, step=0, fields=None, **blocks):
        given = {name: blocks_of(data, width) for name, (data, width) in blocks.items()}
        side = FeatureSide.resume(self.path, "0" * 32)
        return side.answer(stage, frame(stage, step, fields, given))

    def query(self, step=0, points=20, start=0):
        return self.ask(AlignmentStage.QUERY, step, points=(self.points[32 * start : 32 * (start + points)], 32))

    @property
    def keys(self):
        return self.hello.tensors["key"].numpy().tobytes() + Key(9).public()


@pytest.fixture
def target(tmp_path):
    return Target(tmp_path)


def test_the_target_of_these_tests_answers_an_honest_label_party(target):
    target.query()
    target.query(1, 10, 20)
    table = target.ask(AlignmentStage.TABLE, keys=(target.keys, 32))
    assert table.tensors["table"].shape[1] == 16


def refused(text):
    return pytest.raises(ProtocolError, match=f"{text}.*align again")


def test_more_ids_than_announced_cannot_be_tried(target):
    with refused(r"'points' of step 0 must be uint8 \(20, 32\)"):
        target.query(0, 21)
    target.query()
    with refused(r"'points' of step 1 must be uint8 \(10, 32\)"):
        target.query(1, 20)
    target.query(1, 10, 20)
    with refused("out of turn"):
        target.query(2, 10, 30)


def test_queries_cannot_be_repeated_or_skipped(target):
    target.query()
    with refused("out of turn"):
        target.query()
    with refused("out of turn"):
        target.ask(AlignmentStage.TABLE, keys=(target.keys, 32))
    target.query(1, 10, 20)
    target.ask(AlignmentStage.TABLE, keys=(target.keys, 32))
    with refused("out of turn"):
        target.query()
    with refused("out of turn"):
        target.ask(AlignmentStage.FINISH)


def test_a_stage_of_the_other_method_is_refused(target, tmp_path):
    with refused("out of turn"):
        target.ask(AlignmentStage.HASHES, salt=(bytes(32), 32))
    (tmp_path / "other").mkdir()
    plain = Target(tmp_path / "other", method="hash")
    with refused("out of turn"):
        plain.query()


@pytest.mark.parametrize(
    ("points", "text"),
    [(b"\xff" * 640, "a point twice"), (bytes([255] * 31 + [1]), "must be uint8"), (b"", "must be uint8")],
)
def test_garbage_instead_of_points_is_refused(points, text, target):
    with refused(text):
        target.ask(AlignmentStage.QUERY, points=(points, 32))


def test_bytes_that_are_no_points_are_refused(target):
    off = b"".join(bytes([255] * 31 + [last]) for last in range(20))
    with refused("no point of the curve"):
        target.ask(AlignmentStage.QUERY, points=(off, 32))


def test_another_key_under_this_partys_name_is_refused(target):
    target.query()
    target.query(1, 10, 20)
    with refused("another key for this party"):
        target.ask(AlignmentStage.TABLE, keys=(Key(8).public() + Key(9).public(), 32))


def test_a_match_must_be_an_own_id_and_come_once(target):
    target.query()
    target.query(1, 10, 20)
    target.ask(AlignmentStage.TABLE, 0, keys=(target.keys, 32))
    for step in range(1, 20):
        try:
            target.ask(AlignmentStage.TABLE, step)
        except ProtocolError:
            break
    tags = (state_folder(target.path) / "tags").read_bytes()
    with refused("0 common IDs cannot be"):
        target.ask(AlignmentStage.MATCH, 0, {"total": 0}, tags=(b"", 16))
    with refused("31 common IDs cannot be"):
        target.ask(AlignmentStage.MATCH, 0, {"total": 31}, tags=(tags[: 16 * 20], 16))
    with refused("does not have"):
        target.ask(AlignmentStage.MATCH, 0, {"total": 2}, tags=(tags[:16] + b"x" * 16, 16))
    with refused("does not have, or one twice"):
        target.ask(AlignmentStage.MATCH, 0, {"total": 2}, tags=(tags[:16] * 2, 16))
    with refused("out of turn"):
        target.ask(AlignmentStage.FINISH)
    assert target.ask(AlignmentStage.MATCH, 0, {"total": 2}, tags=(tags[:32], 16)).text("proof")
    with refused("not in message 1"):
        target.ask(AlignmentStage.MATCH, 1, {"total": 2}, tags=(tags[:16], 16))
    with refused("changed how many"):
        target.ask(AlignmentStage.MATCH, 1, {"total": 25}, tags=(tags[32 : 32 + 16 * 5], 16))


def test_a_message_of_another_session_or_without_a_begin_is_refused(target, tmp_path):
    with refused("another alignment"):
        FeatureSide.resume(target.path, "1" * 32)
    with refused("not begun here"):
        FeatureSide.resume(tmp_path / "elsewhere.parquet", "0" * 32)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"terms": 3, "stage": "x"}', '{"stage": "query", "step": null}'])
def test_a_damaged_state_is_refused(content, target):
    (state_folder(target.path) / "state.json").write_text(content)
    with refused("not begun here"):
        FeatureSide.resume(target.path, "0" * 32)


def test_a_result_is_not_overwritten_so_that_ids_are_tried_once(target):
    target.path.write_bytes(b"the result of another day")
    with pytest.raises(OutputExistsError, match="move the file away to allow another"):
        FeatureSide.begin(target.source, target.path, target.side.terms)
    assert target.path.read_bytes() == b"the result of another day"


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_asked(target, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot be written: .*; name another place"):
        FeatureSide.begin(target.source, tmp_path / "file" / "alignment.parquet", target.side.terms)


def test_a_new_alignment_replaces_one_that_was_left_half_way(target):
    before = (state_folder(target.path) / "key").read_bytes()
    FeatureSide.begin(target.source, target.path, target.side.terms)
    assert (state_folder(target.path) / "key").read_bytes() != before


def test_the_state_holds_what_the_next_process_needs_and_no_key_in_its_text(target):
    state = json.loads((state_folder(target.path) / "state.json").read_text())
    assert set(state) == {"terms", "ids", "stage", "step"}
    for name in ("key", "pair-key"):
        assert (state_folder(target.path) / name).read_bytes().hex() not in json.dumps(state)
