"""Attribute `read_by` of defenses: the attacks that are known to read labels in spite of them."""

import logging

import pytest

from flower_vfl.apps import run
from flower_vfl.attacks import ATTACKS
from flower_vfl.errors import CheckError
from flower_vfl.strategies import DEFENSES, GradientDefense, LabelDP, PotentialEnergy
from flower_vfl.testing import check_defense
from tests.toys import toy_config, toy_data


@pytest.mark.parametrize("name", DEFENSES)
def test_every_attack_that_a_defense_names_can_be_run_and_is_no_oracle(name):
    named = DEFENSES[name].read_by
    assert named
    assert set(named) <= ATTACKS.keys()
    assert not any("reference" in ATTACKS[one].needs for one in named)


def test_the_attacks_are_those_of_the_evidence():
    evidence = {
        "marvell": ("residual",),
        "max_norm": ("shell", "remembered_scales"),
        "marvell_full": ("direction",),
        "iso": ("norm", "remembered_direction", "remembered_scales"),
    }
    assert {name: DEFENSES[name].read_by for name in evidence} == evidence
    assert PotentialEnergy.read_by == LabelDP.read_by == ("norm", "direction")


def test_a_run_lists_these_attacks_and_is_not_tested_where_they_did_not_run():
    data = toy_data(rows=200)
    config = toy_config(attack={"names": ["norm"], "informed": 0}, defenses=[{"name": "marvell_full", "s": 400.0}])
    summary = run(config, data=lambda _: data).summary
    assert summary["defenses"][0]["read_by"] == ["direction"]
    assert summary["verdict"]["status"] == "not tested"
    assert any("direction" in reason for party in summary["verdict"]["parties"] for reason in party["not_run"])


@pytest.mark.parametrize(("classes", "warnings"), [(2, 1), (3, 0)])
def test_marvell_warns_once_of_the_attack_that_reads_it_and_names_an_alternative(caplog, classes, warnings):
    data = toy_data(rows=200, classes=classes)
    with caplog.at_level(logging.WARNING, "flower_vfl"):
        run(toy_config(attack={"names": []}, defenses=[{"name": "marvell"}]), data=lambda _: data)
    warned = [record.message for record in caplog.records if "residual" in record.message]
    assert len(warned) == warnings
    assert all("marvell_full" in text for text in warned)


def test_check_defense_finds_a_read_by_that_names_no_attack():
    class Halved(GradientDefense):
        """Halve cut gradients; `scope` is that of `GradientDefense`."""

        name = "halved"
        read_by = ("no such attack",)

        def perturb(self, g, y):
            """Halve."""
            return g / 2, {}

    with pytest.raises(CheckError, match="read_by"):
        check_defense(Halved)
