"""Faults that a process of the campaign injects into itself at planned moments."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flower_vfl.parties.feature import FeatureParty
from flower_vfl.protocol.frame import Frame
from flower_vfl.transport.inproc import InprocLink
from flower_vfl.transport.messages import MessagesLink
from flower_vfl.transport.stream import StreamLink
from tests.transport.proxies import Line

LABEL = "label"
WRITE = "write"
"""Phase in which a file replaces its earlier version."""

KILL, FULL, CUT, HOLD = "kill", "full", "cut", "hold"
"""SIGKILL; no file can grow beyond `size` bytes; the connections of one line are reset, or stay silent."""

EVENTS = "events.jsonl"


@dataclass(frozen=True)
class Fault:
    """A fault of one party, injected the first time that it reaches a phase at a step or later.

    A phase is the kind of a frame, which the label party sends and a feature party handles, or a file that is written.
    """

    party: str
    phase: str
    step: int
    after: bool
    do: str
    size: int = 0

    def write(self, plan: Path, number: int) -> None:
        """Write the fault into the folder of the plan."""
        (plan / f"{number:04d}-{self.party}.json").write_text(json.dumps(asdict(self)))


def log_event(plan: Path, who: str, what: str, **more: Any) -> None:
    """Append an event with its time, by a clock that all processes of the machine share.

    A kill may have cut off the last line, so each event begins on a new one.
    """
    line = "\n" + json.dumps({"at": time.monotonic(), "who": who, "what": what, **more}) + "\n"
    handle = os.open(plan / EVENTS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(handle, line.encode())
    os.close(handle)


class Injector:
    """Injects the faults of the parties of this process, each once."""

    def __init__(self, plan: Path, parties: tuple[str, ...], lines: list[Line]) -> None:
        self._plan, self._parties, self._lines = plan, parties, lines
        self._steps = dict.fromkeys(parties, 0)
        self._lock = threading.RLock()

    def reach(self, party: str, phase: str, *, after: bool, step: int | None = None) -> None:
        """Note the phase of a party, and inject its next fault if it is due."""
        with self._lock:
            if step is not None and step >= 0:
                self._steps[party] = step
            for path in sorted(self._plan.glob(f"*-{party}.json"))[:1]:
                fault = Fault(**json.loads(path.read_text()))
                if (fault.phase, fault.after) == (phase, after) and self._steps[party] >= fault.step:
                    path.unlink()
                    self._inject(fault)

    def reach_write(self, *, after: bool) -> None:
        """Note that a file is written, which any party of this process may have done."""
        for party in self._parties:
            self.reach(party, WRITE, after=after)

    def _inject(self, fault: Fault) -> None:
        log_event(self._plan, fault.party, fault.do, phase=fault.phase, step=self._steps[fault.party])
        if fault.do == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.do == FULL:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (fault.size, fault.size))
        elif self._lines:
            seed = self._steps[fault.party]
            line = random.Random(seed).choice(self._lines)
            threading.Thread(target=line.cut if fault.do == CUT else lambda: _silence(line), daemon=True).start()


def _silence(line: Line) -> None:
    line.held.set()
    time.sleep(0.5)  # connections that are opened later are not silent
    line.held.clear()


def inject_faults(plan: Path, parties: tuple[str, ...], lines: list[Line]) -> None:
    """Inject the faults of these parties when they send, handle or write."""
    injector = Injector(plan, parties, lines)
    _wrap_replace(injector)
    if LABEL in parties:
        for link in (InprocLink, StreamLink, MessagesLink):
            _wrap_send(injector, link)
    handle, hello = FeatureParty.handle, FeatureParty.hello

    def greeted(party: FeatureParty) -> Frame:
        injector.reach(party.name, "hello", after=False)
        return hello(party)

    def handled(party: FeatureParty, frame: Frame) -> Frame | None:
        injector.reach(party.name, frame.kind, after=False, step=party._next_step)
        answer = handle(party, frame)
        injector.reach(party.name, frame.kind, after=True, step=party._next_step)
        return answer

    FeatureParty.handle, FeatureParty.hello = handled, greeted


def _wrap_send(injector: Injector, link: Any) -> None:
    send: Callable[[Any, Frame], None] = link.send

    def sent(self: Any, frame: Frame) -> None:
        step = frame.fields.get("gradient_of", frame.step if frame.kind in ("save", "restore") else -1)
        injector.reach(LABEL, frame.kind, after=False, step=step)
        send(self, frame)
        injector.reach(LABEL, frame.kind, after=True)

    link.send = sent


def _wrap_replace(injector: Injector) -> None:
    replace = os.replace

    def replaced(*args: Any, **kwargs: Any) -> None:
        injector.reach_write(after=False)
        replace(*args, **kwargs)
        injector.reach_write(after=True)

    os.replace = replaced
