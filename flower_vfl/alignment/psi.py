"""The steps of the private alignment, for both roles."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flower_vfl.alignment.group import POINT_BYTES, Key
from flower_vfl.alignment.table import IdValues, decode, encode
from flower_vfl.errors import ProtocolError

TAG_BYTES = 16


def shuffled(count: int) -> NDArray[np.int64]:
    """Return a permutation of 0 to count - 1, drawn from the operating system."""
    return np.argsort(np.frombuffer(os.urandom(8 * count), np.uint64)).astype(np.int64)


def rearrange(points: bytes, order: NDArray[np.int64]) -> bytes:
    """Return points in another order: new[i] = old[order[i]]."""
    return np.frombuffer(points, f"V{POINT_BYTES}")[order].tobytes()


def check_distinct(points: bytes) -> None:
    """Refuse a list in which a point occurs twice.

    Raises
    ------
    ProtocolError
        When one does: an honest party's IDs differ, and so do their points.
    """
    distinct = {points[at : at + POINT_BYTES] for at in range(0, len(points), POINT_BYTES)}
    if len(distinct) * POINT_BYTES != len(points):
        raise ProtocolError("the other side sent a point twice")


class Words(NamedTuple):
    """The three parts of F(x) of each ID x.

    Attributes
    ----------
    pads : IdValues, (N, 2)
        One-time pads of a table's values. With two parties the table reveals an ID's pad to anyone who guesses the ID.
    tags : list of bytes, (N,)
        Identifier of a match in messages.
    proofs : list of bytes, (N,)
        Identifier of an ID that both sides compute; it is never sent itself, only hashed by `proof_of`.
    """

    pads: IdValues
    tags: list[bytes]
    proofs: list[bytes]


def words_of(points: bytes, ids: Sequence[str]) -> Words:
    """Return F(x) = BLAKE2b([k]H(x), x) of each ID, from the points [k]H(x)."""
    words = [
        hashlib.blake2b(
            points[at : at + POINT_BYTES] + value.encode(), digest_size=3 * TAG_BYTES, person=b"fvfl words"
        ).digest()
        for at, value in zip(range(0, len(points), POINT_BYTES), ids, strict=True)
    ]
    pads = np.frombuffer(b"".join(words), "<u8").reshape(-1, 6)[:, :2].astype(np.uint64)
    return Words(pads, [word[TAG_BYTES : 2 * TAG_BYTES] for word in words], [word[2 * TAG_BYTES :] for word in words])


def proof_of(proofs: Iterable[bytes], checksum: str) -> str:
    """Return the proof that a party has found the same common IDs: a BLAKE2b digest of 32 bytes, as hex.

    The relay of the messages learns nothing from it, however few IDs are common: a guess of the IDs cannot be tested
    without their `proofs`.

    Parameters
    ----------
    proofs : iterable of bytes
        Proofs of the common IDs, in the order of the IDs.
    checksum : str
        Checksum of the alignment.
    """
    found = hashlib.blake2b(checksum.encode(), digest_size=32, person=b"fvfl proof")
    for proof in proofs:
        found.update(proof)
    return found.hexdigest()


def pair_key(own: Key, peer: bytes, *context: str) -> bytes:
    """Return the secret key that this party shares with another feature party in one run.

    Parameters
    ----------
    own : Key
        This party's key for key agreement, used for nothing else.
    peer : bytes
        The other party's `public()`.
    context : str
        The session, and the names of both parties in sorted order.
    """
    return hashlib.blake2b(
        own.multiply(peer) + "\x1f".join(context).encode(), digest_size=32, person=b"fvfl pair"
    ).digest()


def shares(ids: Sequence[str], pair_keys: Iterable[bytes]) -> IdValues:
    """Return the share s_i(x) of each ID (N, 2): over all feature parties their xor is zero, over fewer noise."""
    total = np.zeros((len(ids), 2), np.uint64)
    for key in pair_keys:
        hashes = (
            hashlib.blake2b(value.encode(), digest_size=16, key=key, person=b"fvfl share").digest() for value in ids
        )
        total ^= np.frombuffer(b"".join(hashes), "<u8").reshape(-1, 2)
    return total


def make_table(ids: Sequence[str], pads: IdValues, pair_keys: Iterable[bytes]) -> tuple[bytes, bytes]:
    """Return the seed and the table of a feature party."""
    return encode(ids, pads ^ shares(ids, pair_keys))


def read_table(ids: Sequence[str], pads: IdValues, seed: bytes, table: bytes, count: int) -> IdValues:
    """Return the values of a party's table for each ID (N, 2): s_i(x) where it has x, noise elsewhere."""
    return decode(ids, seed, table, count) ^ pads


def is_common(total: IdValues) -> NDArray[np.bool_]:
    """Return a mask of the IDs that all parties have, from the xor over the parties of `read_table` (N, 2)."""
    return np.asarray((total == 0).all(axis=1))


def matched_rows(tags: Sequence[bytes], matches: bytes) -> list[int]:
    """Return the indices of a party's own rows that the label party named by their tags.

    Raises
    ------
    ProtocolError
        When a tag belongs to no row of this party, or occurs twice.
    """
    row_of = {tag: row for row, tag in enumerate(tags)}
    rows = [row_of.get(matches[at : at + TAG_BYTES], -1) for at in range(0, len(matches), TAG_BYTES)]
    if len(matches) % TAG_BYTES or -1 in rows or len(set(rows)) != len(rows):
        raise ProtocolError("the label party named common IDs that this party does not have, or one twice")
    return rows
