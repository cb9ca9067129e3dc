"""Recordings of all that leaves the label party in one run: messages, frames, and the parties' logs, errors and files.

The run is a deployment in one process: nodes whose owners named their party and their folders, no audit channel,
secrets from a file. Random values that depend on no data (sessions, tokens, certificates) are equal in each run or left
out.
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context, RecordDict
from flwr.clientapp import ClientApp
from safetensors import safe_open

from flower_vfl.apps import make_client_app, make_server_app
from flower_vfl.apps.local_grid import LocalGrid
from flower_vfl.config import Config, to_run_config
from flower_vfl.config.parsing import Value
from flower_vfl.data.store.memory import MemoryData
from flower_vfl.transport.inproc import InprocLink
from flower_vfl.transport.stream import StreamEndpoint

_RANDOM = ("address", "server-name", "token", "authority", "certificate", "key")
"""Fields of an offer that the operating system draws before any data is read."""

_CHANGING = re.compile(r'"seconds_compute", [0-9.e+-]+|"seconds_compute": [0-9.e+-]+|127\.0\.0\.1:\d+')
"""Times and ports, which differ between runs."""

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----\n")
"""Certificate of a key that the party drew, in the first message of a stream."""


def fix_randomness(monkeypatch: Any, folder: Path) -> None:
    """Give the secrets and the tokens of all runs the same values."""
    secret = folder / "secret"
    secret.write_bytes(b"as secret as can be in this test")
    monkeypatch.setenv("FLOWER_VFL_SECRET_FILE", str(secret))
    monkeypatch.setenv("FLOWER_VFL_STATE", str(folder / "state"))
    for module in ("flower_vfl.transport.sessions", "flower_vfl.apps.run_state", "flower_vfl.apps.alignment.label"):
        monkeypatch.setattr(f"{module}.secrets", _ConstantSecrets)


class _ConstantSecrets:
    """A replacement of the module `secrets` with constant tokens."""

    randbelow = staticmethod(secrets.randbelow)

    @staticmethod
    def token_hex(count: int) -> str:
        return "5e" * count

    @staticmethod
    def token_bytes(count: int) -> bytes:
        return b"\x5e" * count


@dataclass
class Recording:
    """All that left the label party in one run.

    Attributes
    ----------
    parties : dict[str, list[object]]
        Messages, frames and ends of streams that each feature party received, in order.
    logs : dict[str, list[str]]
        Log messages and errors of each feature party.
    files : dict[str, object]
        Contents of the feature parties' files, by path.
    error : str
        Error that ended the run at the label party; it stays there.
    """

    parties: dict[str, list[object]] = field(default_factory=lambda: defaultdict(list))
    logs: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    files: dict[str, object] = field(default_factory=dict)
    error: str = ""

    @property
    def kinds(self) -> dict[str, list[str]]:
        """Kinds of the messages and frames that each party received; with ``inproc``."""
        return {party: [entry[0] for entry in entries] for party, entries in self.parties.items()}


def differences(one: Recording, other: Recording) -> list[str]:
    """Return the first difference in each party's entries, and the files that differ."""
    found = []
    for name in ("parties", "logs"):
        left, right = getattr(one, name), getattr(other, name)
        for party in sorted(left.keys() | right.keys()):
            for index, (mine, yours) in enumerate(zip(left[party], right[party], strict=False)):
                if mine != yours:
                    found.append(f"{party} {name} {index}: {mine!r:.300} | {yours!r:.300}")
                    break
            else:
                if len(left[party]) != len(right[party]):
                    found.append(f"{party} {name}: {len(left[party])} | {len(right[party])} entries")
    for path in sorted(one.files.keys() | other.files.keys()):
        if one.files.get(path) != other.files.get(path):
            found.append(f"file {path}")
    return found


class Deployed(LocalGrid):
    """A grid whose nodes are separate hosts for the apps; it records pushed messages and the handlers' errors."""

    simulation = False

    def __init__(
        self, client: ClientApp, config: Mapping[str, Value], hosts: Mapping[str, Path], record: Recording
    ) -> None:
        super().__init__(client, len(hosts), config)
        self.record, self._names = record, dict(zip(self._contexts, hosts, strict=True))
        self.threads: dict[int, str] = {}
        for node, (party, host) in zip(self._contexts, hosts.items(), strict=True):
            self._contexts[node].node_config = {
                "party": party,
                "train-epochs": 1000,
                "out": str(host / "out"),
                "predict-rows-per-day": 10_000,
                "ids": str(host / "people.csv"),
                "alignment": str(host / "alignment.parquet"),
                "align-method": str(config.get("align-method", "psi")),
            }

    def party_of(self, node: str) -> str:
        """Return the party of a node."""
        return self._names[int(node)]

    def push_messages(self, messages: Any) -> Any:
        """Record messages before they are pushed."""
        messages = list(messages)
        for message in messages:
            data = message.metadata
            entry = ("message", data.message_type, data.ttl, data.group_id, _contents(message.content))
            self.record.parties[self._names[data.dst_node_id]].append(entry)
        return super().push_messages(messages)

    def _handle(self, message: Any) -> None:
        party = self._names[message.metadata.dst_node_id]
        self.threads[threading.get_ident()] = party
        failures = len(self.failures)
        super()._handle(message)
        mine = self._replies.get(message.metadata.message_id)
        if len(self.failures) > failures and mine is not None and mine.has_error():
            self.record.logs[party].append(_without_times(mine.error.reason))
        self.threads.pop(threading.get_ident(), None)


