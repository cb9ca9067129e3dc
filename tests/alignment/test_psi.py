"""The whole protocol on bytes, without messages: any number of feature parties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_vfl.alignment.group import Key, id_blocks
from flower_vfl.alignment.hashed import hash_ids
from flower_vfl.alignment.psi import (
    check_distinct,
    is_common,
    make_table,
    matched_rows,
    pair_key,
    proof_of,
    read_table,
    rearrange,
    shares,
    shuffled,
    words_of,
)
from flower_vfl.alignment.workers import multiply_all
from flower_vfl.errors import ProtocolError

people = st.sets(st.integers(0, 15).map(lambda number: f"person {number}"), min_size=1)


class Party:
    def __init__(self, ids):
        self.ids, self.key, self.agree = sorted(ids), Key.fresh(), Key.fresh()
        points = multiply_all(self.key, id_blocks(self.ids), hashed=True)
        self.pads, self.tags, self.proofs = words_of(points, self.ids)

    def pair_keys(self, others):
        return [pair_key(self.agree, other.agree.public(), "run") for other in others if other is not self]

    def table(self, others):
        return make_table(self.ids, self.pads, self.pair_keys(others))


def label_view(ids, parties):
    """Return the values that the label party reads from each table, (P, N, 2), and its tags for each party's IDs."""
    key, order = Key.fresh(), shuffled(len(ids))
    blinded = rearrange(multiply_all(key, id_blocks(ids), hashed=True), order)
    read, names = [], []
    for party in parties:
        answers = multiply_all(key.inverse(), multiply_all(party.key, blinded, hashed=False), hashed=False)
        words = words_of(rearrange(answers, np.argsort(order)), ids)
        read.append(read_table(ids, words.pads, *party.table(parties), len(party.ids)))
        names.append(words.tags)
    return np.array(read), names


@settings(max_examples=30)
@given(people, st.lists(people, min_size=1, max_size=4))
def test_the_label_party_finds_what_all_have_and_each_party_recognises_it(own, sets):
    ids, parties = sorted(own), [Party(ids) for ids in sets]
    read, names = label_view(ids, parties)
    common = is_common(np.bitwise_xor.reduce(read))
    expected = own.intersection(*sets)
    assert {value for value, chosen in zip(ids, common, strict=True) if chosen} == expected
    for party, tags in zip(parties, names, strict=True):
        matches = b"".join(sorted(tags[row] for row in np.flatnonzero(common)))
        assert {party.ids[row] for row in matched_rows(party.tags, matches)} == expected


def test_one_table_gives_noise_for_an_id_whether_or_not_its_party_has_it():
    """From one of two tables the label party cannot infer which IDs are in it; both tables together reveal only the IDs
    in both. Each pair of parties has a key of its own, so the same people give other noise each time."""
    ids = [f"person {number}" for number in range(400)]
    a, b = Party(ids[:200]), Party(ids[100:300])
    read, _ = label_view(ids, [a, b])
    assert len(np.unique(read.reshape(-1, 2), axis=0)) == 800 - 100  # where both have a person, their noise is the same
    bits = np.unpackbits(read.view(np.uint8).reshape(2, 400, 16), axis=2).mean(axis=2)
    for rows in (slice(0, 100), slice(100, 200), slice(200, 300), slice(300, 400)):  # a only, both, b only, nobody
        for party in (0, 1):
            assert bits[party, rows].mean() == pytest.approx(0.5, abs=5 * 0.5 / np.sqrt(100 * 128))
    total = read[0] ^ read[1]
    assert is_common(total).tolist() == [100 <= number < 200 for number in range(400)]


@pytest.mark.parametrize("parties", [2, 3, 5])
def test_shares_cancel_over_all_parties_and_over_no_fewer(parties):
    agree = [Key.fresh() for _ in range(parties)]
    keys = [[pair_key(own, other.public(), "run") for other in agree if other is not own] for own in agree]
    every = np.array([shares(["x", "y"], own) for own in keys])
    assert not np.bitwise_xor.reduce(every).any()
    for left_out in range(parties):
        assert np.bitwise_xor.reduce(np.delete(every, left_out, axis=0)).all()


