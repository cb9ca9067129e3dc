"""Row memory: its running sums are those of a plain computation after any interruption, and can be deleted."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_vfl.attacks.longitudinal.base import centred_in_batch_units, in_batch_units
from flower_vfl.auditing import row_memory as storage
from flower_vfl.auditing.row_memory import RowMemory
from flower_vfl.errors import DataError, StorageError
from flower_vfl.metrics import leak_auc
from flower_vfl.protocol.schedule import Schedule
from tests.cases import parametrize

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
    """Return each row's gradients in units of their batches, by epoch, (T, R, D)."""
    x = np.zeros((epochs, ROWS, WIDTH))
    for step in range(schedule.steps_of(epochs).stop):
        g = gradient(step, schedule).double().numpy()
        x[schedule.epoch_of(step) - 1][schedule.train_batch(step)] = g / np.sqrt(np.square(g).mean())
    return x


def read(memory, epoch, kept):
    return torch.cat(list(memory.at("cut", epoch).pieces(kept))).numpy()


@pytest.fixture(params=["named", "in memory", "without room in memory"])
def folder(request, tmp_path, monkeypatch):
    if request.param == "without room in memory":
        monkeypatch.setattr(storage, "free_memory", lambda: 0)
    return tmp_path / "m" if request.param == "named" else None


@pytest.mark.parametrize("epochs", [1, 2, 5])
def test_it_gives_the_gradients_of_each_row(folder, epochs):
    memory = RowMemory(SCHEDULE, ["mean", "last", "difference", "epochs"], folder=folder)
    record(memory, range(SCHEDULE.steps_of(epochs).stop))
    x = expected(epochs)
    rows = memory.at("cut", epochs).order
    assert len(set(rows.tolist())) == len(rows) == 45
    assert not np.delete(x, rows, axis=1).any()
    np.testing.assert_allclose(read(memory, epochs, "mean"), x.mean(axis=0)[rows], atol=1e-6)
    np.testing.assert_allclose(read(memory, epochs, "last"), x[-1][rows], atol=2e-6)
    np.testing.assert_allclose(read(memory, epochs, "epochs"), np.hstack(x[:, rows]), atol=4e-6)
    if epochs > 1:
        np.testing.assert_allclose(read(memory, epochs, "difference"), (x[-1] - x[-2])[rows], atol=4e-6)


def test_rows_are_read_in_the_order_of_the_last_epoch(folder):
    memory = RowMemory(SCHEDULE, ["mean"], folder=folder)
    for epoch in (1, 2):
        steps = SCHEDULE.steps_of(epoch)
        record(memory, steps)
        order = np.concatenate([SCHEDULE.train_batch(step) for step in steps])
        assert memory.at("cut", epoch).order.tolist() == order.tolist()
        some = order[[30, 2, 11]]
        np.testing.assert_array_equal(
            memory.at("cut", epoch).at(some, "mean"), read(memory, epoch, "mean")[[30, 2, 11]]
        )


def schedules():
    shapes = st.tuples(st.integers(0, 99), st.integers(1, 9))
    plain = st.tuples(st.integers(2, 40), st.integers(1, 4), st.sampled_from([0.0, 0.1, 0.4]))
    days = st.lists(st.integers(1, 15), min_size=1, max_size=4)
    return st.one_of(
        st.builds(lambda s, p: Schedule(s[0], p[0], 0, s[1], 9, epochs=p[1], validation=p[2]), shapes, plain),
        st.builds(
            lambda s, d: Schedule(s[0], sum(d), 0, s[1], 9, epochs=len(d), validation=0.0, periods=tuple(d)),
            *(shapes, days),
        ),
    )


def in_two_bytes(sums):
    """Return sums rounded to two bytes a number, in which sums are kept for the mean alone."""
    return sums.astype(np.float16).astype(np.float32)


def plain_sums(schedule, epoch, kept):
    """Return the running sums of each row by the end of an epoch, oldest first, added up one row at a time."""
    rounded = in_two_bytes if kept == "mean" else np.asarray
    sums = {}
    for step in range(schedule.steps_of(epoch).stop):
        x = (centred_in_batch_units if kept == "mean" else in_batch_units)(gradient(step, schedule)).numpy()
        for row, value in zip(schedule.train_batch(step).tolist(), x, strict=True):
            history = sums.setdefault(row, [np.zeros(WIDTH, np.float32)])
            history.append(rounded(history[-1] + value))
    return sums


