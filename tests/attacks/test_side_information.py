"""Who tells attacks what: side information reaches the attacks that declare it, and its suppliers are not scored."""

from __future__ import annotations

import dataclasses
import logging
import math

import numpy as np
import pytest
import torch

from flower_vfl.attacks import CosineAttack, HintAttack, NormAttack, SideInformation
from flower_vfl.attacks.gradient import cosine, hint
from flower_vfl.auditing.evaluator import AuditLabels, Oracle, Reference, Scorer, draw_positives
from flower_vfl.auditing.monitor import LeakageMonitor
from flower_vfl.auditing.recorder import NoRecorder
from flower_vfl.errors import InputError
from flower_vfl.metrics import leak_auc
from flower_vfl.protocol.schedule import Schedule
from tests.attacks.common import Remembering, gradients, transcript_of

LABELS = np.array([0, 1, 0, 0, 1, 1, 0, 1, 0, 0])
SCHEDULE = Schedule(0, len(LABELS), 0, len(LABELS), 10, 1, validation=0.0)


class Kept(NoRecorder):
    def __init__(self):
        self.values = []

    def add(self, **value):
        if value["metric"].endswith("auc"):
            self.values.append(value)


def scorer_of(*attacks, layers=("cut",), labels=LABELS, every=1):
    kept = Kept()
    audit = AuditLabels.of(labels)
    scorer = Scorer(attacks, layers, audit, party="a", source="attacker", defended=True, recorder=kept, every=every)
    return scorer, kept


def test_what_was_not_told_is_refused_by_name():
    side = SideInformation({"hints": torch.zeros(1, 2)})
    with pytest.raises(InputError, match=r"'reference' .*given hints.*`needs`"):
        side.tensor("reference")
    with pytest.raises(InputError, match="given nothing"):
        CosineAttack().score(transcript_of(cut=gradients()), "cut")


def test_attacks_that_declare_nothing_are_told_nothing_and_every_row_counts():
    attack, g = Remembering(), gradients(shape=(10, 3))
    scorer, kept = scorer_of(attack)
    scorer.score(transcript_of(cut=g), Reference(1, {"cut": torch.ones(3)}))
    ((layer, side),) = attack.told
    assert (layer, dict(side.tensors), side.left_out.tolist()) == ("cut", {}, [])
    assert kept.values[0]["value"] == leak_auc(g[:, 0], LABELS)


def test_the_reference_is_told_and_its_row_is_not_scored():
    attack, g = Remembering("reference"), gradients(shape=(10, 3))
    told = {"cut": torch.ones(3), "first": torch.zeros(3)}
    scorer, kept = scorer_of(attack, layers=("cut", "first"))
    scorer.score(transcript_of(cut=g, first=g * 2), Reference(4, told))
    assert [side.tensor("reference") is told[layer] for layer, side in attack.told] == [True, True]
    assert all(side.left_out.tolist() == [4] for _, side in attack.told)
    rest = np.delete(np.arange(10), 4)
    assert [value["value"] for value in kept.values] == [leak_auc(g[rest, 0], LABELS[rest])] * 2


@pytest.mark.parametrize("k", [1, 2, 3])
def test_hints_are_gradients_of_positives_as_the_party_sees_them_and_are_not_scored(k):
    attack, g = Remembering("hints", hints=k), gradients(shape=(10, 3))
    scorer, kept = scorer_of(attack, layers=("cut", "first"))
    scorer.score(transcript_of(cut=g, first=g * 2))
    (_, cut), (_, first) = attack.told
    assert torch.equal(first.tensor("hints"), 2 * cut.tensor("hints"))
    assert len(cut.left_out) == k
    assert LABELS[cut.left_out].all()
    hinted = {tuple(row) for row in cut.tensor("hints").tolist()}
    assert hinted == {tuple(row) for row in g[torch.from_numpy(cut.left_out)].tolist()}
    rest = np.setdiff1d(np.arange(10), cut.left_out)
    assert kept.values[0]["value"] == leak_auc(g[rest, 0], LABELS[rest])


def test_more_hints_hold_fewer_hints_and_a_step_draws_the_same_again():
    one, three, again = (Remembering("hints", hints=k) for k in (1, 3, 3))
    scorer, _ = scorer_of(one, three)
    other, _ = scorer_of(again)
    for each in (scorer, other):
        each.score(transcript_of(cut=gradients(shape=(10, 3))))
    left_out = [set(attack.told[0][1].left_out.tolist()) for attack in (one, three, again)]
    assert left_out[0] < left_out[1] == left_out[2]


def test_every_positive_is_drawn_equally_often_and_steps_and_purposes_draw_apart():
    for kind in ("reference", "hints"):
        first = [draw_positives(LABELS, step, kind)[0] for step in range(4000)]
        counts = np.bincount(first, minlength=10)
        assert counts[LABELS == 0].sum() == 0
        # 4000 draws of 1 in 4: five standard deviations are 137; false alarm 2e-6 each.
        assert np.abs(counts[LABELS == 1] - 1000).max() < 137
    draws = [[draw_positives(LABELS, step, kind).tolist() for step in range(50)] for kind in ("reference", "hints")]
    assert sum(a == b for a, b in zip(*draws, strict=True)) < 15  # 1 in 24 by chance; false alarm 1e-9