class _PartyLog(logging.Handler):
    """A logging handler that records the messages of the parties' threads."""

    def __init__(self, grid: Deployed) -> None:
        super().__init__(logging.DEBUG)
        self._grid = grid

    def emit(self, record: logging.LogRecord) -> None:
        party = self._grid.threads.get(record.thread or 0)
        if party is not None:
            self._grid.record.logs[party].append(_without_times(record.getMessage()))


def _without_times(text: str) -> str:
    return _CHANGING.sub("...", text)


def _contents(content: RecordDict) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            found[name] = [(key, a.dtype, tuple(a.shape), a.stype, bytes(a.data)) for key, a in record.items()]
        else:
            found[name] = [(key, "random" if key in _RANDOM else value) for key, value in record.items()]
    return found


def record_transports(monkeypatch: Any) -> list[Deployed]:
    """Record at every transport; return a list that must hold the grid of the current run."""
    grids: list[Deployed] = []
    send, end, refuse, serve = InprocLink.send, InprocLink.close, InprocLink.refuse, StreamEndpoint._serve

    def sent(link: InprocLink, frame: Any) -> None:
        tensors = [(name, str(t.dtype), tuple(t.shape), t.numpy().tobytes()) for name, t in frame.tensors.items()]
        grids[0].record.parties[link.party].append((str(frame.kind), frame.step, list(frame.fields.items()), tensors))
        send(link, frame)

    def ended(link: InprocLink) -> None:
        if not link.closed.is_set():
            grids[0].record.parties[link.party].append(("end", link.refusal))
        end(link)

    def refused(link: InprocLink, reason: str) -> None:
        grids[0].record.parties[link.party].append(("refused", reason))
        refuse(link, reason)

    def served(endpoint: StreamEndpoint, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        party = grids[0].party_of(context.auth_context()["x509_common_name"][0].decode())
        mine = grids[0].record.parties[party]
        abort = context.abort

        def aborted(code: Any, details: str) -> None:
            mine.append(("aborted", str(code), details))
            abort(code, details)

        context.abort = aborted
        for message in serve(endpoint, requests, context):
            # The first 8 bytes count the party's own messages that have arrived.
            mine.append(("bytes", _CERTIFICATE.sub(b"random", message[8:])))
            yield message
        mine.append(("end", ""))

    monkeypatch.setattr(InprocLink, "send", sent)
    monkeypatch.setattr(InprocLink, "close", ended)
    monkeypatch.setattr(InprocLink, "refuse", refused)
    monkeypatch.setattr(StreamEndpoint, "_serve", served)
    return grids


class Recorder:
    """Runs jobs with different labels on the same hosts, and records each of them.

    Parameters
    ----------
    monkeypatch
        Fixture that undoes the patches after the test.
    folder : Path
        Parent of the hosts' folders, which are empty at the beginning of each job.
    """

    def __init__(self, monkeypatch: Any, folder: Path) -> None:
        fix_randomness(monkeypatch, folder)
        self._grids, self._folder, self._done = record_transports(monkeypatch), folder, 0

    @property
    def hosts(self) -> dict[str, Path]:
        """Folder of each feature party's host."""
        return {party: self._folder / "hosts" / party for party in ("a", "b")}

    def begin(self) -> None:
        """Move the folders of the last job's hosts away, and create empty ones."""
        if (self._folder / "hosts").exists():
            self._done += 1
            (self._folder / "hosts").rename(self._folder / f"hosts-{self._done}")
        for host in self.hosts.values():
            host.mkdir(parents=True)

    def train(self, config: Config, data: MemoryData, blind: MemoryData) -> Recording:
        """Train from the beginning: the label party with `data`, the others with `blind`, which has no labels."""
        self.begin()
        return self._run(config, data, blind, to_run_config(config), out=self._folder / "hosts" / "label")

    def predict(self, config: Config, data: MemoryData, blind: MemoryData) -> Recording:
        """Score the test rows with the model of the last `train`."""
        run = self._folder / "hosts" / "label"
        request = {"job": "predict", "predict-run": str(run), "predict-out": str(run / "scores.csv")}
        return self._run(None, data, blind, {**to_run_config(config), **request})

    def align(self, config: Config) -> Recording:
        """Align the IDs of the hosts."""
        return self._run(config, None, None, {**to_run_config(config), "job": "align"})

    def _run(
        self,
        config: Config | None,
        data: MemoryData | None,
        blind: MemoryData | None,
        run_config: Mapping[str, Value],
        out: Path | None = None,
    ) -> Recording:
        recording = Recording()
        server = make_server_app(config=config, out=out, data=lambda _: data)
        client = make_client_app(config=config, data=lambda _: blind)
        grid = Deployed(client, run_config, self.hosts, recording)
        self._grids[:] = [grid]
        handler, root = _PartyLog(grid), logging.getLogger()
        root.addHandler(handler)
        try:
            server(grid, Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=dict(run_config)))
        except Exception as error:  # noqa: BLE001 - the error is a part of the recording
            recording.error = f"{type(error).__name__}: {error}"
        finally:
            grid.join(20.0)
            root.removeHandler(handler)
        for party, host in self.hosts.items():
            for path in sorted(host.rglob("*")):
                recording.files[f"{party}/{path.relative_to(host)}"] = _content(path)
        return recording


def _content(path: Path) -> object:
    """Return the content of a file, without times."""
    if path.is_dir():
        return "folder"
    if path.suffix != ".safetensors":
        return path.read_bytes()
    with safe_open(path, framework="np") as file:
        tensors = {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118 - not a dictionary
        return tensors, _without_times(str(sorted((file.metadata() or {}).items())).replace('\\"', '"'))
