"""One lookup, one error text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flower_vfl.errors import ConfigError
from flower_vfl.registry import lookup, suggestion

TABLE = {"iso": 1, "marvell": 2, "max_norm": 3}


@pytest.mark.parametrize("name", TABLE)
def test_a_known_name_is_found(name):
    assert lookup("defense", name, TABLE) == TABLE[name]


@pytest.mark.parametrize(("given", "meant"), [("marvel", "marvell"), ("max-norm", "max_norm"), ("is", "iso")])
def test_an_unknown_name_gives_the_nearest_one_and_all_others(given, meant):
    with pytest.raises(ConfigError) as caught:
        lookup("defense", given, TABLE)
    assert f"no defense named {given!r}; did you mean {meant!r}? Allowed: iso, marvell, max_norm" in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_name_that_is_near_to_nothing_gets_the_list_alone():
    assert suggestion("xyzzy", TABLE) == "Allowed: iso, marvell, max_norm"
    assert suggestion("x", []) == "Allowed: nothing"


@given(st.text(), st.lists(st.text()))
def test_any_name_gets_an_answer(name, choices):
    assert "Allowed: " in suggestion(name, choices)


def test_a_value_that_is_false_is_found_too():
    assert lookup("thing", "none", {"none": None}) is None
