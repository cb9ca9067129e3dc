"""Unaligned rows: they change the initial weights of a training, and nothing else."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np

from flower_vfl.apps import run
from flower_vfl.data.store.source import SomeRows
from flower_vfl.parties.feature import FeatureParty
from flower_vfl.protocol.frame import Kind
from flower_vfl.strategies.base import Defense
from tests.toys import mixed_data, toy_config, with_unaligned

DATA = mixed_data(rows=200, test_rows=60)


def trained(data, **training):
    return run(toy_config(training=training, attack={"names": []}), data=lambda _: data).summary["weights"]


def test_without_pre_training_nothing_depends_on_unaligned_rows(frames):
    found = [(trained(data), frames.copy(), frames.clear())[:2] for data in (DATA, with_unaligned(DATA, 90))]
    assert found[0] == found[1]


def test_before_the_first_step_all_frames_are_the_same_whatever_the_unaligned_rows_are(frames):
    before, weights = [], []
    for data in (with_unaligned(DATA, 1), with_unaligned(DATA, 300), with_unaligned(DATA, 300, seed=8)):
        frames.clear()
        weights.append(trained(data, pretrain=2))
        kinds = [frame[0] for _, frame, _ in frames]
        first = kinds.index(Kind.STEP)
        before.append(frames[:first])
        assert Kind.PRETRAIN in kinds[:first]
        assert Kind.PRETRAIN not in kinds[first:]
    assert before[0] == before[1] == before[2]
    for party in ("a", "label"):
        assert len({found[party] for found in weights}) == 3


class FirstStepOnly(SomeRows):
    """Unaligned rows that may be read before the first step only."""

    closed = False

    def gather(self, rows):
        assert not FirstStepOnly.closed
        return super().gather(rows)


def test_unaligned_rows_are_read_before_the_first_step_only(monkeypatch):
    data = with_unaligned(DATA, 90)
    tables = {
        name: replace(table, unaligned=FirstStepOnly(table.unaligned, np.arange(90)))
        for name, table in data.tables.items()
    }
    handle = FeatureParty.handle

    def closing(party, frame):
        if frame.kind is Kind.STEP:
            FirstStepOnly.closed = True
        return handle(party, frame)

    monkeypatch.setattr(FeatureParty, "handle", closing)
    trained(replace(data, tables=tables), pretrain=1)
    assert FirstStepOnly.closed


class Other(Defense):
    """A defense that replaces the labels, without a guarantee."""

    name = "other"
    params = property(lambda self: {})

    def prepare_labels(self, labels):
        return 1 - labels, {}


def test_the_label_party_learns_from_its_own_unaligned_rows_unless_a_defense_protects_labels(caplog):
    alone = with_unaligned(DATA, 90)
    alone = replace(alone, tables={**alone.tables, "a": DATA.tables["a"]})
    with caplog.at_level(logging.INFO):
        for chain, same in (
            ([], False),
            ("local_head(epsilon=1.0)", True),
            ("tests.training.test_unaligned:Other", True),
        ):
            config = toy_config(training={"pretrain": 1, "patience": 0}, attack={"names": []}, defenses=chain)
            found = [run(config, data=lambda _, data=data: data).summary["weights"] for data in (DATA, alone)]
            assert (found[0] == found[1]) is same
    assert caplog.text.count("the label party's own bottom model learns from 90 unaligned rows too") == 1
    assert caplog.text.count("the label party's unaligned rows are not used: ") == 2
