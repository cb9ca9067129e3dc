"""The journal keeps every whole frame after kills, truncation and resumes; sinks get all rows."""

import builtins
import importlib
import math
import os
import re
import signal
import subprocess
import sys
import time
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flower_vfl import tracking
from flower_vfl.errors import ConfigError, InputError
from flower_vfl.metrics import Embeddings
from flower_vfl.tracking import (
    EMBEDDING_SCHEMA,
    HEADER,
    MAGIC,
    SCHEMA,
    SINKS,
    SNAPSHOTS,
    STEPS,
    StepLog,
    add_snapshot,
    make_sink,
    merge_steps,
    read_embeddings,
    read_snapshots,
    read_steps,
    write_embeddings,
)


def add(log, step, value=0.5, **changes):
    facts = {"epoch": step // 10, "party": "a", "layer": "cut", "attack": "norm", "metric": "auc", **changes}
    log.add(step=step, value=value, **facts)


def steps_of(folder):
    return read_steps(folder)["step"].to_pylist()


def test_rows_come_back_as_they_went_in(tmp_path):
    rows = [
        {"step": 0, "epoch": 0, "party": "a", "layer": "cut", "attack": "norm", "metric": "auc", "value": 0.75},
        {"step": 1, "epoch": 0, "party": "a+b", "layer": "first", "attack": "norm", "metric": "auc", "value": 1e-300},
        {"step": 2**40, "epoch": 9, "party": "label", "layer": "", "attack": "", "metric": "train_loss", "value": -0.1},
    ]
    with StepLog(tmp_path) as log:
        for row in rows:
            log.add(**row)
    assert read_steps(tmp_path).to_pylist() == rows
    merge_steps(tmp_path)
    assert read_steps(tmp_path).to_pylist() == rows
    assert pq.read_table(tmp_path / STEPS).to_pylist() == rows


def test_the_file_has_the_columns_of_the_contract(tmp_path):
    with StepLog(tmp_path) as log:
        add(log, 0)
    path = merge_steps(tmp_path)
    assert path == tmp_path / "steps.parquet"
    assert pq.read_schema(path).names == ["step", "epoch", "party", "layer", "attack", "metric", "value"]
    assert pq.read_schema(path).equals(SCHEMA)


def test_values_that_are_not_finite_are_kept(tmp_path):
    with StepLog(tmp_path) as log:
        add(log, 0, math.nan)
        add(log, 1, math.inf)
    values = read_steps(tmp_path)["value"].to_pylist()
    assert math.isnan(values[0])
    assert values[1] == math.inf


def test_rows_are_written_in_blocks_and_by_flush(tmp_path):
    log = StepLog(tmp_path)
    for step in range(tracking.FLUSH_ROWS - 1):
        add(log, step)
    assert not log.path.exists()
    add(log, tracking.FLUSH_ROWS - 1)
    assert len(steps_of(tmp_path)) == tracking.FLUSH_ROWS
    add(log, tracking.FLUSH_ROWS)
    log.flush()
    assert len(steps_of(tmp_path)) == tracking.FLUSH_ROWS + 1


def test_rows_before_a_checkpoint_are_on_the_disk(tmp_path, monkeypatch):
    synced, original = [], os.fsync
    monkeypatch.setattr(tracking.os, "fsync", lambda handle: (synced.append(os.fstat(handle).st_ino), original(handle)))
    log = StepLog(tmp_path)
    for step in range(tracking.FLUSH_ROWS):
        add(log, step)
    assert not synced  # blocks between checkpoints need not wait for the disk
    log.flush()
    assert synced == [log.path.stat().st_ino]


def test_rows_of_a_slow_run_do_not_wait_long(tmp_path, monkeypatch):
    log = StepLog(tmp_path)
    add(log, 0)
    assert not log.path.exists()
    now = time.monotonic()
    monkeypatch.setattr(tracking.time, "monotonic", lambda: now + tracking.FLUSH_SECONDS + 1)
    add(log, 1)
    assert steps_of(tmp_path) == [0, 1]


@pytest.mark.slow
def test_a_journal_torn_at_any_byte_keeps_every_whole_frame(tmp_path):
    log, ends = StepLog(tmp_path / "whole"), []
    for step in range(3):
        add(log, step)
        log.flush()
        ends.append(log.path.stat().st_size)
    data = log.path.read_bytes()
    torn = tmp_path / "torn"
    torn.mkdir()
    for cut in range(len(data) + 1):
        (torn / log.path.name).write_bytes(data[:cut])
        assert steps_of(torn) == list(range(sum(end <= cut for end in ends)))


def test_a_journal_with_any_byte_changed_never_shows_a_wrong_row(tmp_path):
    log = StepLog(tmp_path)
    for step in range(2):
        add(log, step)
        log.flush()
    first = log.path.stat().st_size // 2
    data = log.path.read_bytes()
    for position in range(0, len(data), 3):
        damaged = bytearray(data)
        damaged[position] ^= 0x55
        log.path.write_bytes(damaged)
        assert steps_of(tmp_path) == ([] if position < first else [0])


def test_a_resumed_run_cuts_the_torn_tail_and_goes_on_behind_it(tmp_path, caplog):
    log = StepLog(tmp_path)
    for step in range(2):
        add(log, step)
        log.flush()
    with log.path.open("rb+") as file:
        file.truncate(log.path.stat().st_size - 1)
    with StepLog(tmp_path) as again:
        assert "half-written" in caplog.text
        add(again, 7)
    assert steps_of(tmp_path) == [0, 7]


def test_a_resumed_run_logs_steps_again_and_the_later_value_stays(tmp_path):
    with StepLog(tmp_path) as log:
        for step in range(4):
            add(log, step, 0.1)
    merge_steps(tmp_path)
    with StepLog(tmp_path) as log:
        for step in range(2, 6):
            add(log, step, 0.2)
    before = read_steps(tmp_path).to_pylist()
    merge_steps(tmp_path)
    assert read_steps(tmp_path).to_pylist() == before
    assert [row["value"] for row in before] == [0.1, 0.1, 0.2, 0.2, 0.2, 0.2]


def test_a_write_that_fails_leaves_no_half_frame_and_loses_no_row(tmp_path, monkeypatch):
    log = StepLog(tmp_path)
    add(log, 0)
    log.flush()
    add(log, 1)

    class Disk:
        """A file on a disk that is full after ten bytes."""

        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def __getattr__(self, name):
            return getattr(self.file, name)

        def write(self, data):
            self.file.write(data[:10])
            self.file.flush()
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tracking, "append_private", lambda path, mode: Disk(builtins.open(path, mode)))  # noqa: SIM115
        with pytest.raises(OSError, match="No space"):
            log.flush()
    assert steps_of(tmp_path) == [0]
    log.flush()
    assert steps_of(tmp_path) == [0, 1]


