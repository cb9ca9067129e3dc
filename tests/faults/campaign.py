"""Parties are killed, disks fill, lines break, strangers flood: every run must end as one that nobody disturbed.

``python -m tests.faults.campaign --kills 200 --seed 1`` disturbs one run after another until so many parties were
killed (SIGKILL), and prints one line of JSON: what was done, what broke, and how long it took until training went on.
The same seed disturbs in the same way. A run that did not end as it should is kept, with the words of its processes.

``--connections 10000`` has a stranger dial the session port so often at a time during each run over streams, and
``--frames 1000000`` feeds mutated frames to both ends between the runs. With ``--record FILE`` the counts are kept
after each run, and the same command goes on where an earlier one ended; ``--minutes`` ends a sitting. A run that broke
is disturbed again in the next sitting, and one that then ends as it should stands under ``mended``.
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
from tests.faults.processes import Case, ProcessGrid, fork, start_nursery
from tests.faults.striking import CUT, EVENTS, FULL, HOLD, KILL, LABEL, WRITE, Fault, arm, tell
from tests.transport.proxies import Line

PHASES = {"hello": 1, "step": 6, "save": 4, "evaluate": 3, "restore": 3, "finish": 2, WRITE: 6}
"""Moments, and how often each is chosen."""

ENDPOINT = "endpoint"
"""The file of a plan that says where the label party listens now."""

FRAMES_AT_ONCE = 50_000
"""Mutated frames between two runs."""

LIVES = 60
"""How often the label party is started in one run; more would be a run that does not come to its end."""


class Progress(Observer):
    """Writes down when a step is done."""

    def __init__(self, plan: Path) -> None:
        self._plan = plan

    def on_step(self, step: int, epoch: int, loss: float, leak: float) -> None:
        tell(self._plan, LABEL, "step", step=step)

    def on_epoch(self, step: int, epoch: int, metrics: Mapping[str, float]) -> None:
        tell(self._plan, LABEL, "epoch", step=step)


def draw(dice: random.Random, transport: str = "") -> tuple[str, list[Fault], float]:
    """Draw a transport, unless one is given, what happens in a run, and the seconds that its lines take each way."""
    # With messages a run takes ten times as long.
    transport = transport or dice.choices(list(TRANSPORTS), (3, 6, 1))[0]
    faults = []
    for _ in range(dice.randrange(8, 17)):
        phase = dice.choices(list(PHASES), list(PHASES.values()))[0]
        party = dice.choices((LABEL, "a", "b"), (4, 3, 3))[0]
        step = dice.randrange(STEPS) if phase in ("step", "save", "evaluate", WRITE) else 0
        do = dice.choices((KILL, FULL), (12, 1))[0]
        after = dice.random() < 0.5
        if phase == "hello":
            party, after = dice.choice("ab"), False
        faults.append(Fault(party, phase, step, after, do, dice.choice((0, 100, 4000))))
    delay = 0.0
    if transport == "stream":
        delay = dice.choice((0.0, 0.0, 0.005))
        for _ in range(dice.randrange(4)):
            do = dice.choices((CUT, HOLD), (3, 1))[0]
            faults.append(Fault(LABEL, "step", dice.randrange(STEPS), dice.random() < 0.5, do))
    return transport, sorted(faults, key=lambda fault: fault.step), delay


def be_label_party(case: Case, nursery: str, data: VerticalData, delay: float) -> None:
    """Be the label party's process; with ``inproc`` all parties are in it."""
    lines: list[Line] = []
    offer = StreamEndpoint.offer

    def over_a_line(endpoint: StreamEndpoint, node: str) -> dict[str, str | bytes | int]:
        lines.append(Line(endpoint.address, delay=delay))
        (case.plan / f"{ENDPOINT}.new").write_text(endpoint.address)
        (case.plan / f"{ENDPOINT}.new").replace(case.plan / ENDPOINT)
        return {**offer(endpoint, node), "address": lines[-1].address}

    StreamEndpoint.offer = over_a_line
    config, run_config = case.config, to_run_config(case.config)
    alone = config.transport.kind == "inproc"
    arm(case.plan, (LABEL, *case.parties) if alone else (LABEL,), lines)
    if not check_folder(case.out, config, resume=True):
        return
    server = make_server_app(
        config=config, data=lambda _: data, out=case.out, resume=True, observers=(Progress(case.plan),)
    )
    if alone:
        client = make_client_app(config=config, data=lambda _: data)
        grid = LocalGrid(client, len(case.parties), run_config)
    else:
        grid = ProcessGrid(case, nursery, run_config)
    server(grid, Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=run_config))


