"""An attack with state has an instance for each party, layer and view, and continues after a resume."""

import numpy as np
import pytest
import torch

from flower_vfl.attacks import DirectionAttack, NormAttack, ShellAttack
from flower_vfl.attacks.gradient.principal_direction import fresh_together
from flower_vfl.auditing.audit_labels import AuditLabels
from flower_vfl.auditing.evaluator import AttackEvaluator
from flower_vfl.auditing.monitor import LeakageMonitor
from flower_vfl.auditing.recorder import NoRecorder
from flower_vfl.checkpoint import load_state, save_state
from flower_vfl.metrics import leak_auc
from flower_vfl.protocol.schedule import Schedule
from flower_vfl.protocol.transcript import StepTrace, Transcript
from tests.attacks.gradient.test_direction import batches

ROWS, STEPS = 256, 8


class AucRecorder(NoRecorder):
    """Recorder of leak AUCs by party, layer, attack and metric."""

    def __init__(self):
        self.values = {}

    def add(self, *, party, layer, attack, metric, value, **_):
        if metric.endswith("auc"):
            self.values.setdefault((party, layer, attack, metric), []).append(value)


def stream(seed, width):
    """Return the gradients of one party and layer by batch, and the labels of all batches in one array."""
    seen = list(batches(STEPS, rows=ROWS, width=width, seed=seed, turning=0.3))
    return [g for g, _ in seen], torch.cat([y for _, y in seen]).numpy().astype(np.uint8)


def alone(gradients, labels):
    attack = DirectionAttack()
    parts = labels.reshape(len(gradients), -1)
    return [leak_auc(attack.rate(g, None), y) for g, y in zip(gradients, parts, strict=True)]


def scorer_of(labels, recorder, together=1):
    audit = AuditLabels.of(labels)
    attacks = [DirectionAttack(), NormAttack()]
    return AttackEvaluator(
        attacks,
        ["cut", "first"],
        audit,
        party="a",
        source="attacker",
        defended=True,
        recorder=recorder,
        together=together,
    )


def score(scorer, step, **layers):
    transcript = Transcript()
    rows = np.arange(step * ROWS, (step + 1) * ROWS)
    transcript.record(StepTrace(step, 0, rows, torch.zeros(ROWS, 2), layers))
    scorer.score(transcript)


@pytest.mark.parametrize("together", [1, 3])
def test_each_layer_has_an_instance_of_its_own(together):
    (cut, labels), (first, _) = stream(0, 8), stream(1, 5)
    recorder = AucRecorder()
    scorer = scorer_of(labels, recorder, together)
    for step in range(STEPS):
        score(scorer, step, cut=cut[step], first=first[step])
    scorer.settle()
    for layer, gradients in (("cut", cut), ("first", first)):
        assert recorder.values["a", layer, "direction", "auc"] == pytest.approx(alone(gradients, labels), abs=1e-9)


def test_after_a_resume_attacks_continue_where_they_were(tmp_path):
    (cut, labels), (first, _) = stream(0, 8), stream(1, 5)
    whole, before, after = AucRecorder(), AucRecorder(), AucRecorder()
    undisturbed, interrupted = scorer_of(labels, whole), scorer_of(labels, before)
    for step in range(STEPS):
        score(undisturbed, step, cut=cut[step], first=first[step])
        if step < STEPS // 2:
            score(interrupted, step, cut=cut[step], first=first[step])
    save_state(tmp_path / "state", interrupted.state())
    resumed = scorer_of(labels, after)
    resumed.restore(load_state(tmp_path / "state"))
    for step in range(STEPS // 2, STEPS):
        score(resumed, step, cut=cut[step], first=first[step])
    assert {key: before.values[key] + values for key, values in after.values.items()} == whole.values
    assert resumed.entries() == undisturbed.entries()


def test_the_monitor_has_an_instance_for_each_party_and_for_undefended_gradients():
    seen = {party: stream(seed, width) for seed, (party, width) in enumerate([("a", 8), ("b", 6)])}
    labels = seen["a"][1]
    recorder = AucRecorder()
    schedule = Schedule(0, len(labels), 0, ROWS, 10, 1, validation=0.0)
    monitor = LeakageMonitor(
        ["a", "b", "a+b"],
        [DirectionAttack()],
        AuditLabels.of(labels),
        schedule,
        defended=True,
        recorder=recorder,
        every=1,
    )
    noise = torch.Generator().manual_seed(9)
    sent = {
        party: [g + g.std() * torch.randn(g.shape, generator=noise) for g in gradients]
        for party, (gradients, _) in seen.items()
    }
    for step in range(STEPS):
        gradients = {party: batch[step] for party, batch in sent.items()}
        clean = {party: batch[step] for party, (batch, _) in seen.items()}
        rows = np.arange(step * ROWS, (step + 1) * ROWS)
        monitor.observe(step, 1, rows, gradients, gradients, clean=clean)
    monitor.entries()
    joined = [torch.cat(pair, dim=1) for pair in zip(sent["a"], sent["b"], strict=True)]
    for party, expected in (("a", sent["a"]), ("b", sent["b"]), ("a+b", joined)):
        found = recorder.values[party, "cut", "direction", "monitor_auc"]
        assert found == pytest.approx(alone(expected, labels), abs=1e-9)
    for party, (clean, _) in seen.items():
        found = recorder.values[party, "cut", "direction", "undefended_auc"]
        assert found == pytest.approx(alone(clean, labels), abs=1e-9)


def test_attacks_that_share_a_principal_direction_score_as_each_alone():
    seen = [g for g, _ in batches(STEPS, rows=ROWS, width=6, turning=0.3)]
    together, buffer = fresh_together([DirectionAttack(), NormAttack(), ShellAttack()]), torch.empty_like(seen[0])
    apart = DirectionAttack(), NormAttack(), ShellAttack()
    for g in seen:
        buffer.copy_(g)  # each batch overwrites the last one in memory
        for one, other in zip(together, apart, strict=True):
            assert torch.equal(one.rate(buffer.flatten(1), None), other.rate(g, None))
    assert torch.equal(together[2].state()["evidence"], apart[2].state()["evidence"])
