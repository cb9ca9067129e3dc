"""The group against the textbook: affine arithmetic of P-256 with Python's integers."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flower_vfl.alignment.group import POINT_BYTES, Key, hash_to_point, id_blocks, read_point
from flower_vfl.errors import ProtocolError

# NIST SP 800-186, section 3.2.1.3
P = 2**256 - 2**224 + 2**192 + 2**96 - 1
A = P - 3
B = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B
N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)

blocks = st.binary(min_size=32, max_size=32)
numbers = st.one_of(st.integers(1, N - 1), st.sampled_from([1, 2, 3, N - 1, N - 2, N // 2]))


def root(x):
    """Return y with y^2 = x^3 - 3x + b, or None."""
    square = (x**3 + A * x + B) % P
    y = pow(square, (P + 1) // 4, P)
    return y if y * y % P == square else None


def add(one, other):
    if one is None or other is None:
        return one or other
    (x1, y1), (x2, y2) = one, other
    if x1 == x2 and (y1 + y2) % P == 0:
        return None
    slope = (3 * x1 * x1 + A) * pow(2 * y1, -1, P) if one == other else (y2 - y1) * pow(x2 - x1, -1, P)
    x = (slope * slope - x1 - x2) % P
    return x, (slope * (x1 - x) - y1) % P


def times(number, point):
    result = None
    while number:
        if number & 1:
            result = add(result, point)
        point = add(point, point)
        number >>= 1
    return result


def on_curve(data):
    x = int.from_bytes(data, "big")
    return x < P and root(x) is not None


def x_of(point):
    return point[0].to_bytes(32, "big")


def a_point(block):
    """Return the first point of the curve at or after any 32 bytes, without the hash of the package."""
    x = int.from_bytes(block, "big") % P
    while root(x) is None:
        x = (x + 1) % P
    return x.to_bytes(32, "big")


@settings(max_examples=25)
@given(numbers, blocks)
def test_a_multiple_is_that_of_textbook_arithmetic(number, block):
    point = a_point(block)
    x = int.from_bytes(point, "big")
    expected = x_of(times(number, (x, root(x))))
    assert Key(number).multiply(point) == expected
    assert x_of(times(number, (x, P - root(x)))) == expected  # the other point with this x gives the same


@settings(max_examples=50)
@given(numbers, numbers, blocks)
def test_two_keys_commute_and_each_can_be_taken_off(one, other, block):
    point, a, b = a_point(block), Key(one), Key(other)
    both = a.multiply(b.multiply(point))
    assert both == b.multiply(a.multiply(point))
    assert a.inverse().multiply(both) == b.multiply(point)
    assert b.inverse().multiply(a.inverse().multiply(both)) == point


@settings(max_examples=200)
@given(st.one_of(blocks, st.integers(P - 3, 2**256 - 1).map(lambda x: x.to_bytes(32, "big")), st.just(bytes(32))))
def test_bytes_are_a_point_exactly_when_the_curve_has_one_there(data):
    if on_curve(data):
        assert len(Key(5).multiply(data)) == POINT_BYTES
    else:
        with pytest.raises(ProtocolError, match="no point of the curve"):
            Key(5).multiply(data)


@settings(max_examples=25)
@given(blocks)
def test_every_point_has_the_full_order_so_that_none_reveals_a_key(block):
    x = int.from_bytes(a_point(block), "big")
    assert times(N, (x, root(x))) is None  # N is prime, so the order is 1 or N, and only infinity has order 1


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_a_point_of_another_length_is_refused(size):
    with pytest.raises(ProtocolError, match="no point"):
        read_point(bytes(size))


@settings(max_examples=50)
@given(blocks)
def test_the_hash_is_the_first_try_that_is_on_the_curve(block):
    attempt = 0
    while not on_curve(x := hashlib.sha256(b"flower-vfl hash to P-256" + attempt.to_bytes(4, "big") + block).digest()):
        attempt += 1
    assert hash_to_point(block).public_numbers().x.to_bytes(32, "big") == x
    assert Key(7).multiply_hashed(block) == Key(7).multiply(x)


def test_hashes_never_change_between_versions():
    """Two hosts may run different versions: what an ID hashes to is part of the protocol."""
    assert id_blocks(["alice"]).hex() == hashlib.sha256(b"flower-vfl idalice").hexdigest()
    assert Key(1).multiply_hashed(id_blocks(["alice"])).hex() == (
        "51d30a8b9f405761f011bf62e5c12b2d6b5b9c436b7a496f39e210c08e0bffd1"
    )


@given(st.integers().filter(lambda number: not 0 < number < N))
def test_keys_out_of_range_are_refused(number):
    with pytest.raises(ProtocolError, match="out of range"):
        Key(number)


def test_keys_are_fresh_hidden_and_survive_the_disk():
    first, second = Key.fresh(), Key.fresh()
    assert first.to_bytes() != second.to_bytes()
    assert Key.from_bytes(first.to_bytes()).public() == first.public()
    assert str(int.from_bytes(first.to_bytes(), "big")) not in repr(first)
    assert repr(first) == "Key(<hidden>)"


def test_a_fresh_key_is_drawn_from_the_whole_group():
    """All four quarters of 40 keys differ from key to key."""
    keys = [Key.fresh().to_bytes() for _ in range(40)]
    for low in range(0, 32, 8):
        assert len({key[low : low + 8] for key in keys}) == 40


@settings(max_examples=20)
@given(numbers)
def test_the_public_part_is_the_multiple_of_the_base_point(number):
    assert Key(number).public() == x_of(times(number, G))


@given(st.lists(st.text(max_size=20), max_size=10))
def test_ids_become_blocks_of_equal_length_that_depend_on_the_id_alone(ids):
    data = id_blocks(ids)
    assert len(data) == POINT_BYTES * len(ids)
    assume(ids)
    assert data[:POINT_BYTES] == id_blocks(ids[:1])
    assert len({data[at : at + 32] for at in range(0, len(data), 32)}) == len(set(ids))
