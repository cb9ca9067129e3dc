"""The label party's monitor: leakage to each party, and to parties that collude."""

import numpy as np
import pytest
import torch

from flower_vfl.apps import run
from flower_vfl.attacks import CosineAttack, NormAttack
from flower_vfl.attacks.gradient import cosine, norm
from flower_vfl.auditing.audit_labels import AuditLabels
from flower_vfl.auditing.evaluator import Reference
from flower_vfl.auditing.monitor import LeakageMonitor
from flower_vfl.auditing.recorder import NoRecorder
from flower_vfl.errors import ConfigError
from flower_vfl.metrics import leak_auc, separation
from flower_vfl.protocol.schedule import Schedule
from flower_vfl.strategies import VerticalStrategy
from tests.toys import toy_config, toy_data

LABELS = np.array([0, 1, 0, 0, 1, 1, 0, 1, 0, 0])
ROWS = np.arange(len(LABELS))
SCHEDULE = Schedule(0, len(LABELS), 0, len(LABELS), 10, 1, validation=0.0)


def normal(seed, shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Kept(NoRecorder):
    def __init__(self):
        self.values = {}

    def add(self, *, party, attack, metric, value, **_):
        self.values[party, attack, metric] = value


@pytest.fixture
def gradients():
    return {"a": normal(1, (10, 3)), "b": normal(2, (10, 2, 2)), "c": normal(3, (10, 1))}


def test_colluding_parties_are_attacked_on_their_joined_gradients(gradients):
    monitor = LeakageMonitor(
        ["a", "b", "a+b"],
        [NormAttack(), CosineAttack()],
        AuditLabels.of(LABELS),
        SCHEDULE,
        defended=False,
        recorder=NoRecorder(),
        every=1,
    )
    references = {party: Reference(4, {"cut": g[4].flatten()}) for party, g in gradients.items()}
    monitor.observe(0, 1, ROWS, gradients, gradients, references=references)
    found = {(entry["attack"], entry["party"]): entry["q95"] for entry in monitor.entries()}
    joined, others = torch.cat([gradients["a"], gradients["b"].flatten(1)], dim=1), np.delete(ROWS, 4)
    assert found["norm", "a+b"] == leak_auc(norm.score(joined), LABELS)
    assert found["cosine", "a+b"] == leak_auc(cosine.score(joined, joined[4])[others], LABELS[others])
    assert len({found["norm", party] for party in ("a", "b", "a+b")}) == 3


def test_colluding_parties_are_also_attacked_on_undefended_gradients(gradients):
    kept = Kept()
    monitor = LeakageMonitor(
        ["a+c"], [NormAttack()], AuditLabels.of(LABELS), SCHEDULE, defended=True, recorder=kept, every=1
    )
    sent = {party: torch.zeros_like(g) for party, g in gradients.items()}
    monitor.observe(0, 1, ROWS, gradients, sent, clean=gradients)
    monitor.entries()
    joined = norm.score(torch.cat([gradients["a"], gradients["c"]], dim=1))
    assert kept.values == {
        ("a+c", "norm", "monitor_auc"): 0.5,
        ("a+c", "norm", "monitor_detection_error"): 0.5,
        ("a+c", "norm", "undefended_auc"): separation(joined, LABELS)[0],
        ("a+c", "norm", "undefended_detection_error"): separation(joined, LABELS)[1],
    }


@pytest.mark.parametrize(
    ("parties", "groups"),
    [
        ({}, ["a+b+c"]),
        ({"attackers": ["a", "c"]}, ["a+c"]),
        ({"attackers": ["a"]}, []),
        ({"colluding": []}, []),
        ({"colluding": ["all", "b+c"]}, ["a+b+c", "b+c"]),
        ({"colluding": ["a+b+c", "all"]}, ["a+b+c"]),
    ],
)
def test_all_attackers_collude_unless_the_configuration_says_otherwise(parties, groups):
    config = toy_config(parties=parties, training={"epochs": 1}, attack={"names": ["norm"], "informed": 0})
    leakage = run(config, data=lambda _: toy_data(rows=200, parties=3)).summary["leakage"]
    together = [entry for entry in leakage if "+" in entry["party"]]
    assert [entry["party"] for entry in together] == groups
    assert {(entry["source"], entry["layer"]) for entry in together} <= {("monitor", "cut")}


def test_a_group_with_an_unknown_party_is_refused():
    config = toy_config(parties={"colluding": ["a+z"]})
    with pytest.raises(ConfigError, match=r"parties.colluding names 'z'; feature parties are a, b"):
        VerticalStrategy(torch.nn.Linear(4, 1), LABELS, parties=("a", "b"), config=config)
