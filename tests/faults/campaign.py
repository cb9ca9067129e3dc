"""A campaign of faults: parties are killed, disks fill, lines break, strangers flood, and no result may change.

``python -m tests.faults.campaign --kills 200 --seed 1`` disturbs one run after another until 200 parties were killed
(SIGKILL), and prints one line of JSON: the injected faults, the broken runs, and the seconds until training continued.
The same seed injects the same faults. The folder of a broken run is kept, with the output of its processes.

``--connections 10000`` has a stranger hold 10,000 connections to the session port during each run over streams, and
``--frames 1000000`` feeds mutated frames to both ends between the runs. ``--record FILE`` stores the counts after each
run, and the same command continues from them; ``--minutes`` limits a sitting. The next sitting disturbs broken runs
again and lists those that then end correctly under ``mended``.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import random
import re
import shutil
import signal
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict

from flower_vfl.apps.client_app import make_client_app
from flower_vfl.apps.factories import open_data
from flower_vfl.apps.folder import check_folder
from flower_vfl.apps.local import run
from flower_vfl.apps.local_grid import LocalGrid
from flower_vfl.apps.server_app import make_server_app
from flower_vfl.attacks.embedding import model_completion
from flower_vfl.config import build_config, to_run_config
from flower_vfl.data.store.memory import VerticalData
from flower_vfl.strategies import Observer
from flower_vfl.transport.stream import StreamEndpoint
from tests.faults import fuzzing
from tests.faults.common import ATTACKER_EPOCHS, STEPS, TRANSPORTS, assert_same, setup
from tests.faults.flooding import flooding
from tests.faults.injection import CUT, EVENTS, FULL, HOLD, KILL, LABEL, WRITE, Fault, inject_faults, log_event
from tests.faults.processes import Case, ProcessGrid, fork, start_fork_server
from tests.transport.proxies import Line

PHASES = {"hello": 1, "step": 6, "save": 4, "evaluate": 3, "restore": 3, "finish": 2, WRITE: 6}
"""Phases of a run, with their weights in the draw."""

ENDPOINT = "endpoint"
"""File in the folder of a plan with the current address of the label party."""

FRAMES_AT_ONCE = 50_000
"""Number of mutated frames between two runs."""

MAX_STARTS = 60
"""Number of starts of the label party after which a run counts as one that does not end."""


class Progress(Observer):
    """An observer that logs an event after each step and each epoch."""

    def __init__(self, plan: Path) -> None:
        self._plan = plan

    def on_step(self, step: int, epoch: int, loss: float, leak: float) -> None:
        log_event(self._plan, LABEL, "step", step=step)

    def on_epoch(self, step: int, epoch: int, metrics: Mapping[str, float]) -> None:
        log_event(self._plan, LABEL, "epoch", step=step)


def draw(generator: random.Random, transport: str = "") -> tuple[str, list[Fault], float]:
    """Draw a run: its transport, unless one is given, its faults, and the delay of its lines in seconds."""
    # With messages a run takes ten times as long.
    transport = transport or generator.choices(list(TRANSPORTS), (3, 6, 1))[0]
    faults = []
    for _ in range(generator.randrange(8, 17)):
        phase = generator.choices(list(PHASES), list(PHASES.values()))[0]
        party = generator.choices((LABEL, "a", "b"), (4, 3, 3))[0]
        step = generator.randrange(STEPS) if phase in ("step", "save", "evaluate", WRITE) else 0
        do = generator.choices((KILL, FULL), (12, 1))[0]
        after = generator.random() < 0.5
        if phase == "hello":
            party, after = generator.choice("ab"), False
        faults.append(Fault(party, phase, step, after, do, generator.choice((0, 100, 4000))))
    delay = 0.0
    if transport == "stream":
        delay = generator.choice((0.0, 0.0, 0.005))
        for _ in range(generator.randrange(4)):
            do = generator.choices((CUT, HOLD), (3, 1))[0]
            faults.append(Fault(LABEL, "step", generator.randrange(STEPS), generator.random() < 0.5, do))
    return transport, sorted(faults, key=lambda fault: fault.step), delay


def run_label_party(case: Case, fork_server: str, data: VerticalData, delay: float) -> None:
    """Run the label party in this process; with ``inproc`` all parties."""
    lines: list[Line] = []
    offer = StreamEndpoint.offer

    def over_a_line(endpoint: StreamEndpoint, node: str) -> dict[str, str | bytes | int]:
        lines.append(Line(endpoint.address, delay=delay))
        (case.plan / f"{ENDPOINT}.new").write_text(endpoint.address)
        (case.plan / f"{ENDPOINT}.new").replace(case.plan / ENDPOINT)
        return {**offer(endpoint, node), "address": lines[-1].address}

    StreamEndpoint.offer = over_a_line
    config, run_config = case.config, to_run_config(case.config)
    in_process = config.transport.kind == "inproc"
    inject_faults(case.plan, (LABEL, *case.parties) if in_process else (LABEL,), lines)
    if not check_folder(case.out, config, resume=True):
        return
    server = make_server_app(
        config=config, data=lambda _: data, out=case.out, resume=True, observers=(Progress(case.plan),)
    )
    if in_process:
        client = make_client_app(config=config, data=lambda _: data)
        grid = LocalGrid(client, len(case.parties), run_config)
    else:
        grid = ProcessGrid(case, fork_server, run_config)
    server(grid, Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=run_config))


def run_to_end(case: Case, fork_server: str, data: VerticalData, delay: float) -> str:
    """Start a run again and again until it has ended; return the reason of a failure, else an empty text."""
    log = case.plan / "label.log"
    for _ in range(MAX_STARTS):
        before = len(events(case.plan))
        child = fork(log, lambda: run_label_party(case, fork_server, data, delay))
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == 0:
            return ""
        if not any(event["what"] in (KILL, FULL) for event in events(case.plan)[before:]):
            return f"it ended with {code}, and nothing had been done to it"
        if code not in (-signal.SIGKILL, 1):
            return f"it ended with {code}"
    return f"it did not end within {MAX_STARTS} starts"


def events(plan: Path) -> list[dict[str, Any]]:
    """Return the events of a run so far, without one that a kill has cut off."""
    path = plan / EVENTS
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def recoveries(found: list[dict[str, Any]]) -> list[tuple[str, float]]:
    """Return each killed party and the seconds until a step or an evaluation was complete, if no kill came between."""
    seconds = []
    for index, event in enumerate(found):
        if event["what"] == KILL:
            later = [after["at"] for after in found[index + 1 :] if after["what"] in ("step", "epoch")]
            if later and not any(after["what"] == KILL and after["at"] < later[0] for after in found[index + 1 :]):
                seconds.append((event["who"], later[0] - event["at"]))
    return seconds


class Campaign:
    """A series of disturbed runs, each of which is compared with an undisturbed one."""

    def __init__(self, root: Path, seed: int, transport: str = "", connections: int = 0) -> None:
        self._root, self._seed, self._transport, self._connections = root, seed, transport, connections
        self.data = open_data(build_config(setup()))
        model_completion.MOST_EPOCHS = ATTACKER_EPOCHS  # before its processes are forked
        run(build_config(setup()))  # loads what is imported at first use, before hundreds of processes are forked
        self._fork_server = str(root / "fork-server")
        self._fork_server_id = start_fork_server(self._fork_server, self.data, root / "fork-server.log")
        self.struck: Counter[str] = Counter()
        self.seconds: list[tuple[str, float, str]] = []
        self.broken: list[str] = []
        self.mended: list[str] = []
        self.flood: Counter[str] = Counter()
        self._undisturbed_runs: dict[str, Path] = {}

    def close(self) -> None:
        """End the fork server."""
        os.kill(self._fork_server_id, signal.SIGKILL)
        os.waitpid(self._fork_server_id, 0)

    def _case(self, name: str, transport: str) -> Case:
        values = setup(transport)
        values["transport"] = {**values["transport"], "reconnect_timeout": 10.0, "rejoin_timeout": 60.0}
        plan = self._root / name / "plan"
        plan.mkdir(parents=True)
        return Case(build_config(values), plan, self._root / name / "run")

    def _undisturbed(self, transport: str) -> Path:
        """Return the folder of the undisturbed run over a transport; the first call executes it."""
        if transport not in self._undisturbed_runs:
            case = self._case(f"alone-{transport}", transport)
            failure = run_to_end(case, self._fork_server, self.data, 0.0)
            if failure:
                raise RuntimeError(f"{transport}: {failure}; see {case.plan}")
            self._undisturbed_runs[transport] = case.out
        return self._undisturbed_runs[transport]

    def _run_to_end(self, case: Case, delay: float, flood: int | None) -> str:
        """Run a case to its end, in a flood of this seed unless it is None; return as `run_to_end`."""
        if not self._connections or flood is None:
            return run_to_end(case, self._fork_server, self.data, delay)
        with flooding(str(case.plan / ENDPOINT), self._connections, seed=flood) as (_, counts):
            failure = run_to_end(case, self._fork_server, self.data, delay)
        for name, count in counts.items():
            before = self.flood[name]
            self.flood[name] = max(before, int(count)) if name == "most open" else before + int(count)
        self.flood["runs"] += 1
        return failure

    def disturb(self, number: int) -> None:
        """Disturb one run, and compare its results with those of an undisturbed one."""
        transport, faults, delay = draw(random.Random(f"{self._seed}-{number}"), self._transport)
        case = self._case(f"run-{number}", transport)
        for position, fault in enumerate(faults):
            fault.write(case.plan, position)
        failure = self._run_to_end(case, delay, number if transport == "stream" else None)
        if not failure:
            try:
                assert_same(case.out, self._undisturbed(transport))
            except Exception as error:  # noqa: BLE001 - any error is a finding
                failure = f"{type(error).__name__}: {error}"[:1000]
        found = events(case.plan)
        self.seconds += [
            (LABEL if who == LABEL or transport == "inproc" else "party", took, f"run {number}")
            for who, took in recoveries(found)
        ]
        for event in found:
            if "phase" in event:
                who = "label" if event["who"] == LABEL else "party"
                self.struck.update([event["what"], f"{event['what']} {transport} {who} {event['phase']}"])
        if failure:
            self.broken.append(f"run {number} ({transport}), kept in {case.out.parent}: {failure}")
        else:
            shutil.rmtree(case.out.parent, ignore_errors=True)  # a party that lost its label party may still be there

    def repeat_broken(self) -> None:
        """Disturb the broken runs of earlier sittings again; those that now end correctly are mended."""
        before, self.broken = self.broken, []
        for text in before:
            found, count = re.match(r"run (\d+) ", text), len(self.broken)
            if found is None:
                self.broken.append(text)
                continue
            self.disturb(int(found[1]))
            if len(self.broken) == count:
                self.mended.append(re.sub(", kept in [^:]*", "", text))  # that folder is of no use any more

    def summary(self) -> dict[str, object]:
        """Return the counts of faults, the broken and mended runs, and the recovery times."""
        times = {who: sorted((took, run) for one, took, run in self.seconds if one == who) for who in (LABEL, "party")}
        return {
            "seed": self._seed,
            "struck": dict(sorted(self.struck.items())),
            "recovery_seconds": {
                who: {
                    "median": round(statistics.median(took for took, _ in values), 2),
                    "worst": [(round(took, 2), run) for took, run in values[-3:]],
                    "of": len(values),
                }
                for who, values in times.items()
                if values
            },
            "broken": self.broken,
            "mended": self.mended,
        }


class Record:
    """The counts of a campaign over all its sittings, stored in a file if one is named."""

    def __init__(self, path: Path | None, settings: dict[str, object]) -> None:
        self._path = path
        self.runs, self.frames, self.taken, self.sittings, self.minutes = 0, 0, 0, 1, 0.0
        self._settings = settings
        self._old: dict[str, Any] = json.loads(path.read_text()) if path is not None and path.exists() else {}
        if self._old and self._old["asked"] != settings:
            raise SystemExit(f"{path} is the record of another campaign: {self._old['asked']}, not {settings}")

    def load(self, campaign: Campaign) -> None:
        """Restore the counts of the earlier sittings."""
        old = self._old
        if not old:
            return
        self.runs, self.frames, self.taken, self.minutes = old["runs"], old["frames"], old["taken"], old["minutes"]
        self.sittings = old["sittings"] + 1
        campaign.struck, campaign.flood = Counter(old["struck"]), Counter(old["flood"])
        campaign.seconds = [(who, took, run) for who, took, run in old["seconds"]]
        campaign.broken, campaign.mended = old["broken"], old.get("mended", [])

    def save(self, campaign: Campaign, minutes: float) -> None:
        """Write the counts to the file."""
        if self._path is None:
            return
        values = {
            **{"asked": self._settings, "runs": self.runs, "frames": self.frames, "taken": self.taken},
            **{"sittings": self.sittings, "minutes": self.minutes + minutes, "struck": campaign.struck},
            **{"flood": campaign.flood, "seconds": campaign.seconds, "broken": campaign.broken},
            "mended": campaign.mended,
        }
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(values, indent=1))
        new.replace(self._path)

    def feed(self, campaign: Campaign, seed: int, total: int) -> None:
        """Feed the next mutated frames."""
        count = min(FRAMES_AT_ONCE, total - self.frames)
        logging.disable(logging.WARNING)  # every frame would be a line
        try:
            found = fuzzing.check(count, 0, seed * 1_000_003 + self.frames)
        finally:
            logging.disable(logging.NOTSET)
        campaign.broken += [f"frames from {self.frames}: {text}" for text in found["broken"]]  # type: ignore[attr-defined]
        self.frames += count
        self.taken += int(str(found["taken"]))


def check(
    kills: int,
    seed: int,
    transport: str = "",
    connections: int = 0,
    frames: int = 0,
    record: Path | None = None,
    minutes: float = math.inf,
) -> dict[str, object]:
    """Disturb runs until `kills` parties were killed and `frames` frames were fed, or the time is up."""
    counts = Record(record, {"seed": seed, "transport": transport, "connections": connections})
    root = Path(tempfile.mkdtemp(prefix="flower-vfl-faults-"))
    started = time.monotonic()
    campaign = Campaign(root, seed, transport, connections)
    counts.load(campaign)

    def elapsed() -> float:
        return (time.monotonic() - started) / 60

    try:
        campaign.repeat_broken()
        while (campaign.struck[KILL] < kills or counts.frames < frames) and elapsed() < minutes:
            if campaign.struck[KILL] < kills:
                campaign.disturb(counts.runs)
                counts.runs += 1
            if counts.frames < frames:
                counts.feed(campaign, seed, frames)
            counts.save(campaign, elapsed())
    finally:
        campaign.close()
    if not campaign.broken:
        shutil.rmtree(root, ignore_errors=True)
    return {
        **{"runs": counts.runs, "frames": counts.frames, "frames_taken": counts.taken, "sittings": counts.sittings},
        **{"minutes": round(counts.minutes + elapsed(), 1), "flood": campaign.flood, **campaign.summary()},
    }


def main() -> None:
    """Run a campaign with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--transport", choices=list(TRANSPORTS), default="", help="of all runs; else drawn for each")
    parser.add_argument(
        "--connections", type=int, default=0, help="number that a stranger holds during runs over streams"
    )
    parser.add_argument("--frames", type=int, default=0, help="number of mutated frames to feed")
    parser.add_argument("--record", type=Path, help="file with the counts, to continue from")
    parser.add_argument("--minutes", type=float, default=math.inf, help="limit of this sitting")
    print(json.dumps(check(**vars(parser.parse_args()))))  # noqa: T201


if __name__ == "__main__":
    main()
