"""The leaks of a result: which of them a party really received, and what the attack was told beyond that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Entry = Mapping[str, Any]
"""One entry of ``leakage`` in ``result.json``."""

Result = Mapping[str, Any]
"""The content of ``result.json``."""

ORACLES = frozenset({"cosine", "inner_product"})
"""Attacks that are told a clean gradient, for results that do not say what each attack was told."""


def label_of(entry: Entry) -> str:
    """Return the name of an entry's attack in the step log: with the parameters that differ from their defaults."""
    return str(entry.get("label", entry.get("attack")))


def told(result: Result, entry: Entry) -> tuple[bool, int]:
    """Return whether an attack was told a clean gradient, which no real attacker has, and of how many positives.

    The first makes it an oracle; the second were left out when it was scored.
    """
    name, params = entry.get("attack"), entry.get("params")
    known = next((a for a in result.get("attacks", ()) if a.get("label") == label_of(entry)), None)
    if known is None:
        hints = params.get("k") if isinstance(params, dict) and name == "hint" else 0
        return name in ORACLES, (hints if isinstance(hints, int) else 0) + (name in ORACLES)
    oracle = "reference" in known["needs"]
    return oracle, known["hints"] + oracle


def on_embeddings(result: Result, attack: str) -> bool:
    """Return whether an attack, given by its label, looks at embeddings: noise on gradients promises nothing there."""
    return any(a.get("label") == attack and a.get("sees") == "embeddings" for a in result.get("attacks", ()))


def is_remembered(entry: Entry) -> bool:
    """Return whether an entry is what an attacker read who remembers each row over the epochs."""
    return bool(entry.get("phase") == "remembered")


def received(result: Result) -> list[Entry]:
    """Return the leak AUCs, while training, of what the parties really saw, defended where there is a defense.

    Those of single steps and those of what is remembered over the epochs.
    """
    defended = bool(result["defenses"])
    return [
        entry
        for entry in result["leakage"]
        if entry.get("metric") == "auc"
        and entry.get("phase") != "inference"
        and bool(entry.get("defended", defended)) == defended
    ]


def worst(
    result: Result,
    layer: str,
    *,
    attack: str | None = None,
    oracle: bool | None = None,
    remembered: bool | None = None,
) -> Entry | None:
    """Return the entry with the largest q95 at a layer; None without any.

    What attackers measured counts; what the monitor measured stands in where none did.

    Parameters
    ----------
    result
        The content of ``result.json``.
    layer
        Where.
    attack
        Only this one, by its label.
    oracle
        Only attacks that are told what no real attacker has, or only the others.
    remembered
        Only attacks that remember over the epochs, or only those on single steps.
    """
    entries = [
        entry
        for entry in received(result)
        if entry.get("layer") == layer
        and entry.get("q95") is not None
        and attack in (None, label_of(entry))
        and oracle in (None, told(result, entry)[0])
        and remembered in (None, is_remembered(entry))
    ]
    entries = [entry for entry in entries if entry.get("source") != "monitor"] or entries
    return max(entries, key=lambda entry: float(entry["q95"]), default=None)
