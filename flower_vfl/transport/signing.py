"""Offers that the label party signs with a key of its own, which outlives runs.

An offer's certificates are of one run, so they do not identify the label party. A signature over the offer and over the
run configuration does, for a party that has received the public key over another channel.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from flower_vfl.errors import ConfigError

LABEL_KEY_VARIABLE = "FLOWER_VFL_LABEL_KEY_FILE"
"""Environment variable of the label party's ServerApp that names the file of its private key."""

SIGNATURE = "signature"
"""The name of the signature in an offer."""

Offer = dict[str, str | bytes | int | bool]
Signer = Callable[[Offer], Offer]
"""A function that returns an offer with its signature."""

_CONTEXT = b"flower-vfl offer 1\0"


def signer_of_this_host(run_config: Mapping[str, object]) -> Signer | None:
    """Return a function that signs a run's offers with the key that this host's environment names; None without one.

    Raises
    ------
    ConfigError
        When the file cannot be read, or holds no Ed25519 key in OpenSSH form without a password.
    """
    name = os.environ.get(LABEL_KEY_VARIABLE, "")
    if not name:
        return None
    try:
        key = load_ssh_private_key(Path(name).expanduser().read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{LABEL_KEY_VARIABLE} names {name!r}, which cannot be used: {error}; {_MAKE}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{LABEL_KEY_VARIABLE} names {name!r}, which is no Ed25519 key; {_MAKE}")

    def sign(offer: Offer) -> Offer:
        return {**offer, SIGNATURE: key.sign(_message(offer, run_config))}

    return sign


_MAKE = '`ssh-keygen -t ed25519 -N "" -f label.key` makes one'


def read_public_key(text: str) -> Ed25519PublicKey:
    """Read the public key of a label party, as ``ssh-keygen`` writes it.

    Raises
    ------
    ConfigError
        When the text is no public Ed25519 key.
    """
    try:
        key = load_ssh_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"{text!r:.60} is no public Ed25519 key; the label party's label.key.pub begins: ssh-ed25519")
    return key


def is_signed(offer: Mapping[str, object], run_config: Mapping[str, object], key: Ed25519PublicKey) -> bool:
    """Return True if the holder of a key has signed this offer, for this run configuration."""
    signature = offer.get(SIGNATURE)
    if not isinstance(signature, bytes):
        return False
    try:
        key.verify(signature, _message(offer, run_config))
    except InvalidSignature:
        return False
    return True


def _message(offer: Mapping[str, object], run_config: Mapping[str, object]) -> bytes:
    """Return the message to sign: a digest of all fields of the offer, and of the run configuration."""
    parts = {"offer": {name: offer[name] for name in offer if name != SIGNATURE}, "config": dict(run_config)}
    text = json.dumps(parts, sort_keys=True, default=lambda value: {"hex": bytes(value).hex()})
    return _CONTEXT + hashlib.sha256(text.encode()).digest()
