"""The page on the architecture names the files that one embedding passes, and no file on its way is missing."""

import re
import sys
import threading
from pathlib import Path

import pytest

from flower_vfl.apps import run
from flower_vfl.parties.feature import FeatureParty
from flower_vfl.protocol.frame import Kind
from flower_vfl.strategies import Iso
from tests.toys import toy_config, toy_data

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf8")
FOLDERS = [(ROOT / name).resolve() for name in ("flower_vfl", "strategies")]


def listed():
    """The files of the numbered list, in its order."""
    section = PAGE.split("## The path of one embedding")[1].split("\n## ")[0]
    numbered = re.findall(r"^\d+\. (.*(?:\n {3,}.*)*)", section, flags=re.MULTILINE)
    return [re.search(r"`([\w/]+\.py)`", item)[1] for item in numbered]


def name_of(code):
    """The file of some code as the page names it; None for code that is not the library's."""
    path = Path(code.co_filename).resolve()
    if path.is_relative_to(FOLDERS[0]):
        return str(path.relative_to(FOLDERS[0]))
    return str(path.relative_to(ROOT)) if path.is_relative_to(FOLDERS[1]) else None


def way_to_here(first):
    """The library's files on the stack, from the last call in the file `first` on."""
    frame, names = sys._getframe(1), []
    while frame is not None:
        name = name_of(frame.f_code)
        names += [] if name is None else [name]
        if name == first:
            return set(names)
        frame = frame.f_back
    raise AssertionError(f"{first} is not on the way")


class Step:
    """Follows the fifth step of a training."""

    def __init__(self, monkeypatch, kind):
        self.on, self.codes, self.hops = False, set(), set()
        handle, perturb = FeatureParty.handle, Iso.perturb

        def handled(party, frame):
            if frame.kind is Kind.STEP and frame.step in (5, 6):
                self.on = frame.step == 5
                self.hops |= way_to_here("apps/training_client.py" if kind == "stream" else "training/loop.py")
            return handle(party, frame)

        def perturbed(defense, *given, **more):
            self.hops |= way_to_here("training/loop.py") if self.on else set()
            return perturb(defense, *given, **more)

        monkeypatch.setattr(FeatureParty, "handle", handled)
        monkeypatch.setattr(Iso, "perturb", perturbed)

    def watch(self, frame, event, _):
        if self.on and event == "call":
            self.codes.add(frame.f_code)


@pytest.mark.parametrize(
    ("kind", "count"), [("stream", r"there are (\d+) files"), ("inproc", r"process there are (\d+)")]
)
def test_the_list_names_the_files_of_a_step_and_leaves_none_out(kind, count, monkeypatch):
    step, names = Step(monkeypatch, kind), listed()
    asleep = {"apps/client_app.py"}  # Flower calls the handler that it names
    if kind == "inproc":
        asleep = set(names[:3])  # the handler waits while the label party's thread steps its party
        assert "`transport/inproc.py` takes the place of 5 to 7" in PAGE
        names[4:7] = ["transport/inproc.py"]
    config = toy_config(
        attack={"names": [], "informed": 0, "monitor": False},
        training={"epochs": 1, "batch_size": 20},
        transport={"kind": kind},
        defenses=[{"name": "iso", "t": 1.0}],
    )
    threading.setprofile(step.watch)
    sys.setprofile(step.watch)
    try:
        run(config, data=lambda _: toy_data(rows=200, parties=1))
    finally:
        threading.setprofile(None)
        sys.setprofile(None)
    passed = {name_of(code) for code in step.codes} | step.hops
    assert set(names) - passed <= asleep
    assert step.hops <= set(names)
    assert len(names) == len(set(names)) == int(re.search(count, PAGE)[1]) <= 15
