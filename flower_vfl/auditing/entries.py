"""Accessors of an entry of ``leakage`` in ``result.json``: its attack, its phase, and the value that was reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Entry = Mapping[str, Any]
"""One entry of ``leakage`` in ``result.json``."""

Result = Mapping[str, Any]
"""The content of ``result.json``."""

LEVEL = 0.05
"""The rate of false alarms over all tests of a run: of runs called leaking although their gradients carry nothing."""

TRAIN, REMEMBERED = "train", "remembered"
AUDIT, JOINT = "audit", "joint"

NAMED_PHASES = frozenset({TRAIN, REMEMBERED})
"""Phases of attacks on the gradients of training: on single steps, and on all epochs of each row."""

READER_PHASES = frozenset({AUDIT, JOINT})
"""Phases of readers that are fitted and report one AUC with a baseline."""

REFERENCE = "reference"
"""The side information, a clean gradient of the batch, that makes an attack an oracle."""

CONDITIONAL = "conditional_oracle"
"""Name of the reader that knows each row's prediction and the noise; a configuration cannot name it."""

ORACLES = frozenset({"cosine", "inner_product", CONDITIONAL})
"""Oracles by name, for results that do not list what each attack needs."""

NO_GRADIENTS = "no_gradients"
"""The value of ``baseline`` in ``result.json`` of a run that sent nothing which depends on labels."""


def sends_nothing(result: Result) -> bool:
    """Return True if nothing that depends on labels left the label party in a run: there is nothing to attack."""
    return result.get("baseline") == NO_GRADIENTS


def label_of(entry: Entry) -> str:
    """Return the name of an entry's attack in the step log: with the parameters that differ from their defaults."""
    return str(entry.get("label", entry.get("attack")))


def phase_of(entry: Entry) -> str:
    """Return the phase of an entry; older results have none for attacks during training."""
    return str(entry.get("phase") or TRAIN)


def is_remembered(entry: Entry) -> bool:
    """Return True if an entry belongs to a longitudinal attack, which reads the gradients of each row over epochs."""
    return phase_of(entry) == REMEMBERED


def is_oracle(result: Result, entry: Entry) -> bool:
    """Return True if an entry's attack needs information that no real attacker has, such as a clean gradient."""
    needs = entry.get("needs")
    if entry.get("attack") == CONDITIONAL or (isinstance(needs, list) and REFERENCE in needs):
        return True
    for attack in result.get("attacks", ()):
        if attack.get("label") == label_of(entry):
            return REFERENCE in attack["needs"]
    return entry.get("attack") in ORACLES


def on_embeddings(result: Result, attack: str) -> bool:
    """Return True if an attack, given by its label, reads embeddings, which noise on gradients does not protect."""
    return any(a.get("label") == attack and a.get("sees") == "embeddings" for a in result.get("attacks", ()))


def as_sent(result: Result, entry: Entry) -> bool:
    """Return True if an entry measured the sent gradients: defended ones where the run has a defense."""
    defended = bool(result["defenses"])
    return bool(entry.get("defended", defended)) == defended


def received(result: Result, metric: str = "auc") -> list[Entry]:
    """Return the leaks of the gradients that the parties received, of single steps and of longitudinal attacks."""
    return [
        entry
        for entry in result["leakage"]
        if entry.get("metric") == metric and phase_of(entry) in NAMED_PHASES and as_sent(result, entry)
    ]


def read(result: Result) -> list[Entry]:
    """Return the entries of fitted readers: the informed ones (phase ``audit``) and joint attacks (``joint``)."""
    return [entry for entry in result["leakage"] if phase_of(entry) in READER_PHASES and as_sent(result, entry)]


def unrepeated(entries: Sequence[Entry]) -> list[Entry]:
    """Return entries of one phase without those of the monitor whose attack, party and layer an attacker measured.

    Only the monitor has measured entries that no attacker did, such as those of colluding parties.
    """
    others = [entry for entry in entries if entry.get("source") != "monitor"]
    reported = {_key_of(e) for e in others if e.get("q95") is not None or e.get("mean") is not None}
    return [entry for entry in entries if entry.get("source") != "monitor" or _key_of(entry) not in reported]


def _key_of(entry: Entry) -> tuple[Any, ...]:
    return label_of(entry), entry.get("party"), entry.get("layer")


def null_of(entry: Entry) -> float:
    """Return the 95 % quantile of a random score, 0.5 where the entry has none."""
    return 0.5 if entry.get("q95_null") is None else float(entry["q95_null"])


def turns(entry: Entry) -> bool:
    """Return True if scores of single steps are nearly always wrong, so that turned around they read more labels.

    The side is chosen once, for all steps of a run: scores are turned around where they are wrong on average as
    clearly as random ones are right in one step of twenty, and where the larger side is hardly
    that of random scores, at a tenth of the level because about ten attacks and readers are tested.

    Examples
    --------
    >>> turns({"q95": 0.2, "q95_null": 0.55, "mean": 0.1, "q95_turned": 0.95}), turns({"q95": 0.54, "mean": 0.5})
    (True, False)
    >>> turns({"q95": 0.75, "q95_null": 0.68, "mean": 0.35, "q95_turned": 0.88, "q95_p_value": 1e-6})
    True
    """
    q95, mean = entry.get("q95"), entry.get("mean")
    if q95 is None or mean is None or is_remembered(entry):
        return False
    p_value = entry.get("q95_p_value")
    clear = mean < 1.0 - null_of(entry) or (p_value is not None and p_value <= LEVEL / 10)
    return bool(clear and turned(entry) > q95)


def reached(entry: Entry) -> float:
    """Return the leak AUC that an attacker reaches: scores that are nearly always wrong read labels, turned around.

    For a longitudinal attack, with one AUC over all rows after each epoch, it is the largest. For single steps, which
    scatter, it is the q95 of the scores as they are or, see `turns`, turned around.

    Examples
    --------
    >>> reached({"q95": 0.2, "q95_null": 0.55, "mean": 0.1, "q95_turned": 0.95}), reached({"q95": 0.54, "mean": 0.5})
    (0.95, 0.54)
    """
    if is_remembered(entry) and entry.get("values"):
        return max(side for value in entry["values"] for side in (float(value), 1.0 - value))
    return turned(entry) if turns(entry) else float(entry["q95"])


def turned(entry: Entry) -> float:
    """Return the q95 of scores turned around; for older results, which lack it, the mean turned around."""
    known = entry.get("q95_turned")
    return 1.0 - float(entry["mean"]) if known is None else float(known)


def scored_steps(entry: Entry) -> int:
    """Return the number of steps with a value: their batches had both classes and the attack's side information."""
    return int(entry.get("steps") or 0) - int(entry.get("one_class_steps") or 0)
