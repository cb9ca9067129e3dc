"""A leak budget: training ends where the bound of a defense, or a measured leak, passes a limit."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pyarrow.compute as pc
import pytest
import torch
from safetensors.torch import load_file

from flower_vfl import build_config, predict, run
from flower_vfl.apps.local import run_alone
from flower_vfl.attacks import NormAttack
from flower_vfl.auditing.audit_labels import AuditLabels
from flower_vfl.auditing.monitor import LeakageMonitor
from flower_vfl.auditing.recorder import NoRecorder
from flower_vfl.cli import main
from flower_vfl.data.store.dataset import Labels
from flower_vfl.errors import ConfigError, InputError
from flower_vfl.metrics import auc_bound, leak_auc, nearest_rank
from flower_vfl.reports import render
from flower_vfl.reports.run import load_run
from flower_vfl.strategies import Defense, LabelDP, Marvell
from flower_vfl.strategies.gradients.marvell import accountant as accountant_module
from flower_vfl.strategies.gradients.marvell import isotropic
from flower_vfl.strategies.gradients.marvell.accountant import IsotropicAccountant, accounted_epochs
from flower_vfl.strategies.gradients.marvell.estimates import estimate
from flower_vfl.strategies.gradients.marvell.solver import optimal_noise
from flower_vfl.testing.subject import strategy
from flower_vfl.tracking import read_steps
from flower_vfl.training.factories import schedule_of
from tests.apps.test_time_order import DAYS, in_time, timed
from tests.cases import parametrize
from tests.faults.common import TRANSPORTS, Interrupt, assert_same
from tests.toys import toy_config, toy_data

LIMIT = 0.97
"""The bound of the run below is 0.72 after its first epoch, then 0.954 and 1."""


def limited(*, epochs=4, max_bound=LIMIT, attack=None, defenses=({"name": "marvell", "s": 4.0},), **sections):
    """Return the values of a configuration with eight steps an epoch."""
    return {
        "data": {"name": "synthetic", "options": {"rows": 400, "test_rows": 60, "parties": 3}},
        "training": {"epochs": epochs, "batch_size": 50},
        "model": {"bottom": [8], "cut": 4, "top": [8], "dropout": 0.1},
        "attack": {"names": ["norm"], "snapshots": [3], "max_bound": max_bound, "informed": 0, **(attack or {})},
        "defenses": list(defenses),
        **sections,
    }


def result(folder):
    return json.loads((folder / "result.json").read_text())


def logged_bounds(folder):
    """Return the largest logged bound of a step or of all epochs, until the end of each epoch."""
    steps = read_steps(folder)
    steps = steps.filter(pc.starts_with(steps["metric"], "marvell.auc_bound"))
    epochs, values = steps["epoch"].to_numpy(), steps["value"].to_numpy()
    return [values[epochs <= epoch].max() for epoch in range(1, epochs.max() + 1)]


def weights(folder):
    return {path.stem: load_file(path) for path in (folder / "weights").glob("*.safetensors")}


@parametrize("transport", TRANSPORTS, quick=1)
def test_training_ends_when_the_bound_passes_its_limit_and_the_model_from_before_stays(
    tmp_path, transport, monkeypatch, caplog
):
    monkeypatch.setenv("FLOWER_VFL_STATE", str(tmp_path / "state"))
    kind = {"kind": transport}
    run(build_config(limited(epochs=2, max_bound=1.0)), out=tmp_path / "before")
    run(build_config(limited(transport=kind, checkpoint={"every": 3})), out=tmp_path / "run")
    found, before = result(tmp_path / "run"), result(tmp_path / "before")
    assert (found["status"], found["cost"]["steps"]) == ("bound limit", 24)
    assert found["model"] == {"step": 16, "epoch": 2}
    assert (found["weights"], found["utility"]["last"]) == (before["weights"], before["utility"]["last"])
    ours, theirs = weights(tmp_path / "run"), weights(tmp_path / "before")
    assert ours.keys() == theirs.keys() == {"label", "a", "b"}
    assert all(torch.equal(ours[party][name], theirs[party][name]) for party in ours for name in theirs[party])
    assert "the limit attack.max_bound is 0.97" in caplog.text
    predict(tmp_path / "run", tmp_path / "scores.csv")


def test_the_limit_applies_to_the_largest_bound_of_a_step_or_of_all_epochs_and_it_is_kept(tmp_path):
    run(build_config(limited()), out=tmp_path / "run")
    expected = logged_bounds(tmp_path / "run")
    assert expected[1] < LIMIT < expected[2]
    assert result(tmp_path / "run")["budget"] == {"bound": {"limit": LIMIT, "reached": pytest.approx(expected)}}
    logged = load_run(tmp_path / "run").curve(party="label", metric="epoch_bound")
    assert logged[1].tolist() == [1, 2, 3]
    assert logged[2] == pytest.approx(expected)


def test_a_single_step_can_pass_the_limit(tmp_path, monkeypatch):
    """One batch of the second epoch gets little noise, which hardly changes the bound over all batches."""
    of_power, batches = isotropic._noise_of_power, []

    def weaker(classes, power, **more):
        batches.append(power)
        return of_power(classes, power / 20 if len(batches) == 12 else power, **more)

    monkeypatch.setattr(isotropic, "_noise_of_power", weaker)
    run(build_config(limited(max_bound=LIMIT)), out=tmp_path / "run")
    assert result(tmp_path / "run")["model"] == {"step": 8, "epoch": 1}


def test_with_warn_training_goes_on_and_each_epoch_is_warned_of(tmp_path, caplog):
    run(build_config(limited(attack={"on_leak": "warn"})), out=tmp_path / "run")
    found = result(tmp_path / "run")
    assert (found["status"], found["cost"]["steps"]) == ("finished", 32)
    assert caplog.text.count("the limit attack.max_bound is 0.97") == 2
    assert np.all(np.diff(found["budget"]["bound"]["reached"]) >= 0)


class Wrapper(Defense):
    """A defense with its own `end_epoch`, which does not call that of the strategy that it wraps."""

    name = "wrapper"
    params: ClassVar[dict[str, Any]] = {}

    def end_epoch(self):
        return {"wrapper.epochs": 1.0}


def test_a_wrapper_with_its_own_end_epoch_does_not_change_the_bound(tmp_path):
    alone = run(build_config(limited()), out=tmp_path / "alone")
    wrapped = limited(defenses=({"name": f"{__name__}:Wrapper"}, {"name": "marvell", "s": 4.0}))
    found = run(build_config(wrapped), out=tmp_path / "wrapped")
    assert found.status == alone.status == "bound limit"
    assert result(tmp_path / "wrapped")["budget"] == result(tmp_path / "alone")["budget"]


def test_a_defense_around_a_bounded_one_passes_its_bound_on():
    inner = Marvell(strategy(), s=4.0)
    inner._accountant("").largest = 0.25
    assert LabelDP(inner).bound() == inner.bound() == auc_bound(0.25)


@parametrize("bound", [math.nan, -3.0, 0.49, 1.5, None, "0.6"], quick=1)
def test_a_bound_that_is_no_leak_auc_counts_as_1(monkeypatch, caplog, bound):
    monkeypatch.setattr(isotropic.Marvell, "bound", lambda self: bound)
    found = run(build_config(limited(epochs=2, max_bound=0.99)))
    assert found.status == "bound limit"
    assert [epoch["bound"] for epoch in found.outcome.epochs] == [1.0]
    assert f"`bound` is {bound!r}, no leak AUC from 0.5 to 1" in caplog.text


@parametrize(("step", "name"), [(3, "marvell"), (11, "marvell"), (19, "marvell"), (11, "marvell_full")], quick=1)
def test_a_run_that_was_interrupted_ends_at_the_same_place(tmp_path, step, name):
    limit = {"marvell": LIMIT, "marvell_full": 0.83}[name]
    config = build_config(limited(checkpoint={"every": 2}, defenses=[{"name": name, "s": 4.0}], max_bound=limit))
    run(config, out=tmp_path / "alone")
    with pytest.raises(KeyboardInterrupt):
        run(config, out=tmp_path / "run", observers=(Interrupt(step),))
    run(config, out=tmp_path / "run", resume=True)
    assert_same(tmp_path / "run", tmp_path / "alone")
    assert result(tmp_path / "run")["status"] == "bound limit"


def test_a_limit_on_the_bound_needs_no_attack_and_no_monitor(tmp_path):
    config = build_config(limited(attack={"names": [], "monitor": False}))
    assert run(config, out=tmp_path / "run").status == "bound limit"


def test_where_both_limits_are_passed_the_status_names_the_leak(tmp_path, caplog):
    weak = [{"name": "marvell", "s": 0.01}]
    config = build_config(limited(max_bound=0.6, attack={"max_leak": 0.55}, defenses=weak))
    run(config, out=tmp_path / "run")
    found = result(tmp_path / "run")
    assert (found["status"], found["model"]["step"]) == ("leak limit", None)
    assert "attack.max_leak is 0.55" in caplog.text
    assert "attack.max_bound is 0.6" in caplog.text
    assert list(found["budget"]) == ["leak", "bound"]
    monitored = load_run(tmp_path / "run").curve(metric="monitor_auc", attack="norm", party="a+b")[2]
    assert found["budget"]["leak"]["reached"][0] >= nearest_rank(monitored)


REFUSED = {
    "no defense": (limited(defenses=()), "none here promises that: take one that does, such as marvell"),
    "one that promises nothing": (limited(defenses=[{"name": "iso", "t": 1.0}]), "none here promises that"),
    "too many epochs": (limited(epochs=51), "for 50 epochs of gradients this wide, and 51 are planned"),
    "too many with full covariances": (
        limited(epochs=81, defenses=[{"name": "marvell_full"}]),
        "for 80 epochs of gradients this wide, and 81 are planned",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_limit_that_could_not_be_kept_is_refused_before_the_first_step(tmp_path, case):
    values, words = REFUSED[case]
    steps = []

    class Counted(Interrupt):
        def on_step(self, step, epoch, loss, leak):
            steps.append(step)

    with pytest.raises(ConfigError, match=words):
        run(build_config(values), out=tmp_path / "run", observers=(Counted(0),))
    assert not steps
    assert not (tmp_path / "run").exists()


def test_a_limit_on_the_bound_is_refused_for_more_than_two_classes():
    config = build_config(limited(data={"name": "synthetic"}))
    with pytest.raises(ConfigError, match="of two classes, this data has 3"):
        run(config, data=lambda _: toy_data(classes=3))


def test_the_command_line_reports_the_refusal_in_one_line_before_it_names_a_folder(tmp_path, capsys, caplog):
    arguments = ["run", "census", "--set", "data.name=synthetic", "--set", "attack.max_bound=0.8"]
    with pytest.raises(SystemExit, match="2"):
        main([*arguments, "--out", str(tmp_path / "run")])
    shown = capsys.readouterr()
    assert "none here promises that" in " ".join(shown.err.split())
    assert "Traceback" not in shown.err
    assert "results go" not in shown.out + shown.err + caplog.text


def test_the_budget_includes_the_bound_of_colluding_parties(tmp_path):
    defenses = [{"name": "marvell_full", "s": 4.0, "scope": "per-party"}]
    config = build_config(limited(defenses=defenses, parties={"colluding": ["all"]}, max_bound=0.99))
    run(config, out=tmp_path / "run")
    steps = read_steps(tmp_path / "run").to_pylist()
    names = tuple(f"marvell_full.sum_kl_{kind}.{who}" for kind in ("after", "remembered") for who in ("a", "b", "a+b"))
    largest = max(row["value"] for row in steps if row["epoch"] == 1 and row["metric"] in names)
    assert result(tmp_path / "run")["budget"]["bound"]["reached"][0] == pytest.approx(auc_bound(largest))


@parametrize("colluding", [[], ["all"]], quick=1)
def test_with_per_party_noise_the_bound_is_the_largest_of_a_party_or_the_sum_of_colluding_ones(tmp_path, colluding):
    defenses = [{"name": "marvell", "s": 4.0, "scope": "per-party"}]
    config = build_config(limited(defenses=defenses, parties={"colluding": colluding}, max_bound=0.99))
    run(config, out=tmp_path / "run")
    steps = read_steps(tmp_path / "run").to_pylist()

    def largest(*parties):
        names = tuple(f"marvell.sum_kl_{kind}.{party}" for kind in ("after", "remembered") for party in parties)
        return max(row["value"] for row in steps if row["epoch"] == 1 and row["metric"] in names)

    reached = result(tmp_path / "run")["budget"]["bound"]["reached"][0]
    if colluding:
        assert reached == pytest.approx(auc_bound(largest("a") + largest("b")))
        assert reached >= auc_bound(largest("a+b"))
    else:
        assert reached == pytest.approx(auc_bound(largest("a", "b")))


def test_a_party_alone_has_no_budget():
    data = toy_data()
    config = build_config(limited(data={"name": "synthetic"}, epochs=1))
    assert run_alone(config, "a", data=lambda _: data).status == "finished"


def test_where_each_row_is_trained_on_once_the_bound_is_that_of_its_day(tmp_path):
    defenses = [{"name": "marvell", "s": 4.0}]
    attack = {"names": [], "max_bound": 0.99}
    run(in_time(defenses=defenses, attack=attack), out=tmp_path / "run", data=lambda _: timed(*DAYS))
    found = result(tmp_path / "run")
    assert found["status"] == "finished"
    steps = read_steps(tmp_path / "run").to_pylist()
    days = [row["value"] for row in steps if row["metric"] == "marvell.auc_bound_remembered"]
    assert len(days) == found["periods"]["trained"] == len(DAYS)
    assert max(days) - min(days) < 0.1
    assert found["budget"]["bound"]["reached"][-1] >= max(days)


def batch(scale=1.0):
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(64) % 4 == 0
    g = torch.randn(64, 4, generator=generator, dtype=torch.float64) + y[:, None] * 2.0
    classes = estimate(g, y.long())
    return classes, optimal_noise(classes.u, classes.v, classes.d, classes.g, classes.p, scale * classes.g), g, y.long()


def test_an_epoch_without_an_estimate_has_no_bound(monkeypatch):
    accountant = IsotropicAccountant(np.arange(64) % 4 == 0)
    accountant.add(*batch(), np.arange(64))
    accountant.end_epoch(0.0)
    assert 0.0 < accountant.largest < 4.0
    restored = IsotropicAccountant(np.arange(64) % 4 == 0)
    restored.restore(accountant.state())
    assert restored.largest == accountant.largest
    restored.end_epoch(0.0)  # no batch of it could be estimated from
    assert restored.largest == math.inf
    monkeypatch.setattr(accountant_module, "LARGEST_DIRECTIONS", 1)
    accountant.add(*batch(), np.arange(64))
    accountant.end_epoch(0.0)  # more epochs than can be accounted
    assert auc_bound(accountant.largest) == 1.0


def test_noise_of_earlier_batches_counts_with_its_divergence():
    accountant = IsotropicAccountant(np.arange(64) % 4 == 0)
    accountant.note(batch(scale=0.01)[1])
    assert accountant.largest == batch(scale=0.01)[1].sum_kl > batch()[1].sum_kl


def test_the_number_of_accounted_epochs_depends_on_the_width():
    for width in (1, 3, 4, 19, 20, 21, 400, 1000):
        allowed = [
            count for count in range(1, 500) if count * min(count, width) <= accountant_module.LARGEST_DIRECTIONS
        ]
        assert accounted_epochs(width) == max(allowed)


@pytest.mark.usefixtures("_sketched")
def test_the_report_says_which_limit_ended_the_run_and_draws_it(tmp_path, capsys):
    from flower_vfl.simulations.tables import print_results

    run(build_config(limited(attack={"max_leak": 0.99})), out=tmp_path / "run")
    page = " ".join(render([tmp_path / "run"]).read_text().split())
    words = "The bound on the leak passed its limit (attack.max_bound). The model that all parties kept is the last one"
    assert words in page
    print_results([result(tmp_path / "run")])
    assert words in " ".join(capsys.readouterr().out.split())
    section = page.split("<h2>The leak budget</h2>")[1].split("<h2>")[0]
    assert "passed in epoch 3, with 1.000" in section
    assert "The measured leak AUC was limited to <strong>0.990</strong>" in section
    assert "not passed" in section
    assert all(text in section for text in ("limit of the leak", "limit of the bound"))


@pytest.mark.usefixtures("_sketched")
def test_without_a_limit_there_is_no_budget(tmp_path):
    run(build_config(limited(epochs=1, max_bound=1.0)), out=tmp_path / "run")
    assert "budget" not in result(tmp_path / "run")
    assert "leak budget" not in render([tmp_path / "run"]).read_text()


def mostly_positive():
    """Return data with four of five rows positive: an attack that ranks long gradients as positives is reversed."""
    data = toy_data(rows=300, classes=5)
    train, test = ((y != 0).astype(np.int64) for y in (data.target.train, data.target.test))
    return replace(data, target=Labels(train, test, 2))


@pytest.mark.parametrize(
    ("attack", "phase", "limit"), [("norm", "train", 0.8), ("remembered_norm", "remembered", 0.99)]
)
def test_reversed_scores_count_as_a_leak(attack, phase, limit):
    training = {"epochs": 8, "batch_size": 30}
    config = toy_config(training=training, attack={"names": [attack], "max_leak": limit})
    found = run(config, data=lambda _: mostly_positive())
    entries = [entry for entry in found.summary["leakage"] if entry["source"] == "monitor"]
    assert {entry["phase"] for entry in entries} == {phase}
    assert max(entry["max"] for entry in entries) < 0.8  # as they are, the scores never pass the limit
    assert found.status == "leak limit"
    before, last = found.summary["budget"]["leak"]["reached"][-2:]
    assert before <= limit < last


def test_the_leak_of_an_epoch_is_the_larger_quantile_of_the_scores_and_of_the_same_turned_around():
    y = np.arange(40) % 4 == 0
    rng, values = np.random.default_rng(0), []
    schedule = schedule_of(toy_config(training={"batch_size": 40, "epochs": 30, "validation": 0.0}), 40, 0)
    audit = AuditLabels.of(y.astype(np.int64))
    shared = {"defended": False, "recorder": NoRecorder(), "every": 1}
    monitor = LeakageMonitor(["a"], [NormAttack()], audit, schedule, **shared)
    for step in range(30):
        g = torch.from_numpy(rng.normal(size=(40, 3)) * np.where(y, 0.6, 1.0)[:, None])
        values.append(leak_auc(g.norm(dim=1), y))
        monitor.observe(step, 1, np.arange(40), {"a": g}, {"a": g})
    assert max(values) < 0.7
    assert monitor.epoch_leak == max(nearest_rank(values), nearest_rank(1.0 - np.array(values))) > 0.8


def test_an_epoch_without_a_known_leak_is_warned_of(caplog):
    attack = {"names": ["remembered_difference"], "max_leak": 0.99, "on_leak": "warn"}
    found = run(toy_config(attack=attack), data=lambda _: toy_data())
    assert "of epoch 1 is not known: attack.max_leak limits nothing there" in caplog.text
    assert "of epoch 2 is not known" not in caplog.text
    assert found.summary["budget"]["leak"]["reached"][0] is None


@parametrize(
    "budget",
    [{"all": {"limit": 0.9, "reached": []}}, {"leak": []}, {"leak": {"limit": "<b>", "reached": [0.5]}}]
    + [{"bound": {"limit": 0.9, **rest}} for rest in ({}, {"reached": 0.5}, {"reached": [0.5, "<b>"]})],
    quick=1,
)
def test_a_budget_of_another_shape_is_refused(tmp_path, budget):
    run(build_config(limited(epochs=1, max_bound=1.0)), out=tmp_path / "run")
    changed = {**result(tmp_path / "run"), "budget": budget}
    (tmp_path / "run" / "result.json").write_text(json.dumps(changed))
    with pytest.raises(InputError, match="the budget has a limit, and what was reached"):
        render([tmp_path / "run"])
