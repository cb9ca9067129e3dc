"""The leaks of a result: the worst of them, the side information of the attacks, and their use of a history."""

from __future__ import annotations

from collections.abc import Iterable

from flower_vfl.auditing.entries import (
    CONDITIONAL,
    Entry,
    Result,
    is_oracle,
    is_remembered,
    label_of,
    reached,
    received,
    unrepeated,
)


def side_information(result: Result, entry: Entry) -> tuple[bool, int]:
    """Return True if an attack is an oracle, and the number of known rows, which were left out when it was scored.

    An oracle has information that no real attacker has, such as a clean gradient. For the conditional oracle, which
    has the gradients of every row for either label, no rows were left out.
    """
    known = next((a for a in result.get("attacks", ()) if a.get("label") == label_of(entry)), None)
    params, oracle = entry.get("params"), is_oracle(result, entry)
    if known is not None:
        left_out = known.get("left_out")
        return oracle, left_out if isinstance(left_out, int) else known["hints"] + oracle
    if entry.get("attack") == CONDITIONAL:
        return oracle, 0
    hints = params.get("k") if isinstance(params, dict) and entry.get("attack") == "hint" else 0
    return oracle, (hints if isinstance(hints, int) else 0) + oracle


def keeps_apart(entry: Entry) -> bool:
    """Return True if an entry is of a longitudinal attack that keeps the gradients of all epochs side by side."""
    params = entry.get("params")
    return is_remembered(entry) and isinstance(params, dict) and params.get("reads") == "epochs"


ADDED_UP = "adds up the gradients of each person"
_WAYS = {
    "last": "reads the gradients of each person in one epoch alone",
    "difference": "compares the gradients of each person in the last two epochs",
    "epochs": "sets side by side the gradients of each person in every epoch",
}


def way_of(entry: Entry) -> str:
    """Return the use that a longitudinal attack makes of its history, in words.

    Examples
    --------
    >>> way_of({"attack": "remembered_fit", "params": {"reads": "last"}}), way_of({"attack": "remembered_norm"})
    ('reads the gradients of each person in one epoch alone', 'adds up the gradients of each person')
    """
    params = entry.get("params")
    reads = params.get("reads") if isinstance(params, dict) else None
    return _WAYS.get("difference" if entry.get("attack") == "remembered_difference" else str(reads), ADDED_UP)


def worst(
    result: Result,
    layer: str,
    *,
    attack: str | None = None,
    oracle: bool | None = None,
    remembered: bool | None = None,
) -> Entry | None:
    """Return the entry with the largest leak at a layer, see `reached`; None without any.

    The monitor's entries count only where no attacker measured the same, see `unrepeated`.

    Parameters
    ----------
    result
        The content of ``result.json``.
    layer
        Layer of the gradients or embeddings.
    attack
        Label of the only attack that counts; by default all count.
    oracle
        True for oracles only, False for the other attacks only; by default both.
    remembered
        True for longitudinal attacks only, False for those on single steps only; by default both.
    """
    entries = [
        entry
        for entry in received(result)
        if entry.get("layer") == layer
        and entry.get("q95") is not None
        and attack in (None, label_of(entry))
        and oracle in (None, side_information(result, entry)[0])
        and remembered in (None, is_remembered(entry))
    ]
    return max(unrepeated(entries), key=reached, default=None)


def largest_null(entries: Iterable[Entry]) -> float | None:
    """Return the largest 95 % quantile that chance reaches in any of the entries; None where it is not known."""
    return max((float(e["q95_null"]) for e in entries if e.get("q95_null") is not None), default=None)