def test_several_parties_write_files_of_their_own_and_are_merged(tmp_path):
    logs = [StepLog(tmp_path, name=name) for name in ("label", "a", "b")]
    for step in range(3):
        for log, party in zip(logs, ("label", "a", "b"), strict=True):
            add(log, step, party=party)
    for log in logs:
        log.close()
    assert sorted(os.listdir(tmp_path)) == ["a.journal", "b.journal", "label.journal"]
    merge_steps(tmp_path)
    assert os.listdir(tmp_path) == [STEPS]
    rows = [(row["step"], row["party"]) for row in read_steps(tmp_path).to_pylist()]
    assert rows == [(step, party) for step in range(3) for party in ("a", "b", "label")]


def test_merging_again_changes_nothing_even_after_a_kill_between_its_two_halves(tmp_path):
    with StepLog(tmp_path) as log:
        for step in range(5):
            add(log, step)
    journal = log.path.read_bytes()
    first = merge_steps(tmp_path).read_bytes()
    assert merge_steps(tmp_path).read_bytes() == first
    log.path.write_bytes(journal)  # killed after the file was written, before the journal was removed
    assert merge_steps(tmp_path).read_bytes() == first
    assert os.listdir(tmp_path) == [STEPS]


def test_a_log_goes_on_after_a_merge(tmp_path):
    log = StepLog(tmp_path)
    add(log, 0)
    log.flush()
    merge_steps(tmp_path)
    add(log, 1)
    log.close()
    assert steps_of(tmp_path) == [0, 1]


def test_a_run_that_logged_nothing_has_a_file_without_rows(tmp_path):
    StepLog(tmp_path).close()
    merge_steps(tmp_path)
    assert read_steps(tmp_path).num_rows == 0


def test_a_folder_without_any_log_is_refused_by_name(tmp_path):
    with pytest.raises(InputError, match=re.escape(str(tmp_path / STEPS))):
        read_steps(tmp_path)


@pytest.mark.parametrize("content", [b"", b"PAR1 and nothing else", "columns"])
def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path, content):
    if content == "columns":
        pq.write_table(pa.table({"step": [1], "value": ["x"]}), tmp_path / STEPS)
    else:
        (tmp_path / STEPS).write_bytes(content)
    with pytest.raises(InputError, match=re.escape(str(tmp_path / STEPS))):
        read_steps(tmp_path)


