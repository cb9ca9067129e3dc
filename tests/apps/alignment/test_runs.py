"""Complete alignments through Flower messages: their results, their messages and the files that they leave."""

from __future__ import annotations

import errno
import io
import json
import logging
import os

import numpy as np
import pytest
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode

from flower_vfl import align
from flower_vfl.alignment.psi import proof_of
from flower_vfl.alignment.table import decode
from flower_vfl.apps import local, make_client_app, make_server_app
from flower_vfl.apps.alignment.start import align_as_label
from flower_vfl.apps.alignment.wire import AlignmentStage, stage_of
from flower_vfl.apps.local_grid import LocalGrid
from flower_vfl.data.store.alignment import AlignmentFile
from flower_vfl.errors import ConfigError, DataError, OutputExistsError, PartyError, StorageError
from flower_vfl.protocol.frame import from_records
from tests.apps.alignment.common import all_bytes, federation, people, pieces_of, run, sizes
from tests.cases import parametrize

SPANS = {
    "two": {"label": (0, 60), "a": (20, 90)},
    "three": {"label": (0, 60), "a": (20, 90), "b": (5, 50)},
    "four": {"label": (0, 60), "a": (20, 90), "b": (5, 50), "c": (0, 40)},
}


def expected(spans):
    first, last = max(span[0] for span in spans.values()), min(span[1] for span in spans.values())
    return tuple(sorted(people("", first, last)))


@pytest.mark.parametrize("method", ["psi", "hash"])
@pytest.mark.parametrize("name", SPANS)
def test_every_party_gets_the_common_ids_in_one_order_and_nothing_else_is_left(name, method, tmp_path):
    found = align(federation(tmp_path, SPANS[name], method=method), out=tmp_path / "out")
    assert set(found) == set(SPANS[name])
    files = {party: AlignmentFile.read(path) for party, path in found.items()}
    for file in files.values():
        assert file.ids == expected(SPANS[name])
        assert file.parties == tuple(party for party in SPANS[name] if party != "label")
    assert len({file.digest for file in files.values()}) == 1
    left = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert left == {f"{party}/alignment.parquet" for party in SPANS[name]}


@pytest.mark.parametrize("method", ["psi", "hash"])
@parametrize("blocks", [1, 7, 30, 45, 60], quick=1)
def test_the_size_of_messages_changes_nothing(method, blocks, tmp_path, monkeypatch):
    config = federation(tmp_path, SPANS["three"], method=method)
    with pieces_of(monkeypatch, blocks):
        found = align(config, out=tmp_path / "out")
    assert {AlignmentFile.read(path).ids for path in found.values()} == {expected(SPANS["three"])}


