import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_vfl.data.store.source import (
    ArraySource,
    FeatureSource,
    JoinedRows,
    LabelledRows,
    PixelSource,
    SomeRows,
)
from flower_vfl.errors import DataError

shapes = st.lists(st.integers(1, 4), max_size=3).map(tuple)
kinds = st.sampled_from([np.float64, np.float32, np.float16, np.int32, np.int64, np.uint8, np.bool_])


@given(st.data(), st.integers(1, 30), st.lists(st.tuples(shapes, kinds), min_size=1, max_size=3))
def test_a_gather_equals_a_loop_over_rows(data, length, columns):
    rng = np.random.default_rng(length)
    arrays = [(rng.normal(size=(length, *shape)) * 9).astype(kind) for shape, kind in columns]
    rows = np.array(data.draw(st.lists(st.integers(0, length - 1), max_size=40)), dtype=np.int64)
    gathered = ArraySource(*arrays).gather(rows)
    for tensor, array in zip(gathered, arrays, strict=True):
        assert tensor.dtype == (torch.float32 if array.dtype.kind == "f" else torch.int64)
        assert tensor.shape == (len(rows), *array.shape[1:])
        for position, row in enumerate(rows):
            assert np.array_equal(tensor[position].numpy(), array[row].astype(tensor.numpy().dtype))


def test_what_is_gathered_is_a_copy_that_may_be_written_to():
    array = np.arange(6, dtype=np.float32).reshape(3, 2)
    ArraySource(array).gather(np.array([0, 1]))[0].fill_(9)
    assert array.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_memory_maps_give_what_arrays_give_and_stay_read_only(tmp_path):
    array = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    np.save(tmp_path / "a.npy", array)
    source = ArraySource(np.load(tmp_path / "a.npy", mmap_mode="r"))
    rows = np.array([4, 4, 49, 0])
    assert isinstance(source, FeatureSource)
    assert len(source) == 50
    source.gather(rows)[0].zero_()
    assert np.array_equal(source.gather(rows)[0].numpy(), array[rows])


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16])
def test_rows_may_be_integers_of_any_width(dtype):
    assert ArraySource(np.arange(5)).gather(np.array([3, 1], dtype))[0].tolist() == [3, 1]


@pytest.mark.parametrize("rows", [np.array([0, 3]), np.array([-1, 0]), np.array([2**40])])
def test_a_row_outside_the_table_is_refused(rows):
    with pytest.raises(DataError, match="the table has 0 to 2"):
        ArraySource(np.arange(3)).gather(rows)


@pytest.mark.parametrize("rows", [np.array([0.0]), np.array([[0]]), np.array([True])])
def test_rows_that_are_no_vector_of_integers_are_refused(rows):
    with pytest.raises(DataError, match="vector of integers"):
        ArraySource(np.arange(3)).gather(rows)


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ((), "at least one array"),
        ((np.zeros(3), np.zeros(4)), r"equally long, given \[3, 4\]"),
        ((np.array(["a"]),), "dtype <U1"),
        ((np.array([object()]),), "dtype object"),
        ((np.array(1.0),), "0 dimensions"),
    ],
)
def test_arrays_that_cannot_be_features_are_refused(arrays, text):
    with pytest.raises(DataError, match=text):
        ArraySource(*arrays)


def anonymous_kilobytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))


def test_memory_does_not_grow_with_the_table(tmp_path):
    rows = 1_000_000
    table = np.lib.format.open_memmap(tmp_path / "a.npy", mode="w+", dtype=np.int32, shape=(rows, 33))
    table[:, 0] = np.arange(rows)
    del table
    before = anonymous_kilobytes()
    source = ArraySource(np.load(tmp_path / "a.npy", mmap_mode="r"))
    for start in range(0, rows, 10_000):
        assert source.gather(np.arange(start, start + 100))[0][7, 0] == start + 7
    assert anonymous_kilobytes() - before < 8_000


@settings(max_examples=5)
@given(st.integers(0, 3))
def test_an_empty_batch_is_empty(columns):
    gathered = ArraySource(np.zeros((4, columns))).gather(np.array([], dtype=np.int64))
    assert gathered[0].shape == (0, columns)


def test_bytes_of_images_are_gathered_as_numbers_from_zero_to_one_and_are_not_changed():
    images = np.arange(256, dtype=np.uint8).reshape(16, 1, 4, 4)
    source = PixelSource(images)
    for _ in range(2):
        (gathered,) = source.gather(np.array([15, 0]))
        assert gathered.dtype == torch.float32
        assert torch.equal(gathered, torch.from_numpy(images[[15, 0]]) / 255)
    assert isinstance(source, FeatureSource)
    with pytest.raises(DataError, match="given float32"):
        PixelSource(images.astype(np.float32))


def test_some_rows_of_a_source_are_those_in_their_order():
    some = SomeRows(ArraySource(np.arange(10.0)[:, None]), np.array([7, 2, 7, 0]))
    assert isinstance(some, FeatureSource)
    assert len(some) == 4
    (found,) = some.gather(np.array([3, 0, 1]))
    assert found.tolist() == [[0.0], [7.0], [2.0]]


@settings(max_examples=30)
@given(rows=st.lists(st.integers(0, 10), max_size=20))
def test_joined_and_labelled_rows_are_those_of_concatenated_arrays(rows):
    numbers, ids = np.arange(22.0).reshape(11, 2), np.arange(11)[:, None] * 3
    parts = [ArraySource(numbers[part], ids[part]) for part in (slice(0, 4), slice(4, 11))]
    classes = np.arange(11) % 3
    joined = JoinedRows(LabelledRows(parts[0], classes[:4]), LabelledRows(parts[1], classes[4:]))
    assert len(joined) == 11
    found = joined.gather(np.array(rows, np.int64))
    for tensor, expected in zip(found, (numbers, ids, classes), strict=True):
        assert tensor.tolist() == expected[np.array(rows, np.int64)].tolist()


def test_rows_without_a_label_each_are_refused():
    with pytest.raises(DataError, match="4 rows need a label each, given 3"):
        LabelledRows(ArraySource(np.zeros((4, 1))), np.zeros(3, np.int64))
