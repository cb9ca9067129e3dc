"""Keys for a trial: accepted by Flower and TLS clients, readable by their owner alone, and never overwritten."""

import datetime
import ssl
import stat
import threading

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from flower_vfl.errors import ConfigError, DataError, OutputExistsError
from flower_vfl.simulations.keys import write_keys


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trial") / "keys"
    write_keys(folder, ["label.example", "192.0.2.7"], ["a", "b"], days=30)
    return folder


def test_each_host_has_a_folder_with_what_it_needs_and_no_more(keys):
    held = {folder.name: sorted(file.name for file in folder.iterdir()) for folder in keys.iterdir()}
    assert held == {
        "a": ["a.key", "ca.crt", "superexec.secret"],
        "b": ["b.key", "ca.crt", "superexec.secret"],
        "superlink": ["a.pub", "b.pub", "ca.crt", "server.crt", "server.key", "superexec.secret"],
    }
    secrets = {folder: (keys / folder / "superexec.secret").read_bytes() for folder in held}
    assert len(set(secrets.values())) == 3


def test_nobody_but_the_owner_can_read_the_files(keys):
    for path in [keys, *keys.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


def test_the_key_of_the_authority_is_nowhere(keys):
    private = [path.name for path in keys.rglob("*") if path.is_file() and b"PRIVATE" in path.read_bytes()]
    assert sorted(private) == ["a.key", "b.key", "server.key"]
    server = (keys / "superlink" / "server.key").read_bytes()
    authority = x509.load_pem_x509_certificate((keys / "a" / "ca.crt").read_bytes())
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    assert load_pem_private_key(server, None).public_key() != authority.public_key()


@pytest.mark.parametrize("dialled", ["label.example", "192.0.2.7", "localhost", "127.0.0.1"])
def test_a_tls_client_accepts_the_server_under_each_of_its_names(keys, dialled):
    assert handshake(keys, dialled) == "TLSv1.3"


@pytest.mark.parametrize("dialled", ["other.example", "192.0.2.8"])
def test_a_tls_client_refuses_the_server_under_any_other_name(keys, dialled):
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(keys, dialled)


def handshake(keys, dialled):
    import socket

    ours, theirs = socket.socketpair()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(keys / "superlink" / "server.crt", keys / "superlink" / "server.key")
    client = ssl.create_default_context(cafile=keys / "a" / "ca.crt")
    client.verify_flags |= ssl.VERIFY_X509_STRICT

    def serve():
        try:
            server.wrap_socket(theirs, server_side=True).close()
        except (ssl.SSLError, OSError):
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(ours, server_hostname=dialled) as connection:
            return connection.version()
    finally:
        ours.close()
        thread.join(10)


def test_a_nodes_keys_are_a_pair_that_flower_reads(keys):
    private = load_ssh_private_key((keys / "a" / "a.key").read_bytes(), None)
    public = load_ssh_public_key((keys / "superlink" / "a.pub").read_bytes())
    assert private.public_key() == public
    assert private.curve.name == "secp384r1"


def test_certificates_are_valid_from_a_day_ago_because_clocks_differ_and_for_as_long_as_asked(keys):
    now = datetime.datetime.now(datetime.UTC)
    for file in ("ca.crt", "server.crt"):
        certificate = x509.load_pem_x509_certificate((keys / "superlink" / file).read_bytes())
        assert certificate.not_valid_before_utc < now - datetime.timedelta(hours=23)
        assert abs(certificate.not_valid_after_utc - now - datetime.timedelta(days=30)) < datetime.timedelta(hours=1)


def test_what_is_there_is_not_overwritten(keys):
    before = {path: path.read_bytes() for path in keys.rglob("*") if path.is_file()}
    with pytest.raises(OutputExistsError):
        write_keys(keys, ["x"], ["a"], days=1)
    assert before == {path: path.read_bytes() for path in keys.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("hosts", "parties", "error", "words"),
    [
        (["https://label.example"], ["a"], ConfigError, "without https:// and port"),
        (["label.example:9092"], ["a"], ConfigError, "neither a host name nor an address"),
        ([""], ["a"], ConfigError, "neither a host name"),
        (["x"], ["a", "a"], ConfigError, "its name is taken"),
        (["x"], ["superlink"], ConfigError, "its name is taken"),
        (["x"], ["../a"], DataError, "is no party name"),
        (["x"], ["label"], DataError, "a feature party cannot be called 'label'"),
    ],
)
def test_what_cannot_be_a_host_or_a_party_is_refused_and_nothing_is_written(tmp_path, hosts, parties, error, words):
    with pytest.raises(error, match=words):
        write_keys(tmp_path / "keys", hosts, parties, days=1)
    assert not (tmp_path / "keys").exists()


def test_keys_for_nobody_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"none is named: give one at least, as in --parties a,b"):
        write_keys(tmp_path / "keys", ["label.example"], [], days=30)
    assert not (tmp_path / "keys").exists()