def test_a_journal_with_other_content_and_rows_without_a_key_are_refused_by_name(tmp_path):
    other = pa.BufferOutputStream()
    with pa.ipc.new_stream(other, pa.schema([("x", pa.int64())])) as writer:
        writer.write_batch(pa.record_batch([[1]], ["x"]))
    for payload in (b"junk", other.getvalue().to_pybytes()):
        (tmp_path / "label.journal").write_bytes(HEADER.pack(MAGIC, len(payload), zlib.crc32(payload)) + payload)
        with pytest.raises(InputError, match=r"label\.journal cannot be read as a journal of a run"):
            read_steps(tmp_path)
    (tmp_path / "label.journal").unlink()
    columns = {field.name: pa.array([None], field.type) for field in SCHEMA}
    pq.write_table(pa.table(columns, schema=SCHEMA), tmp_path / STEPS)
    with pytest.raises(InputError, match=r"steps\.parquet cannot be read .* not every row has a value of 'step'"):
        read_steps(tmp_path)


@pytest.mark.parametrize("name", ["", "../a", "a/b", ".hidden", "a b"])
def test_a_name_that_is_no_file_name_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="journal"):
        StepLog(tmp_path, name=name)


WRITER = """
import sys
from flower_vfl.tracking import StepLog
log = StepLog(sys.argv[1])
for step in range(10_000_000):
    log.add(step=step, epoch=0, party="a", layer="cut", attack="norm", metric="auc", value=step / 2)
    if step == 5000:
        print("under way", flush=True)
"""


def test_a_killed_writer_leaves_every_row_but_the_last_thousand(tmp_path):
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
    assert writer.stdout.readline().strip() == b"under way"
    time.sleep(0.1)
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    table = read_steps(tmp_path)
    count = table.num_rows
    assert count >= 5001 - tracking.FLUSH_ROWS
    assert table["step"].to_pylist() == list(range(count))
    assert table["value"].to_pylist() == [step / 2 for step in range(count)]
    merge_steps(tmp_path)
    assert read_steps(tmp_path).equals(table)


class Recorder:
    """A sink that records its rows and how often it is closed."""

    def __init__(self):
        self.seen, self.closed = [], 0

    def scalar(self, name, step, value):
        self.seen.append((name, step, value))

    def close(self):
        self.closed += 1


def test_sinks_get_every_row_under_a_path_and_are_closed_once(tmp_path):
    sink = Recorder()
    with StepLog(tmp_path, sinks=[sink]) as log:
        add(log, 3, 0.9)
        add(log, 3, 0.1, party="label", layer="", attack="", metric="train_loss")
        assert sink.seen == []
        log.flush()
        assert sink.seen == [("a/cut/norm/auc", 3, 0.9), ("label/train_loss", 3, 0.1)]
        add(log, 4, 0.8)
        log.close()
    assert sink.seen[2:] == [("a/cut/norm/auc", 4, 0.8)]
    assert sink.closed == 1


def test_an_unknown_sink_is_refused_with_the_nearest_name(tmp_path):
    with pytest.raises(ConfigError, match=r"tensorbord.*tensorboard"):
        make_sink("tensorbord", tmp_path)


@pytest.mark.parametrize("name", SINKS)
def test_a_sink_whose_package_is_missing_says_how_to_install_it(tmp_path, name, monkeypatch):
    def missing(module):
        raise ModuleNotFoundError(f"No module named {module!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ConfigError, match=re.escape(f"pip install 'flower-vfl[{name}]'")):
        make_sink(name, tmp_path)


def test_tensorboard_reads_back_what_was_logged(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with StepLog(tmp_path, sinks=[make_sink("tensorboard", tmp_path)]) as log:
        for step in range(3):
            add(log, step, step / 4)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("a/cut/norm/auc")] == [(0, 0.0), (1, 0.25), (2, 0.5)]


def test_mlflow_reads_back_what_was_logged(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    with StepLog(tmp_path, sinks=[make_sink("mlflow", tmp_path)]) as log:
        for step in range(3):
            add(log, step, step / 4, party="a+b")
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("flower-vfl").experiment_id])
    history = client.get_metric_history(run.info.run_id, "a_b/cut/norm/auc")
    assert sorted((metric.step, metric.value) for metric in history) == [(0, 0.0), (1, 0.25), (2, 0.5)]
    assert run.info.status == "FINISHED"


def test_mlflow_without_a_server_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib, "import_module", lambda name: None)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ConfigError, match="MLFLOW_TRACKING_URI"):
        make_sink("mlflow", tmp_path)