def plain_reading(sums, kept):
    """Return the quantity that `kept` names, computed from all running sums of a row."""
    times = len(sums) - 1
    steps = np.diff(np.stack(sums), axis=0)
    if kept == "mean":
        return sums[-1] / np.float32(times)
    if kept == "epochs":
        return steps.reshape(-1)
    if kept == "difference":
        return steps[-1] - steps[-2] if times > 1 else np.zeros(WIDTH, np.float32)
    return steps[-1]


def corrupt(memory, schedule, steps):
    """Write NaN where these steps of one epoch are stored, as a kill during a write may leave anything there."""
    slots = memory._layers["cut"].slots
    for step in steps:
        before = schedule.times_before(schedule.epoch_of(step))
        slots[before % len(slots)][schedule.places(step)] = np.nan


@given(schedule=schedules(), kept=st.sampled_from(["mean", "last", "difference", "epochs"]), data=st.data())
@settings(max_examples=60)
def test_whatever_is_interrupted_it_gives_the_sums_of_a_plain_dictionary(tmp_path_factory, schedule, kept, data):
    """A run goes back to a checkpoint within the epoch or at its end, never to one of an earlier epoch."""
    folder = tmp_path_factory.mktemp("m") / "one"
    memory, in_files = RowMemory(schedule, [kept], folder=folder), RowMemory(schedule, [kept])
    in_files._in_memory = lambda _: None
    memories = {"named": memory, "in files": in_files, "unnamed": RowMemory(schedule, [kept])}
    kills = data.draw(st.lists(st.integers(0, schedule.steps - 1), max_size=4))
    step, states = 0, {0: memory.state()}
    while step < schedule.steps:
        record(memory, [step], schedule)
        states[step + 1] = memory.state()
        epoch = schedule.epoch_of(step)
        steps = schedule.steps_of(epoch)
        if step in kills:
            kills.remove(step)
            checkpoint = data.draw(st.integers(steps.start, step + 1))
            corrupt(memory, schedule, range(checkpoint, step + 1))
            step, memory = checkpoint, RowMemory(schedule, [kept], folder=folder)  # another process goes on
            memory.restore(states[step])
            memory.check("cut")
        else:
            step += 1
        if step == steps.stop:
            memories["named"] = memory
            for other in list(memories.values())[1:]:
                record(other, steps, schedule)
            plain = plain_sums(schedule, epoch, kept)
            for name, other in memories.items():
                found = other.at("cut", epoch)
                assert sorted(found.order.tolist()) == sorted(plain), name
                plain_values = np.stack([plain_reading(plain[row], kept) for row in found.order.tolist()])
                np.testing.assert_array_equal(read(other, epoch, kept), plain_values, err_msg=name)


def test_in_time_order_each_row_is_kept_as_it_came(tmp_path):
    memory = RowMemory(BY_DAY, ["mean", "last"], folder=tmp_path / "m")
    record(memory, range(BY_DAY.steps_of(2).stop), BY_DAY)
    x = expected(2, BY_DAY).sum(axis=0)
    at = memory.at("cut", 2)
    assert sorted(at.order.tolist()) == list(range(29))
    assert at.times == 1
    np.testing.assert_allclose(read(memory, 2, "mean"), x[at.order], atol=1e-6)
    np.testing.assert_allclose(read(memory, 2, "last"), x[at.order], atol=1e-6)
    with pytest.raises(IndexError):
        at.at(np.array([40]), "mean")


@pytest.mark.parametrize(
    ("keeps", "named", "sums", "number"),
    [
        *((["mean"], False, 1, 2), (["mean"], True, 2, 2), (["last", "mean"], False, 2, 4), (["last"], True, 2, 4)),
        *((["difference"], True, 3, 4), (["mean", "epochs"], False, 5, 4)),
    ],
)
def test_at_most_four_bytes_are_kept_for_each_number(tmp_path, keeps, named, sums, number):
    """For the mean alone: two sums of two bytes each where a run can be resumed, one where it cannot."""
    memory = RowMemory(SCHEDULE, keeps, folder=tmp_path / "m" if named else None)
    record(memory, range(9))
    size = number * (ROWS if sums == 1 else 45) * WIDTH
    assert [slot.nbytes for slot in memory._layers["cut"].slots] == [size] * sums
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.stat().st_size for path in files] == ([size] * sums if named else [])


def means_of(x):
    """Return a memory's mean of gradients (T, R, D), one step an epoch, the exact mean, and the memory's dtype."""
    schedule = Schedule(3, x.shape[1], 0, x.shape[1], 50, epochs=len(x), validation=0.0)
    memory, exact = RowMemory(schedule, ["mean"]), torch.zeros(x.shape[1:], dtype=torch.float64)
    for step, gradients in enumerate(x):
        rows = schedule.train_batch(step)
        memory.record(step, rows, {"cut": gradients[rows]})
        exact += centred_in_batch_units(gradients)
    return memory.at("cut", len(x)).at(np.arange(x.shape[1]), "mean"), exact / len(x), memory._dtype


