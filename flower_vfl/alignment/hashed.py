"""The plain alternative: IDs under a salted hash, for parties that agree to it.

It is fast and weak. Whoever knows the salt can hash every ID that there could be (all phone numbers take minutes) and
so reads the whole list; the label party knows it, and so does whoever operates Flower's SuperLink. It also sees which
IDs some parties share and others do not.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from flower_vfl.alignment.psi import TAG_BYTES
from flower_vfl.errors import ProtocolError

SALT_BYTES = 32


def hash_ids(ids: Sequence[str], salt: bytes) -> list[bytes]:
    """Return the first 16 bytes of HMAC-SHA-256(salt, ID) of each ID.

    Raises
    ------
    ProtocolError
        When the salt has not 32 bytes.
    """
    if len(salt) != SALT_BYTES:
        raise ProtocolError(f"a salt has {SALT_BYTES} bytes, {len(salt)} came")
    return [hmac.digest(salt, value.encode(), "sha256")[:TAG_BYTES] for value in ids]
