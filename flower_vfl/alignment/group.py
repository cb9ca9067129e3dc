"""The group of the alignment: P-256 with points given by their x-coordinate, 32 bytes.

P-256 is used rather than Curve25519, whose multiplication is faster, because its order is prime, so there are no points
of small order, no twist and no cofactor to consider; every number below the order has an inverse, so a blinding can be
removed exactly; and reading a point refuses bytes that are none. Hashing an ID to the curve, the other half of the
cost, is twice as fast too, because the library checks whether bytes are a point. A point and its
negative share the x-coordinate, and so do their multiples; only x-coordinates are compared here.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from typing import Self

from cryptography.hazmat.primitives.asymmetric import ec

from flower_vfl.errors import ProtocolError

POINT_BYTES = 32
_CURVE = ec.SECP256R1()
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_EVEN = b"\x02"
"""First byte of a compressed point; either of the two points with the same x serves here."""


class Key:
    """A secret multiplier, from 1 to the order of the curve minus 1.

    Parameters
    ----------
    number : int
        The multiplier.

    Raises
    ------
    ProtocolError
        When it is out of range.
    """

    __slots__ = ("_number", "_private")

    def __init__(self, number: int) -> None:
        if not 0 < number < _ORDER:
            raise ProtocolError("a key of an alignment is out of range")
        self._number = number
        self._private = ec.derive_private_key(number, _CURVE)

    @classmethod
    def fresh(cls) -> Self:
        """Draw a key from the operating system."""
        return cls(secrets.randbelow(_ORDER - 1) + 1)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the key that `to_bytes` wrote."""
        return cls(int.from_bytes(data, "big"))

    def to_bytes(self) -> bytes:
        """Return the key as 32 bytes, for the party's own disk or a worker process of its own."""
        return self._number.to_bytes(POINT_BYTES, "big")

    def inverse(self) -> Key:
        """Return the inverse of this key: inverse().multiply(multiply(p)) == p."""
        return Key(pow(self._number, -1, _ORDER))

    def public(self) -> bytes:
        """Return the public key, 32 bytes: this multiple of the curve's base point, for key agreement."""
        return self._private.public_key().public_numbers().x.to_bytes(POINT_BYTES, "big")

    def multiply(self, point: bytes) -> bytes:
        """Return the x-coordinate of this multiple of a point.

        Raises
        ------
        ProtocolError
            When the bytes are no point of the curve.
        """
        return self._times(read_point(point))

    def multiply_hashed(self, block: bytes) -> bytes:
        """Return the x-coordinate of this multiple of the point that `block` hashes to."""
        return self._times(hash_to_point(block))

    def _times(self, point: ec.EllipticCurvePublicKey) -> bytes:
        return self._private.exchange(ec.ECDH(), point)

    def __repr__(self) -> str:
        return "Key(<hidden>)"


def read_point(data: bytes) -> ec.EllipticCurvePublicKey:
    """Return the point with this x-coordinate; half of all 32-byte strings are refused.

    Raises
    ------
    ProtocolError
        When there is none.
    """
    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, _EVEN + data)
    except ValueError:
        raise ProtocolError("the other side sent bytes that are no point of the curve") from None


def hash_to_point(block: bytes) -> ec.EllipticCurvePublicKey:
    """Hash bytes to a point of unknown logarithm: the first of SHA-256(name, 0, block), (name, 1, block), ...

    Each try succeeds with probability 1/2, and a successful x is uniform among those of the curve (in the random
    oracle model). The number of tries, and so the time, depends on the ID; but a party hashes its own IDs on its own
    host, where no other party can measure the time of a single one.
    """
    attempt = 0
    while True:
        x = hashlib.sha256(b"flower-vfl hash to P-256" + attempt.to_bytes(4, "big") + block).digest()
        try:
            return ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, _EVEN + x)
        except ValueError:
            attempt += 1


def id_blocks(ids: Iterable[str]) -> bytes:
    """Return SHA-256 of each ID, one after the other: 32 bytes each, whatever the length of the ID."""
    return b"".join(hashlib.sha256(b"flower-vfl id" + value.encode()).digest() for value in ids)