@pytest.mark.parametrize(("epochs", "dtype", "part"), [(64, np.float16, 1 / 250), (65, np.float32, 1e-6)])
def test_half_precision_is_not_used_where_it_would_lose_some_of_many_epochs(epochs, dtype, part):
    always_the_same = torch.randn(1, 200, 9, generator=torch.Generator().manual_seed(1)).expand(epochs, -1, -1)
    found, exact, kept = means_of(always_the_same)
    assert kept == dtype
    assert float((found - exact).norm() / exact.norm()) < part


@pytest.mark.parametrize("smallest", [1.0, 1e-6])
@parametrize(("noise", "persistent"), [(0.0, 0.0), (5.0, 0.0), (5.0, 0.5), (5.0, 1.0)], quick=1)
def test_sums_in_half_precision_give_the_leak_auc_of_exact_sums(noise, persistent, smallest):
    generator = torch.Generator().manual_seed(5)
    positive, rows = torch.arange(5000) % 20 == 0, (5000, 16)
    direction = torch.nn.functional.normalize(torch.randn(16, generator=generator), dim=0)
    clean = (3 * positive[:, None] - 0.3) * direction + 0.1 * torch.randn(rows, generator=generator)
    clean *= smallest ** torch.rand(rows[0], 1, generator=generator)
    same, fresh = torch.randn(rows, generator=generator), torch.randn(64, *rows, generator=generator)
    found, exact, _ = means_of(clean + noise * (persistent**0.5 * same + (1 - persistent) ** 0.5 * fresh))
    error = (12 * int(positive.sum())) ** -0.5  # the standard error of the AUC
    for read in (lambda sums: sums.double() @ direction.double(), lambda sums: sums.double().norm(dim=1)):
        assert leak_auc(read(found), positive) == pytest.approx(leak_auc(read(exact), positive), abs=error / 20)


def test_a_number_with_all_the_energy_of_its_batch_stays_the_largest_in_half_precision():
    x = torch.full((40, 4000, 64), 1e-6)
    x[:, 17, 3] = 1e6
    found, _, dtype = means_of(x)
    assert dtype == np.float16
    assert (float(found[17, 3]), float(found[0, 0]) < 1.0) == (pytest.approx(40 * 506 / 40, rel=0.01), True)


def test_rows_that_come_once_are_kept_once(tmp_path):
    once = Schedule(3, ROWS, 0, 8, 50, epochs=1)
    for schedule in (once, BY_DAY):
        memory = RowMemory(schedule, ["epochs"], folder=tmp_path / "m")
        record(memory, range(schedule.steps), schedule)
        assert len(memory._layers["cut"].slots) == 1
        memory.forget()


def test_the_rows_of_one_batch_are_contiguous_in_a_file(tmp_path):
    memory = RowMemory(SCHEDULE, ["mean"], folder=tmp_path / "m")
    steps = SCHEDULE.steps_of(2)
    record(memory, range(steps.start))
    before = [slot.copy() for slot in memory._layers["cut"].slots]
    for step in steps:
        record(memory, [step])
        first, second = (
            np.flatnonzero((slot != old).any(axis=1)).tolist()
            for slot, old in zip(memory._layers["cut"].slots, before, strict=True)
        )
        assert (first, second) == ([], list(range(SCHEDULE.places(step).stop)))


def test_the_parties_of_a_process_share_the_places_of_rows():
    memories = [RowMemory(SCHEDULE, ["last"]) for _ in range(2)]
    for memory in memories:
        record(memory, range(SCHEDULE.steps_of(3).stop))
    one, other = (memory.at("cut", 3).places for memory in memories)
    assert all(map(np.shares_memory, one, other))
    assert [set(memory._places) for memory in memories] == [{2, 3}] * 2  # no more than what is read together
    del one, other
    for memory in memories:
        memory.forget()
    assert not [key for key in storage._places if key[0] == SCHEDULE]


@pytest.mark.parametrize(("free", "in_place"), [(4 * ROWS * WIDTH - 1, False), (4 * ROWS * WIDTH, True)])
def test_sums_are_in_memory_where_they_fit_into_half_of_what_is_free(monkeypatch, free, in_place):
    monkeypatch.setattr(storage, "free_memory", lambda: free)
    memory = RowMemory(SCHEDULE, ["mean"])
    record(memory, [0])
    assert memory._layers["cut"].in_place == in_place


