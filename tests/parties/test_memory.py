"""Running sums on the disk: those of a plain computation, whatever is interrupted, and gone when they should be."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_vfl.attacks.remembering import in_batch_units
from flower_vfl.errors import DataError, StorageError
from flower_vfl.parties import memory as storage
from flower_vfl.parties.memory import RowMemory
from flower_vfl.protocol.schedule import Schedule

ROWS, WIDTH = 50, 3
SCHEDULE = Schedule(seed=3, rows=ROWS, test_rows=0, batch_size=8, eval_batch_size=50, epochs=5, validation=0.1)
BY_DAY = Schedule(3, ROWS, 0, 8, 50, epochs=3, validation=0.0, periods=(20, 9, 21))


def gradient(step, schedule=SCHEDULE):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(schedule.batch_rows(step), WIDTH, generator=generator) * 2.0**-step


def record(memory, steps, schedule=SCHEDULE):
    for step in steps:
        memory.record(step, schedule.train_batch(step), {"cut": gradient(step, schedule)})


def expected(epochs, schedule=SCHEDULE):
    """Each row's gradients in units of their batches, by epoch, (T, R, D)."""
    x = np.zeros((epochs, ROWS, WIDTH))
    for step in range(schedule.steps_of(epochs).stop):
        g = gradient(step, schedule).double().numpy()
        x[schedule.epoch_of(step) - 1][schedule.train_batch(step)] = g / np.sqrt(np.square(g).mean())
    return x


def read(memory, epoch, kept):
    return torch.cat(list(memory.at("cut", epoch).pieces(kept))).numpy()


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("epochs", [1, 2, 5])
def test_it_gives_what_came_for_each_row(tmp_path, named, epochs):
    memory = RowMemory(SCHEDULE, ["mean", "last", "difference", "epochs"], folder=tmp_path / "m" if named else None)
    record(memory, range(SCHEDULE.steps_of(epochs).stop))
    x = expected(epochs)
    seen = memory.at("cut", epochs).seen
    assert seen.sum() == 45
    assert not x[:, ~seen].any()
    np.testing.assert_allclose(read(memory, epochs, "mean"), x.mean(axis=0)[seen], atol=1e-6)
    np.testing.assert_allclose(read(memory, epochs, "last"), x[-1][seen], atol=2e-6)
    np.testing.assert_allclose(read(memory, epochs, "epochs"), np.hstack(x[:, seen]), atol=4e-6)
    if epochs > 1:
        np.testing.assert_allclose(read(memory, epochs, "difference"), (x[-1] - x[-2])[seen], atol=4e-6)


@given(
    kept=st.sampled_from(["mean", "last", "difference", "epochs"]),
    leaps=st.lists(st.tuples(st.integers(0, 29), st.integers(0, 12)), max_size=4),
)
@settings(max_examples=20, deadline=None)
def test_steps_that_are_done_again_change_nothing(tmp_path_factory, kept, leaps):
    """A run goes back to a checkpoint: of the middle of an epoch or its end, never of an earlier epoch."""
    folder = tmp_path_factory.mktemp("m")
    memory, left_alone = RowMemory(SCHEDULE, [kept], folder=folder / "one"), RowMemory(SCHEDULE, [kept])
    step, leaps = 0, dict(leaps)
    while step < SCHEDULE.steps:
        record(memory, [step])
        back = leaps.pop(step, 0)
        epoch = SCHEDULE.steps_of(SCHEDULE.epoch_of(step))
        step = max(step + 1 - back, epoch.start) if back else step + 1
        if back:  # another process goes on
            memory = RowMemory(SCHEDULE, [kept], folder=folder / "one")
    record(left_alone, range(SCHEDULE.steps))
    np.testing.assert_array_equal(read(memory, 5, kept), read(left_alone, 5, kept))


