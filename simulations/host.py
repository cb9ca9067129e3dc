"""`flower-vfl doctor` before a run with other hosts: data, keys, certificates, clock and addresses of this host."""

from __future__ import annotations

import datetime
import errno
import os
import platform
import re
import socket
import ssl
import stat
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
    ssh_key_fingerprint,
)

from flower_vfl.accounting.ledger import PrivacyLedger
from flower_vfl.apps.client_session import STATE_FOLDER_VARIABLE
from flower_vfl.apps.node import DATA_VARIABLE
from flower_vfl.data.store.dataset import Dataset, open_dataset
from flower_vfl.errors import ConfigError, FlowerVflError
from flower_vfl.rng import NOISE_KEY_FILE_VARIABLE, SECRET_FILE_VARIABLE, read_secret
from flower_vfl.simulations.doctor import MachineFinding
from flower_vfl.training.privacy import LEDGER_VARIABLE
from flower_vfl.transport.signing import LABEL_KEY_VARIABLE, signer_of_this_host
from flower_vfl.version import build_digest, installed_version, package_version

_SECONDS = 5.0
_AHEAD, _BEHIND = 5.0, 300.0  # tolerance of Flower's SuperLink for a SuperNode's clock (flwr.supercore.constant)
_SOON = datetime.timedelta(days=7)
_NOT_YET, _EXPIRED, _OTHER_NAME, _OTHER_ADDRESS = 9, 10, 62, 64  # X509_V_ERR_* of OpenSSL
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):(?P<port>\d{1,5})")


@dataclass(frozen=True)
class Host:
    """The items of a host that are checked, except empty ones.

    Attributes
    ----------
    data, party : Path or None, str
        Prepared data, and the party that this host is.
    superlink, authority : str, Path or None
        Address of the SuperLink, HOST:PORT, and the certificate of the authority that signed its certificate.
    key, certificate : Path or None
        A private key of this host, and the certificate that belongs to it.
    dial, listen : str
        Address that must be reachable from here; address at which this host must be able to listen.
    """

    data: Path | None = None
    party: str = ""
    superlink: str = ""
    authority: Path | None = None
    key: Path | None = None
    certificate: Path | None = None
    dial: str = ""
    listen: str = ""

    @property
    def given(self) -> bool:
        """True if anything is to be checked."""
        return self != Host()


def findings(host: Host) -> Iterator[MachineFinding]:
    """Yield the findings on this host, one at a time.

    Raises
    ------
    ConfigError
        When an address is not HOST:PORT.
    """
    for address in filter(None, (host.superlink, host.dial, host.listen)):
        split_address(address)
    words = f"{installed_version()}, build {build_digest()[:12]}; every host needs the same build"
    yield "flower-vfl", "ok", words
    for name in ("flwr", "torch"):
        found = package_version(name)
        yield (
            name,
            "ok" if found else "missing",
            f"{found}; should be the same on every host" if found else f"pip install {name}",
        )
    yield "python", "ok", platform.python_version()
    yield from _environment()
    if host.data is not None or host.party:
        yield _data(host.data, host.party)
    for title, path in (("root certificates", host.authority), ("certificate", host.certificate)):
        if path is not None:
            yield from _certificates(title, path)
    if host.key is not None:
        yield _private_key(host.key, host.certificate)
    if host.superlink:
        yield from _superlink(host.superlink, host.authority)
    if host.dial:
        yield "dial " + host.dial, *_reach(host.dial)
    if host.listen:
        yield _listen(host.listen)


