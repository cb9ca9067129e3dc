"""Side information: it reaches the attacks that declare it, and the rows that it comes from are not scored."""

from __future__ import annotations

import dataclasses
import logging
import math

import numpy as np
import pytest
import torch

from flower_vfl.attacks import CosineAttack, HintAttack, NormAttack, SideInformation
from flower_vfl.attacks.gradient import cosine, hint
from flower_vfl.auditing.audit_labels import AuditLabels, draw_positives
from flower_vfl.auditing.evaluator import AttackEvaluator, Oracle, Reference, check_side_information
from flower_vfl.auditing.monitor import LeakageMonitor
from flower_vfl.auditing.recorder import NoRecorder
from flower_vfl.errors import InputError
from flower_vfl.metrics import leak_auc, quantile_p_value
from flower_vfl.protocol.schedule import Schedule
from flower_vfl.protocol.transcript import StepTrace, Transcript
from tests.attacks.common import RecordingAttack, gradients, transcript_of

LABELS = np.array([0, 1, 0, 0, 1, 1, 0, 1, 0, 0])
SCHEDULE = Schedule(0, len(LABELS), 0, len(LABELS), 10, 1, validation=0.0)


class AucRecorder(NoRecorder):
    def __init__(self):
        self.values = []

    def add(self, **value):
        if value["metric"].endswith("auc"):
            self.values.append(value)


def scorer_of(*attacks, layers=("cut",)):
    recorder = AucRecorder()
    audit = AuditLabels.of(LABELS)
    scorer = AttackEvaluator(
        attacks, layers, audit, party="a", source="attacker", defended=True, recorder=recorder, every=1
    )
    return scorer, recorder


def test_side_information_that_was_not_given_is_refused_by_name():
    side = SideInformation({"hints": torch.zeros(1, 2)})
    with pytest.raises(InputError, match=r"'reference' .*given hints.*`needs`"):
        side.tensor("reference")
    with pytest.raises(InputError, match="given nothing"):
        CosineAttack().score(transcript_of(cut=gradients()), "cut")


def test_attacks_that_declare_nothing_receive_nothing_and_every_row_is_scored():
    attack, g = RecordingAttack(), gradients(shape=(10, 3))
    scorer, recorder = scorer_of(attack)
    scorer.score(transcript_of(cut=g), Reference(1, {"cut": torch.ones(3)}))
    ((layer, side),) = attack.received
    assert (layer, dict(side.tensors), side.left_out.tolist()) == ("cut", {}, [])
    assert recorder.values[0]["value"] == leak_auc(g[:, 0], LABELS)


def test_the_reference_is_given_and_its_row_is_not_scored():
    attack, g = RecordingAttack("reference"), gradients(shape=(10, 3))
    reference = {"cut": torch.ones(3), "first": torch.zeros(3)}
    scorer, recorder = scorer_of(attack, layers=("cut", "first"))
    scorer.score(transcript_of(cut=g, first=g * 2), Reference(4, reference))
    assert [side.tensor("reference") is reference[layer] for layer, side in attack.received] == [True, True]
    assert all(side.left_out.tolist() == [4] for _, side in attack.received)
    rest = np.delete(np.arange(10), 4)
    assert [value["value"] for value in recorder.values] == [leak_auc(g[rest, 0], LABELS[rest])] * 2


@pytest.mark.parametrize("k", [1, 2, 3])
def test_hints_are_gradients_of_positives_as_the_party_sees_them_and_are_not_scored(k):
    attack, g = RecordingAttack("hints", hints=k), gradients(shape=(10, 3))
    scorer, recorder = scorer_of(attack, layers=("cut", "first"))
    scorer.score(transcript_of(cut=g, first=g * 2))
    (_, cut), (_, first) = attack.received
    assert torch.equal(first.tensor("hints"), 2 * cut.tensor("hints"))
    assert len(cut.left_out) == k
    assert LABELS[cut.left_out].all()
    hinted = {tuple(row) for row in cut.tensor("hints").tolist()}
    assert hinted == {tuple(row) for row in g[torch.from_numpy(cut.left_out)].tolist()}
    rest = np.setdiff1d(np.arange(10), cut.left_out)
    assert recorder.values[0]["value"] == leak_auc(g[rest, 0], LABELS[rest])


def test_more_hints_hold_fewer_hints_and_a_step_draws_the_same_again():
    one, three, again = (RecordingAttack("hints", hints=k) for k in (1, 3, 3))
    scorer, _ = scorer_of(one, three)
    other, _ = scorer_of(again)
    for each in (scorer, other):
        each.score(transcript_of(cut=gradients(shape=(10, 3))))
    left_out = [set(attack.received[0][1].left_out.tolist()) for attack in (one, three, again)]
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


