"""Built-in attacks and defenses: what each sees, knows, hides and can be given, from its class."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from flower_vfl.attacks import ATTACKS, AttackMethod, InferenceAttack, JointAttack, MemoryAttack
from flower_vfl.attacks.base import KINDS
from flower_vfl.strategies import DEFENSES, Defense

FAMILIES = {
    "gradient": "The cut gradients of single steps",
    "longitudinal": "The cut gradients of all epochs",
    "embedding": "Embeddings and the trained model",
    "joint": "Gradients together with the party's own columns and embeddings",
}
"""Folders of `flower_vfl/attacks`, in the order of the page, and what attacks in them see."""

_NEEDS = {**KINDS, "leaked": "the labels of some training rows"}


def _parameters(method: type, *, skipped: int = 0) -> str:
    given = list(inspect.signature(method).parameters.values())[skipped:]
    known = [one for one in given if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    return ", ".join(f"`{one.replace(annotation=one.empty)}`" for one in known) or "none"


def _paragraphs(method: type) -> str:
    """Return a docstring's text up to its first section, as Markdown."""
    text = inspect.getdoc(method) or ""
    return text.split("\nParameters\n")[0].split("\nReferences\n")[0].split("\nExamples\n")[0].strip()


def _linked(method: type) -> str:
    return f"{{py:class}}`{method.__name__} <{method.__module__}.{method.__qualname__}>`"


def _entry(heading: str, method: type, facts: Mapping[str, str]) -> str:
    return "\n".join([heading, "", _paragraphs(method), "", *(f"- {key}: {value}" for key, value in facts.items()), ""])


def family_of(attack: type[AttackMethod]) -> str:
    """Return the folder of an attack, which says what it sees."""
    return attack.__module__.split(".")[2]


def _sees(attack: type[AttackMethod]) -> str:
    if issubclass(attack, InferenceAttack):
        return "the trained bottom model and its embeddings"
    if issubclass(attack, MemoryAttack):
        return "all gradients that came for each row"
    if issubclass(attack, JointAttack):
        return "gradients, own columns and embeddings"
    return f"the {attack.sees} of one step"


def _attack(name: str, attack: type[AttackMethod]) -> str:
    knows = "; ".join(f"`{need}`: {_NEEDS[need]}" for need in sorted(attack.needs)) or "nothing more"
    classes = "two" if issubclass(attack, InferenceAttack) and attack.reads == "scores" else "any number"
    facts = {
        "Class": _linked(attack),
        "Sees": _sees(attack),
        "Knows besides": knows,
        "Parameters": _parameters(attack),
        "Classes": classes,
    }
    return _entry(f"### {name}", attack, facts)


def attacks() -> str:
    """Return all attacks, by what they see."""
    lines = []
    for family, title in FAMILIES.items():
        lines += [f"## {title}", ""]
        lines += [_attack(name, attack) for name, attack in ATTACKS.items() if family_of(attack) == family]
    return "\n".join(lines)


def _defense(name: str, defense: type[Defense]) -> str:
    facts = {
        "Class": _linked(defense),
        "Changes": defense.__module__.split(".")[2],
        "Known to be read by": ", ".join(f"`{attack}`" for attack in defense.read_by) or "nothing that is named",
        "Parameters": _parameters(defense, skipped=1),
        "Classes": "two" if defense.two_classes_only else "any number",
    }
    return _entry(f"## {name}", defense, facts)


def defenses() -> str:
    """Return all defenses."""
    return "\n".join(_defense(name, defense) for name, defense in DEFENSES.items())