def test_in_time_order_each_row_is_remembered_as_it_came(tmp_path):
    memory = RowMemory(BY_DAY, ["mean", "last"], folder=tmp_path / "m")
    record(memory, range(BY_DAY.steps_of(2).stop), BY_DAY)
    x = expected(2, BY_DAY).sum(axis=0)
    at = memory.at("cut", 2)
    assert at.seen.tolist() == [True] * 29 + [False] * 21
    assert at.times == 1
    np.testing.assert_allclose(read(memory, 2, "mean"), x[:29], atol=1e-6)
    np.testing.assert_allclose(read(memory, 2, "last"), x[:29], atol=1e-6)


@pytest.mark.parametrize(
    ("keeps", "named", "files"),
    [
        *((["mean"], False, 1), (["mean"], True, 2), (["last", "mean"], False, 2), (["difference"], True, 3)),
        (["mean", "epochs"], False, 5),
    ],
)
def test_no_more_than_four_bytes_are_kept_for_a_scalar(tmp_path, monkeypatch, keeps, named, files):
    sizes = []
    reserve = storage._reserved
    monkeypatch.setattr(
        storage, "_reserved", lambda file, size, shape: sizes.append(size) or reserve(file, size, shape)
    )
    record(RowMemory(SCHEDULE, keeps, folder=tmp_path / "m" if named else None), range(9))
    assert sizes == [4 * ROWS * WIDTH] * files
    assert [path.stat().st_size for path in tmp_path.rglob("*.f32")] == (sizes if named else [])


def test_a_named_memory_is_its_owners_alone_and_goes_when_it_is_told_to(tmp_path):
    memory = RowMemory(SCHEDULE, ["mean"], folder=tmp_path / "run" / "m")
    record(memory, range(3))
    assert (tmp_path / "run" / "m").stat().st_mode & 0o777 == 0o700
    memory.forget()
    assert list((tmp_path / "run").iterdir()) == []
    memory.forget()


def test_a_run_that_goes_on_without_what_it_remembered_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"does not hold what the party remembers of 50 rows at layer 'cut'"):
        record(RowMemory(SCHEDULE, ["mean"], folder=tmp_path / "m"), [9])
    with pytest.raises(DataError, match="step 9 is not the next one"):
        record(RowMemory(SCHEDULE, ["mean"]), [9])


def test_files_of_another_size_are_refused(tmp_path):
    record(RowMemory(SCHEDULE, ["mean"], folder=tmp_path / "m"), range(4))
    (tmp_path / "m" / "cut-1.f32").write_bytes(b"short")
    with pytest.raises(DataError, match=r"cut-1\.f32 does not hold"):
        record(RowMemory(SCHEDULE, ["mean"], folder=tmp_path / "m"), [4])


def test_a_full_disk_is_told_at_the_beginning(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    for folder in (tmp_path / "m", None):
        with pytest.raises(StorageError, match="could not be written"):
            record(RowMemory(SCHEDULE, ["mean"], folder=folder), [0])


def test_the_order_of_batches_within_an_epoch_does_not_matter():
    one, other = RowMemory(SCHEDULE, ["mean"]), RowMemory(SCHEDULE, ["mean"])
    steps = SCHEDULE.steps_of(1)
    record(one, steps)
    other.record(0, SCHEDULE.train_batch(0), {"cut": gradient(0)})
    for position, step in enumerate(reversed(steps[1:]), 1):
        other.record(position, SCHEDULE.train_batch(step), {"cut": gradient(step)})
    np.testing.assert_array_equal(read(one, 1, "mean"), read(other, 1, "mean"))


def test_a_layers_name_is_no_path(tmp_path):
    memory = RowMemory(SCHEDULE, ["mean"], folder=tmp_path / "m")
    memory.record(0, SCHEDULE.train_batch(0), {"../../x/y": gradient(0)})
    assert sorted(path.parent for path in tmp_path.rglob("*.f32")) == [tmp_path / "m"] * 2


def test_feature_maps_are_remembered_flattened():
    g = torch.randn(8, 2, 2, 2)
    memory = RowMemory(SCHEDULE, ["mean"])
    memory.record(0, SCHEDULE.train_batch(0), {"cut": g})
    rows = SCHEDULE.train_batch(0)
    torch.testing.assert_close(memory.at("cut", 1).at(rows, "mean"), in_batch_units(g))