def split_address(address: str) -> tuple[str, int]:
    """Return the host and the port of HOST:PORT.

    Raises
    ------
    ConfigError
        When the text has another form.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match["port"]) < 65536:
        raise ConfigError(f"{address!r} is no address; give HOST:PORT without https://, [::1]:PORT for IPv6")
    return match["host"].strip("[]"), int(match["port"])


def _environment() -> Iterator[MachineFinding]:
    """Check the environment variables that the owner of this host has set."""
    for variable, words in (
        (SECRET_FILE_VARIABLE, "readable; unset it unless runs must repeat: it fixes all noise"),
        (NOISE_KEY_FILE_VARIABLE, "readable; persistent noise is the same in all runs with this file"),
    ):
        if os.environ.get(variable):
            try:
                read_secret(variable)
            except FlowerVflError as error:
                yield variable, "wrong", str(error)
            else:
                yield variable, "ok", words
    if os.environ.get(LABEL_KEY_VARIABLE):
        try:
            signer_of_this_host({})
        except ConfigError as error:
            yield LABEL_KEY_VARIABLE, "wrong", str(error)
        else:
            yield LABEL_KEY_VARIABLE, "ok", "readable; offers of trainings and predictions are signed with it"
    if os.environ.get(LEDGER_VARIABLE):
        try:
            account = PrivacyLedger(Path(os.environ[LEDGER_VARIABLE])).read()
        except FlowerVflError as error:
            yield LEDGER_VARIABLE, "wrong", str(error)
        else:
            words = f"epsilon {account.spent:.4g} of {account.limit.epsilon:.4g} is spent at delta"
            yield LEDGER_VARIABLE, "ok", f"{words} {account.limit.delta:g}; a training without a proof is refused"
    state = os.environ.get(STATE_FOLDER_VARIABLE)
    if state:
        existing = next(path for path in (Path(state), *Path(state).absolute().parents) if path.exists())
        usable = os.access(existing, os.W_OK)
        words = state if usable else f"{state} cannot be written by this user: chown it, or name another folder"
        yield STATE_FOLDER_VARIABLE, "ok" if usable else "wrong", words


def _data(folder: Path | None, party: str) -> MachineFinding:
    """Return the finding on the data: its parties, and the digest by which hosts compare the order of their rows."""
    if folder is None and os.environ.get(DATA_VARIABLE):
        folder = Path(os.environ[DATA_VARIABLE])
    if folder is None:
        return "data", "wrong", f"none was named: --data FOLDER (or {DATA_VARIABLE} on the label party's host)"
    try:
        dataset = open_dataset(folder.expanduser())
        held = _held(dataset)
        if party and party not in held:
            return (
                "data",
                "wrong",
                (
                    f"{folder} holds the data of {', '.join(held) or 'nobody'}, not of {party!r}: "
                    f"`flower-vfl data part FOLDER --party {party} --out ...` writes its part"
                ),
            )
        others = _others(dataset, party) if party else []
        if others:
            return (
                "data",
                "wrong",
                (
                    f"{folder} holds what is none of party {party!r}: {', '.join(others)}; nothing of others may lie "
                    f"on this host, labels least of all: `flower-vfl data part {folder} --party {party} --out ...` "
                    "writes its part alone"
                ),
            )
        dataset.verify()
    except FlowerVflError as error:
        return "data", "wrong", f"{error}; `flower-vfl data part` writes a party's part of prepared data"
    digest = dataset.alignment.digest[:16]
    words = (
        f"{dataset.name} of {', '.join(held)}: {dataset.alignment.rows:,} + {dataset.alignment.test_rows:,} rows; "
        f"alignment {digest}, the same on every host"
    )
    return "data", "ok", words


def _held(dataset: Dataset) -> list[str]:
    """Return the parties with data in a folder; the label party only with its labels."""
    held = [name for name in dataset.parties if name != dataset.label_party and (dataset.folder / name).is_dir()]
    return [*held, *([dataset.label_party] if (dataset.folder / "labels").is_dir() else [])]


def _others(dataset: Dataset, party: str) -> list[str]:
    """Return the contents of a folder that belong to others than a party."""
    found = [f"features of {name}" for name in dataset.parties if name != party and (dataset.folder / name).is_dir()]
    return [*found, *(["labels"] if party != dataset.label_party and dataset.has_labels else [])]


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _dates(certificate: x509.Certificate) -> tuple[str, str]:
    """Return the state of a certificate at this host's time, and its explanation."""
    begin, end, now = certificate.not_valid_before_utc, certificate.not_valid_after_utc, _now()
    clock = f"this host's clock says {now:%Y-%m-%d %H:%M} UTC; if that is wrong, set it (timedatectl set-ntp true)"
    if now > end:
        return "wrong", f"expired on {end:%Y-%m-%d %H:%M} UTC: have a new one made (`flower-vfl keys`); {clock}"
    if now < begin:
        return "wrong", f"valid only from {begin:%Y-%m-%d %H:%M} UTC on; {clock}"
    if now > end - _SOON:
        return "optional", f"expires on {end:%Y-%m-%d %H:%M} UTC: have a new one made before then"
    return "ok", f"valid until {end:%Y-%m-%d}"


