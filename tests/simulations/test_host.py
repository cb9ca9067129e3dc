"""Checks of a host before a deployment: each obstacle is found where it can be removed, with the remedy."""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import http.server
import shutil
import socket
import ssl
import threading
from email.utils import format_datetime

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from flower_vfl.accounting.ledger import Limit, PrivacyLedger
from flower_vfl.data.sources.catalog import prepare
from flower_vfl.data.store.parts import write_part
from flower_vfl.errors import ConfigError
from flower_vfl.simulations import host as checks
from flower_vfl.simulations.host import Host, findings
from flower_vfl.simulations.keys import write_keys
from tests.commands import flower_vfl


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in (
        "FLOWER_VFL_DATA",
        "FLOWER_VFL_LEDGER",
        "FLOWER_VFL_NOISE_KEY_FILE",
        "FLOWER_VFL_SECRET_FILE",
        "FLOWER_VFL_STATE",
    ):
        monkeypatch.delenv(name, raising=False)


def found(subject, **options):
    """Return the state and the text of the one finding on a subject."""
    hits = [finding[1:] for finding in findings(Host(**options)) if finding[0].startswith(subject)]
    assert len(hits) == 1, hits
    return hits[0]


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trial") / "keys"
    write_keys(folder, ["localhost"], ["a"], days=30)
    return folder


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    prepare("breast-cancer", source=None, out=root / "whole")
    for party in ("a", "b"):
        write_part(root / "whole", party, root / party)
    return root


