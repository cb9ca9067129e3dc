"""Descriptions of attacks and defenses, from their classes: input, side information, parameters and classes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping

from flower_vfl.attacks import ATTACK_METHODS, AttackMethod, InferenceAttack, JointAttack, MemoryAttack
from flower_vfl.attacks.base import KINDS
from flower_vfl.errors import ConfigError, lookup
from flower_vfl.registry import Listed
from flower_vfl.strategies import DEFENSE_METHODS, Defense

_NEEDS = {**KINDS, "leaked": "the labels of some training rows"}


def facts_of_attack(attack: type[AttackMethod]) -> dict[str, str]:
    """Return the input of an attack, its side information, its parameters, and its number of classes."""
    return {
        "Sees": _sees(attack),
        "Knows besides": "; ".join(f"`{need}`: {_NEEDS[need]}" for need in sorted(attack.needs)) or "nothing more",
        "Parameters": _quoted(parameters(attack)) or "none",
        "Classes": "two" if issubclass(attack, InferenceAttack) and attack.reads == "scores" else "any number",
    }


def facts_of_defense(defense: type[Defense]) -> dict[str, str]:
    """Return the attacks that are known to succeed behind a defense, its parameters, and its number of classes."""
    return {
        "Known to be read by": _quoted(defense.read_by) or "nothing that is named",
        "Parameters": _quoted(parameters(defense)) or "none",
        "Classes": "two" if defense.two_classes_only else "any number",
    }


def parameters(method: type[AttackMethod] | type[Defense]) -> list[str]:
    """Return the parameters that a configuration can set, with defaults: not the strategy that a defense wraps."""
    known = [
        entry
        for entry in inspect.signature(method).parameters.values()
        if entry.kind not in (entry.VAR_POSITIONAL, entry.VAR_KEYWORD)
    ]
    own = known[1:] if issubclass(method, Defense) else known
    return [str(entry.replace(annotation=entry.empty)) for entry in own]


def text_of(method: type) -> str:
    """Return a docstring up to its first section."""
    text = inspect.getdoc(method) or ""
    return text.split("\nParameters\n")[0].split("\nReferences\n")[0].split("\nExamples\n")[0].strip()


def sentence(listed: Listed[AttackMethod] | Listed[Defense]) -> str:
    """Return the first line of a method's docstring, or the reason why the method cannot be used."""
    if listed.problem:
        return f"Cannot be used: {listed.problem}"
    lines = (listed.method.__doc__ or "").strip().splitlines() if listed.method else []
    words = lines[0].removeprefix("An attack that ") if lines else ""
    return f"{words[:1].upper()}{words[1:]}"


def details(name: str) -> tuple[str, str, Mapping[str, str]]:
    """Return the kind, the description and the properties of the attack or defense of a name.

    Parameters
    ----------
    name : str
        Name of a method of an installed package (`config.methods` checks the user's input), or a `module:Class`.

    Returns
    -------
    tuple
        Kind, such as "attack (built-in)"; text; facts.

    Raises
    ------
    ConfigError
        When there is no such method, or its class cannot be loaded.
    """
    if ":" in name:
        return _details_of_class(name)
    attacks = {entry.name: entry for entry in ATTACK_METHODS.listed()}
    if name in attacks:
        attack = attacks[name]
        return f"attack ({attack.source})", _text(attack), facts_of_attack(attack.method) if attack.method else {}
    defense = lookup("defense", name, {entry.name: entry for entry in DEFENSE_METHODS.listed()})
    return f"defense ({defense.source})", _text(defense), facts_of_defense(defense.method) if defense.method else {}


def _details_of_class(reference: str) -> tuple[str, str, Mapping[str, str]]:
    try:
        attack = ATTACK_METHODS.find(reference)
    except ConfigError as no_attack:
        try:
            defense = DEFENSE_METHODS.find(reference)
        except ConfigError as no_defense:
            raise ConfigError("; ".join(dict.fromkeys((str(no_attack), str(no_defense))))) from None
        listed = Listed(defense.name, reference, defense)
        return f"defense (in results {defense.name})", _text(listed), facts_of_defense(defense)
    return f"attack (in results {attack.name})", _text(Listed(attack.name, reference, attack)), facts_of_attack(attack)


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _text(listed: Listed[AttackMethod] | Listed[Defense]) -> str:
    """Return the text of a method for the console: formulas stay in TeX, without the markup around them."""
    if listed.problem or listed.method is None:
        return sentence(listed)
    text = re.sub(r":math:`([^`]+)`", r"\1", text_of(listed.method))
    return re.sub(r"^\.\. math::\s*", "    ", text, flags=re.MULTILINE)


def _sees(attack: type[AttackMethod]) -> str:
    if issubclass(attack, InferenceAttack):
        return "the trained bottom model and its embeddings"
    if issubclass(attack, MemoryAttack):
        return "all gradients that came for each row"
    if issubclass(attack, JointAttack):
        return "gradients, own columns and embeddings"
    return f"the {attack.sees} of one step"