def test_a_batch_with_too_few_positives_is_counted_and_warned_of_once(caplog):
    scorer, recorder = scorer_of(HintAttack(k=1), HintAttack(k=4), HintAttack(k=5), CosineAttack(), NormAttack())
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            scorer.score(transcript_of(cut=gradients(shape=(10, 3))))
    entries = {entry["label"]: entry for entry in scorer.entries()}
    counted = {label: (entry["steps"], entry["one_class_steps"]) for label, entry in entries.items()}
    # k = 4 leaves no positive to detect; k = 5 has too few positives; cosine got no reference.
    assert counted == {"hint(k=1)": (3, 0), "hint(k=4)": (3, 3), "hint": (3, 3), "cosine": (3, 3), "norm": (3, 0)}
    assert entries["hint"]["q95"] is None
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 2
    assert "attack hint at layer 'cut' of party 'a': the batch of step 1 has too few positives" in warnings[0]
    assert all(math.isnan(v["value"]) for v in recorder.values if v["attack"] in ("hint(k=4)", "hint", "cosine"))


def test_chance_is_that_of_the_rows_that_were_scored():
    scorer, _ = scorer_of(HintAttack(k=3), NormAttack())
    scorer.score(transcript_of(cut=gradients(shape=(10, 3))))
    counts = [dict(leaks.whole.class_counts) for leaks in scorer._leaks]
    assert counts == [{(6, 1): 1}, {(6, 4): 1}]


def test_logs_and_entries_tell_two_settings_of_one_attack_apart():
    scorer, recorder = scorer_of(HintAttack(k=1), HintAttack(k=2, measure="distance"))
    scorer.score(transcript_of(cut=gradients(shape=(10, 3))))
    labels = ["hint(k=1)", "hint(k=2,measure=distance)"]
    assert [value["attack"] for value in recorder.values] == labels
    assert [(entry["attack"], entry["label"]) for entry in scorer.entries()] == [("hint", label) for label in labels]
    assert scorer.entries()[1]["params"] == {"k": 2, "measure": "distance"}


def test_the_oracle_gives_one_positives_clean_gradient_on_steps_that_are_scored():
    clean = {"a": gradients(shape=(10, 2, 2)), "b": gradients(1, (10, 3))}
    rows = np.arange(10)
    oracle = Oracle([CosineAttack(), NormAttack()], AuditLabels.of(LABELS), every=2)
    references = oracle.references(3, rows, clean)
    row = references["a"].row
    assert LABELS[row] == 1
    assert references["b"].row == row
    assert torch.equal(references["a"].gradients["cut"], clean["a"][row].flatten())
    assert torch.equal(references["b"].gradients["cut"], clean["b"][row])
    assert oracle.references(2, rows, clean) == {}
    assert Oracle([NormAttack()], AuditLabels.of(LABELS), every=1).references(2, rows, clean) == {}
    assert Oracle([CosineAttack()], AuditLabels.of(LABELS * 0), every=1).references(2, rows, clean) == {}


def test_under_a_defense_the_monitor_also_attacks_the_undefended_gradients():
    recorder, audit = AucRecorder(), AuditLabels.of(LABELS)
    clean, sent = gradients(shape=(10, 3)), gradients(1, (10, 3))
    clean[torch.from_numpy(LABELS) == 1] *= 100
    attacks = [NormAttack(), CosineAttack()]
    monitor = LeakageMonitor(["a"], attacks, audit, SCHEDULE, defended=True, recorder=recorder, every=1)
    references = {"a": Reference(1, {"cut": clean[1]})}
    rows, z = np.arange(10), torch.zeros(10, 3)
    monitor.observe(0, 1, rows, {"a": z}, {"a": sent}, clean={"a": clean}, references=references)
    entries = {(entry["attack"], entry["defended"]): entry["q95"] for entry in monitor.entries()}
    rest = np.delete(rows, 1)
    assert entries == {
        ("norm", True): leak_auc(sent.norm(dim=1), LABELS),
        ("norm", False): leak_auc(clean.norm(dim=1), LABELS),
        ("cosine", True): leak_auc(cosine.score(sent, clean[1])[rest], LABELS[rest]),
        ("cosine", False): leak_auc(cosine.score(clean, clean[1])[rest], LABELS[rest]),
    }
    assert [value["metric"] for value in recorder.values] == ["monitor_auc"] * 2 + ["undefended_auc"] * 2
    assert entries["norm", False] == 1.0
    assert 1.0 > monitor.epoch_leak == monitor.latest == max(entries["norm", True], entries["cosine", True])