def test_a_named_memory_is_its_owners_alone_and_is_deleted_when_it_forgets(tmp_path):
    memory = RowMemory(SCHEDULE, ["mean"], folder=tmp_path / "run" / "m")
    record(memory, range(3))
    assert (tmp_path / "run" / "m").stat().st_mode & 0o777 == 0o700
    memory.forget()
    assert list((tmp_path / "run").iterdir()) == []
    memory.forget()


def test_a_run_that_goes_on_without_its_row_memory_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"does not hold the party's row memory of 45 rows at layer 'cut'"):
        record(RowMemory(SCHEDULE, ["mean"], folder=tmp_path / "m"), [9])
    with pytest.raises(DataError, match="step 9 is not the next one"):
        record(RowMemory(SCHEDULE, ["mean"]), [9])


def needed_slots(step, count):
    """Return the slots that a run resumed after `step` steps still reads, and the number of rows in each."""
    epoch = SCHEDULE.epoch_of(step)
    begun = step - SCHEDULE.steps_of(epoch).start
    found = {(epoch - 1) % count: min(8 * begun, 45)} if begun else {}
    return found | {(epoch - 1 - back) % count: 45 for back in range(1, count) if epoch - 1 >= back}


@pytest.mark.parametrize("kept", ["mean", "difference"])
@pytest.mark.parametrize("step", [0, 1, 5, 6, 7, 12, 14, 18, 21])
def test_a_changed_number_is_found_wherever_it_will_be_read(tmp_path, kept, step):
    memory = RowMemory(SCHEDULE, [kept], folder=tmp_path / "m")
    record(memory, range(step))
    slots = memory._layers["cut"].slots if step else ()
    needed = needed_slots(step, len(slots)) if step else {}
    for slot, sums in enumerate(slots):
        for row in (0, 7, 44):
            again = RowMemory(SCHEDULE, [kept], folder=tmp_path / "m")
            again.restore(memory.state())
            right = sums[row, 1]
            sums[row, 1] += 1
            memory.check("cut")  # the writing process does not read it again
            if row < needed.get(slot, 0):
                with pytest.raises(DataError, match=rf"cut-{slot}\.by-epoch\.f\d\d was damaged or changed"):
                    again.check("cut")
            else:
                again.check("cut")
            sums[row, 1] = right


def test_files_of_another_size_are_refused(tmp_path):
    record(RowMemory(SCHEDULE, ["mean"], folder=tmp_path / "m"), range(4))
    (tmp_path / "m" / "cut-1.by-epoch.f16").write_bytes(b"short")
    with pytest.raises(DataError, match=r"cut-1\.by-epoch\.f16 does not hold"):
        record(RowMemory(SCHEDULE, ["mean"], folder=tmp_path / "m"), [4])


@pytest.mark.parametrize("earlier", ["cut-{}.f32", "cut-{}.by-epoch.f32"])
def test_files_in_another_order_or_of_other_numbers_as_earlier_versions_wrote_are_not_read(tmp_path, earlier):
    record(RowMemory(SCHEDULE, ["mean"], folder=tmp_path / "m"), range(4))
    for slot in range(2):
        (tmp_path / "m" / f"cut-{slot}.by-epoch.f16").rename(tmp_path / "m" / earlier.format(slot))
    with pytest.raises(DataError, match=r"does not hold the party's row memory"):
        record(RowMemory(SCHEDULE, ["mean"], folder=tmp_path / "m"), [4])


def test_a_full_disk_is_an_error_at_the_beginning(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    monkeypatch.setattr(storage, "free_memory", lambda: 0)
    for folder in (tmp_path / "m", None):
        with pytest.raises(StorageError, match="could not be written"):
            record(RowMemory(SCHEDULE, ["mean"], folder=folder), [0])


def test_a_layers_name_is_no_path(tmp_path):
    memory = RowMemory(SCHEDULE, ["mean"], folder=tmp_path / "m")
    memory.record(0, SCHEDULE.train_batch(0), {"../../x/y": gradient(0)})
    assert [path.parent for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "m"] * 2


def test_feature_maps_are_remembered_flattened():
    g = torch.randn(8, 2, 2, 2)
    memory = RowMemory(SCHEDULE, ["mean", "last"])
    rows = SCHEDULE.train_batch(0)
    memory.record(0, rows, {"cut": g})
    torch.testing.assert_close(memory.at("cut", 1).at(rows, "mean"), in_batch_units(g))
