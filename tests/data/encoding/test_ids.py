import hashlib
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flower_vfl.data.encoding.ids import drawn, id_numbers, in_test_set, join_ids, read_ids, select_ids
from flower_vfl.data.store.builder import ids_digest
from flower_vfl.errors import DataError

id_lists = st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=40, unique=True)


@given(id_lists, st.randoms())
def test_every_party_derives_the_same_order_from_its_own_file(ids, random):
    shuffled = ids.copy()
    random.shuffle(shuffled)
    assert join_ids({"a": pa.array(ids)}, "strict") == join_ids({"b": pa.array(shuffled)}, "strict")


@given(id_lists, st.integers(0, 5))
def test_an_id_keeps_its_side_of_the_split_whatever_other_ids_there_are(ids, seed):
    whole = dict(zip(ids, in_test_set(ids, 0.3, seed), strict=True))
    half = ids[::2]
    assert all(whole[value] == side for value, side in zip(half, in_test_set(half, 0.3, seed), strict=True))


def test_the_test_set_has_nearly_the_requested_size_and_depends_on_the_seed():
    ids = [str(number) for number in range(20_000)]
    first, second = in_test_set(ids, 0.2, 0), in_test_set(ids, 0.2, 1)
    assert first.mean() == pytest.approx(0.2, abs=0.01)
    assert (first & second).mean() == pytest.approx(0.04, abs=0.01)


@given(id_lists, id_lists)
def test_an_inner_join_keeps_what_all_have_and_a_strict_one_refuses_differences(one, other):
    files = {"a.csv": pa.array(one), "b.csv": pa.array(other)}
    shared = sorted(set(one) & set(other))
    if shared:
        assert join_ids(files, "inner") == shared
    else:
        with pytest.raises(DataError, match="no ID is in all of"):
            join_ids(files, "inner")
    if set(one) == set(other):
        assert join_ids(files, "strict") == shared
    else:
        with pytest.raises(DataError, match=r"IDs in [ab]\.csv are not in [ab]\.csv|leading zeros"):
            join_ids(files, "strict")


def test_a_refused_join_says_how_many_and_names_the_rows_but_no_id():
    with pytest.raises(DataError, match=r'4 of 5 IDs in a are not in b, those of rows 1, 2, 3, 4; .*join = "inner"'):
        join_ids({"a": pa.array(list("pqrst")), "b": pa.array(["t"])}, "strict", "id")


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (
            ["x", "y", "x", "y", "z"],
            "2 IDs in column 'id' occur more than once, in rows 1, 2, 3, 4 below the header",
        ),
        (["x", None], "row 2 below the header has no ID in column 'id'; .* option id"),
        (["1.23E+14", "4.6e+15"], "column 'id' are numbers with an exponent, from row 1 on: .* option id$"),
        (["x", " "], "row 2 below the header has no ID"),
        ([1.0, 2.0], "fractions"),
        (["7", " 7"], "1 ID in column 'id' occurs more than once"),
        (
            ["Zoe\u0308", "x", "Zo\u00eb"],
            "1 ID in column 'id' occurs more than once, in rows 1, 3",
        ),  # one ID, two forms
    ],
)
def test_ids_that_repeat_or_are_missing_are_refused(column, text):
    with pytest.raises(DataError, match=text):
        read_ids(pa.table({"id": column}), "id", "t.csv")


def test_whole_numbers_and_texts_are_the_same_ids():
    assert read_ids(pa.table({"id": [7, 12]}), "id", "t") == read_ids(pa.table({"id": ["7", "12"]}), "id", "t")


def test_the_digest_depends_on_the_order_the_part_and_the_end_of_each_id():
    digests = {
        ids_digest({"train": train, "test": test})
        for train, test in [
            (["a", "b"], ["c"]),
            (["b", "a"], ["c"]),
            (["a"], ["b", "c"]),
            (["ab"], ["c"]),
            (["a", "b", "c"], []),
            (["a2:b"], ["c"]),
            (["ab", "c"], ["c"]),
            (["a", "bc"], ["c"]),
        ]
    }
    assert len(digests) == 8


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (["Zoe\u0308", "a"], ["Zo\u00eb", "a"]),
        (["  7 ", "8\t"], ["7", "8"]),
        (pa.array(["x", "y"]).dictionary_encode(), ["x", "y"]),
        (pa.array(["x", "y"], pa.large_string()), ["x", "y"]),
        (pa.array([2**63 - 1, -5], pa.int64()), ["9223372036854775807", "-5"]),
        (["01", "1"], ["01", "1"]),
        (["A", "a"], ["A", "a"]),
        (["1.5E+5", "7F+5"], ["1.5E+5", "7F+5"]),  # codes that look like shortened numbers
        (["12E5", "40E5"], ["12E5", "40E5"]),
    ],
)
def test_equivalent_forms_of_an_id_are_one_id(column, expected):
    assert read_ids(pa.table({"id": column}), "id", "t").to_pylist() == expected