def test_a_single_feature_party_needs_no_shares():
    assert not shares(["x"], []).any()


def test_an_id_is_common_where_both_words_are_zero():
    assert is_common(np.array([[0, 0], [0, 1], [1, 0], [2, 2]], np.uint64)).tolist() == [True, False, False, False]


def test_a_pairs_key_is_the_same_at_both_and_another_in_another_run():
    a, b = Key.fresh(), Key.fresh()
    assert pair_key(a, b.public(), "run", "a", "b") == pair_key(b, a.public(), "run", "a", "b")
    assert pair_key(a, b.public(), "run", "a", "b") != pair_key(a, b.public(), "other", "a", "b")
    with pytest.raises(ProtocolError, match="no point"):
        pair_key(a, b"\xff" * 32, "run")


def test_blinded_ids_show_neither_who_they_are_nor_that_they_came_before():
    blocks = id_blocks(["x", "y"])
    first, second = (multiply_all(Key.fresh(), blocks, hashed=True) for _ in range(2))
    points = {data[at : at + 32] for data in (first, second) for at in (0, 32)}
    assert len(points) == 4


@given(st.integers(0, 50))
def test_a_shuffle_is_a_permutation_that_rearranges_and_goes_back(count):
    order = shuffled(count)
    assert sorted(order.tolist()) == list(range(count))
    points = b"".join(number.to_bytes(32, "big") for number in range(count))
    assert rearrange(rearrange(points, order), np.argsort(order)) == points


def test_two_shuffles_differ():
    assert shuffled(1000).tolist() != shuffled(1000).tolist()


def test_a_point_that_comes_twice_is_refused():
    check_distinct(bytes(31) + b"\1" + bytes(32))
    with pytest.raises(ProtocolError, match="a point twice"):
        check_distinct(bytes(64))


@pytest.mark.parametrize("matches", [b"x" * 16, b"a" * 32, b"a" * 15, b"a" * 16 + b"x" * 16])
def test_names_of_ids_that_a_party_does_not_have_are_refused(matches):
    with pytest.raises(ProtocolError, match="does not have"):
        matched_rows([b"a" * 16, b"b" * 16], matches)


def test_all_three_words_depend_on_the_point_and_on_the_id_and_none_is_another():
    points = Key(3).multiply_hashed(b"p" * 32), Key(5).multiply_hashed(b"p" * 32)
    found = [words_of(point, [value]) for point in points for value in ("x", "y")]
    assert len({part for words in found for part in (words.pads.tobytes(), words.tags[0], words.proofs[0])}) == 12


def test_a_proof_depends_on_the_common_ids_their_order_and_the_parties():
    one, two = bytes(16), bytes(range(16))
    given = [([one, two], "x"), ([two, one], "x"), ([one], "x"), ([one, two], "y"), ([], "x")]
    assert len({proof_of(proofs, checksum) for proofs, checksum in given}) == 5
    assert proof_of(iter([one, two]), "x") == proof_of([one, two], "x")


def test_salted_hashes_are_those_of_the_standard_and_depend_on_the_salt():
    # RFC 4231, test case 2 uses the key "Jefe"; ours has 32 bytes, so the reference is the definition itself.
    import hashlib

    salt = bytes(range(32))
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in salt.ljust(64, b"\0")) + b"alice").digest()
    outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in salt.ljust(64, b"\0")) + inner).digest()
    assert hash_ids(["alice"], salt) == [outer[:16]]
    assert hash_ids(["alice"], bytes(32)) != hash_ids(["alice"], salt)
    with pytest.raises(ProtocolError, match="32 bytes, 5 came"):
        hash_ids(["alice"], b"short")
