"""An oblivious table: values stored under texts, which cannot be distinguished from noise without the text.

A text is hashed to three slots, one in each third of the sparse part, and to a random subset of the 64 dense slots; its
value is the xor of all of them. Where the values are random to a reader, so is the whole table, whatever the texts are:
among all tables that hold the values, one is drawn uniformly. Its size depends on the number of texts alone.

The sparse part is solved by peeling: a slot of one text alone can be set last. The texts that cannot be peeled, a
handful at most, are solved over the dense slots; this fails, and another seed is drawn, with a probability below 2^-40
(docs/alignment.md), so that a seed reveals nothing about the texts either.

References
----------
G. Garimella et al., "Oblivious Key-Value Stores and Amplification for Private Set Intersection", CRYPTO 2021, section
4.1 (three-hash garbled cuckoo table).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flower_vfl.errors import DataError, ProtocolError

SEED_BYTES = 16
VALUE_BYTES = 16
IdValues = NDArray[np.uint64]
"""Values (N, 2): 128 bits each."""

_HASHES, _DENSE = 3, 64
_EXPANSION = 1.3
"""Number of sparse slots per text: peeling works from 1.23 on (three hashes), and the surplus makes it fast."""

_SLACK = 64
_ATTEMPTS = 8


def table_bytes(count: int) -> int:
    """Return the size in bytes of a table of `count` texts."""
    return (_HASHES * _third(count) + _DENSE) * VALUE_BYTES


def encode(texts: Sequence[str], values: IdValues) -> tuple[bytes, bytes]:
    """Store values (N, 2) under N different texts.

    Returns
    -------
    tuple of bytes
        The seed, 16 bytes, and the table, `table_bytes(N)` bytes.

    Raises
    ------
    DataError
        When texts repeat.
    """
    for _ in range(_ATTEMPTS):
        seed = os.urandom(SEED_BYTES)
        slots, dense = _places(texts, seed)
        layers, core = _peel(slots, _third(len(texts)))
        table = np.frombuffer(bytearray(os.urandom(table_bytes(len(texts)))), np.uint64).reshape(-1, 2)
        if _solve_core(table, values[core], slots[core], dense[core]):
            known = values ^ _read_dense(table[-_DENSE:], dense)
            for rows, targets in reversed(layers):
                table[targets] = 0
                table[targets] = known[rows] ^ _read_sparse(table, slots[rows])
            return seed, table.tobytes()
    raise DataError("IDs repeat, and a table of them cannot be built; remove duplicates")


def decode(texts: Sequence[str], seed: bytes, table: bytes, count: int) -> IdValues:
    """Read the values (N, 2) of N texts out of a table that was made of `count` texts.

    Raises
    ------
    ProtocolError
        When the seed or the table has a wrong size.
    """
    if len(seed) != SEED_BYTES or len(table) != table_bytes(count):
        raise ProtocolError(
            f"a table of {count} IDs has {table_bytes(count)} bytes and a seed of {SEED_BYTES}; "
            f"{len(table)} and {len(seed)} came"
        )
    content = np.frombuffer(table, np.uint64).reshape(-1, 2)
    slots, dense = _places(texts, seed, count)
    return _read_sparse(content, slots) ^ _read_dense(content[-_DENSE:], dense)


def _third(count: int) -> int:
    return int(np.ceil(_EXPANSION * count / _HASHES)) + _SLACK


def _places(texts: Sequence[str], seed: bytes, count: int | None = None) -> tuple[NDArray[np.int64], IdValues]:
    """Return each text's three sparse slots (N, 3) and its subset of the dense slots as a bit mask (N,)."""
    third = _third(len(texts) if count is None else count)
    hashes = b"".join(hashlib.blake2b(text.encode(), digest_size=32, key=seed).digest() for text in texts)
    words = np.frombuffer(hashes, "<u8").reshape(-1, 4)
    slots = (words[:, :_HASHES] % np.uint64(third)).astype(np.int64) + third * np.arange(_HASHES)
    return slots, words[:, _HASHES]


def _read_sparse(table: IdValues, slots: NDArray[np.int64]) -> IdValues:
    return table[slots[:, 0]] ^ table[slots[:, 1]] ^ table[slots[:, 2]]


def _read_dense(slots: IdValues, dense: IdValues) -> IdValues:
    found = np.zeros((len(dense), 2), np.uint64)
    for bit in range(_DENSE):
        chosen = (dense >> np.uint64(bit)) & np.uint64(1)
        found ^= (np.uint64(0) - chosen)[:, None] & slots[bit]
    return found


def _peel(
    slots: NDArray[np.int64], third: int
) -> tuple[list[tuple[NDArray[np.int64], NDArray[np.int64]]], NDArray[np.int64]]:
    """Return layers of rows, each row with a slot of no later row, and the rows that cannot be peeled."""
    degree = np.bincount(slots.ravel(), minlength=_HASHES * third)
    owners = np.zeros(_HASHES * third, np.int64)  # sum of the rows of each slot: of a single row, its number
    np.add.at(owners, slots, np.arange(len(slots))[:, None])
    left = np.ones(len(slots), bool)
    layers = []
    alone = np.flatnonzero(degree == 1)
    while len(alone):
        rows, first = np.unique(owners[alone], return_index=True)
        layers.append((rows, alone[first]))
        left[rows] = False
        np.subtract.at(degree, slots[rows], 1)
        np.subtract.at(owners, slots[rows], rows[:, None])
        touched = np.unique(slots[rows])
        alone = touched[degree[touched] == 1]
    return layers, np.flatnonzero(left)


def _solve_core(table: IdValues, values: IdValues, slots: NDArray[np.int64], dense: IdValues) -> bool:
    """Set the dense slots so that these rows read their values; return False if their masks are not independent."""
    missing = values ^ _read_sparse(table, slots) ^ _read_dense(table[-_DENSE:], dense)
    pivots: dict[int, tuple[int, int]] = {}  # lowest bit of a row to the row's bits and the xor of their slots
    for choice, pair in zip(dense.tolist(), missing.tolist(), strict=True):
        bits, total = choice, pair[0] | pair[1] << 64
        for pivot, (other, value) in pivots.items():
            if bits >> pivot & 1:
                bits, total = bits ^ other, total ^ value
        if not bits:
            return False
        new = (bits & -bits).bit_length() - 1
        for pivot, (other, value) in pivots.items():
            if other >> new & 1:
                pivots[pivot] = (other ^ bits, value ^ total)
        pivots[new] = (bits, total)
    for pivot, (_, total) in pivots.items():
        change = np.array([total & (2**64 - 1), total >> 64], np.uint64)
        table[len(table) - _DENSE + pivot] ^= change
    return True