def test_the_leak_of_a_step_and_of_an_epoch_is_two_sided():
    sent = gradients(1, (10, 3))
    sent[torch.from_numpy(LABELS) == 1] /= 100  # positives are the shortest
    monitor = LeakageMonitor(
        ["a"], [NormAttack()], AuditLabels.of(LABELS), SCHEDULE, defended=False, recorder=NoRecorder(), every=1
    )
    monitor.observe(0, 1, np.arange(10), {"a": sent}, {"a": sent})
    assert monitor.entries()[0]["q95"] == 0.0
    assert monitor.latest == monitor.epoch_leak == 1.0


def test_without_a_defense_the_monitor_scores_each_gradient_once():
    monitor = LeakageMonitor(
        ["a"], [NormAttack()], AuditLabels.of(LABELS), SCHEDULE, defended=False, recorder=NoRecorder(), every=1
    )
    g = {"a": gradients(shape=(10, 3))}
    monitor.observe(0, 1, np.arange(10), g, g)
    assert [entry["defended"] for entry in monitor.entries()] == [False]


def test_hints_seen_by_the_scorer_are_those_that_the_pure_function_would_take():
    g = gradients(shape=(10, 3))
    scorer, recorder = scorer_of(HintAttack(k=2, measure="distance"))
    scorer.score(transcript_of(cut=g))
    known = draw_positives(LABELS, 1, "hints")[:2]
    rest = np.setdiff1d(np.arange(10), known)
    expected = leak_auc(hint.score(g, g[torch.from_numpy(known)], "distance")[rest], LABELS[rest])
    assert recorder.values[0]["value"] == expected


def test_side_information_is_a_value():
    side = SideInformation({"hints": torch.zeros(1, 2)}, np.array([3]))
    with pytest.raises(dataclasses.FrozenInstanceError):
        side.left_out = np.array([4])


class KnownLabelsAttack(RecordingAttack):
    """Attack that knows labels of a few rows of each class and scores them by label; all others score 0."""

    def __init__(self, leaks):
        super().__init__("labels")
        self._leaks = leaks

    @property
    def leaks(self):
        return self._leaks

    def score(self, transcript, layer, side):
        super().score(transcript, layer, side)
        return side.tensor("labels").clamp(min=0).double()


def test_an_attack_that_knows_labels_gets_those_of_the_same_rows_and_is_measured_on_the_others():
    attack, known_rows = KnownLabelsAttack(1), []
    scorer, recorder = scorer_of(attack)
    for step in range(4):
        rows = np.random.default_rng(step).permutation(10)
        transcript = Transcript(history=None)
        transcript.record(StepTrace(step, 0, rows, torch.zeros(10, 2), {"cut": gradients(shape=(10, 3))}))
        scorer.score(transcript)
        _, side = attack.received[-1]
        known, labels = rows[side.left_out], side.tensor("labels")
        assert labels[side.left_out].tolist() == LABELS[known].tolist()
        assert sorted(labels.tolist()) == [-1] * 8 + [0, 1]
        known_rows.append(sorted(known.tolist()))
    scorer.settle()
    assert all(rows == known_rows[0] for rows in known_rows)
    assert [value["value"] for value in recorder.values] == [0.5] * 4  # known labels are not scored


@pytest.mark.parametrize("leaks", [0, 4])
def test_labels_of_more_rows_than_there_are_or_of_none_are_refused(leaks):
    with pytest.raises(InputError, match=f"knows the labels of {leaks} rows of each class; from 1 to 3 are possible"):
        check_side_information([KnownLabelsAttack(leaks)], positives=4, batch_size=10)


def test_the_population_of_a_quantiles_p_value_is_the_rows_that_are_trained_on():
    """Scores that stay over the steps share how well they order these rows by chance, and validation rows are none."""
    held_out, trained = np.array([0, 1, 4]), np.array([2, 3, 5, 6, 7, 8, 9])
    labels = AuditLabels.of(LABELS)
    assert labels.class_counts(held_out) == (5, 2)
    assert AuditLabels(10).class_counts(held_out) == ()
    known = {"party": "a", "source": "attacker", "defended": True, "recorder": NoRecorder()}
    scorer = AttackEvaluator([RecordingAttack()], ["cut"], labels, held_out=held_out, **known)
    g = torch.from_numpy(LABELS[trained]).float()[:, None]
    for step in range(40):
        transcript = Transcript(history=1)
        transcript.record(StepTrace(step, 0, trained, torch.zeros(7, 2), {"cut": g}))
        scorer.score(transcript)
    (entry,) = scorer.entries()
    assert entry["q95_p_value"] == 2.0 * quantile_p_value([(5, 2)] * 40, 1.0, population=(5, 2))
