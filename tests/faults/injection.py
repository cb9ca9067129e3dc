"""Faults that a process does to itself at a moment that was chosen before: what the campaign arms its parties with."""

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
"""The moment in which a file takes the place of the one before."""

KILL, FULL, CUT, HOLD = "kill", "full", "cut", "hold"
"""SIGKILL; no file can grow beyond so many bytes; every line is reset; the lines fall silent for ever."""

EVENTS = "events.jsonl"


@dataclass(frozen=True)
class Fault:
    """What happens to whom, and when: the first time that the phase is reached after so many steps.

    A phase is the kind of a frame, which the label party sends and a feature party handles, or a file that is written.
    """

    party: str
    phase: str
    step: int
    after: bool
    do: str
    size: int = 0

    def write(self, plan: Path, number: int) -> None:
        """Put it into the plan."""
        (plan / f"{number:04d}-{self.party}.json").write_text(json.dumps(asdict(self)))


def tell(plan: Path, who: str, what: str, **more: Any) -> None:
    """Write down what happened and when, on a clock that all processes of the machine share.

    A kill may have left a part of a line, so each begins on one of its own.
    """
    line = "\n" + json.dumps({"at": time.monotonic(), "who": who, "what": what, **more}) + "\n"
    handle = os.open(plan / EVENTS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(handle, line.encode())
    os.close(handle)


class Striker:
    """The faults of the parties that live in this process; each strikes once, whatever dies of it."""

    def __init__(self, plan: Path, parties: tuple[str, ...], lines: list[Line]) -> None:
        self._plan, self._parties, self._lines = plan, parties, lines
        self._steps = dict.fromkeys(parties, 0)
        self._lock = threading.RLock()

    def reach(self, party: str, phase: str, *, after: bool, step: int | None = None) -> None:
        """Say where a party is; its next fault strikes if its time has come."""
        with self._lock:
            if step is not None and step >= 0:
                self._steps[party] = step
            for path in sorted(self._plan.glob(f"*-{party}.json"))[:1]:
                fault = Fault(**json.loads(path.read_text()))
                if (fault.phase, fault.after) == (phase, after) and self._steps[party] >= fault.step:
                    path.unlink()
                    self._strike(fault)

    def reach_write(self, *, after: bool) -> None:
        """Say that a file is written, which any party of this process may have done."""
        for party in self._parties:
            self.reach(party, WRITE, after=after)

    def _strike(self, fault: Fault) -> None:
        tell(self._plan, fault.party, fault.do, phase=fault.phase, step=self._steps[fault.party])
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
    time.sleep(0.5)  # whoever dials after that is through
    line.held.clear()


def arm(plan: Path, parties: tuple[str, ...], lines: list[Line]) -> None:
    """Let the parties of this process strike when they send, handle or write."""
    striker = Striker(plan, parties, lines)
    _around_replacing(striker)
    if LABEL in parties:
        for link in (InprocLink, StreamLink, MessagesLink):
            _around_sending(striker, link)
    handle, hello = FeatureParty.handle, FeatureParty.hello

    def greeted(party: FeatureParty) -> Frame:
        striker.reach(party.name, "hello", after=False)
        return hello(party)

    def handled(party: FeatureParty, frame: Frame) -> Frame | None:
        striker.reach(party.name, frame.kind, after=False, step=party._next_step)
        answer = handle(party, frame)
        striker.reach(party.name, frame.kind, after=True, step=party._next_step)
        return answer

    FeatureParty.handle, FeatureParty.hello = handled, greeted


def _around_sending(striker: Striker, link: Any) -> None:
    send: Callable[[Any, Frame], None] = link.send

    def sent(self: Any, frame: Frame) -> None:
        step = frame.fields.get("gradient_of", frame.step if frame.kind in ("save", "restore") else -1)
        striker.reach(LABEL, frame.kind, after=False, step=step)
        send(self, frame)
        striker.reach(LABEL, frame.kind, after=True)

    link.send = sent


def _around_replacing(striker: Striker) -> None:
    replace = os.replace

    def replaced(*args: Any, **kwargs: Any) -> None:
        striker.reach_write(after=False)
        replace(*args, **kwargs)
        striker.reach_write(after=True)

    os.replace = replaced
