"""A fresh certificate authority for one run: mutual TLS between its parties without configuration."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from flower_vfl.errors import ProtocolError, SessionError

_DAY = datetime.timedelta(days=1)
_VALID = datetime.timedelta(days=31)

OFFER_SECONDS = 3600.0
"""Seconds that the certificate of an offer is valid beyond the time that the label party waits for its party."""

_ECDSA = ec.ECDSA(hashes.SHA256())

SERVER_NAME = "label-party.flower-vfl"
"""The name in the label party's certificate; each party checks a subdomain of its own, whatever address it dials."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate and its private key, PEM."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "Identity(<hidden>)"


class SessionKey:
    """A party's own key for one session: made when it dials, in the memory of its process only.

    It proves that a party which dials again is the one that was admitted. The data of an offer cannot prove that,
    because the SuperLink's database holds it too.
    """

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())

    def __repr__(self) -> str:
        return "SessionKey(<hidden>)"

    @property
    def public(self) -> str:
        """The public key, as hexadecimal digits."""
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        return self._key.public_key().public_bytes(serialization.Encoding.DER, form).hex()

    def sign(self, words: str) -> str:
        """Return the signature of a text, as hexadecimal digits."""
        return self._key.sign(words.encode(), _ECDSA).hex()

    def identity(self, certificate: bytes) -> Identity:
        """Return the key with the certificate that the label party has issued for it.

        Raises
        ------
        ProtocolError
            When it is no certificate of this key.
        """
        try:
            own = x509.load_pem_x509_certificate(certificate).public_key() == self._key.public_key()
        except ValueError:
            own = False
        if not own:
            raise ProtocolError("the label party sent no certificate of this party's session key")
        return Identity(certificate, _pem(self._key))


def public_key(digits: str) -> ec.EllipticCurvePublicKey:
    """Return the public key that a party has sent as hexadecimal digits.

    Raises
    ------
    ProtocolError
        When it is none of the curve P-256.
    """
    try:
        key = serialization.load_der_public_key(bytes.fromhex(digits[:1000]))
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ProtocolError("a party's session key is no public key of the curve P-256")
    return key


def is_signed(key: ec.EllipticCurvePublicKey, signature: object, words: str) -> bool:
    """Return True if a received signature is that of a text by the owner of a key."""
    try:
        key.verify(bytes.fromhex(signature if isinstance(signature, str) else ""), words.encode(), _ECDSA)
    except (ValueError, InvalidSignature):
        return False
    return True


class Authority:
    """An authority that signs one server certificate and the parties' client certificates; its key is in memory only.

    Curve P-256 (Ed25519 fails in gRPC); valid from a day ago, because clocks differ. A certificate with a private
    key in an offer is valid for a short time, by the clock of the label party, which alone checks it.
    """

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "flower-vfl run authority")])
        builder = self._builder(self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(True, 0), critical=True
        )
        self.certificate = builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, valid: datetime.timedelta = _VALID
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + valid)
        )

    def _issue(
        self,
        name: str,
        key: ec.EllipticCurvePublicKey,
        usage: x509.ObjectIdentifier,
        hosts: list[x509.GeneralName],
        valid: datetime.timedelta = _VALID,
    ) -> bytes:
        builder = self._builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key, valid)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=True)
        builder = builder.add_extension(x509.BasicConstraints(False, None), critical=True)
        builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def server(self) -> Identity:
        """Issue the label party's certificate."""
        hosts: list[x509.GeneralName] = [x509.DNSName(name) for name in (SERVER_NAME, f"*.{SERVER_NAME}")]
        hosts += [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        key = ec.generate_private_key(ec.SECP256R1())
        return Identity(self._issue(SERVER_NAME, key.public_key(), ExtendedKeyUsageOID.SERVER_AUTH, hosts), _pem(key))

    def client(self, name: str, *, seconds: float = OFFER_SECONDS) -> Identity:
        """Issue a key, for an offer, with a certificate of the common name `name`, valid for `seconds`."""
        key = ec.generate_private_key(ec.SECP256R1())
        valid = datetime.timedelta(seconds=min(seconds, _VALID.total_seconds()))
        return Identity(self.certify(name, key.public_key(), valid), _pem(key))

    def certify(self, name: str, key: ec.EllipticCurvePublicKey, valid: datetime.timedelta = _VALID) -> bytes:
        """Issue the certificate for a session key, valid as long as the run's own, with which its owner dials again."""
        return self._issue(name, key, ExtendedKeyUsageOID.CLIENT_AUTH, [x509.DNSName(name)], valid)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def check_clock(certificate: bytes) -> None:
    """Refuse a run's fresh certificate that is not valid at this host's time: then the clocks differ by a day or more.

    Raises
    ------
    SessionError
        When it is not valid; the message has both times and the remedy.
    """
    issued, now = x509.load_pem_x509_certificate(certificate), datetime.datetime.now(datetime.UTC)
    if not issued.not_valid_before_utc < now < issued.not_valid_after_utc:
        theirs = issued.not_valid_before_utc + _DAY
        raise SessionError(
            f"the clocks of the two hosts differ: the label party's was {theirs:%Y-%m-%d %H:%M} UTC when the run "
            f"began, this host's is {now:%Y-%m-%d %H:%M}; set the wrong one (timedatectl set-ntp true)"
        )
