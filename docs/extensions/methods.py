"""Built-in attacks and defenses: what each sees, knows, hides and can be given, from its class."""

from __future__ import annotations

import re
from collections.abc import Mapping

from flower_vfl.attacks import ATTACKS, AttackMethod
from flower_vfl.simulations.methods import facts_of_attack, facts_of_defense, text_of
from flower_vfl.strategies import DEFENSES, Defense

FAMILIES = {
    "gradient": "The cut gradients of single steps",
    "longitudinal": "The cut gradients of all epochs",
    "embedding": "Embeddings and the trained model",
    "joint": "Gradients together with the party's own columns and embeddings",
}
"""Folders of `flower_vfl/attacks`, in the order of the page, and what attacks in them see."""


def _linked(method: type) -> str:
    return f"{{py:class}}`{method.__name__} <{method.__module__}.{method.__qualname__}>`"


def _text(method: type) -> str:
    """Return the text of a docstring with its formulas in Markdown."""
    text = re.sub(r":math:(?=`)", "{math}", text_of(method))
    return re.sub(r"^\.\. math::\s*(.+?)(?=\n\n|\Z)", r"```{math}\n\1\n```", text, flags=re.MULTILINE | re.DOTALL)


def _entry(heading: str, method: type, facts: Mapping[str, str]) -> str:
    return "\n".join([heading, "", _text(method), "", *(f"- {key}: {value}" for key, value in facts.items()), ""])


def family_of(attack: type[AttackMethod]) -> str:
    """Return the folder of an attack, which says what it sees."""
    return attack.__module__.split(".")[2]


def _attack(name: str, attack: type[AttackMethod]) -> str:
    return _entry(f"### {name}", attack, {"Class": _linked(attack), **facts_of_attack(attack)})


def attacks() -> str:
    """Return all attacks, by what they see."""
    lines = []
    for family, title in FAMILIES.items():
        lines += [f"## {title}", ""]
        lines += [_attack(name, attack) for name, attack in ATTACKS.items() if family_of(attack) == family]
    return "\n".join(lines)


def _defense(name: str, defense: type[Defense]) -> str:
    changes = {"Class": _linked(defense), "Changes": defense.__module__.split(".")[2]}
    return _entry(f"## {name}", defense, {**changes, **facts_of_defense(defense)})


def defenses() -> str:
    """Return all defenses."""
    return "\n".join(_defense(name, defense) for name, defense in DEFENSES.items())