def _certificates(title: str, path: Path) -> Iterator[MachineFinding]:
    """Check each certificate of a PEM file."""
    try:
        found = x509.load_pem_x509_certificates(path.expanduser().read_bytes())
    except OSError as error:
        yield title, "wrong", f"{path} cannot be read: {error.strerror}"
    except ValueError:
        yield title, "wrong", f"{path} holds no certificate in PEM form"
    else:
        for certificate in found:
            state, words = _dates(certificate)
            yield title, state, f"{certificate.subject.rfc4514_string()}: {words}"


def _private_key(path: Path, certificate: Path | None) -> MachineFinding:
    """Check that a private key can be read, by its owner alone, and has the right kind.

    With a certificate it is the SuperLink's and belongs to it; without one it is a SuperNode's, which starts with an
    elliptic curve key in OpenSSH form alone.
    """
    try:
        content, mode = path.expanduser().read_bytes(), stat.S_IMODE(path.expanduser().stat().st_mode)
    except OSError as error:
        return "key", "wrong", f"{path} cannot be read: {error.strerror}; start this as the user that runs the service"
    openssh = b"OPENSSH" in content[:64]
    load = load_ssh_private_key if openssh else load_pem_private_key
    try:
        public = load(content, None).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return "key", "wrong", f"{path} holds no private key without a password, in PEM or OpenSSH form"
    if mode & 0o077:
        return "key", "wrong", f"other users of this host can use {path}: chmod 600 {path}"
    if certificate is not None:
        return _pair(path, public, certificate)
    if not openssh or not isinstance(public, ec.EllipticCurvePublicKey):
        return (
            "key",
            "wrong",
            (
                f"with {path} no SuperNode starts: its key is an elliptic curve key in OpenSSH form, `ssh-keygen -t "
                "ecdsa -b 384` makes one (the SuperLink's key is checked with --certificate)"
            ),
        )
    digest = b64encode(ssh_key_fingerprint(public, SHA256())).decode().rstrip("=")
    return "key", "ok", f"SHA256:{digest}, as `ssh-keygen -lf` shows the public key that must be registered"


def _pair(path: Path, public: object, certificate: Path) -> MachineFinding:
    """Check that a key belongs to a certificate."""
    try:
        signed = x509.load_pem_x509_certificate(certificate.expanduser().read_bytes()).public_key()
    except (OSError, ValueError):  # the finding on the certificate reports it
        return "key", "wrong", f"{path} cannot be compared with {certificate}, which is no certificate that can be read"
    if _public_bytes(signed) != _public_bytes(public):
        return "key", "wrong", f"{path} is not the key of {certificate}: name the pair that was made together"
    return "key", "ok", "readable by its owner alone"


def _public_bytes(key: object) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined, no-any-return]


def _superlink(address: str, authority: Path | None) -> Iterator[MachineFinding]:
    """Check the SuperLink's answer, its certificate, and that its clock and this host's agree."""
    title = "SuperLink " + address
    state, words = _reach(address)
    if state != "ok":
        yield title, "wrong", words
        return
    if authority is None:
        yield title, "wrong", "reachable; without --root-certificates nobody can tell whether it is the right one"
        return
    try:
        context = ssl.create_default_context(cafile=str(authority.expanduser()))
        answer = httpx.get(f"https://{address}/health", verify=context, timeout=_SECONDS, trust_env=False)
    except OSError:  # the finding on the root certificates reports it
        yield title, "wrong", f"not checked: {authority} holds no certificates"
    except httpx.HTTPError as error:
        yield title, "wrong", _refused(address, error)
    else:
        if answer.status_code == httpx.codes.BAD_GATEWAY:
            yield title, "wrong", "the proxy answers, and the SuperLink behind it does not: its host must start it"
            return
        if not answer.is_success:
            yield title, "wrong", f"what answers there is no SuperLink ({answer.status_code}): is the port right?"
            return
        yield title, "ok", "reachable, and its certificate is of this authority and for this address"
        yield from _clock(answer.headers.get("date", ""))
        yield from _control(address, context)


