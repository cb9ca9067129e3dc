"""A fresh certificate authority for one run: mutual TLS between its parties with nothing to configure."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from flower_vfl.errors import SessionError

_DAY = datetime.timedelta(days=1)
_VALID = datetime.timedelta(days=31)

SERVER_NAME = "label-party.flower-vfl"
"""The name in the label party's certificate; parties pin one below it, their own, whatever address they dial."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate and its private key, PEM."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "Identity(<hidden>)"


class Authority:
    """Signs one server certificate and one client certificate a party; its key lives in memory only.

    Curve P-256 (Ed25519 fails in gRPC); valid from a day ago, because clocks differ.
    """

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "flower-vfl run authority")])
        builder = self._builder(self._name, self._key).add_extension(x509.BasicConstraints(True, 0), critical=True)
        self.certificate = builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _VALID)
        )

    def _issue(self, name: str, usage: x509.ObjectIdentifier, hosts: list[x509.GeneralName]) -> Identity:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=True)
        builder = builder.add_extension(x509.BasicConstraints(False, None), critical=True)
        builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return Identity(
            certificate.public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
        )

    def server(self) -> Identity:
        """Issue the label party's certificate."""
        hosts: list[x509.GeneralName] = [x509.DNSName(name) for name in (SERVER_NAME, f"*.{SERVER_NAME}")]
        hosts += [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        return self._issue(SERVER_NAME, ExtendedKeyUsageOID.SERVER_AUTH, hosts)

    def client(self, name: str) -> Identity:
        """Issue a certificate whose common name is `name`."""
        return self._issue(name, ExtendedKeyUsageOID.CLIENT_AUTH, [x509.DNSName(name)])


def check_clock(certificate: bytes) -> None:
    """Refuse a fresh certificate that is not valid at this host's time: then the clocks differ by a day or more.

    Raises
    ------
    SessionError
        With both times and what to do.
    """
    issued, now = x509.load_pem_x509_certificate(certificate), datetime.datetime.now(datetime.UTC)
    if not issued.not_valid_before_utc < now < issued.not_valid_after_utc:
        theirs = issued.not_valid_before_utc + _DAY
        raise SessionError(
            f"the clocks of the two hosts differ: the label party's said {theirs:%Y-%m-%d %H:%M} UTC when the run "
            f"began, this host's says {now:%Y-%m-%d %H:%M}; set the wrong one (timedatectl set-ntp true)"
        )
