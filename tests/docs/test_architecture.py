"""The architecture page names the files that one embedding passes, without an omission."""

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
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf8")
FOLDERS = [(ROOT / name).resolve() for name in ("flower_vfl", "strategies")]


def listed_files():
    """Return the files of the numbered list, in its order."""
    section = PAGE.split("## The path of one embedding")[1].split("\n## ")[0]
    numbered = re.findall(r"^\d+\. (.*(?:\n {3,}.*)*)", section, flags=re.MULTILINE)
    return [re.search(r"`([\w/]+\.py)`", item)[1] for item in numbered]


def file_of(code):
    """Return the file of a code object as the page names it; None for code outside the library."""
    path = Path(code.co_filename).resolve()
    if path.is_relative_to(FOLDERS[0]):
        return str(path.relative_to(FOLDERS[0]))
    return str(path.relative_to(ROOT)) if path.is_relative_to(FOLDERS[1]) else None


def stack_from(first):
    """Return the library's files on the stack, from the last call in the file `first` on."""
    frame, names = sys._getframe(1), []
    while frame is not None:
        name = file_of(frame.f_code)
        names += [] if name is None else [name]
        if name == first:
            return set(names)
        frame = frame.f_back
    raise AssertionError(f"{first} is not on the stack")


class StepTracer:
    """Tracer of the fifth step of a training: code that is called, and files on the stack."""

    def __init__(self, monkeypatch, kind):
        self.active, self.codes, self.stack_files = False, set(), set()
        handle, perturb = FeatureParty.handle, Iso.perturb

        def handled(party, frame):
            if frame.kind is Kind.STEP and frame.step in (5, 6):
                self.active = frame.step == 5
                self.stack_files |= stack_from("apps/training_client.py" if kind == "stream" else "training/loop.py")
            return handle(party, frame)

        def perturbed(defense, *given, **more):
            self.stack_files |= stack_from("training/loop.py") if self.active else set()
            return perturb(defense, *given, **more)

        monkeypatch.setattr(FeatureParty, "handle", handled)
        monkeypatch.setattr(Iso, "perturb", perturbed)

    def trace(self, frame, event, _):
        if self.active and event == "call":
            self.codes.add(frame.f_code)


@pytest.mark.parametrize(
    ("kind", "count"), [("stream", r"there are (\d+) files"), ("inproc", r"process there are (\d+)")]
)
def test_the_list_names_the_files_of_a_step_and_leaves_none_out(kind, count, monkeypatch):
    tracer, names = StepTracer(monkeypatch, kind), listed_files()
    not_called = {"apps/client_app.py"}  # Flower itself calls the handler
    if kind == "inproc":
        not_called = set(names[:3])  # the handler waits while the label party's thread runs the step
        assert "`transport/inproc.py` takes the place of 5 to 7" in PAGE
        names[4:7] = ["transport/inproc.py"]
    config = toy_config(
        attack={"names": [], "informed": 0, "monitor": False},
        training={"epochs": 1, "batch_size": 20},
        transport={"kind": kind},
        defenses=[{"name": "iso", "t": 1.0}],
    )
    threading.setprofile(tracer.trace)
    sys.setprofile(tracer.trace)
    try:
        run(config, data=lambda _: toy_data(rows=200, parties=1))
    finally:
        threading.setprofile(None)
        sys.setprofile(None)
    traced = {file_of(code) for code in tracer.codes} | tracer.stack_files
    assert set(names) - traced <= not_called
    assert tracer.stack_files <= set(names)
    assert len(names) == len(set(names)) == int(re.search(count, PAGE)[1]) <= 15
