"""The leaks of a result: which of them a party really received, and what the attack was told beyond that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Entry = Mapping[str, Any]
"""One entry of ``leakage`` in ``result.json``."""

Result = Mapping[str, Any]
"""The content of ``result.json``."""

ORACLES = frozenset({"cosine", "inner_product", "conditional_oracle"})
"""Attacks that are told a clean gradient, for results that do not say what each attack was told."""


def label_of(entry: Entry) -> str:
    """Return the name of an entry's attack in the step log: with the parameters that differ from their defaults."""
    return str(entry.get("label", entry.get("attack")))


def told(result: Result, entry: Entry) -> tuple[bool, int]:
    """Return whether an attack was told a clean gradient, which no real attacker has, and of how many positives.

    The first makes it an oracle; the second were left out when it was scored. Of the conditional oracle, which knows
    the gradients of every row for either label, none were left out.
    """
    name, params = entry.get("attack"), entry.get("params")
    known = next((a for a in result.get("attacks", ()) if a.get("label") == label_of(entry)), None)
    if known is None:
        hints = params.get("k") if isinstance(params, dict) and name == "hint" else 0
        return name in ORACLES, (hints if isinstance(hints, int) else 0) + (name in ORACLES)
    oracle = "reference" in known["needs"]
    left_out = known.get("left_out")
    return oracle, left_out if isinstance(left_out, int) else known["hints"] + oracle


def on_embeddings(result: Result, attack: str) -> bool:
    """Return whether an attack, given by its label, looks at embeddings: noise on gradients promises nothing there."""
    return any(a.get("label") == attack and a.get("sees") == "embeddings" for a in result.get("attacks", ()))


def is_remembered(entry: Entry) -> bool:
    """Return whether an entry is what an attacker read who remembers each row over the epochs."""
    return bool(entry.get("phase") == "remembered")


def keeps_apart(entry: Entry) -> bool:
    """Return whether an entry is what an attacker read who keeps the gradients of all epochs side by side."""
    params = entry.get("params")
    return is_remembered(entry) and isinstance(params, dict) and params.get("reads") == "epochs"


ADDED_UP = "adds up what came for each person"
_WAYS = {
    "last": "looks at what came for each person in one epoch alone",
    "difference": "compares what came for each person in the last two epochs",
    "epochs": "sets side by side what came for each person in every epoch",
}


def way_of(entry: Entry) -> str:
    """Return in words how an attacker reads who remembers.

    Examples
    --------
    >>> way_of({"attack": "remembered_fit", "params": {"reads": "last"}}), way_of({"attack": "remembered_norm"})
    ('looks at what came for each person in one epoch alone', 'adds up what came for each person')
    """
    params = entry.get("params")
    reads = params.get("reads") if isinstance(params, dict) else None
    return _WAYS.get("difference" if entry.get("attack") == "remembered_difference" else str(reads), ADDED_UP)


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


def unrepeated(entries: Sequence[Entry]) -> list[Entry]:
    """Return entries of one phase without what the monitor repeats: the attack, party and layer of an attacker's.

    What no attacker reported, such as parties that put together what they see, only the monitor has measured.
    """
    reported = {_where(entry) for entry in entries if entry.get("source") != "monitor"}
    return [entry for entry in entries if entry.get("source") != "monitor" or _where(entry) not in reported]


def _where(entry: Entry) -> tuple[Any, ...]:
    return label_of(entry), entry.get("party"), entry.get("layer")


def turns(entry: Entry) -> bool:
    """Return whether scores of single steps are nearly always wrong, so that turned around they read more labels.

    The side is chosen once, for all steps of a run: where they are wrong on average as clearly as chance is right in
    one step of twenty.

    Examples
    --------
    >>> turns({"q95": 0.2, "q95_null": 0.55, "mean": 0.1, "q95_turned": 0.95}), turns({"q95": 0.54, "mean": 0.5})
    (True, False)
    """
    q95, mean = entry.get("q95"), entry.get("mean")
    if q95 is None or mean is None or is_remembered(entry):
        return False
    null = 0.5 if entry.get("q95_null") is None else float(entry["q95_null"])
    return bool(mean < 1.0 - null and _turned(entry) > q95)


def reached(entry: Entry) -> float:
    """Return the leak AUC that an attacker reaches: scores that are nearly always wrong read labels, turned around.

    Of what is remembered, one AUC over all rows an epoch, the largest. Of single steps, which scatter, it is the q95,
    of the scores as they are or, see `turns`, turned around.

    Examples
    --------
    >>> reached({"q95": 0.2, "q95_null": 0.55, "mean": 0.1, "q95_turned": 0.95}), reached({"q95": 0.54, "mean": 0.5})
    (0.95, 0.54)
    """
    if is_remembered(entry) and entry.get("values"):
        return max(side for value in entry["values"] for side in (float(value), 1.0 - value))
    return _turned(entry) if turns(entry) else float(entry["q95"])


def _turned(entry: Entry) -> float:
    """Return the q95 of scores turned around; of results of before, which do not hold it, what they read on average."""
    turned = entry.get("q95_turned")
    return 1.0 - float(entry["mean"]) if turned is None else float(turned)


def worst(
    result: Result,
    layer: str,
    *,
    attack: str | None = None,
    oracle: bool | None = None,
    remembered: bool | None = None,
) -> Entry | None:
    """Return the entry with the largest leak at a layer, see `reached`; None without any.

    What the monitor measured counts where no attacker measured the same, see `unrepeated`.

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
    return max(unrepeated(entries), key=reached, default=None)
