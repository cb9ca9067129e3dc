"""Parsing of assignments and of calls."""

import pytest

from flower_vfl.config.parsing import parse_assignments, parse_defenses
from flower_vfl.errors import ConfigError


@pytest.mark.parametrize("assignment", ["training.epochs", "=3", "", "  = 3"])
def test_an_assignment_without_key_or_value_is_refused(assignment):
    with pytest.raises(ConfigError, match="--set wants key=value, given"):
        parse_assignments([assignment])


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("", []),
        ("iso", [{"name": "iso"}]),
        ("iso()", [{"name": "iso"}]),
        (" iso ( t = 5.0 , scope=per-party ) ", [{"name": "iso", "t": 5.0, "scope": "per-party"}]),
        ("marvell(P=3),label_dp(flip=0.02)", [{"name": "marvell", "P": 3}, {"name": "label_dp", "flip": 0.02}]),
        ("my.module:Defense(on=true)", [{"name": "my.module:Defense", "on": True}]),
    ],
)
def test_defenses_are_read_outermost_first(text, entries):
    assert parse_defenses(text) == entries


def test_a_long_text_that_is_no_call_is_refused_without_trying_each_part_of_it():
    with pytest.raises(ConfigError, match="is not understood"):
        parse_defenses("a" + " " * 200_000 + "!")