@contextlib.contextmanager
def superlink(keys, *, clock=0.0, status=200, tls=True):
    """Answer to /health as a SuperLink does, with a clock that may be wrong."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response_only(status)
            now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=clock)
            self.send_header("Date", format_datetime(now, usegmt=True))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    class Quiet(http.server.ThreadingHTTPServer):
        def handle_error(self, *_):
            pass

    with Quiet(("127.0.0.1", 0), Answer) as server:
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(keys / "superlink" / "server.crt", keys / "superlink" / "server.key")
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(10)


# data


def test_a_partys_data_is_named_with_the_digest_that_every_host_must_have(parts):
    texts = {party: found("data", data=parts / party, party=party) for party in ("a", "b")}
    assert [state for state, _ in texts.values()] == ["ok", "ok"]
    assert "breast-cancer of a: 462 + 107 rows; alignment " in texts["a"][1]
    assert texts["a"][1].split("alignment ")[1] == texts["b"][1].split("alignment ")[1]


def test_the_label_partys_data_is_found_where_its_environment_says(parts, monkeypatch):
    monkeypatch.setenv("FLOWER_VFL_DATA", str(parts / "b"))
    assert found("data", party="b")[0] == "ok"


def test_a_key_that_cannot_sign_offers_is_found_before_a_run_needs_it(tmp_path, monkeypatch):
    monkeypatch.setenv("FLOWER_VFL_LABEL_KEY_FILE", str(tmp_path / "label.key"))
    state, words = found("FLOWER_VFL_LABEL_KEY_FILE", party="b")
    assert (state, "`ssh-keygen -t ed25519" in words) == ("wrong", True)


def test_a_folder_of_all_data_sets_is_nobodys_data(parts, monkeypatch):
    monkeypatch.setenv("FLOWER_VFL_DATASETS", str(parts))
    state, text = found("data", party="b")
    assert (state, text) == ("wrong", "none was named: --data FOLDER (or FLOWER_VFL_DATA on the label party's host)")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"party": "a"}, "none was named: --data FOLDER"),
        ({"party": "b", "data": "a"}, "holds the data of a, not of 'b': `flower-vfl data part FOLDER --party b"),
        ({"party": "a", "data": "nowhere"}, "is no prepared data set"),
    ],
)
def test_data_that_is_missing_or_of_another_party_is_reported_with_the_command(parts, options, words):
    state, text = found("data", party=options["party"], data=parts / options["data"] if "data" in options else None)
    assert state == "wrong"
    assert words in text


def test_data_that_changed_after_it_was_prepared_is_found(parts, tmp_path):
    folder = shutil.copytree(parts / "a", tmp_path / "a")
    with (folder / "a" / "train" / "numeric.npy").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    state, text = found("data", data=folder, party="a")
    assert state == "wrong"
    assert "is not as it was prepared" in text


@pytest.mark.parametrize(
    ("party", "others"), [("a", "none of party 'a': features of b, labels"), ("b", "none of party 'b': features of a")]
)
def test_a_folder_with_data_of_others_is_reported_with_the_command_that_writes_the_part(parts, party, others):
    state, text = found("data", data=parts / "whole", party=party)
    assert (state, f"{others}; nothing of others may lie on this host" in text) == ("wrong", True)
    assert f"flower-vfl data part {parts / 'whole'} --party {party} --out" in text
    assert found("data", data=parts / "whole")[0] == "ok"


# keys and certificates


def test_a_key_is_named_by_the_fingerprint_that_the_label_party_sees(keys):
    public = base64.b64decode((keys / "superlink" / "a.pub").read_text().split()[1])
    fingerprint = base64.b64encode(hashlib.sha256(public).digest()).decode().rstrip("=")
    state, text = found("key", key=keys / "a" / "a.key")
    assert (state, f"SHA256:{fingerprint}," in text) == ("ok", True)


def test_a_key_that_others_can_read_is_refused(keys, tmp_path):
    path = tmp_path / "a.key"
    shutil.copyfile(keys / "a" / "a.key", path)
    path.chmod(0o640)
    assert found("key", key=path) == ("wrong", f"other users of this host can use {path}: chmod 600 {path}")


def test_a_key_belongs_to_its_certificate_or_is_refused(keys, tmp_path):
    own = {"certificate": keys / "superlink" / "server.crt"}
    assert found("key", key=keys / "superlink" / "server.key", **own) == ("ok", "readable by its owner alone")
    write_keys(tmp_path / "other", ["x"], ["a"], days=1)
    state, text = found("key", key=tmp_path / "other" / "superlink" / "server.key", **own)
    assert (state, "is not the key of" in text) == ("wrong", True)


@pytest.mark.parametrize("content", [None, b"no certificate", "server.key"])
def test_a_key_without_a_certificate_that_can_be_read_is_reported_and_so_is_the_certificate(keys, tmp_path, content):
    path = keys / "superlink" / content if isinstance(content, str) else tmp_path / "server.crt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    given = {"key": keys / "superlink" / "server.key", "certificate": path}
    assert found("certificate", **given)[0] == "wrong"
    state, text = found("key", **given)
    assert (state, "which is no certificate that can be read" in text) == ("wrong", True)


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "a SuperLink's"])
def test_a_key_with_which_no_supernode_starts_is_reported(keys, tmp_path, kind):
    path = keys / "superlink" / "server.key"
    if kind != "a SuperLink's":
        made = ed25519.Ed25519PrivateKey.generate() if kind == "ed25519" else rsa.generate_private_key(65537, 2048)
        path = tmp_path / "node.key"
        path.write_bytes(made.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
        path.chmod(0o600)
    state, text = found("key", key=path)
    assert (state, "no SuperNode starts" in text) == ("wrong", True)
    assert "ssh-keygen -t ecdsa -b 384" in text


@pytest.mark.parametrize(("content", "words"), [(None, "cannot be read"), (b"no key", "holds no private key")])
def test_what_is_no_key_is_reported(tmp_path, content, words):
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    state, text = found("key", key=tmp_path / "key")
    assert (state, words in text) == ("wrong", True)


def shift_clock(monkeypatch, **shift):
    shifted = datetime.datetime.now(datetime.UTC) + datetime.timedelta(**shift)
    monkeypatch.setattr(checks, "_now", lambda: shifted)


@pytest.mark.parametrize(
    ("days", "state", "words"),
    [
        (0, "ok", "valid until"),
        (25, "optional", "have a new one made before then"),
        (31, "wrong", "have a new one made (`flower-vfl keys`); this host's clock says"),
        (-2, "wrong", "valid only from"),
    ],
)
def test_certificates_are_checked_against_this_hosts_clock_and_both_are_reported(keys, monkeypatch, days, state, words):
    shift_clock(monkeypatch, days=days)
    for options in ({"authority": keys / "a" / "ca.crt"}, {"certificate": keys / "superlink" / "server.crt"}):
        actual, text = found("root certificates" if "authority" in options else "certificate", **options)
        assert actual == state
        assert words in text
        assert ("timedatectl" in text) == (state == "wrong")


@pytest.mark.parametrize(("content", "words"), [(None, "cannot be read"), (b"no certificate", "no certificate in PEM")])
def test_what_is_no_certificate_is_reported(tmp_path, content, words):
    if content is not None:
        (tmp_path / "ca.crt").write_bytes(content)
    state, text = found("root", authority=tmp_path / "ca.crt")
    assert (state, words in text) == ("wrong", True)


# the SuperLink


def test_a_superlink_that_proves_itself_is_ok_and_so_is_the_clock(keys):
    with superlink(keys) as address:
        options = {"superlink": address, "authority": keys / "a" / "ca.crt"}
        assert found("SuperLink", **options)[0] == "ok"
        assert found("clock", **options) == ("ok", "agrees with the SuperLink's")


@pytest.mark.parametrize(("clock", "words"), [(-60.5, "s ahead of"), (3600.0, "s behind")])
def test_a_clock_that_flower_would_not_tolerate_is_reported(keys, clock, words):
    with superlink(keys, clock=clock) as address:
        state, text = found("clock", superlink=address, authority=keys / "a" / "ca.crt")
    assert state == "wrong"
    assert words in text
    assert "timedatectl" in text


def test_a_clock_a_minute_behind_is_tolerated_as_flower_does(keys):
    with superlink(keys, clock=60.0) as address:
        assert found("clock", superlink=address, authority=keys / "a" / "ca.crt")[0] == "ok"


def test_the_tolerances_of_the_clock_are_flowers():
    from flwr.common import constant

    assert (checks._AHEAD, checks._BEHIND) == (constant.SYSTEM_TIME_TOLERANCE, constant.TIMESTAMP_TOLERANCE)


@pytest.mark.parametrize(
    ("host", "status", "state"),
    [
        *(("127.0.0.2", 0, None), ("10.0.0.9", 405, "wrong"), ("10.0.0.9", 403, "ok"), ("10.0.0.9", 404, "ok")),
        *(("10.0.0.9", 429, "wrong"), ("10.0.0.9", 503, "wrong"), ("10.0.0.9", 200, "wrong")),
    ],
)
def test_a_control_api_that_other_hosts_reach_is_reported(monkeypatch, host, status, state):
    answer = checks.httpx.Response(status or 200)
    monkeypatch.setattr(checks.httpx, "get", lambda url, **more: answer)
    reported = list(checks._control(f"{host}:9092", ssl.create_default_context()))
    assert [finding[1] for finding in reported] == ([] if state is None else [state])


def test_a_control_api_that_gives_no_answer_is_not_called_closed(monkeypatch):
    def silent(url, **more):
        raise checks.httpx.ReadTimeout("timed out")

    monkeypatch.setattr(checks.httpx, "get", silent)
    ((_, state, words),) = checks._control("10.0.0.9:9092", ssl.create_default_context())
    assert state == "wrong"
    assert "there was no answer" in words


def test_a_superlink_of_another_authority_is_reported(keys, tmp_path):
    write_keys(tmp_path / "other", ["localhost"], ["a"], days=1)
    with superlink(keys) as address:
        state, text = found("SuperLink", superlink=address, authority=tmp_path / "other" / "a" / "ca.crt")
    assert state == "wrong"
    assert "not signed by this authority" in text
    assert "ask the label party for the ca.crt" in text


def test_an_expired_certificate_is_reported_with_its_date_and_this_hosts(tmp_path):
    write_keys(tmp_path / "old", ["localhost"], ["a"], days=0)
    with superlink(tmp_path / "old") as address:
        state, text = found("SuperLink", superlink=address, authority=tmp_path / "old" / "a" / "ca.crt")
    assert state == "wrong"
    assert "its certificate is not valid now: expired on" in text
    assert "this host's clock says" in text


def test_a_certificate_for_other_names_is_reported(keys):
    with superlink(keys) as address, pytest.MonkeyPatch.context() as patch:
        genuine = socket.getaddrinfo
        patch.setattr(socket, "getaddrinfo", lambda name, *more, **kw: genuine("127.0.0.1", *more, **kw))
        other = f"other.example:{address.partition(':')[2]}"
        state, text = found("SuperLink", superlink=other, authority=keys / "a" / "ca.crt")
    assert state == "wrong"
    assert "for other names: dial it as the certificate says, or have one made with --host other.example" in text


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"tls": False}, "does not speak TLS there"),
        ({"status": 404}, "what answers there is no SuperLink (404)"),
        ({"status": 502}, "the proxy answers, and the SuperLink behind it does not"),
    ],
)
def test_what_is_no_superlink_is_reported(keys, how, words):
    with superlink(keys, **how) as address:
        state, text = found("SuperLink", superlink=address, authority=keys / "a" / "ca.crt")
    assert (state, words in text) == ("wrong", True)


def test_a_superlink_that_nobody_started_is_wrong_and_without_an_authority_nothing_is_sure(keys):
    with superlink(keys) as address:
        assert "without --root-certificates nobody can tell" in found("SuperLink", superlink=address)[1]
    state, text = found("SuperLink", superlink=address, authority=keys / "a" / "ca.crt")
    assert (state, "that host refuses" in text) == ("wrong", True)


# addresses


def test_an_address_where_something_listens_is_reachable_and_not_free():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert found("dial", dial=address)[0] == "ok"
        state, text = found("listen", listen=address)
        assert (state, "the port is in use: `ss -ltnp" in text) == ("wrong", True)
    assert found("listen", listen=address)[0] == "ok"
    state, text = found("dial", dial=address)  # before a run, nothing listens for sessions
    assert (state, "only while a run waits for its parties" in text) == ("optional", True)


def test_a_firewall_that_drops_is_told_apart_from_a_name_that_nobody_knows(monkeypatch):
    state, text = found("dial", dial="no-such-host.invalid:443")
    assert (state, "does not know the name 'no-such-host.invalid'" in text) == ("wrong", True)

    def dropped(*_):
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", dropped)
    state, text = found("dial", dial="192.0.2.1:443")
    assert state == "wrong"
    assert "a firewall drops it, or the address is wrong. Open port 443 at 192.0.2.1 for this host" in text


@pytest.mark.parametrize("name", ["a..b", "." + "x" * 64, "x" * 64])
def test_an_impossible_host_name_is_reported_as_unknown(name, keys):
    options = {"superlink": f"{name}:9092", "authority": keys / "a" / "ca.crt"}
    for subject, given in {
        "dial": {"dial": f"{name}:9093"},
        "listen": {"listen": f"{name}:9093"},
        "Super": options,
    }.items():
        state, text = found(subject, **given)
        assert (state, f"does not know the name {name!r}" in text) == ("wrong", True)


def test_an_address_of_another_host_cannot_be_listened_at():
    state, text = found("listen", listen="192.0.2.1:9000")
    assert (state, "192.0.2.1 is no address of this host" in text) == ("wrong", True)


@pytest.mark.parametrize("address", ["localhost", "https://x:1", "x:", "x:0", "x:70000", "::1:80", "[::1]", "a b:1"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(ConfigError, match=r"give HOST:PORT without https://"):
        list(findings(Host(dial=address)))


# the environment and the command line


@pytest.mark.parametrize(
    ("variable", "words"),
    [("FLOWER_VFL_SECRET_FILE", "it fixes all noise"), ("FLOWER_VFL_NOISE_KEY_FILE", "the same in all runs")],
)
def test_a_secret_file_that_cannot_be_used_is_found_before_the_run(tmp_path, monkeypatch, variable, words):
    monkeypatch.setenv(variable, str(tmp_path / "secret"))
    assert found(variable)[0] == "wrong"
    (tmp_path / "secret").write_bytes(bytes(32))
    state, text = found(variable)
    assert (state, words in text) == ("ok", True)


def test_a_ledger_is_checked_and_its_spent_epsilon_is_shown(tmp_path, monkeypatch):
    path = tmp_path / "ledger.json"
    monkeypatch.setenv("FLOWER_VFL_LEDGER", str(path))
    assert found("FLOWER_VFL_LEDGER")[0] == "wrong"
    PrivacyLedger.create(path, Limit(4.0))
    state, text = found("FLOWER_VFL_LEDGER")
    assert (state, "epsilon 0 of 4 is spent" in text) == ("ok", True)


def test_a_state_folder_that_nobody_can_write_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("FLOWER_VFL_STATE", str(tmp_path / "new" / "state"))
    assert found("FLOWER_VFL_STATE")[0] == "ok"
    monkeypatch.setattr(checks.os, "access", lambda path, mode: path != tmp_path)
    assert "chown it" in found("FLOWER_VFL_STATE")[1]


@pytest.mark.parametrize(("party", "code", "words"), [("a", 0, "everything that is needed"), ("b", 1, "1 to mend")])
def test_the_exit_code_says_whether_the_host_is_ready(parts, party, code, words):
    done = flower_vfl("doctor", "--party", party, "--data", parts / "a")
    assert done.returncode == code, done.stderr
    assert words in done.stdout