def test_a_batch_with_too_few_positives_is_counted_and_told_once(caplog):
    scorer, kept = scorer_of(HintAttack(k=1), HintAttack(k=4), HintAttack(k=5), CosineAttack(), NormAttack())
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            scorer.score(transcript_of(cut=gradients(shape=(10, 3))))
    entries = {entry["label"]: entry for entry in scorer.entries()}
    counted = {label: (entry["steps"], entry["one_class_steps"]) for label, entry in entries.items()}
    # k = 4 leaves no positive to find; k = 5 cannot be told; cosine got no reference.
    assert counted == {"hint(k=1)": (3, 0), "hint(k=4)": (3, 3), "hint": (3, 3), "cosine": (3, 3), "norm": (3, 0)}
    assert entries["hint"]["q95"] is None
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 2
    assert "attack hint at layer 'cut' of party 'a': the batch of step 1 has too few positives" in warnings[0]
    assert all(math.isnan(v["value"]) for v in kept.values if v["attack"] in ("hint(k=4)", "hint", "cosine"))


def test_chance_is_that_of_the_rows_that_were_scored():
    scorer, _ = scorer_of(HintAttack(k=3), NormAttack())
    scorer.score(transcript_of(cut=gradients(shape=(10, 3))))
    counts = [dict(leaks.whole.class_counts) for leaks in scorer._leaks]
    assert counts == [{(6, 1): 1}, {(6, 4): 1}]


def test_logs_and_entries_tell_two_settings_of_one_attack_apart():
    scorer, kept = scorer_of(HintAttack(k=1), HintAttack(k=2, measure="distance"))
    scorer.score(transcript_of(cut=gradients(shape=(10, 3))))
    labels = ["hint(k=1)", "hint(k=2,measure=distance)"]
    assert [value["attack"] for value in kept.values] == labels
    assert [(entry["attack"], entry["label"]) for entry in scorer.entries()] == [("hint", label) for label in labels]
    assert scorer.entries()[1]["params"] == {"k": 2, "measure": "distance"}


def test_the_oracle_gives_one_positives_clean_gradient_on_steps_that_are_scored():
    clean = {"a": gradients(shape=(10, 2, 2)), "b": gradients(1, (10, 3))}
    rows = np.arange(10)
    oracle = Oracle([CosineAttack(), NormAttack()], AuditLabels.of(LABELS), every=2)
    told = oracle.references(2, rows, clean)
    row = told["a"].row
    assert LABELS[row] == 1
    assert told["b"].row == row
    assert torch.equal(told["a"].gradients["cut"], clean["a"][row].flatten())
    assert torch.equal(told["b"].gradients["cut"], clean["b"][row])
    assert oracle.references(3, rows, clean) == {}
    assert Oracle([NormAttack()], AuditLabels.of(LABELS), every=1).references(2, rows, clean) == {}
    assert Oracle([CosineAttack()], AuditLabels.of(LABELS * 0), every=1).references(2, rows, clean) == {}


def test_under_a_defense_the_monitor_also_attacks_what_would_have_been_sent():
    kept, audit = Kept(), AuditLabels.of(LABELS)
    clean, sent = gradients(shape=(10, 3)), gradients(1, (10, 3))
    clean[torch.from_numpy(LABELS) == 1] *= 100
    attacks = [NormAttack(), CosineAttack()]
    monitor = LeakageMonitor(["a"], attacks, audit, SCHEDULE, defended=True, recorder=kept, every=1)
    told = {"a": Reference(1, {"cut": clean[1]})}
    rows, z = np.arange(10), torch.zeros(10, 3)
    monitor.observe(0, 1, rows, {"a": z}, {"a": sent}, clean={"a": clean}, references=told)
    entries = {(entry["attack"], entry["defended"]): entry["q95"] for entry in monitor.entries()}
    rest = np.delete(rows, 1)
    assert entries == {
        ("norm", True): leak_auc(sent.norm(dim=1), LABELS),
        ("norm", False): leak_auc(clean.norm(dim=1), LABELS),
        ("cosine", True): leak_auc(cosine.score(sent, clean[1])[rest], LABELS[rest]),
        ("cosine", False): leak_auc(cosine.score(clean, clean[1])[rest], LABELS[rest]),
    }
    assert [value["metric"] for value in kept.values] == ["monitor_auc"] * 2 + ["undefended_auc"] * 2
    assert entries["norm", False] == 1.0
    assert 1.0 > monitor.last == monitor.epoch_leak == max(entries["norm", True], entries["cosine", True])


def test_without_a_defense_there_is_nothing_that_was_not_sent():
    monitor = LeakageMonitor(
        ["a"], [NormAttack()], AuditLabels.of(LABELS), SCHEDULE, defended=False, recorder=NoRecorder(), every=1
    )
    g = {"a": gradients(shape=(10, 3))}
    monitor.observe(0, 1, np.arange(10), g, g)
    assert [entry["defended"] for entry in monitor.entries()] == [False]


def test_hints_seen_by_the_scorer_are_those_that_the_pure_function_would_take():
    g = gradients(shape=(10, 3))
    scorer, kept = scorer_of(HintAttack(k=2, measure="distance"))
    scorer.score(transcript_of(cut=g))
    known = draw_positives(LABELS, 1, "hints")[:2]
    rest = np.setdiff1d(np.arange(10), known)
    expected = leak_auc(hint.score(g, g[torch.from_numpy(known)], "distance")[rest], LABELS[rest])
    assert kept.values[0]["value"] == expected


def test_side_information_is_a_value():
    side = SideInformation({"hints": torch.zeros(1, 2)}, np.array([3]))
    with pytest.raises(dataclasses.FrozenInstanceError):
        side.left_out = np.array([4])