@pytest.mark.parametrize("method", ["psi", "hash"])
def test_no_id_is_in_any_message_or_in_the_log(method, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    grid, error = run(federation(tmp_path, SPANS["three"], method=method), tmp_path / "out", 2)
    assert error is None
    assert len(grid.seen) > 10
    for _, _, content in grid.seen:
        assert b"person-" not in all_bytes(content)
    assert "person-" not in caplog.text


def test_whoever_relays_a_private_alignment_cannot_try_ids_one_by_one(tmp_path):
    """One person is common. The relay can compute all that follows from a guessed ID, and decode the only table."""
    grid, error = run(federation(tmp_path, {"label": (0, 20), "a": (19, 40)}), tmp_path / "out", 1)
    assert error is None
    (common,) = AlignmentFile.read(tmp_path / "out" / "a" / "alignment.parquet").ids
    travelled = b"\0".join(all_bytes(content) for _, _, content in grid.seen)
    fields = {name for _, _, content in grid.seen for name in json.loads(str(content["header"]["fields"]))}
    assert "proof" in fields
    assert "digest" not in fields
    result = AlignmentFile((common,), ("a",), "label")
    (table,) = [content for way, _, content in grid.seen if way == "up" and "table" in content["tensors"]]
    seed, cells = (bytes(table["tensors"][name].data) for name in ("seed", "table"))
    looked_up = decode([common], seed, cells, 21).astype("<u8").tobytes()
    for guess in (result.digest, result.checksum, *(proof_of([word], result.checksum) for word in (b"", looked_up))):
        assert guess.encode() not in travelled


@pytest.mark.parametrize("method", ["psi", "hash"])
def test_messages_have_sizes_that_depend_on_counts_alone(method, tmp_path):
    """Other people and other pairwise overlaps, but the same counts and the same number of people in common."""
    seen = []
    for number, spans in enumerate(
        [
            {"label": (0, 60), "a": (20, 80), "b": (10, 50)},  # a and b share 30 of which the label party has all
            {"label": (100, 160), "a": (130, 190), "b": (120, 160)},  # 30 in common too; a and b 30 as well
            {"label": (0, 60), "a": (0, 60), "b": (30, 70)},  # 30 in common, the label party and a all 60
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        grid, error = run(federation(folder, spans, method=method), folder / "out", 2)
        assert error is None
        seen.append(sizes(grid.seen))
    assert seen[0] == seen[1] == seen[2]


def test_nothing_that_travels_repeats_in_the_next_run(tmp_path):
    """Keys, blindings, tables and salts are fresh: two transcripts share no block."""
    config = federation(tmp_path, SPANS["three"])
    blocks = []
    for name in ("one", "two"):
        grid, error = run(config, tmp_path / name, 2)
        assert error is None
        data = [bytes(array.data) for _, _, c in grid.seen for array in c["tensors"].values()]
        blocks.append({part[at : at + 16] for part in data for at in range(0, len(part), 16)})
    assert len(blocks[0]) > 100
    assert not blocks[0] & blocks[1]


def test_what_the_label_party_sees_of_two_parties_does_not_match(tmp_path):
    """The blocks that different parties send never coincide, though they have people in common: with tables of
    undisguised values, or hashes under one key, people of a and b could be matched by whoever sees both."""
    grid, error = run(federation(tmp_path, SPANS["three"]), tmp_path / "out", 2)
    assert error is None
    sent = [set(), set()]
    for way, node, content in grid.seen:
        if way == "up":
            for array in content["tensors"].values():
                data = bytes(array.data)
                sent[node] |= {data[at : at + 16] for at in range(0, len(data), 16)}
    assert min(map(len, sent)) > 60
    assert not sent[0] & sent[1]


def test_ids_are_queried_in_the_order_of_a_shuffle(tmp_path, monkeypatch):
    from flower_vfl.apps.alignment import label

    key = label.Key.fresh()
    monkeypatch.setattr(label.Key, "fresh", lambda: key)

    def queried(name, order):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(label, "shuffled", lambda count: order)
        grid, error = run(federation(tmp_path / name, SPANS["two"]), tmp_path / name / "out", 1)
        assert error is None
        sent = [content["tensors"] for way, _, content in grid.seen if way == "down"]
        (data,) = [bytes(tensors["points"].data) for tensors in sent if "points" in tensors]
        return [data[at : at + 32] for at in range(0, len(data), 32)]

    order = label.shuffled(60)
    as_they_are = queried("as-they-are", np.arange(60))
    assert queried("shuffled", order) == [as_they_are[place] for place in order]


def test_common_ids_are_named_in_an_order_that_says_nothing_of_the_label_partys(tmp_path):
    grid, error = run(federation(tmp_path, SPANS["three"]), tmp_path / "out", 2)
    assert error is None
    named = [bytes(c["tensors"]["tags"].data) for way, _, c in grid.seen if way == "down" and "tags" in c["tensors"]]
    assert [len(data) for data in named] == [16 * 30] * 2
    for data in named:
        tags = [data[at : at + 16] for at in range(0, len(data), 16)]
        assert tags == sorted(tags)


@pytest.mark.parametrize("method", ["psi", "hash"])
def test_nobody_in_common_is_an_error_that_leaves_nothing(method, tmp_path):
    spans = {"label": (0, 20), "a": (10, 40), "b": (20, 50)}
    with pytest.raises(DataError, match="no ID is common to all parties"):
        align(federation(tmp_path, spans, method=method), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_one_person_in_common_is_found(tmp_path):
    spans = {"label": (0, 1), "a": (0, 1)}
    found = align(federation(tmp_path, spans), out=tmp_path / "out")
    assert AlignmentFile.read(found["a"]).ids == ("person-0000",)


def test_progress_says_what_is_done_and_reaches_the_end(tmp_path):
    calls = []
    run(federation(tmp_path, SPANS["two"]), tmp_path / "out", 1, progress=lambda what, done: calls.append((what, done)))
    assert ("blinding IDs", 1.0) in calls
    assert calls[-1] == ("naming the common IDs", 1.0)
    assert all(0.0 <= done <= 1.0 for _, done in calls)


def test_every_party_logs_how_far_its_own_work_is(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    _, error = run(federation(tmp_path, SPANS["three"]), tmp_path / "out", 2)
    assert error is None
    for party in ("a", "b"):
        assert f"party {party}: answering for the label party's IDs, 100 %" in caplog.text
        assert f"party {party}: hashing own IDs, 100 %" in caplog.text


def test_the_label_party_puts_its_result_in_place_when_all_have_theirs(tmp_path, monkeypatch):
    """A full disk there must be noticed before another party has a result that does not fit."""
    from flower_vfl.data.store.alignment import AlignmentFile as File

    genuine = File.write

    def full(self, path):
        if path.parent.parent.name == "label":
            raise DataError(f"{path} cannot be written: No space left on device")
        genuine(self, path)

    monkeypatch.setattr(File, "write", full)
    _, error = run(federation(tmp_path, SPANS["three"]), tmp_path / "out", 2)
    assert "No space left" in str(error)
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


def test_a_full_disk_is_a_storage_error(tmp_path, monkeypatch):
    def full(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("flower_vfl.files._sync", full)
    with pytest.raises(StorageError, match=r"alignment\.parquet could not be written: No space left on device"):
        AlignmentFile(("ann",), ("a",), "label").write(tmp_path / "alignment.parquet")


@pytest.mark.parametrize("name", ["state.json", "tags", "table", "matches"])
def test_a_full_disk_of_a_party_is_a_storage_error_and_nothing_is_left(name, tmp_path, monkeypatch):
    opened = io.open

    def full(file, mode="r", *more, **options):
        if str(file).endswith(f".state/{name}") and mode[0] in "wa":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return opened(file, mode, *more, **options)

    monkeypatch.setattr(io, "open", full)
    with pytest.raises(PartyError, match=r"failed: StorageError: .* could not be written: No space left"):
        align(federation(tmp_path, SPANS["three"]), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_party_whose_node_has_died_is_named_with_what_to_do(tmp_path, monkeypatch):
    class Dying(LocalGrid):
        """A grid whose nodes die when they are asked, as a SuperLink reports it."""

        def push_messages(self, messages):
            self.asked = {message.metadata.message_id: message for message in messages}
            return list(self.asked)

        def pull_messages(self, message_ids):
            error = Error(ErrorCode.NODE_UNAVAILABLE, "it failed to report a heartbeat")
            return [Message(error, reply_to=self.asked.pop(one)) for one in message_ids if one in self.asked]

    monkeypatch.setattr(local, "LocalGrid", Dying)
    with pytest.raises(PartyError, match=r"failed to report a heartbeat; start its SuperNode .*, and align again"):
        align(federation(tmp_path, SPANS["two"]), out=tmp_path / "out")


@parametrize(
    "stage",
    [AlignmentStage.HELLO, AlignmentStage.QUERY, AlignmentStage.TABLE, AlignmentStage.MATCH, AlignmentStage.FINISH],
    quick=1,
)
def test_an_alignment_that_is_interrupted_leaves_no_key_and_no_result(stage, tmp_path, monkeypatch):
    class Interrupting(LocalGrid):
        """A grid that is interrupted when one of two parties has been asked for a stage."""

        asked = 0

        def push_messages(self, messages):
            for message in messages:
                session = str(message.content["header"]["session"])
                self.asked += stage_of(from_records(message.content, session)) is stage
                if self.asked == 2:
                    self.asked += 1  # later messages pass
                    raise KeyboardInterrupt
            return super().push_messages(messages)

    monkeypatch.setattr(local, "LocalGrid", Interrupting)
    config = federation(tmp_path, SPANS["three"])
    with pytest.raises(KeyboardInterrupt):
        align(config, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    monkeypatch.undo()
    assert set(align(config, out=tmp_path / "out")) == set(SPANS["three"])


@pytest.mark.parametrize(
    ("file", "content", "text"),
    [
        ("a.csv", "id,x\nann,1\nann,2\n", r"a\.csv: 1 ID in column 'id' occurs more than once, in rows 1, 2"),
        ("a.csv", "person,x\nann,1\n", r"a\.csv has no column 'id'"),
        ("a.csv", "id,x\n", r"a\.csv has no rows"),
        ("a.csv", "id,x\nann,1\n,2\n", r"a\.csv: row 2 below the header has no ID"),
        ("label.csv", "id,label\nann,1\nann,0\n", r"label\.csv: 1 ID in column 'id' occurs more than once"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_and_nothing_is_left(file, content, text, tmp_path):
    config = federation(tmp_path, SPANS["three"])
    (tmp_path / file).write_text(content)
    with pytest.raises(DataError, match=text):
        align(config, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()  # nor an empty folder, which would stop the next try


def test_numbers_and_texts_are_the_same_ids(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    from flower_vfl.config import build_config

    pq.write_table(pa.table({"id": [3, 1, 2], "label": [0, 1, 0]}), tmp_path / "label.parquet")
    (tmp_path / "a.csv").write_text("id,x\n 2 ,1\n3,2\n4,1\n", encoding="utf8")
    options = {"files": {"a": str(tmp_path / "a.csv")}, "labels_file": str(tmp_path / "label.parquet")}
    found = align(build_config({"data": {"name": "files", "options": options}}), out=tmp_path / "out")
    assert AlignmentFile.read(found["label"]).ids == ("2", "3")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"data.name": "breast-cancer"}, "an alignment is of files"),
        ({"parties.features": "c"}, "names 'c', but"),
        ({"parties.features": "bank", "data.options.label_party": "bank"}, "names 'bank', but"),
    ],
)
def test_configurations_that_cannot_be_aligned_are_refused(changes, text, tmp_path):
    from flower_vfl.config import build_config

    config = build_config(federation(tmp_path, SPANS["three"]).model_dump(), changes)
    with pytest.raises(ConfigError, match=text):
        align(config, out=tmp_path / "out")


def test_a_part_of_the_parties_can_be_aligned(tmp_path):
    from flower_vfl.config import build_config

    config = build_config(federation(tmp_path, SPANS["three"]).model_dump(), {"parties.features": "b"})
    found = align(config, out=tmp_path / "out")
    assert set(found) == {"label", "b"}
    assert AlignmentFile.read(found["b"]).ids == tuple(sorted(people("", 5, 50)))


def test_a_folder_that_holds_something_is_left_alone(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "note").write_text("mine")
    with pytest.raises(OutputExistsError):
        align(federation(tmp_path, SPANS["two"]), out=tmp_path / "out")


@pytest.mark.parametrize("stage", ["_query", "_table", "_match", "_finish"])
def test_a_party_that_fails_half_way_leaves_no_key_and_no_result_at_those_who_had_not_ended(
    stage, tmp_path, monkeypatch
):
    from flower_vfl.apps.alignment.feature import FeatureSide

    genuine = getattr(FeatureSide, stage)

    def fail(self, message):
        if self.terms.party == "b":
            raise MemoryError("person-0001 did not fit")
        return genuine(self, message)

    monkeypatch.setattr(FeatureSide, stage, fail)
    _, error = run(federation(tmp_path, SPANS["three"]), tmp_path / "out", 2)
    assert isinstance(error, PartyError)
    assert "party 'b'" in str(error)
    left = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert left <= ({"a/alignment.parquet"} if stage == "_finish" else set())


def test_an_interruption_of_the_label_party_ends_it_for_all(tmp_path):
    from tests.apps.alignment.common import WatchedGrid

    config = federation(tmp_path, SPANS["three"])
    grid = WatchedGrid(config, 2)

    def interrupt(what, done):
        if what == "waiting for tables":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        align_as_label(grid, config, tmp_path / "out", interrupt)
    grid.join(20)
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


def test_keys_on_a_partys_disk_are_private_and_deleted_after_the_alignment(tmp_path, monkeypatch):
    from flower_vfl.apps.alignment.feature import FeatureSide
    from flower_vfl.apps.alignment.place import state_folder

    modes, genuine = [], FeatureSide._match

    def look(self, message):
        folder = state_folder(self._target)
        modes.append((folder.stat().st_mode & 0o777, (folder / "key").stat().st_mode & 0o777))
        return genuine(self, message)

    monkeypatch.setattr(FeatureSide, "_match", look)
    previous = os.umask(0)
    try:
        found = align(federation(tmp_path, SPANS["two"]), out=tmp_path / "out")
    finally:
        os.umask(previous)
    assert modes == [(0o700, 0o600)]
    assert not state_folder(found["a"]).exists()


def test_an_unknown_job_is_refused(tmp_path):
    from flwr.app import Context, RecordDict

    config = federation(tmp_path, SPANS["two"])
    failures = []
    app = make_server_app(config=config, on_error=failures.append)
    grid = LocalGrid(make_client_app(config=config), 1, {})
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={"job": "algin"})
    with pytest.raises(ConfigError, match=r"job is 'algin' .*train, predict, align"):
        app(grid, context)
    assert [words.partition(":")[0] for words in failures] == ["ConfigError"]


def test_the_server_app_aligns_when_that_is_its_job(tmp_path):
    from flwr.app import Context, RecordDict

    from flower_vfl.config import to_run_config

    run_config = {**to_run_config(federation(tmp_path, SPANS["two"])), "job": "align", "out": str(tmp_path / "out")}
    grid = LocalGrid(make_client_app(), 1, run_config)
    make_server_app()(grid, Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=run_config))
    assert AlignmentFile.read(tmp_path / "out" / "a" / "alignment.parquet").ids == expected(SPANS["two"])


def test_weights_after_an_alignment_are_those_of_a_join_in_the_clear(tmp_path):
    """Each party prepares from its own file and its own alignment; nobody's folder holds another's columns."""
    from flower_vfl import build_config
    from flower_vfl import run as train
    from flower_vfl.data.sources.catalog import prepare

    spans = {"label": (0, 300), "a": (20, 330), "b": (5, 280)}
    config = federation(tmp_path, spans)
    files = {party: str(tmp_path / f"{party}.csv") for party in spans}
    found = align(config, out=tmp_path / "out")
    own = {
        party: prepare(
            "files",
            out=tmp_path / f"prepared-{party}",
            options={
                "alignment": str(found[party]),
                **(
                    {"labels_file": files[party]} if party == "label" else {f"files.{party}": files[party], "label": ""}
                ),
            },
        )
        for party in spans
    }

    class Apart:
        """Data in which each party's columns come from its own folder only."""

        name, label_party, parties = "files", "label", own["label"].parties
        alignment = own["label"].alignment
        labels = staticmethod(own["label"].labels)

        def party(self, name):
            return own[name].party(name)

    settings = {
        "training": {"epochs": 2, "batch_size": 32},
        "model": {"cut": 4, "bottom": [8], "top": [8]},
        "attack": {"informed": 0},
        "data": {"name": "files", "options": {**config.data.options, "join": "inner"}},
    }
    apart = train(build_config(settings), data=lambda _: Apart())
    clear = train(
        build_config(settings),
        data=lambda _: prepare("files", out=tmp_path / "clear", options=settings["data"]["options"]),
    )
    assert apart.summary["weights"] == clear.summary["weights"]
    assert np.isfinite(apart.test_auc)


def part_of(party, alignment, folder, name):
    """Prepare the data of one party, as it does on its own host."""
    from flower_vfl.data.sources.catalog import prepare

    file = str(folder / f"{party}.csv")
    own = {"labels_file": file} if party == "label" else {f"files.{party}": file, "label": ""}
    return prepare("files", out=folder / name, options={"alignment": str(alignment), **own})


def test_training_refuses_a_party_that_prepared_from_a_stale_alignment(tmp_path):
    from flower_vfl import build_config
    from flower_vfl.strategies import VerticalStrategy

    config = federation(tmp_path, {"label": (0, 60), "a": (20, 90)})
    old = align(config, out=tmp_path / "old")
    stale = part_of("a", old["a"], tmp_path, "stale")
    # The file of party a loses one person and gains another.
    people_now = [f"person-{number:04d},{number % 7}.5,{number % 3}.0" for number in range(21, 91)]
    (tmp_path / "a.csv").write_text("\n".join(["id,a1,a2", *people_now]) + "\n", encoding="utf8")
    new = align(config, out=tmp_path / "new")
    fresh, label = part_of("a", new["a"], tmp_path, "fresh"), part_of("label", new["label"], tmp_path, "label")
    assert stale.alignment.digest != fresh.alignment.digest == label.alignment.digest
    settings = build_config({"training": {"epochs": 1, "batch_size": 8}, "data": {"name": "files"}})

    def train(data):
        from torch import nn

        strategy = VerticalStrategy(
            lambda shape: nn.Linear(shape[0], 1),
            label.labels(),
            parties=label.parties,
            config=settings,
            alignment=label.alignment.digest,
        )
        strategy.start(LocalGrid(make_client_app(data=lambda _: data, config=settings), 1, {}))

    with pytest.raises(PartyError, match=r"its IDs differ or are in another order: prepare or align the data again"):
        train(stale)
    train(fresh)
