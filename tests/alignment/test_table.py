from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flower_vfl.alignment import table
from flower_vfl.alignment.table import decode, encode, table_bytes
from flower_vfl.errors import DataError, ProtocolError

texts = st.lists(st.text(max_size=8), max_size=60, unique=True)


def values_for(count, seed=0):
    return np.random.default_rng(seed).integers(0, 2**64, (count, 2), dtype=np.uint64)


def slow_decode(text, seed, content, count):
    """Return the value of one text, computed with Python's integers and without the module's arithmetic."""
    third = -(-13 * count // 30) + 64
    slots = [int.from_bytes(content[at : at + 16], "little") for at in range(0, len(content), 16)]
    words = hashlib.blake2b(text.encode(), digest_size=32, key=seed).digest()
    first, second, last, dense = (int.from_bytes(words[at : at + 8], "little") for at in range(0, 32, 8))
    found = slots[first % third] ^ slots[third + second % third] ^ slots[2 * third + last % third]
    for bit in range(64):
        if dense >> bit & 1:
            found ^= slots[3 * third + bit]
    return found


@given(texts, st.integers(0, 2**32))
def test_a_table_gives_back_what_was_stored(keys, seed):
    values = values_for(len(keys), seed)
    salt, content = encode(keys, values)
    assert len(content) == table_bytes(len(keys))
    assert np.array_equal(decode(keys, salt, content, len(keys)), values)
    for key, value in zip(keys, values.tolist(), strict=True):
        assert slow_decode(key, salt, content, len(keys)) == value[0] | value[1] << 64


def test_large_tables_are_peeled_and_solved():
    keys = [f"key {number}" for number in range(30_000)]
    values = values_for(len(keys))
    salt, content = encode(keys, values)
    assert np.array_equal(decode(keys, salt, content, len(keys)), values)


def test_what_peeling_does_not_reach_is_solved_over_the_dense_slots(monkeypatch):
    """With nothing peeled, all 40 texts are left to the elimination."""
    monkeypatch.setattr(table, "_peel", lambda slots, third: ([], np.arange(len(slots))))
    keys = [f"key {number}" for number in range(40)]
    values = values_for(40)
    salt, content = encode(keys, values)
    assert np.array_equal(decode(keys, salt, content, 40), values)


def test_more_texts_than_dense_slots_that_peeling_does_not_reach_are_no_table(monkeypatch):
    monkeypatch.setattr(table, "_peel", lambda slots, third: ([], np.arange(len(slots))))
    with pytest.raises(DataError, match="remove duplicates"):
        encode([f"key {number}" for number in range(65)], values_for(65))


def test_a_text_that_occurs_twice_is_no_table():
    with pytest.raises(DataError, match="remove duplicates"):
        encode(["a", "b", "a"], values_for(3))


def test_peeling_leaves_a_handful_at_most():
    """Of 500 tables: with a core of more than a few rows, failures, which reveal something, would be likely."""
    keys = [f"key {number}" for number in range(400)]
    left = []
    for number in range(500):
        slots, _ = table._places(keys, number.to_bytes(16, "big"))
        left.append(len(table._peel(slots, table._third(len(keys)))[1]))
    assert max(left) <= 8
    assert np.mean(np.array(left) > 0) < 0.05


def test_another_text_decodes_to_noise():
    keys, others = ([f"{name} {number}" for number in range(2000)] for name in ("key", "other"))
    salt, content = encode(keys, np.zeros((2000, 2), np.uint64))
    read = decode(others, salt, content, 2000)
    assert len(np.unique(read, axis=0)) == 2000
    ones = np.unpackbits(read.view(np.uint8)).mean()
    assert ones == pytest.approx(0.5, abs=5 * 0.5 / np.sqrt(2000 * 128))


@pytest.mark.slow
def test_a_table_of_random_values_is_uniform_so_that_it_reveals_nothing_of_its_texts():
    """Over many tables of the same texts each bit is a fair coin, in used and in free slots."""
    keys = [f"key {number}" for number in range(5)]
    random = np.random.default_rng(3)
    tables = []
    for _ in range(2000):
        _, content = encode(keys, random.integers(0, 2**64, (5, 2), dtype=np.uint64))
        tables.append(np.frombuffer(content, np.uint8))
    bits = np.unpackbits(np.array(tables), axis=1).mean(axis=0)
    assert np.abs(bits - 0.5).max() < 6 * 0.5 / np.sqrt(2000)
    assert bits.var() == pytest.approx(0.25 / 2000, rel=0.1)


def test_the_size_depends_on_the_count_alone():
    sizes = {len(encode([f"{seed}{number}" for number in range(50)], values_for(50))[1]) for seed in range(20)}
    assert sizes == {table_bytes(50)}


@pytest.mark.parametrize(("seed", "cut"), [(15, 0), (16, 1), (16, -16), (0, 0)])
def test_a_seed_or_a_table_of_another_size_is_refused(seed, cut):
    salt, content = encode(["a"], values_for(1))
    content = content[:-cut] if cut > 0 else content + bytes(-cut)
    with pytest.raises(ProtocolError, match="a table of 1 IDs has"):
        decode(["a"], salt[:seed], content, 1)