def live(case: Case, nursery: str, data: VerticalData, delay: float) -> str:
    """Start a run again and again until it has ended; return what is wrong with that, or nothing."""
    log = case.plan / "label.log"
    for _ in range(LIVES):
        struck = len(events(case.plan))
        child = fork(log, lambda: be_label_party(case, nursery, data, delay))
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == 0:
            return ""
        if not any(event["what"] in (KILL, FULL) for event in events(case.plan)[struck:]):
            return f"it ended with {code}, and nothing had been done to it"
        if code not in (-signal.SIGKILL, 1):
            return f"it ended with {code}"
    return f"it did not end within {LIVES} lives"


def events(plan: Path) -> list[dict[str, Any]]:
    """Return what happened in a run so far; of what a party was writing when it was killed, there may be a part."""
    path = plan / EVENTS
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def recoveries(found: list[dict[str, Any]]) -> list[tuple[str, float]]:
    """Return who was killed and the seconds until the next step, or the next evaluation, was done."""
    seconds = []
    for index, event in enumerate(found):
        if event["what"] == KILL:
            later = [after["at"] for after in found[index + 1 :] if after["what"] in ("step", "epoch")]
            if later and not any(after["what"] == KILL and after["at"] < later[0] for after in found[index + 1 :]):
                seconds.append((event["who"], later[0] - event["at"]))
    return seconds


