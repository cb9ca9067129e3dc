"""Names of methods are checked before the methods are loaded, and are those that can be loaded."""

import pytest

from flower_vfl import attacks, strategies
from flower_vfl.attacks import ATTACK_METHODS
from flower_vfl.config import build_config
from flower_vfl.config.methods import check_methods
from flower_vfl.errors import ConfigError
from flower_vfl.registry import parameters
from flower_vfl.strategies import DEFENSE_METHODS


def test_every_built_in_method_has_the_name_under_which_it_is_listed():
    for methods in (ATTACK_METHODS, DEFENSE_METHODS):
        assert [method.name for method in methods.builtin.values()] == list(methods.builtin)


@pytest.mark.parametrize(("package", "methods"), [(attacks, ATTACK_METHODS), (strategies, DEFENSE_METHODS)])
def test_every_built_in_method_can_be_imported_from_its_package(package, methods):
    for method in methods.builtin.values():
        assert getattr(package, method.__name__, None) is method
        assert method.__name__ in package.__all__


@pytest.mark.parametrize("values", [{"attack.names": "norm, nrom"}, {"defenses": "iso(t=1.0), max_nrom"}], ids=str)
def test_a_name_that_nobody_has_is_refused_as_it_is_where_methods_are_loaded(values):
    config = build_config({}, values)
    with pytest.raises(ConfigError) as refused:
        check_methods(config)
    methods, name = (ATTACK_METHODS, "nrom") if "attack.names" in values else (DEFENSE_METHODS, "max_nrom")
    with pytest.raises(ConfigError) as of_methods:
        methods.find(name)
    assert str(refused.value) == str(of_methods.value)


def test_names_of_methods_and_classes_by_reference_pass():
    check_methods(build_config({}, {"attack.names": "norm, json.at_all:Attack", "defenses": "iso(t=1.0)"}))


@pytest.mark.parametrize(
    ("values", "allowed"),
    [
        ({"defenses": "iso(x=1)"}, ["rho", "scope", "t"]),
        ({"attack.names": "norm, hint(x=1)"}, ["k", "measure"]),
        ({"defenses": "marvell(s=4, x=1)"}, ["P", "detection_error", "rho", "s", "scope", "sum_kl"]),
    ],
    ids=str,
)
def test_an_unknown_parameter_is_refused_before_its_method_is_loaded(values, allowed):
    with pytest.raises(ConfigError, match=f"there is no parameter 'x'; Allowed: {', '.join(allowed)}$"):
        check_methods(build_config({}, values))


@pytest.mark.parametrize("methods", [ATTACK_METHODS, DEFENSE_METHODS], ids=["attacks", "defenses"])
def test_every_parameter_of_a_built_in_method_passes(methods):
    for name, method in methods.builtin.items():
        known = list(parameters(method))[methods.names.own_arguments :]
        methods.names.check(name, dict.fromkeys(known, 1))


def test_the_baseline_of_sweeps_is_no_defense_of_a_run_and_the_message_says_what_is():
    with pytest.raises(ConfigError, match=r"in a run set training\.gradients = false"):
        check_methods(build_config({}, {"defenses": "no_gradients(pretrain=3)"}))
