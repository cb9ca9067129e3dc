"""Requirements on every attack: a name in the list, construction from parameters, the arguments of its methods."""

import inspect

import pytest
import torch

from flower_vfl import attacks
from flower_vfl.attacks import ATTACKS, Attack, AttackMethod, InferenceAttack, MemoryAttack, make_attack
from flower_vfl.errors import ConfigError
from flower_vfl.registry import parameters


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_made_by_its_name(name):
    attack = make_attack(name)
    assert type(attack) is ATTACKS[name]
    assert attack.name == name
    assert isinstance(attack, AttackMethod)


@pytest.mark.parametrize("name", ATTACKS)
def test_parameters_and_needs_can_stand_in_a_result(name):
    attack = make_attack(name)
    assert isinstance(attack.params, dict)
    assert isinstance(attack.needs, frozenset)


def test_an_unknown_attack_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match=r"nrom.*norm"):
        make_attack("nrom")


def test_a_parameter_that_an_attack_does_not_have_is_refused():
    with pytest.raises(ConfigError, match="strength"):
        make_attack("norm", strength=3)


@pytest.mark.parametrize(
    ("name", "parameter"), [(name, parameter) for name, made in ATTACKS.items() for parameter in parameters(made)]
)
def test_a_text_that_means_nothing_to_a_parameter_is_refused(name, parameter):
    """`directions=False`, in Python's notation, is a text in a configuration, which must not count as true."""
    with pytest.raises(ConfigError, match=name):
        make_attack(name, **{parameter: "False"})


@pytest.mark.parametrize("base", [Attack, InferenceAttack, MemoryAttack])
def test_an_attack_cannot_be_made_without_its_method(base):
    with pytest.raises(TypeError, match="abstract"):
        base()


def test_a_method_author_writes_one_method():
    class First(Attack):
        name = "first-coordinate"

        def score(self, transcript, layer, side=attacks.base.NOTHING):
            return transcript[layer][:, 0]

    assert First().score({"cut": torch.ones(2, 2)}, "cut").tolist() == [1.0, 1.0]
    assert First().params == {}


def test_attacks_take_a_transcript_a_memory_or_a_view_of_the_trained_model_and_side_information_only():
    for attack in ATTACKS.values():
        if issubclass(attack, Attack):
            assert list(inspect.signature(attack.score).parameters) == ["self", "transcript", "layer", "side"]
        if issubclass(attack, InferenceAttack):
            for method in (attack.infer, attack.baseline):
                assert list(inspect.signature(method).parameters) == ["self", "view"]
        if issubclass(attack, MemoryAttack):
            assert list(inspect.signature(attack.score).parameters) == ["self", "memory", "known"]
