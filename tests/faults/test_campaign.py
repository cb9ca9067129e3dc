"""A sample of the campaign: parties that are killed, full disks, broken and silent lines change no result."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.faults.campaign import Campaign, Record, events, recoveries
from tests.faults.injection import EVENTS, log_event

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.release)])
def test_runs_that_are_disturbed_in_every_way_end_as_an_undisturbed_one(kills):
    seed = os.environ.get("FLOWER_VFL_FAULT_SEED", "0")
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.campaign", "--kills", str(kills), "--seed", seed],
        capture_output=True, text=True, check=True, timeout=1700,
    )  # fmt: skip
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["broken"] == []
    assert found["struck"]["kill"] >= kills


def test_a_kill_in_the_midst_of_an_event_loses_no_other(tmp_path):
    assert events(tmp_path) == []
    log_event(tmp_path, "a", "kill")
    with (tmp_path / EVENTS).open("a") as file:
        file.write('{"at": 18134.1')
    assert [event["what"] for event in events(tmp_path)] == ["kill"]
    log_event(tmp_path, "b", "step")
    assert [event["what"] for event in events(tmp_path)] == ["kill", "step"]


def test_a_recovery_lasts_until_the_next_step_unless_somebody_dies_before():
    happened = "a step 0, a kill 1, label step 3.5, b kill 4, label kill 5, label epoch 9, a full 9.5, a kill 10"
    events = [entry.split() for entry in happened.split(", ")]
    found = [{"who": who, "what": what, "at": float(at)} for who, what, at in events]
    assert recoveries(found) == [("a", 2.5), ("label", 4.0)]


def test_a_campaign_goes_on_from_its_record_and_refuses_that_of_another(tmp_path):
    file, settings = tmp_path / "record.json", {"seed": 1, "transport": "", "connections": 0}
    lists = {"broken": ["run 1 (stream): lost"], "mended": ["run 0 (inproc): late"]}
    campaign = SimpleNamespace(
        struck=Counter(kill=5), flood=Counter(runs=2), seconds=[("label", 1.5, "run 0")], **lists
    )
    first = Record(file, settings)
    first.runs, first.frames = 3, 50_000
    first.save(campaign, 4.0)
    again, fresh = Record(file, settings), SimpleNamespace()
    again.load(fresh)
    assert (again.runs, again.frames, again.sittings, again.minutes) == (3, 50_000, 2, 4.0)
    assert vars(fresh) == vars(campaign)
    with pytest.raises(SystemExit, match="the record of another campaign"):
        Record(file, {**settings, "seed": 2})


class IdleCampaign(Campaign):
    """A campaign that starts nothing; run 7 breaks every time."""

    def __init__(self, broken):
        self.broken, self.mended = broken, []

    def disturb(self, number):
        if number == 7:
            self.broken.append("run 7 (stream): again")


def test_runs_that_broke_are_disturbed_again_and_are_mended_or_not():
    campaign = IdleCampaign(
        ["run 3 (messages), kept in /a/folder: lost", "run 7 (stream): lost", "frames from 0: a word"]
    )
    campaign.repeat_broken()
    assert campaign.mended == ["run 3 (messages): lost"]
    assert campaign.broken == ["run 7 (stream): again", "frames from 0: a word"]


def test_security_md_has_the_counts_of_the_campaigns_record():
    record = json.loads((ROOT / "tests" / "faults" / "campaign.json").read_text())
    section = (ROOT / "SECURITY.md").read_text().partition("## Faults: what was run")[2].partition("\n## ")[0]
    flood, kills = record["flood"], record["struck"]["kill"]
    expected = [f"{record['runs']} runs", f"{kills} kills", f"{record['frames']:,} mutated frames"]
    expected += [f"{flood['dialled']:,} connections", f"{flood['most open']:,} open at once", f"{record['taken']:,}"]
    for who in ("label", "party"):
        times = [took for one, took, _ in record["seconds"] if one == who]
        expected.append(f"| {len(times)} | {statistics.median(times):.1f} s | {max(times):.1f} s |")
    assert [text for text in expected if text not in section] == []
    assert record["broken"] == []