@pytest.mark.parametrize("column", [[True, False], [b"a", b"b"], [["a"], ["b"]], [{"x": 1}, {"x": 2}]])
def test_types_that_are_no_ids_are_refused(column):
    with pytest.raises(DataError, match=r"are of type .*make them whole numbers or texts"):
        read_ids(pa.table({"id": column}), "id", "t")


SECRET = "secret-person"


@pytest.mark.parametrize(
    "action",
    [
        lambda: read_ids(pa.table({"id": [SECRET, SECRET]}), "id", "t"),
        lambda: read_ids(pa.table({"id": [SECRET, None]}), "id", "t"),
        lambda: join_ids({"a": pa.array([SECRET, "x"]), "b": pa.array(["x"])}, "strict"),
        lambda: join_ids({"a": pa.array([SECRET]), "b": pa.array(["x"])}, "inner"),
        lambda: select_ids({"a": pa.array(["x"])}, [SECRET, "x"]),
    ],
)
def test_errors_name_rows_and_never_ids(action):
    with pytest.raises(DataError) as caught:
        action()
    assert SECRET not in str(caught.value)


def test_ids_that_differ_in_case_alone_are_described_as_such():
    files = {"a.csv": pa.array(["k001", "k002", "k003", None]), "b.csv": pa.array(["K001", "K003", "K009"])}
    with pytest.raises(DataError) as caught:
        join_ids(files, "inner", "id")
    message = str(caught.value)
    assert "2 would be if upper and lower case were the same." in message
    assert "Most IDs look like 'a999' in a.csv, 'A999' in b.csv (9: any digit, a: any letter, A: any capital" in message


def test_ids_of_which_some_differ_in_case_alone_are_reported(caplog):
    files = {"a.csv": pa.array(["k001", "k002", "k003", None]), "b.csv": pa.array(["K001", "k003", "K009"])}
    assert join_ids(files, "inner", "id") == ["k003"]
    (message,) = (record.getMessage() for record in caplog.records)
    assert message.startswith(
        "only 1 of the IDs are in all of a.csv, b.csv, but 2 would be if upper and lower case were"
    )
    caplog.clear()
    join_ids({"a.csv": pa.array(["k001", "k002"]), "b.csv": pa.array(["k002", "K009"])}, "inner", "id")
    assert not caplog.records


def test_aligned_ids_keep_their_order_and_must_all_be_there():
    assert select_ids({"a": pa.array(["z", "x", "y"])}, ["y", "z"]) == ["y", "z"]
    with pytest.raises(DataError, match=r"1 of the 2 aligned IDs are not in b\.csv"):
        select_ids({"a.csv": pa.array(["x", "y"]), "b.csv": pa.array(["x"])}, ["x", "y"])
    with pytest.raises(DataError, match="remove people without a label from it and align again"):
        select_ids({"b.csv": pa.array(["x", None])}, ["x", "y"])


@given(st.lists(st.integers(0, 2**40), max_size=20, unique=True), st.floats(0.01, 1.0), st.sampled_from(["x", "y"]))
def test_a_row_is_drawn_when_splitmix64_of_its_number_is_small(numbers, fraction, key):
    def mixed(number):
        digest = hashlib.blake2b(f"flower-vfl rows {key}".encode(), digest_size=8).digest()
        state = (int.from_bytes(digest, "big") + number * 0x9E3779B97F4A7C15) % 2**64
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
        return state ^ state >> 31

    expected = [mixed(number) < fraction * 2**64 for number in numbers]
    assert drawn(np.array(numbers, np.int64), fraction, key).tolist() == expected


def test_draws_have_the_requested_share_and_those_of_two_keys_are_independent():
    numbers = np.arange(100_000)
    one, other = drawn(numbers, 0.3, "one"), drawn(numbers, 0.3, "other")
    assert one.mean() == pytest.approx(0.3, abs=0.01)
    assert (one & other).mean() == pytest.approx(0.09, abs=0.01)
    assert (one[1:] & one[:-1]).mean() == pytest.approx(0.09, abs=0.01)


def test_the_number_of_an_id_is_a_keyed_digest_of_its_canonical_text():
    ids = ["ann", "Zoe\u0308", ""]
    texts = ["ann", "Zo\u00eb", ""]
    expected = [
        int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8, key=b"k").digest(), "little") for text in texts
    ]
    assert id_numbers(iter(ids), 3, b"k").tolist() == expected
    assert not set(expected) & set(id_numbers(ids, 3, b"K").tolist())


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (["a"], "1 IDs for 2 rows"),
        (["a", "b", "c"], "3 IDs for 2"),
        (["e\u0301", "\u00e9"], "twice"),
        ([1, 2], "an? int is"),
        (["\ud800", "a"], "str is among"),
    ],
)
def test_numbers_are_refused_where_ids_are_not_one_a_row(ids, words):
    with pytest.raises(DataError, match=words):
        id_numbers(ids, 2, b"")


def test_numbers_of_ids_take_little_memory_a_row():
    count = 100_000
    tracemalloc.start()
    id_numbers((f"somebody with a long name {row}" for row in range(count)), count, b"k")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 30 * count