class Wandb:
    """A stand-in for the functions of W&B that are used; it drops rows of steps before the last one."""

    def __init__(self):
        self.axes, self.rows, self.step, self.finished = {}, [], 0, False

    def init(self, **_):
        return self

    def define_metric(self, name, step_metric):
        self.axes[name] = step_metric

    def log(self, row, step=None):
        step = self.step + 1 if step is None else step
        if step >= self.step:
            self.step = step
            self.rows.append(dict(row))

    def finish(self):
        self.finished = True


def test_wandb_gets_every_value_with_its_step_also_those_that_come_after_later_ones(tmp_path, monkeypatch):
    wandb = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    with StepLog(tmp_path, sinks=[make_sink("wandb", tmp_path)]) as log:
        for step in range(3):
            add(log, step, step / 2, party="label", layer="", attack="", metric="train_loss")
            add(log, step, step / 3, party="label", layer="", attack="", metric="noise")
        for step in range(3):
            add(log, step, step / 4)
    assert wandb.axes == {"*": "step"}
    assert wandb.finished
    assert wandb.rows[:3] == [{"step": s, "label/train_loss": s / 2, "label/noise": s / 3} for s in range(3)]
    assert wandb.rows[3:] == [{"step": s, "a/cut/norm/auc": s / 4} for s in range(3)]


def test_wandb_writes_an_offline_run(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with StepLog(tmp_path, sinks=[make_sink("wandb", tmp_path)]) as log:
        for step in range(3):
            add(log, step, step / 4)
    (written,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    deadline = time.monotonic() + 60.0
    while b"a/cut/norm/auc" not in written.read_bytes():  # a process of wandb's own writes it, a little later
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_snapshots_come_back_and_a_step_that_is_done_again_takes_the_place_of_the_old(tmp_path):
    assert read_snapshots(tmp_path).num_rows == 0
    for step, value in ((100, 0.25), (200, 0.5), (100, 0.75)):
        add_snapshot(tmp_path, step, {("residual", "positive"): np.array([value]), ("x", "cross"): np.array([])})
    row = {"quantity": "residual", "group": "positive"}
    rows = read_snapshots(tmp_path).to_pylist()
    assert rows == [{"step": 200, **row, "value": 0.5}, {"step": 100, **row, "value": 0.75}]


def test_snapshots_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / SNAPSHOTS).write_bytes(b"torn")
    with pytest.raises(InputError, match=re.escape(str(tmp_path / SNAPSHOTS))):
        read_snapshots(tmp_path)


def sampled(party="a", view="received", rows=5, width=3):
    z = np.random.default_rng(rows).normal(size=(rows, width)).astype(np.float32)
    return Embeddings(party, view, np.arange(rows) * 7, np.arange(rows) % 2, z)


def test_embeddings_come_back_by_party_and_view_whatever_their_widths(tmp_path):
    assert read_embeddings(tmp_path) == []
    samples = [sampled(), sampled(view="read"), sampled("b", rows=4, width=1)]
    write_embeddings(tmp_path, samples)
    for sample, found in zip(samples, read_embeddings(tmp_path), strict=True):
        assert (found.party, found.view) == (sample.party, sample.view)
        for name in ("rows", "labels", "z"):
            assert np.array_equal(getattr(found, name), getattr(sample, name))
    write_embeddings(tmp_path, samples[:1])
    assert len(read_embeddings(tmp_path)) == 1


@pytest.mark.parametrize("z", [[[1.0], [1.0, 2.0]], [[], []], [None, [1.0]]])
def test_embeddings_without_a_common_width_are_refused_by_their_file(tmp_path, z):
    columns = [["a", "a"], ["read", "read"], [0, 1], [0, 1], z]
    pq.write_table(pa.table(columns, schema=EMBEDDING_SCHEMA), tmp_path / "embeddings.parquet")
    with pytest.raises(InputError, match=r"embeddings.parquet cannot be read"):
        read_embeddings(tmp_path)


def test_a_file_that_holds_no_embeddings_is_named(tmp_path):
    (tmp_path / "embeddings.parquet").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"embeddings.parquet cannot be read as a log of party, view"):
        read_embeddings(tmp_path)


@pytest.mark.parametrize("name", ["party", "metric"])
def test_texts_that_are_no_utf_8_are_refused_by_their_file(tmp_path, name):
    offsets, letters = pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff\xfe")
    columns = [
        pa.Array.from_buffers(field.type, 1, [None, offsets, letters])
        if field.name == name
        else pa.array(["a"] if pa.types.is_string(field.type) else [0]).cast(field.type)
        for field in SCHEMA
    ]
    pq.write_table(pa.table(columns, schema=SCHEMA), tmp_path / STEPS)
    with pytest.raises(InputError, match=r"steps.parquet cannot be read"):
        read_steps(tmp_path)
