"""Attacks on gradients of more than two classes: each class in turn is the positive one, against all others."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from flower_vfl.apps import run
from flower_vfl.attacks import CosineAttack, HintAttack, NormAttack
from flower_vfl.auditing.audit_labels import AuditLabels
from flower_vfl.auditing.evaluator import AttackEvaluator, Oracle
from flower_vfl.auditing.recorder import NoRecorder
from flower_vfl.errors import ConfigError, ProtocolError
from flower_vfl.metrics import leak_auc, nearest_rank
from flower_vfl.protocol.schedule import is_scored
from flower_vfl.protocol.transcript import StepTrace, Transcript
from flower_vfl.strategies import VerticalStrategy
from tests.attacks.common import RecordingAttack, gradients
from tests.toys import toy_config, toy_data

LABELS = np.array([0, 1, 2, 2, 1, 0, 0, 1, 2, 0, 1, 2])
ROWS = np.arange(len(LABELS))


class AucRecorder(NoRecorder):
    def __init__(self):
        self.values = []

    def add(self, *, metric, value, **_):
        if metric.endswith("auc"):
            self.values.append(value)


def scorer_of(*attacks, positives=(), every=1):
    recorder = AucRecorder()
    audit = AuditLabels.of(LABELS, classes=3, positives=positives)
    return AttackEvaluator(
        attacks, ["cut"], audit, party="a", source="attacker", defended=False, recorder=recorder, every=every
    ), recorder


def score(scorer, steps, references=None):
    for step in steps:
        transcript = Transcript()
        g = gradients(step, (len(LABELS), 3))
        transcript.record(StepTrace(step, 0, ROWS, g, {"cut": g}))
        scorer.score(transcript, None if references is None else references(step, g))


def norm_auc(step, positive):
    return leak_auc(gradients(step, (len(LABELS), 3)).norm(dim=1), positive == LABELS)


def test_classes_take_turns_one_a_scored_step():
    scorer, recorder = scorer_of(NormAttack(), every=3)
    score(scorer, range(18))
    scorer.settle()
    scored = [step for step in range(18) if is_scored(step, 3)]
    expected = [norm_auc(step, turn % 3) for turn, step in enumerate(scored)]
    assert recorder.values == expected
    (entry,) = scorer.entries()
    assert [(one["class"], one["steps"]) for one in entry["by_class"]] == [(0, 2), (1, 2), (2, 2)]
    assert [one["q95"] for one in entry["by_class"]] == [max(expected[c::3]) for c in range(3)]
    assert entry["worst_class"]["q95"] == max(expected)
    assert entry["macro_q95"] == pytest.approx(np.mean([max(expected[c::3]) for c in range(3)]))
    assert (entry["steps"], entry["q95"]) == (6, nearest_rank(expected))


@pytest.mark.parametrize("every", [1, 2, 3])
def test_the_oracle_draws_from_the_class_whose_turn_it_is_where_not_each_step_is_scored(every):
    oracle = Oracle([CosineAttack()], AuditLabels.of(LABELS, classes=3), every)
    for turn in range(5):
        assert oracle.positives_in(turn * every, ROWS).tolist() == (turn % 3 == LABELS).tolist()


def test_a_single_class_can_be_the_positive_one():
    scorer, recorder = scorer_of(NormAttack(), positives=(2,))
    score(scorer, range(4))
    (entry,) = scorer.entries()
    assert recorder.values == [norm_auc(step, 2) for step in range(4)]
    assert "by_class" not in entry


def test_two_classes_are_read_as_before():
    audit = AuditLabels.of(LABELS % 2)
    assert [audit.positive(turn) for turn in range(3)] == [1, 1, 1]


def test_hints_and_the_reference_are_of_the_positive_class_of_the_step():
    recording, hinted = RecordingAttack("reference"), RecordingAttack("hints", hints=2)
    scorer, _ = scorer_of(recording, hinted)
    oracle = Oracle([CosineAttack()], AuditLabels.of(LABELS, classes=3), every=1)

    def reference(step, g):
        found = oracle.references(step, ROWS, {"a": g})["a"]
        assert LABELS[found.row] == step % 3
        assert torch.equal(found.gradients["cut"], g[found.row])
        return found

    score(scorer, range(6), reference)
    for attack in (recording, hinted):
        for step, (_, side) in enumerate(attack.received):
            assert set(LABELS[side.left_out]) == {step % 3}
            assert side.classes == 3


def test_a_restored_scorer_goes_on_class_by_class():
    whole, _ = scorer_of(NormAttack(), HintAttack(k=1))
    score(whole, range(9))
    first, _ = scorer_of(NormAttack(), HintAttack(k=1))
    score(first, range(4))
    second, _ = scorer_of(NormAttack(), HintAttack(k=1))
    second.restore(first.state())
    score(second, range(4, 9))
    assert json.dumps(second.entries()) == json.dumps(whole.entries())


def test_the_number_of_classes_that_comes_over_the_audit_channel_is_checked():
    for classes in (0, 1, 257):
        with pytest.raises(ProtocolError, match="classes"):
            AuditLabels(3).fill(0, torch.zeros(3, dtype=torch.uint8), classes=classes)


def three_classes():
    return toy_data(classes=3)


def strategy_of(**attack):
    return VerticalStrategy(torch.nn.Linear(2, 3), three_classes().target, config=toy_config(attack=attack))


def test_an_attack_on_embeddings_of_two_classes_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"spectral can tell two classes.*this data has 3"):
        strategy_of(names=["norm", "spectral"])
    assert [attack.name for attack in strategy_of(names=["norm", "cosine"]).step_attacks] == ["norm", "cosine"]


def test_a_positive_class_that_the_data_does_not_have_is_refused():
    with pytest.raises(ConfigError, match=r"attack\.positives is \[3\]; classes of this data are 0 to 2"):
        strategy_of(names=["norm"], positives=[3])


def test_hints_that_the_rarest_class_could_not_give_are_refused():
    fewest = int(np.bincount(three_classes().target.train).min())
    with pytest.raises(ConfigError, match=f"{fewest} of the training rows are positive"):
        strategy_of(names=[f"hint(k={fewest})"])


@pytest.mark.slow
def test_a_run_of_three_classes_is_attacked_at_every_party_and_by_the_monitor(tmp_path):
    names = ["norm", "cosine", "hint(k=1)", "direction_count", "gradient_clustering"]
    config = toy_config(attack={"names": names}, training={"epochs": 2, "batch_size": 32})
    run(config, data=lambda config: three_classes(), out=tmp_path / "run")
    result = json.loads((Path(tmp_path) / "run" / "result.json").read_text())
    found = {(entry["attack"], entry["source"], entry["layer"], entry["party"]): entry for entry in result["leakage"]}
    assert {attack for attack, *_ in found} == {name.split("(")[0] for name in names}
    assert {source for _, source, *_ in found} == {"attacker", "monitor"}
    assert {layer for _, source, layer, _ in found if source == "attacker"} > {"cut"}
    assert {party for *_, party in found} == {"a", "b", "a+b"}
    for (attack, source, layer, party), entry in found.items():
        if attack != "gradient_clustering":
            assert [one["class"] for one in entry["by_class"]] == [0, 1, 2]
        if layer == "cut" and source == "attacker":  # both attack the same numbers
            assert entry["mean"] == pytest.approx(found[attack, "monitor", "cut", party]["mean"])