class Campaign:
    """One run after another, each disturbed, each compared with one that was not."""

    def __init__(self, root: Path, seed: int, transport: str = "", connections: int = 0) -> None:
        self._root, self._seed, self._transport, self._connections = root, seed, transport, connections
        self.data = open_data(build_config(setup()))
        model_completion.EPOCHS = ATTACKER_EPOCHS  # before its processes are forked
        run(build_config(setup()))  # imports what is imported at first use, before there are hundreds of processes
        self._nursery = str(root / "nursery")
        self._nursery_id = start_nursery(self._nursery, self.data, root / "nursery.log")
        self.struck: Counter[str] = Counter()
        self.seconds: list[tuple[str, float, str]] = []
        self.broken: list[str] = []
        self.mended: list[str] = []
        self.flood: Counter[str] = Counter()
        self._left_alone: dict[str, Path] = {}

    def close(self) -> None:
        """End the nursery."""
        os.kill(self._nursery_id, signal.SIGKILL)
        os.waitpid(self._nursery_id, 0)

    def _case(self, name: str, transport: str) -> Case:
        values = setup(transport)
        values["transport"] = {**values["transport"], "reconnect_timeout": 10.0, "rejoin_timeout": 60.0}
        plan = self._root / name / "plan"
        plan.mkdir(parents=True)
        return Case(build_config(values), plan, self._root / name / "run")

    def _undisturbed(self, transport: str) -> Path:
        """Return the run that is left alone, done when it is first asked for."""
        if transport not in self._left_alone:
            case = self._case(f"alone-{transport}", transport)
            wrong = live(case, self._nursery, self.data, 0.0)
            if wrong:
                raise RuntimeError(f"{transport}: {wrong}; see {case.plan}")
            self._left_alone[transport] = case.out
        return self._left_alone[transport]

    def _live(self, case: Case, delay: float, flood: int | None) -> str:
        """Let a run come to its end, in a flood where one is asked for; return what is wrong with that."""
        if not self._connections or flood is None:
            return live(case, self._nursery, self.data, delay)
        with flooding(str(case.plan / ENDPOINT), self._connections, seed=flood) as (_, counts):
            wrong = live(case, self._nursery, self.data, delay)
        for name, count in counts.items():
            before = self.flood[name]
            self.flood[name] = max(before, int(count)) if name == "most open" else before + int(count)
        self.flood["runs"] += 1
        return wrong

    def disturb(self, number: int) -> None:
        """Disturb one run, and see how it ends."""
        transport, faults, delay = draw(random.Random(f"{self._seed}-{number}"), self._transport)
        case = self._case(f"run-{number}", transport)
        for position, fault in enumerate(faults):
            fault.write(case.plan, position)
        wrong = self._live(case, delay, number if transport == "stream" else None)
        if not wrong:
            try:
                assert_same(case.out, self._undisturbed(transport))
            except Exception as error:  # noqa: BLE001 - this is what is looked for
                wrong = f"{type(error).__name__}: {error}"[:1000]
        found = events(case.plan)
        self.seconds += [
            (LABEL if who == LABEL or transport == "inproc" else "party", took, f"run {number}")
            for who, took in recoveries(found)
        ]
        for event in found:
            if "phase" in event:
                who = "label" if event["who"] == LABEL else "party"
                self.struck.update([event["what"], f"{event['what']} {transport} {who} {event['phase']}"])
        if wrong:
            self.broken.append(f"run {number} ({transport}), kept in {case.out.parent}: {wrong}")
        else:
            shutil.rmtree(case.out.parent, ignore_errors=True)  # a party that lost its label party may still be there

    def repeat_broken(self) -> None:
        """Disturb the runs again that broke in an earlier sitting; those that now end as they should are mended."""
        before, self.broken = self.broken, []
        for words in before:
            found, count = re.match(r"run (\d+) ", words), len(self.broken)
            if found is None:
                self.broken.append(words)
                continue
            self.disturb(int(found[1]))
            if len(self.broken) == count:
                self.mended.append(re.sub(", kept in [^:]*", "", words))  # of no use any more

    def summary(self) -> dict[str, object]:
        """Return what was done, what broke and how long recoveries took."""
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
    """What a campaign has done so far, over all sittings; kept in a file where one is named."""

    def __init__(self, path: Path | None, asked: dict[str, object]) -> None:
        self._path = path
        self.runs, self.frames, self.taken, self.sittings, self.minutes = 0, 0, 0, 1, 0.0
        self._asked = asked
        self._old: dict[str, Any] = json.loads(path.read_text()) if path is not None and path.exists() else {}
        if self._old and self._old["asked"] != asked:
            raise SystemExit(f"{path} is the record of another campaign: {self._old['asked']}, not {asked}")

    def load(self, campaign: Campaign) -> None:
        """Go on from an earlier sitting."""
        old = self._old
        if not old:
            return
        self.runs, self.frames, self.taken, self.minutes = old["runs"], old["frames"], old["taken"], old["minutes"]
        self.sittings = old["sittings"] + 1
        campaign.struck, campaign.flood = Counter(old["struck"]), Counter(old["flood"])
        campaign.seconds = [(who, took, run) for who, took, run in old["seconds"]]
        campaign.broken, campaign.mended = old["broken"], old.get("mended", [])

    def save(self, campaign: Campaign, minutes: float) -> None:
        """Keep the counts."""
        if self._path is None:
            return
        kept = {
            **{"asked": self._asked, "runs": self.runs, "frames": self.frames, "taken": self.taken},
            **{"sittings": self.sittings, "minutes": self.minutes + minutes, "struck": campaign.struck},
            **{"flood": campaign.flood, "seconds": campaign.seconds, "broken": campaign.broken},
            "mended": campaign.mended,
        }
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(kept, indent=1))
        new.replace(self._path)

    def feed(self, campaign: Campaign, seed: int, most: int) -> None:
        """Feed the next mutated frames."""
        count = min(FRAMES_AT_ONCE, most - self.frames)
        logging.disable(logging.WARNING)  # every frame would be a line
        try:
            found = fuzzing.check(count, 0, seed * 1_000_003 + self.frames)
        finally:
            logging.disable(logging.NOTSET)
        campaign.broken += [f"frames from {self.frames}: {words}" for words in found["broken"]]  # type: ignore[attr-defined]
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
    """Disturb runs until so many parties were killed and so many frames were fed, or the time is up."""
    done = Record(record, {"seed": seed, "transport": transport, "connections": connections})
    root = Path(tempfile.mkdtemp(prefix="flower-vfl-faults-"))
    started = time.monotonic()
    campaign = Campaign(root, seed, transport, connections)
    done.load(campaign)

    def took() -> float:
        return (time.monotonic() - started) / 60

    try:
        campaign.repeat_broken()
        while (campaign.struck[KILL] < kills or done.frames < frames) and took() < minutes:
            if campaign.struck[KILL] < kills:
                campaign.disturb(done.runs)
                done.runs += 1
            if done.frames < frames:
                done.feed(campaign, seed, frames)
            done.save(campaign, took())
    finally:
        campaign.close()
    if not campaign.broken:
        shutil.rmtree(root, ignore_errors=True)
    return {
        **{"runs": done.runs, "frames": done.frames, "frames_taken": done.taken, "sittings": done.sittings},
        **{"minutes": round(done.minutes + took(), 1), "flood": campaign.flood, **campaign.summary()},
    }


def main() -> None:
    """Disturb as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--transport", choices=list(TRANSPORTS), default="", help="of all runs; else drawn for each")
    parser.add_argument("--connections", type=int, default=0, help="that a stranger holds during runs over streams")
    parser.add_argument("--frames", type=int, default=0, help="mutated frames to feed")
    parser.add_argument("--record", type=Path, help="where counts are kept; goes on from there")
    parser.add_argument("--minutes", type=float, default=math.inf, help="of this sitting")
    print(json.dumps(check(**vars(parser.parse_args()))))  # noqa: T201


if __name__ == "__main__":
    main()
