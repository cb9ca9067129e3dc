"""The alternative with a shared salt: IDs are compared by salted hashes, where the parties agree to it.

It is fast and weak. A party that knows the salt can hash every possible ID (all phone numbers take minutes) and so
recover the whole list; the label party knows the salt, and so does the operator of Flower's SuperLink. The label party
also sees the IDs that some parties share and others do not.
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
        When the salt does not have 32 bytes.
    """
    if len(salt) != SALT_BYTES:
        raise ProtocolError(f"a salt has {SALT_BYTES} bytes, {len(salt)} came")
    return [hmac.digest(salt, value.encode(), "sha256")[:TAG_BYTES] for value in ids]