def _control(address: str, context: ssl.SSLContext) -> Iterator[MachineFinding]:
    """Check that other hosts that reach the SuperLink cannot command it."""
    host = split_address(address)[0]
    if host == "localhost" or host.startswith("127.") or host == "::1":
        return
    url = f"https://{address}/v1/control/start-run"
    try:
        status = httpx.get(url, verify=context, timeout=_SECONDS, trust_env=False).status_code
    except httpx.HTTPError as error:
        yield "Control API", "wrong", f"not checked, there was no answer ({error}): try again"
        return
    if status == httpx.codes.METHOD_NOT_ALLOWED:  # the path accepts POST, so it exists
        yield (
            "Control API",
            "wrong",
            (
                "open: whoever reaches this port can run code on the label party's host. Its owner must put a proxy in "
                "front that lets the Fleet API through and nothing else: docs/deployment/label-party.md"
            ),
        )
    elif status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN, httpx.codes.NOT_FOUND):
        yield "Control API", "ok", "closed to this host"
    else:
        yield "Control API", "wrong", f"not checked: the answer was {status}; try again"


def _refused(address: str, error: httpx.HTTPError) -> str:
    """Return the reason why a TLS connection failed; `error` holds OpenSSL's verdict in its chain of causes."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if not isinstance(cause, ssl.SSLCertVerificationError):
        return f"it does not speak TLS there ({error}): is the port right, and was it started without --insecure?"
    if cause.verify_code in (_NOT_YET, _EXPIRED):
        certificate = x509.load_pem_x509_certificate(ssl.get_server_certificate(split_address(address)).encode())
        return f"its certificate is not valid now: {_dates(certificate)[1]}"
    if cause.verify_code in (_OTHER_NAME, _OTHER_ADDRESS):
        return (
            "its certificate is for other names: dial it as the certificate says, or have one made with --host "
            f"{split_address(address)[0]}"
        )
    return (
        f"its certificate is not signed by this authority ({cause.verify_message}): ask the label party for the ca.crt "
        "that belongs to it now, over a way that you trust. If that is the right file, somebody intercepts the line"
    )


def _clock(date: str) -> Iterator[MachineFinding]:
    """Compare this host's clock with the SuperLink's."""
    try:
        ahead = (_now() - parsedate_to_datetime(date)).total_seconds()
    except ValueError:
        return
    # the header has whole seconds, and the answer took time
    if -_BEHIND < ahead < _AHEAD + 1:
        yield "clock", "ok", "agrees with the SuperLink's"
    else:
        yield (
            "clock",
            "wrong",
            (
                f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the SuperLink's, which refuses more than "
                f"{_AHEAD:g} s ahead or {_BEHIND:g} s behind. Set the wrong one: timedatectl set-ntp true"
            ),
        )


def _reach(address: str) -> tuple[str, str]:
    """Try a connection, and return its state with an explanation."""
    host, port = split_address(address)
    try:
        socket.create_connection((host, port), _SECONDS).close()
    except (socket.gaierror, UnicodeError):  # the latter: an invalid name
        return "wrong", f"this host does not know the name {host!r}: correct it, or enter it in DNS or /etc/hosts"
    except ConnectionRefusedError:
        return "optional", (
            f"that host refuses: nothing listens there now, or its firewall rejects port {port}. Start what should be "
            "there; a session endpoint is there only while a run waits for its parties"
        )
    except TimeoutError:
        return "wrong", (
            f"no answer in {_SECONDS:g} s: a firewall drops it, or the address is wrong. Open port {port} at "
            f"{host} for this host"
        )
    except OSError as error:
        return "wrong", f"{error.strerror or error}: is the address right, and does this host have a way there?"
    return "ok", "reachable; something listens there"


def _listen(address: str) -> MachineFinding:
    """Try to listen at an address of this host."""
    host, port = split_address(address)
    title = "listen " + address
    try:
        family, kind, proto, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except (socket.gaierror, UnicodeError):  # the latter: an invalid name
        return title, "wrong", f"this host does not know the name {host!r}: name one of its addresses (`ip addr`)"
    except OSError as error:
        cures = {
            errno.EADDRINUSE: f"the port is in use: `ss -ltnp 'sport = {port}'` names the process; end it or take "
            "another",
            errno.EADDRNOTAVAIL: f"{host} is no address of this host (`ip addr` shows them)",
            errno.EACCES: f"only root may listen at {port}: take a port from 1024 on",
        }
        return title, "wrong", cures.get(error.errno or 0, str(error.strerror))
    return (
        title,
        "ok",
        "free; whether others get through, only they can tell: flower-vfl doctor --dial",
    )
