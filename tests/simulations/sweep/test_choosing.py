"""The choice to train trials together or one by one."""

import math
import re
from dataclasses import replace

import pytest

from flower_vfl.config import build_config
from flower_vfl.simulations.sweep import choosing
from flower_vfl.simulations.sweep.checking import OpenData
from flower_vfl.simulations.sweep.choosing import LARGER_STACK, SMALL_STACK, StackCost, at, choose, measure_stack, saved
from flower_vfl.simulations.sweep.definition import Running, load_definition
from flower_vfl.simulations.sweep.plan import print_plan
from flower_vfl.simulations.sweep.planning import Probe
from flower_vfl.simulations.sweep.trials import trials_of

SWEEP = """
[set]
data.name = "toy-gap"
training = { epochs = 2, batch_size = 100 }
model = { bottom = [8], cut = 4, top = [] }
attack.informed = 0
[grid]
seed = [0, 1, 2, 3, 4]
defenses = ["none", "max_norm", { name = "iso", t = [1.0, 4.0] }]
"""
GIGA = 2**30


@pytest.fixture
def trials(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(SWEEP, encoding="utf8")
    return trials_of(load_definition(str(path)))


def changed(trial, **values):
    content = trial.config.model_dump()
    for key, value in values.items():
        content[key] = {**content[key], **value} if isinstance(value, dict) else value
    return replace(trial, config=build_config(content))


@pytest.fixture
def costs(monkeypatch):
    """Set the seconds of a step of one trial, and seconds and memory of a stack, which grow with the number of runs."""

    def set_costs(alone, base, each, memory=0):
        monkeypatch.setattr(choosing, "measure", lambda *_: Probe(1.0, alone, 1.0, 0.0, 0, 0, 400, 100, 100))
        monkeypatch.setattr(
            choosing,
            "measure_stack",
            lambda some, _: StackCost(len(some), base + each * len(some), memory * len(some)),
        )

    return set_costs


def test_trials_are_trained_together_where_a_step_of_all_is_shorter_than_their_steps_one_by_one(trials, costs):
    costs(alone=0.005, base=0.01, each=0.0001)
    (choice,) = choose(trials, Running(), 1)
    assert [len(stack) for stack in choice.stacks] == [20]
    assert choice.together == pytest.approx(0.01 + 20 * 0.0001)
    assert saved([choice]) == pytest.approx({trial.run: 0.005 - 0.012 / 20 for trial in trials})


def test_where_stacking_is_slower_or_hardly_faster_each_trial_is_by_itself_unless_it_is_asked_for(trials, costs):
    costs(alone=0.005, base=0.0, each=0.0045)
    (choice,) = choose(trials, Running(), 1)
    assert choice.stacks == ()
    assert "ms" in choice.why
    assert saved([choice]) == {}
    (forced,) = choose(trials, Running(stacking="on"), 1)
    assert [len(stack) for stack in forced.stacks] == [20]


def test_every_place_gets_a_stack_and_all_trials_are_in_one(trials, costs):
    costs(alone=0.005, base=0.01, each=0.0001)
    (choice,) = choose(trials, Running(), 3)
    assert [len(stack) for stack in choice.stacks] == [7, 6, 7]
    assert [trial for stack in choice.stacks for trial in stack] == trials
    (choice,) = choose(trials, Running(), 20)
    assert choice.stacks == ()
    assert "room for all" in choice.why


def test_a_stack_is_no_larger_than_memory_allows(trials, costs, monkeypatch):
    monkeypatch.setattr(choosing, "_limit", lambda *_: 6 * GIGA)
    costs(alone=0.005, base=0.001, each=0.0001, memory=GIGA)
    (choice,) = choose(trials, Running(), 1)
    assert max(len(stack) for stack in choice.stacks) == 5  # a tenth is left free
    assert sum(len(stack) for stack in choice.stacks) == 20
    monkeypatch.setattr(choosing, "_limit", lambda *_: GIGA)
    (choice,) = choose(trials, Running(stacking="on"), 1)
    assert choice.stacks == ()
    assert "memory" in choice.why


def test_costs_of_more_runs_are_on_the_line_through_the_measured_ones():
    few, more = StackCost(SMALL_STACK, 1.0, 100), StackCost(LARGER_STACK, 4.0, 700)
    assert at(few, more, 20) == StackCost(20, 4.0 + 12 * 0.5, 700 + 12 * 100)
    assert at(few, more, 5) == StackCost(5, 2.5, 400)
    assert at(few, few, 3) == StackCost(3, 1.5, 150)
    assert at(few, StackCost(LARGER_STACK, 0.5, 50), 20) == StackCost(20, 0.5, 50)


def test_a_model_that_cannot_be_stacked_is_found_by_the_measurement(trials, monkeypatch):
    monkeypatch.setattr(choosing, "LARGER_STACK", 3)
    refused = [changed(trial, model={"network": "resnet20"}) for trial in trials]
    (choice,) = choose(refused, Running(), 1)
    assert choice.stacks == ()
    assert "resnet20" in choice.why


def test_an_error_of_the_measurement_is_the_reason_to_train_one_by_one(trials, monkeypatch):
    def fails(*_):
        raise RuntimeError("shape '[2, 64]' is invalid")

    monkeypatch.setattr(choosing, "measure_stack", fails)
    monkeypatch.setattr(choosing, "measure", lambda *_: Probe(1.0, 0.1, 1.0, 0.0, 0, 0, 400, 100, 100))
    (choice,) = choose(trials, Running(), 1)
    assert choice.stacks == ()
    assert choice.why == "they could not be measured together: RuntimeError: shape '[2, 64]' is invalid"


def test_without_a_gpu_here_trials_on_gpus_are_stacked_only_if_stacking_is_on(trials):
    away = [changed(trial, device="cuda") for trial in trials]
    if choosing.torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    (choice,) = choose(away, Running(gpus=1.0), 1)
    assert choice.stacks == ()
    assert "no GPU here" in choice.why
    (choice,) = choose(away, Running(gpus=1.0, stacking="on"), 1)
    assert [len(stack) for stack in choice.stacks] == [20]


def test_a_stack_is_measured_on_this_machine(trials):
    found = measure_stack(trials[:3], OpenData())
    assert found.runs == 3
    assert 0.0 < found.seconds < math.inf
    assert found.memory >= 0


@pytest.mark.slow
def test_the_plan_says_what_is_trained_together_and_why_the_rest_is_not(tmp_path, capsys, costs, monkeypatch):
    path = tmp_path / "sweep.toml"
    path.write_text(SWEEP.replace('"max_norm"', '"label_dp"'), encoding="utf8")
    monkeypatch.setattr(choosing, "_limit", lambda *_: 100 * GIGA)
    costs(alone=0.005, base=0.01, each=0.0001, memory=GIGA)
    monkeypatch.setenv("COLUMNS", "200")
    print_plan(load_definition(str(path)), {}, workers=1)
    shown = capsys.readouterr().out
    assert "15 together" in shown
    assert "1 at once, a stack counted as one" in shown
    assert re.search(r"and 15\.0 GiB of .* of memory\.", shown)  # of the stack, not of one trial
    assert "label_dp is no defense of gradients alone" in shown
    print_plan(load_definition(str(path)), {}, workers=1, stacking=False)
    assert "stacking is off" in capsys.readouterr().out
