"""An attack with a `history` reads that many of the latest steps, scored or not, also over a resume."""

import numpy as np
import pytest
import torch

from flower_vfl.attacks import Attack, RowAttack
from flower_vfl.auditing.attacked_view import AttackedView
from flower_vfl.auditing.audit_labels import AuditLabels
from flower_vfl.auditing.recorder import NoRecorder
from flower_vfl.checkpoint import load_state, save_state
from flower_vfl.errors import ConfigError
from flower_vfl.protocol.schedule import Schedule, is_scored
from flower_vfl.protocol.transcript import StepTrace
from flower_vfl.testing import check_attack
from tests.attacks.common import gradients

ROWS, STEPS, EVERY = 16, 24, 4
WINDOWS = {}  # the steps that instances of an attack have read, by its name
LABELS = np.arange(ROWS * STEPS, dtype=np.uint8) % 2


class LastOnly(Attack):
    """Scores a row by its first numbers in the steps that it reads, newer ones more, and notes these steps."""

    name = "last_only"

    def __init__(self):
        self.windows = WINDOWS.setdefault(self.name, [])

    def fresh(self):
        """Return another instance."""
        return type(self)()

    def score(self, transcript, layer, side=None):
        """Return the weighted sums, (B,)."""
        self.windows.append([trace.step for trace in transcript])
        newest = reversed([trace.gradients[layer].flatten(1)[:, 0].double() for trace in transcript])
        return sum(numbers / (1 + age) for age, numbers in enumerate(newest))


class LastThree(LastOnly):
    """Scores a row by the three latest batches."""

    name = "last_three"
    history = 3


class LastNone(LastOnly):
    """Declares an impossible history."""

    name = "last_none"
    history = 0


class Kept(NoRecorder):
    """Recorder of leak AUCs by attack and step."""

    def __init__(self):
        self.values = {}

    def add(self, *, step, attack, metric, value, **_):
        if metric == "auc":
            self.values[attack, step] = value


def view_of(*attacks):
    recorder = Kept()
    schedule = Schedule(0, len(LABELS), 0, ROWS, ROWS, 1, validation=0.0)
    shared = {"party": "a", "source": "attacker", "defended": False, "recorder": recorder, "every": EVERY}
    return AttackedView(attacks, ["cut"], AuditLabels.of(LABELS), schedule, **shared), recorder


def follow(view, steps):
    for step in steps:
        if view.reads(step):
            g, rows = gradients(step, (ROWS, 4)), np.arange(step * ROWS, (step + 1) * ROWS)
            view.observe(StepTrace(step, 0, rows, g + 1.0, {"cut": g}, {}))
    view.settle()


def test_each_attack_reads_as_many_steps_as_it_declares_whatever_runs_beside_it():
    WINDOWS.clear()
    view, _ = view_of(LastOnly(), LastThree())
    follow(view, range(STEPS))
    scored = [step for step in range(STEPS) if is_scored(step, EVERY)]
    assert len(scored) > 3
    for name, steps in (("last_only", 1), ("last_three", 3)):
        assert {window[-1] for window in WINDOWS[name]} == set(scored)
        for window in WINDOWS[name]:
            assert window == list(range(max(0, window[-1] - steps + 1), window[-1] + 1))


@pytest.mark.parametrize("until", [6, 14])
def test_after_a_resume_it_reads_the_steps_before_the_interruption(tmp_path, until):
    undisturbed, whole = view_of(LastThree())
    follow(undisturbed, range(STEPS))
    interrupted, before = view_of(LastThree())
    follow(interrupted, range(until))
    save_state(tmp_path / "state", interrupted.state())
    resumed, after = view_of(LastThree())
    resumed.restore(load_state(tmp_path / "state"))
    follow(resumed, range(until, STEPS))
    assert {**before.values, **after.values} == whole.values
    assert resumed.step_entries() == undisturbed.step_entries()


def test_steps_between_scored_ones_are_not_read_where_no_attack_needs_them():
    view, _ = view_of(LastOnly())
    assert [step for step in range(STEPS) if view.reads(step)] == [s for s in range(STEPS) if is_scored(s, EVERY)]


def test_an_impossible_history_is_refused():
    with pytest.raises(ConfigError, match="last_none: history is 0; give a whole number from 1"):
        view_of(LastNone())


class Rated(RowAttack):
    """Declares steps that a `RowAttack` never reads."""

    name = "rated"
    history = 3

    def rate(self, rows, known):
        """Return the first numbers."""
        return rows[..., 0]


def test_a_row_attack_with_a_history_is_refused():
    with pytest.raises(ConfigError, match="rated: history is 3, but a RowAttack reads one step"):
        view_of(Rated())


class Windowed(Attack):
    """Scores rows by their length in units of the mean length of the five latest batches."""

    name = "windowed"
    history = 5

    def score(self, transcript, layer, side=None):
        """Return the lengths over the mean one, (B,); zeros where all gradients are zero."""
        lengths = [trace.gradients[layer].flatten(1).double().norm(dim=1) for trace in transcript]
        mean = torch.stack([one.mean() for one in lengths]).mean()
        return lengths[-1] / mean.clamp(min=torch.finfo(torch.float64).tiny)


def test_check_attack_accepts_an_attack_with_a_history():
    check_attack(Windowed)
