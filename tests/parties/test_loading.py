"""Batches come in their order and on their device, loaded ahead or not."""

import gc
import threading
import weakref

import numpy as np
import pytest
import torch

from flower_vfl.data.store.source import ArraySource
from flower_vfl.errors import DataError
from flower_vfl.nn.placement import IN_MEMORY, Placement
from flower_vfl.parties import loading
from flower_vfl.parties.loading import Loader, Windows, in_windows
from flower_vfl.protocol.schedule import Schedule
from tests.card import needs_card

ROWS = 40
SCHEDULE = Schedule(3, ROWS, 1, 16, 16, 2, 0.0)


class RecordingSource(ArraySource):
    """A source that records the gathered rows and the names of the threads."""

    def __init__(self, *, broken=()):
        super().__init__(np.arange(2.0 * ROWS, dtype=np.float32).reshape(ROWS, 2), np.arange(ROWS)[:, None])
        self.gathered, self.threads, self.broken = [], [], broken

    def gather(self, rows):
        self.gathered.append(rows.tolist())
        self.threads.append(threading.current_thread().name)
        if len(self.gathered) - 1 in self.broken:
            raise DataError("the disk is gone")
        return super().gather(rows)


@pytest.mark.parametrize("ahead", [False, True])
def test_each_step_gets_the_rows_of_the_schedule(ahead):
    loader = Loader(RecordingSource(), SCHEDULE, IN_MEMORY, ahead=ahead)
    for step in range(SCHEDULE.steps):
        numbers, ids = loader.batch(step)
        rows = SCHEDULE.train_batch(step)
        assert np.array_equal(ids[:, 0].numpy(), rows)
        assert np.array_equal(numbers[:, 1].numpy(), 2.0 * rows + 1.0)


def test_the_next_batch_is_gathered_by_another_thread_but_not_the_first_of_an_epoch():
    source = RecordingSource()
    loader = Loader(source, SCHEDULE, IN_MEMORY, ahead=True)
    for step in range(SCHEDULE.steps):
        loader.batch(step)
    assert source.gathered == [SCHEDULE.train_batch(step).tolist() for step in range(6)]
    assert [name.startswith("loader") for name in source.threads] == [False, True, True, False, True, True]


def test_without_a_gpu_nothing_is_loaded_ahead():
    source = RecordingSource()
    Loader(source, SCHEDULE, IN_MEMORY).batch(0)
    assert source.gathered == [SCHEDULE.train_batch(0).tolist()]


def test_a_step_that_was_not_expected_is_loaded_at_once():
    loader = Loader(RecordingSource(), SCHEDULE, IN_MEMORY, ahead=True)
    for step in (0, 0, 4, 1, 2):
        assert np.array_equal(loader.batch(step)[1][:, 0].numpy(), SCHEDULE.train_batch(step))


def test_an_error_in_loading_ahead_is_raised_at_the_step_that_needs_the_batch():
    loader = Loader(RecordingSource(broken=[1]), SCHEDULE, IN_MEMORY, ahead=True)
    loader.batch(0)
    with pytest.raises(DataError, match="the disk is gone"):
        loader.batch(1)
    assert np.array_equal(loader.batch(1)[1][:, 0].numpy(), SCHEDULE.train_batch(1))  # and the loader goes on


class Stored(ArraySource):
    """A source that records the number of rows of each read."""

    def __init__(self, *arrays):
        super().__init__(*arrays)
        self.reads = []

    def read(self, rows):
        self.reads.append(len(rows))
        return super().read(rows)


def stored(folder):
    for name, array in (("numbers", np.arange(2.0 * ROWS).reshape(ROWS, 2)), ("ids", np.arange(ROWS)[:, None])):
        np.save(folder / f"{name}.npy", array)
    return Stored(*(np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("numbers", "ids")))


@pytest.mark.parametrize("window", [1, 2 * 16 * 24, 2**20])
@pytest.mark.parametrize("order", ["forward", "again and back"])
def test_windows_give_the_batches_that_gather_gives(tmp_path, window, order):
    source = stored(tmp_path)
    windows = Windows(source, SCHEDULE, window=window)
    for step in range(SCHEDULE.steps) if order == "forward" else (4, 5, 0, 2, 2, 1, 3):
        for mine, theirs in zip(windows.batch(step), source.gather(SCHEDULE.train_batch(step)), strict=True):
            assert mine.dtype == theirs.dtype
            assert torch.equal(mine, theirs)


def test_a_window_is_several_batches_of_one_epoch_and_is_read_once(tmp_path):
    source = stored(tmp_path)
    windows = Windows(source, SCHEDULE, window=2 * 16 * 24)
    for step in range(SCHEDULE.steps):
        windows.batch(step)
    assert source.reads == [32, 8, 32, 8]


def test_a_file_that_became_shorter_is_an_error(tmp_path):
    source = stored(tmp_path)
    windows = Windows(source, SCHEDULE)
    with (tmp_path / "numbers.npy").open("r+b") as file:
        file.truncate(200)
    with pytest.raises(DataError, match=r"numbers\.npy became shorter"):
        windows.batch(0)


def test_only_tables_in_large_files_are_read_in_windows(tmp_path, monkeypatch):
    source = stored(tmp_path)
    assert not in_windows(source)
    monkeypatch.setattr(loading, "LARGE_TABLE", source.file_bytes - 1)
    assert in_windows(source)
    assert not in_windows(RecordingSource())
    loader = Loader(source, SCHEDULE, IN_MEMORY)
    assert np.array_equal(loader.batch(0)[1][:, 0].numpy(), SCHEDULE.train_batch(0))
    assert source.reads == [40]


def test_a_loader_is_gone_with_its_party_and_its_files_with_it(tmp_path):
    gc.disable()
    try:
        source = stored(tmp_path)
        loader = Loader(source, SCHEDULE, IN_MEMORY, ahead=True)
        loader.batch(SCHEDULE.steps - 1)
        gone = weakref.ref(loader)
        del loader
        assert gone() is None
    finally:
        gc.enable()


@needs_card
@pytest.mark.parametrize("embeddings", ["same", "cpu"])
def test_a_gpu_gets_the_rows_of_the_schedule_and_ids_go_where_the_tables_are(embeddings):
    loader = Loader(RecordingSource(), SCHEDULE, Placement("cuda", embeddings))
    for step in range(SCHEDULE.steps):
        numbers, ids = loader.batch(step)
        rows = SCHEDULE.train_batch(step)
        assert numbers.is_cuda
        assert ids.is_cuda == (embeddings == "same")
        assert np.array_equal(ids[:, 0].cpu().numpy(), rows)
        assert np.array_equal(numbers[:, 1].cpu().numpy(), 2.0 * rows + 1.0)
