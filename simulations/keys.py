"""`flower-vfl keys`: certificates and keys for trying a deployment out, one folder a host."""

from __future__ import annotations

import datetime
import ipaddress
import re
import secrets
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from flower_vfl.data.store.layout import new_folder
from flower_vfl.data.store.party_names import check_parties
from flower_vfl.errors import ConfigError
from flower_vfl.files import write_private

LABEL_FOLDER = "superlink"
"""Folder of the host of the SuperLink and the label party's ServerApp."""

CA, SERVER, SERVER_KEY, SUPEREXEC = "ca.crt", "server.crt", "server.key", "superexec.secret"
_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(\.(?!-)[A-Za-z0-9-]{1,63})*")
_BACKDATED = datetime.timedelta(days=1)  # clocks differ


def write_keys(out: Path, hosts: Sequence[str], parties: Sequence[str], *, days: int) -> None:
    """Write the certificates and keys of a trial deployment, into one folder for each host.

    `superlink/` gets a server certificate for `hosts` and this machine, its key, the certificate of the authority that
    signed it, each party's public key, and a secret for `flower-superexec`. `<party>/` gets the authority's
    certificate, the private key that authenticates its SuperNode, and a secret for its own `flower-superexec`. The
    authority's key is discarded: no more certificates can be signed, and a new set needs a new folder.

    Parameters
    ----------
    out : Path
        Folder to write; it must not exist, or be empty.
    hosts : Sequence[str]
        Names and addresses by which SuperNodes and `flwr` dial the SuperLink.
    parties : Sequence[str]
        Names of the feature parties.
    days : int
        Days that the certificates are valid, from now.

    Raises
    ------
    ConfigError
        When a host is neither a name nor an address, there is no party, or a party's name is taken.
    OutputExistsError
        When `out` is not empty.
    """
    names = [_general_name(host) for host in dict.fromkeys([*hosts, "localhost", "127.0.0.1"])]
    if not parties:
        raise ConfigError("keys are for feature parties, and none is named: give one at least, as in --parties a,b")
    for party in check_parties(parties, LABEL_FOLDER):
        if party == LABEL_FOLDER or parties.count(party) > 1:
            raise ConfigError(f"party {party!r} cannot have a folder of its own: its name is taken")
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    authority, certificate, key = _certificates(names, until)
    with new_folder(out) as folder:
        folder.chmod(0o700)
        _write(folder / LABEL_FOLDER / CA, authority)
        _write(folder / LABEL_FOLDER / SERVER, certificate)
        _write(folder / LABEL_FOLDER / SERVER_KEY, key)
        _write(folder / LABEL_FOLDER / SUPEREXEC, secrets.token_bytes(32))
        for party in parties:
            private, public = _node_key(party)
            _write(folder / LABEL_FOLDER / f"{party}.pub", public)
            _write(folder / party / CA, authority)
            _write(folder / party / f"{party}.key", private)
            _write(folder / party / SUPEREXEC, secrets.token_bytes(32))


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not _HOST_NAME.fullmatch(host):
            raise ConfigError(
                f"{host!r} is neither a host name nor an address; give what SuperNodes dial, without https:// and port"
            ) from None
        return x509.DNSName(host)


def _certificates(names: list[x509.GeneralName], until: datetime.datetime) -> tuple[bytes, bytes, bytes]:
    """Return the authority's certificate, the server's and the server's key, PEM."""
    authority_key, server_key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "flower-vfl trial authority")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "flower-vfl trial SuperLink")])
    common = x509.CertificateBuilder().issuer_name(issuer)
    common = common.not_valid_before(datetime.datetime.now(datetime.UTC) - _BACKDATED).not_valid_after(until)
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    usage = dict.fromkeys(_USAGES, False)
    authority = (
        common.subject_name(issuer)
        .public_key(authority_key.public_key())
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(True, 0), critical=True)
        .add_extension(x509.KeyUsage(**{**usage, "key_cert_sign": True, "crl_sign": True}), critical=True)
        .add_extension(identifier, critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    server = (
        common.subject_name(subject)
        .public_key(server_key.public_key())
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(False, None), critical=True)
        .add_extension(x509.KeyUsage(**{**usage, "digital_signature": True}), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    key = server_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pem = serialization.Encoding.PEM
    return authority.public_bytes(pem), server.public_bytes(pem), key


_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


def _node_key(party: str) -> tuple[bytes, bytes]:
    """Return a SuperNode's private and public key in the form of `ssh-keygen -t ecdsa -b 384`, which Flower reads."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private, public + f" {party}\n".encode()


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_private(path, content)
