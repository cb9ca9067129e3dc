"""Longitudinal attacks in whole runs: measured for every view, over all rows, and no file is left over."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from flower_vfl.apps import run
from flower_vfl.apps.training_client import TrainingClient
from flower_vfl.attacks import RememberedFitAttack, RememberedHintAttack
from flower_vfl.attacks.gradient import norm
from flower_vfl.attacks.longitudinal.base import centred_in_batch_units
from flower_vfl.auditing import longitudinal
from flower_vfl.auditing.attacker import Attacker
from flower_vfl.auditing.audit_labels import AuditLabels
from flower_vfl.auditing.longitudinal import LongitudinalEvaluator, check_memory_attacks
from flower_vfl.auditing.recorder import NoRecorder
from flower_vfl.auditing.row_memory import RowMemory
from flower_vfl.data.store.memory import MemoryData
from flower_vfl.data.store.periods import Period, Periods
from flower_vfl.errors import ConfigError, PartyError
from flower_vfl.metrics import auc_interval, leak_auc, null_quantile
from flower_vfl.protocol.schedule import Schedule
from flower_vfl.tracking import read_steps
from flower_vfl.training.factories import schedule_of
from tests.cases import parametrize
from tests.faults.common import Interrupt
from tests.toys import toy_config, toy_data

NAMES = [
    "remembered_norm",
    "remembered_direction",
    "remembered_batches",
    "remembered_scales",
    "remembered_hint(k=2)",
    "remembered_difference",
    "remembered_fit(k=3)",
    "remembered_fit(k=3,reads=epochs)",
    "remembered_quadratic(k=3,reads=last)",
    "remembered_network(k=3,steps=20)",
]


def config_of(*names, epochs=3, kind="inproc", defenses=("marvell",), **sections):
    config = toy_config(
        **{"attack": {"names": list(names)}, "transport": {"kind": kind}, "training": {"epochs": epochs}, **sections}
    )
    return config.model_copy(update={"defenses": [{"name": name} for name in defenses]})


def entries_of(result):
    keys = ("source", "defended", "layer", "label", "party")
    return {tuple(e[key] for key in keys): e for e in result.summary["leakage"] if e["phase"] == "remembered"}


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Redirect the state folder and that of temporary files; return the folder above both, for the run itself."""
    for name in ("state", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("FLOWER_VFL_STATE", str(tmp_path / "state"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    return tmp_path


def files_left(folders):
    found = [path for name in ("state", "tmp") for path in (folders / name).rglob("*") if path.is_file()]
    return [*found, *folders.rglob("*.by-epoch.*"), *folders.rglob("*memory*")]


@parametrize("kind", ["inproc", "stream", "messages"], quick=1)
@pytest.mark.parametrize("named", [True, False])
def test_every_party_layer_and_group_is_read_after_each_epoch(kind, named, folders):
    result = run(
        config_of(*NAMES, kind=kind), data=lambda _: toy_data(rows=300), out=folders / "run" if named else None
    )
    entries = entries_of(result)
    views = [("attacker", True, layer) for layer in ("cut", "first")]
    views += [("monitor", defended, "cut") for defended in (True, False)]
    expected = {(*view, label, party) for view in views for label in NAMES for party in "ab"}
    expected |= {(*view, label, "a+b") for view in views[2:] for label in NAMES}
    assert set(entries) == expected
    for (*_, label, _), entry in entries.items():
        assert entry["epochs"] == ([2, 3] if label == "remembered_difference" else [1, 2, 3])
        assert len(entry["values"]) == entry["steps"] == len(entry["epochs"])
        assert entry["interval95"][0] <= entry["values"][-1] <= entry["interval95"][1]
        assert entry["max"] == entry["q95"] == max(entry["values"])
    for party in "ab":
        for label in NAMES:  # both keep the same numbers
            values = [entries[source, True, "cut", label, party]["values"] for source in ("attacker", "monitor")]
            assert values[0] == values[1]
    assert files_left(folders) == []


@pytest.fixture(scope="module")
def in_process():
    return entries_of(run(config_of(*NAMES), data=lambda _: toy_data(rows=300)))


@parametrize("kind", ["stream", "messages"], quick=1)
def test_every_transport_gives_the_same_entries(kind, in_process):
    assert entries_of(run(config_of(*NAMES, kind=kind), data=lambda _: toy_data(rows=300))) == in_process


def test_the_leak_is_measured_over_all_rows_that_occurred(monkeypatch):
    """The gradients of every step, recorded during the run and summed in half precision, give the same numbers."""
    data, config = toy_data(rows=300), config_of(attack={"every": 4, "names": ["remembered_norm"]})
    schedule = schedule_of(config, 300, 150)
    sums, values = np.zeros((300, 8), dtype=np.float16), []
    record = RowMemory.record

    def recording(memory, step, rows, gradients):
        record(memory, step, rows, gradients)
        if "first" in gradients and party_of[id(memory)] == "a":
            sums[rows] = sums[rows].astype(np.float32) + centred_in_batch_units(gradients["cut"]).numpy()
            epoch = schedule.epoch_of(step)
            if step == schedule.steps_of(epoch)[-1]:
                seen = schedule.trained_rows(epoch)
                scores, labels = norm.score(torch.from_numpy(sums[seen])), data.labels().train[seen]
                values.append((leak_auc(scores, labels), auc_interval(scores, labels)))

    party_of = {}
    initialise = Attacker.__init__

    def initialised(attacker, point, **kwargs):
        initialise(attacker, point, **kwargs)
        party_of.update({id(memory): point.party for memory in attacker.view.longitudinal._memories.values()})

    monkeypatch.setattr(Attacker, "__init__", initialised)
    monkeypatch.setattr(RowMemory, "record", recording)
    entry = entries_of(run(config, data=lambda _: data))["attacker", True, "cut", "remembered_norm", "a"]
    assert entry["values"] == pytest.approx([auc for auc, _ in values], abs=1e-4)
    assert entry["interval95"] == pytest.approx(values[-1][1], abs=1e-4)
    labels = data.labels().train[schedule.trained_rows(1)]
    assert entry["q95_null"] == null_quantile([(int((labels == 0).sum()), int(labels.sum()))])


def test_colluding_parties_put_their_gradients_together_before_they_are_measured():
    data = toy_data(rows=300)
    alone = run(config_of("remembered_norm", defenses=()), data=lambda _: data)
    entries = entries_of(alone)
    values = {
        party: entries["monitor", False, "cut", "remembered_norm", party]["values"] for party in ("a", "b", "a+b")
    }
    assert len({tuple(found) for found in values.values()}) == 3


def test_the_log_has_a_value_an_epoch_under_the_names_of_remembered_metrics(tmp_path):
    result = run(config_of("remembered_norm", "norm"), data=lambda _: toy_data(rows=300), out=tmp_path / "run")
    rows = [row for row in read_steps(tmp_path / "run").to_pylist() if row["attack"] == "remembered_norm"]
    metrics = {
        f"{view}remembered_{name}" for view in ("", "monitor_", "undefended_") for name in ("auc", "detection_error")
    }
    assert {row["metric"] for row in rows} == metrics
    own = [r for r in rows if (r["party"], r["layer"], r["metric"]) == ("a", "cut", "remembered_auc")]
    assert [(row["epoch"], row["step"]) for row in own] == [(1, 4), (2, 9), (3, 14)]
    entry = entries_of(result)["attacker", True, "cut", "remembered_norm", "a"]
    assert [row["value"] for row in own] == entry["values"]


def test_rows_whose_labels_are_known_are_not_scored(monkeypatch):
    scored = {}
    interval = longitudinal.auc_interval
    monkeypatch.setattr(
        longitudinal,
        "auc_interval",
        lambda s, y: scored.setdefault(len(scored), (len(y), int(y.sum()))) and interval(s, y),
    )
    data = toy_data(rows=300)
    run(config_of("remembered_hint(k=3)", "remembered_fit(k=4)", epochs=1, defenses=()), data=lambda _: data)
    labels = data.labels().train[schedule_of(config_of(), 300, 150).trained_rows(1)]
    n, p = len(labels), int(labels.sum())
    assert set(scored.values()) == {(n - 3, p - 3), (n - 8, p - 4)}


@pytest.mark.slow
@pytest.mark.parametrize("every", [0, 2, -1])
@pytest.mark.parametrize("kind", ["inproc", "messages"])
def test_an_interrupted_run_gives_the_entries_of_an_undisturbed_one(every, kind, folders):
    config = config_of(*NAMES, kind=kind, checkpoint={"every": every})
    if every >= 0:
        for step in (3, 8, 8, 13):
            with pytest.raises(KeyboardInterrupt):
                run(
                    config,
                    out=folders / "run",
                    data=lambda _: toy_data(rows=300),
                    resume=True,
                    observers=(Interrupt(step),),
                )
            assert list(folders.rglob("*.by-epoch.*"))
    resumed = run(config, out=folders / "run", data=lambda _: toy_data(rows=300), resume=True)
    alone = run(config, data=lambda _: toy_data(rows=300))
    assert entries_of(resumed) == entries_of(alone)
    assert files_left(folders) == []


class NoLiveParties(dict):
    """Parties in memory that are never found: with `messages` each Flower message may get a fresh process."""

    def pop(self, key, default=None):
        super().pop(key, None)
        return default


@parametrize("every", [0, -1], quick=1)
@pytest.mark.parametrize("named", [True, False])
def test_the_row_memory_passes_from_one_process_to_the_next(every, named, folders, in_process, monkeypatch):
    initialise = TrainingClient.__init__

    def initialised(client, *args):
        initialise(client, *args)
        client._live = NoLiveParties()

    monkeypatch.setattr(TrainingClient, "__init__", initialised)
    config = config_of(*NAMES, kind="messages", checkpoint={"every": every})
    result = run(config, data=lambda _: toy_data(rows=300), out=folders / "run" if named else None)
    assert entries_of(result) == in_process
    assert files_left(folders) == []


def test_a_party_that_fails_between_messages_leaves_no_row_memory(folders, monkeypatch):
    record = RowMemory.record

    def failing(memory, step, rows, gradients):
        record(memory, step, rows, gradients)
        if step == 6 and "first" in gradients:
            raise ValueError("the disk is on fire")

    monkeypatch.setattr(RowMemory, "record", failing)
    with pytest.raises(PartyError, match="on fire"):
        run(config_of("remembered_norm", kind="messages"), data=lambda _: toy_data(rows=300, parties=1))
    assert files_left(folders) == []


def test_a_run_whose_memory_was_removed_does_not_go_on(tmp_path):
    config = config_of("remembered_norm", checkpoint={"every": 2})
    with pytest.raises(KeyboardInterrupt):
        run(config, out=tmp_path / "run", data=lambda _: toy_data(rows=300), observers=(Interrupt(8),))
    for file in tmp_path.rglob("*.by-epoch.*"):
        file.unlink()
    with pytest.raises(Exception, match="does not hold the party's row memory"):
        run(config, out=tmp_path / "run", data=lambda _: toy_data(rows=300), resume=True)


def interrupted(tmp_path, step, every):
    """Interrupt a run after `step` steps, and return its configuration."""
    config = config_of("remembered_norm", checkpoint={"every": every})
    with pytest.raises(KeyboardInterrupt):
        run(config, out=tmp_path / "run", data=lambda _: toy_data(rows=300), observers=(Interrupt(step),))
    return config


def zero_first_quarters(tmp_path):
    """Overwrite the first quarter of each file of a row memory with zeros, as if the disk had lost it."""
    files = list(tmp_path.rglob("*.by-epoch.*"))
    assert files
    for file in files:
        content = bytearray(file.read_bytes())
        content[: len(content) // 4] = bytes(len(content) // 4)
        file.write_bytes(content)


def test_after_a_restart_of_the_machine_that_lost_data_the_attack_ends_with_the_reason(tmp_path, monkeypatch):
    """Training itself continues."""
    config = interrupted(tmp_path, 8, every=2)
    alone = run(config, data=lambda _: toy_data(rows=300))
    zero_first_quarters(tmp_path)
    monkeypatch.setattr(longitudinal, "boot", lambda: "another")
    resumed = run(config, out=tmp_path / "run", data=lambda _: toy_data(rows=300), resume=True)
    assert resumed.summary["weights"] == alone.summary["weights"]
    before = entries_of(alone)
    for key, entry in entries_of(resumed).items():
        assert entry["values"] == before[key]["values"][:1]
        assert "machine was restarted" in entry["unavailable"]


@parametrize(("step", "every", "lost"), [(8, 2, False), (3, 2, False), (5, 0, False), (3, 0, True)], quick=1)
def test_after_a_restart_of_the_machine_that_lost_nothing_needed_the_entries_are_the_same(
    tmp_path, monkeypatch, step, every, lost
):
    """Before the first checkpoint after the initial one no data can be lost."""
    config = interrupted(tmp_path, step, every)
    if lost:
        zero_first_quarters(tmp_path)
    monkeypatch.setattr(longitudinal, "boot", lambda: "another")
    resumed = run(config, out=tmp_path / "run", data=lambda _: toy_data(rows=300), resume=True)
    assert entries_of(resumed) == entries_of(run(config, data=lambda _: toy_data(rows=300)))


@parametrize("place", ["a/**/cut-*", "b/**/first-*", "label/**/monitor-a+b/*/cut-*", "label/**/cut-0*"], quick=1)
def test_a_memory_that_was_damaged_is_refused_by_name(tmp_path, place):
    config = interrupted(tmp_path, 8, every=2)
    files = [file for file in (tmp_path / "run" / "checkpoints").glob(place) if file.is_file()]
    for file in files[:2]:
        with file.open("r+b") as opened:
            opened.seek(11)
            opened.write(b"#")
    with pytest.raises(Exception, match=r"\.by-epoch\.f16 was damaged or changed: its checksum is not that of"):
        run(config, out=tmp_path / "run", data=lambda _: toy_data(rows=300), resume=True)


def by_day():
    data = toy_data(rows=300)
    table = {name: data.party(name) for name in data.parties}
    train = (Period("mon", 120), Period("tue", 80), Period("wed", 100))
    periods = Periods(train, (Period("thu", 150),))
    return MemoryData("days", table, "label", data.labels(), periods=periods)


def test_in_time_order_an_epoch_is_a_day_and_all_rows_until_then_are_read():
    config = config_of(
        "remembered_norm", "remembered_direction", training={"order": "time", "epochs": 1, "validation": 0.0}
    )
    result = run(config, data=lambda _: by_day())
    entry = entries_of(result)["attacker", True, "cut", "remembered_norm", "a"]
    assert entry["epochs"] == [1, 2, 3]


@pytest.mark.parametrize("name", ["remembered_difference", "remembered_network(reads=difference)"])
def test_in_time_order_nothing_can_be_compared_with_the_epoch_before(name):
    config = config_of(name, training={"order": "time", "epochs": 1, "validation": 0.0})
    with pytest.raises(ConfigError, match=r"compares epochs.*each row comes once"):
        run(config, data=lambda _: by_day())


def known_by_day(days, attack, labels, monkeypatch):
    """Score an attack after each of `days` days of 20 rows; return its known rows and the days with a score."""
    received, score = [], type(attack).score

    def recording(self, memory, known):
        received.append(known)
        return score(self, memory, known)

    monkeypatch.setattr(type(attack), "score", recording)
    schedule = Schedule(0, 40, 0, 20, 10, 2, validation=0.0, periods=(20, 20))
    options = {"party": "a", "source": "attacker", "defended": False, "recorder": NoRecorder()}
    scorer = LongitudinalEvaluator([attack], ["cut"], AuditLabels.of(labels), schedule, **options)
    for step in range(days):
        g = torch.randn(20, 4, generator=torch.Generator().manual_seed(step))
        scorer.observe(step, schedule.train_batch(step), {"cut": g})
    return received, scorer.entries()[0]["epochs"]


@pytest.mark.parametrize("attack", [RememberedHintAttack(k=3), RememberedFitAttack(k=3)])
def test_in_time_order_an_attack_waits_until_enough_rows_that_it_can_know_have_occurred(attack, monkeypatch):
    labels = np.zeros(40, dtype=np.int64)
    labels[[3, 11, *range(22, 40, 3)]] = 1  # two of them on the first day
    (known,), epochs = known_by_day(2, attack, labels, monkeypatch)
    assert epochs == [2]
    assert labels[known.rows].tolist() == known.labels.tolist()


def test_on_the_first_day_no_row_of_a_later_one_is_known(monkeypatch):
    (known,), epochs = known_by_day(1, RememberedFitAttack(k=4), np.arange(40) % 2, monkeypatch)
    assert epochs == [1]
    assert len(known.rows) == 8
    assert (known.rows < 20).all()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("remembered_hint(k=200)", r"knows 200 positives.*lower k"),
        *((f"remembered_{reader}(k=200)", r"200 rows of each.*lower k") for reader in ("fit", "quadratic", "network")),
    ],
)
def test_more_known_rows_than_there_are_are_refused(name, words):
    with pytest.raises(ConfigError, match=words):
        run(config_of(name), data=lambda _: toy_data(rows=300))


def test_an_attack_that_would_know_every_positive_is_refused():
    audit = AuditLabels.of(np.array([0, 1, 1, 1, 0, 0]))
    check_memory_attacks([RememberedHintAttack(k=2)], audit, repeats=True)
    with pytest.raises(ConfigError, match="2 at most: lower k"):
        check_memory_attacks([RememberedHintAttack(k=3)], audit, repeats=True)


@pytest.mark.parametrize(
    ("labels", "positives", "words"),
    [
        ([0, 0, 0, 0, 1], [], "class 1 has 1 of the 5 training rows, so that it can know 0 of each at most"),
        ([0, 1, 1, 1, 1], [], "class 1 has 4 of the 5 training rows, so that it can know 0 of each at most"),
        ([0, 0, 1, 1, 2], [2], "class 2 has 1 of the 5 training rows, so that it can know 0 of each at most"),
    ],
)
def test_a_reader_that_would_know_every_row_of_one_side_is_refused(labels, positives, words):
    """No row of that class is left to be scored; with three classes the message names the right one."""
    audit = AuditLabels.of(np.array(labels), classes=max(labels) + 1, positives=positives)
    with pytest.raises(ConfigError, match=words):
        check_memory_attacks([RememberedFitAttack(k=1)], audit, repeats=True)
    audit = AuditLabels.of(np.array([*labels, *labels]), classes=max(labels) + 1, positives=positives)
    check_memory_attacks([RememberedFitAttack(k=1)], audit, repeats=True)


@pytest.mark.parametrize(("classes", "positives"), [(3, []), (3, [0, 2]), (2, [0, 1])])
def test_classes_that_take_turns_are_refused(classes, positives):
    config = config_of(defenses=(), attack={"names": ["remembered_norm"], "positives": positives})
    with pytest.raises(ConfigError, match=r"'remembered_norm' detects one class.*name one in attack\.positives"):
        run(config, data=lambda _: toy_data(rows=300, classes=classes))


@pytest.mark.parametrize(("classes", "positive"), [(3, 2), (2, 0)])
def test_one_class_is_read_against_the_rest(classes, positive):
    """The gradients of the positive class differ from those of the rest; hints detect its other rows."""
    names = ["remembered_hint(k=5)", "remembered_fit(k=10)"]
    config = config_of(defenses=(), epochs=1, attack={"names": names, "positives": [positive]})
    data = toy_data(rows=300, classes=classes)
    entries = entries_of(run(config, data=lambda _: data))
    labels = data.labels().train[schedule_of(config, 300, 150).trained_rows(1)]
    n, p = len(labels), int((labels == positive).sum())
    entry = entries["attacker", False, "cut", "remembered_hint", "a"]
    assert entry["q95_null"] == null_quantile([(n - p, p - 5)])
    assert entry["values"][0] > 0.8
    assert entries["attacker", False, "cut", "remembered_fit(k=10)", "a"]["values"][0] > 0.8


def test_a_layer_that_is_too_wide_is_reported_and_not_kept(monkeypatch, caplog):
    monkeypatch.setattr(longitudinal, "WIDEST_MEMORY", 10)
    with caplog.at_level(logging.WARNING, logger="flower_vfl"):
        result = run(config_of("remembered_norm"), data=lambda _: toy_data(rows=300))
    entries = entries_of(result)
    assert (
        entries["attacker", True, "first", "remembered_norm", "a"]["unavailable"]
        == "it is 16 numbers wide; the row memory takes up to 10"
    )
    assert entries["attacker", True, "first", "remembered_norm", "a"]["q95"] is None
    assert "unavailable" not in entries["attacker", True, "cut", "remembered_norm", "a"]
    assert caplog.text.count("do not go on at layer 'first': it is 16 numbers wide; the row memory takes up to 10") == 2
    assert (
        caplog.text.count("at layer 'cut': it is 16 numbers wide") == 2
    )  # of both parties together, as sent and without a defense


def test_the_leak_limit_applies_to_longitudinal_attacks():
    config = config_of(defenses=(), epochs=4, attack={"names": ["remembered_hint"], "max_leak": 0.9})
    result = run(config, data=lambda _: toy_data(rows=300))
    assert result.status == "leak limit"
    assert result.outcome.steps == 5


@pytest.mark.parametrize("audit", [True, False])
def test_a_party_keeps_only_gradients_that_can_be_scored(audit, monkeypatch):
    widths = []
    record = RowMemory.record

    def recording(memory, step, rows, gradients):
        widths.extend(g[0].numel() for g in gradients.values())
        record(memory, step, rows, gradients)

    monkeypatch.setattr(RowMemory, "record", recording)
    config = config_of(defenses=(), epochs=1, attack={"names": ["remembered_norm"], "audit": audit})
    result = run(config, data=lambda _: toy_data(rows=300))
    assert {entry["source"] for entry in entries_of(result).values()} == (
        {"attacker", "monitor"} if audit else {"monitor"}
    )
    assert len(widths) == 5 * (3 + 4 * audit)  # at the monitor a, b and both; at each attacker two layers
