"""The verdict of a run on its leakage, from all measurements and from the missing ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from flower_vfl.auditing.entries import (
    AUDIT,
    LEVEL,
    TRAIN,
    Entry,
    Result,
    is_oracle,
    is_remembered,
    label_of,
    on_embeddings,
    phase_of,
    reached,
    read,
    received,
    scored_steps,
    sends_nothing,
    unrepeated,
)
from flower_vfl.auditing.p_values import corrected, practical_p_value, sides
from flower_vfl.auditing.proof import measurement_of, proof_of, refutation_p_value

LEAKS, NO_LEAK, NOT_TESTED, PROVEN = "leaks", "no leak found", "not tested", "proven"
"""The values of a verdict's ``status``."""

FEWEST_STEPS = 20
"""Smallest number of scored steps for a 95 % quantile: of fewer it is just the largest value."""

MORE_READ = 0.1
"""Smallest excess of the best read single steps over a leak's value that a verdict mentions."""

PRACTICAL = ("norm", "residual", "direction", "shell", "remembered_direction")
"""Attacks that must have run behind a defense of any kind before a run may report that no leak was found."""

UNDEFENDED = ("norm", "direction")
"""The same without a defense: they read labels from gradients to which no noise was added."""

INFORMED = "informed"
"""The attack's name, in entries, of the readers that the label party fits to its own labels."""

_DID_NOT_RUN = "did not run"
_LEAST_P = 1e-300  # a p-value of 0 has no logarithm

FindingKind = Literal["practical", "groups", "informed", "gain"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One test of a run: the value of one attack or reader at one party, and its p-value.

    Attributes
    ----------
    party
        The feature party, or a colluding group, as ``a+b``.
    kind
        ``"practical"``, ``"groups"``, ``"informed"``, or ``"gain"``.
    entry
        The entry of ``leakage``.
    value
        The leak AUC, of a gain the advantage, of groups the accuracy of their best assignment to the classes.
    p_value
        Upper bound on the probability of at least this value by chance, over all sides, epochs and classes tested.
    """

    party: str
    kind: FindingKind
    entry: Entry
    value: float
    p_value: float


def verdict_of(result: Result, *, level: float = LEVEL) -> dict[str, Any]:
    """Return the verdict of a run (``verdict`` in ``result.json``): a status for it and for each party.

    A party leaks where a test rejects at a level of 5 % for the whole run: Bonferroni over each practical attack at the
    cut (its q95 and its single steps, or its groups), each informed reader and each gain, of all parties. Oracles never
    count. Where nothing leaks, but an attack that is known to break the defense or the informed readers did not run,
    the status is ``not tested``.

    Where a defense proves an epsilon the status is ``proven``: the tests then find only the information in the columns
    and that which the proof allows. Only a lower bound on epsilon above the proven one, measured by canaries, makes it
    ``leaks``.

    Parameters
    ----------
    result
        The content of ``result.json``; ``leakage`` and ``defenses`` are read and, where present, ``attacks`` and
        ``parties``.
    level
        The rate of false alarms for the whole run; of n runs that are judged together, one n-th of 5 %.

    Returns
    -------
    dict
        ``status``, ``level``, ``tests`` (their number), and ``parties``: for each ``party``, ``status``,
        ``leak``, ``groups``, ``gain`` and ``not_run``, see docs/decisions/0024-verdict.md; ``refuted`` where an epsilon
        is proven.
    """
    findings, proof = list(_findings(result)), proof_of(result)
    alarm = level / max(1, len(findings))
    findings = [_with_alarm_value(finding, alarm) for finding in findings]
    refuted = proof is not None and proof.refuted_by(measurement_of(result))
    parties = [_party_verdict(result, party, findings, alarm) for party in parties_of(result)]
    if proof is not None:
        parties = [{**party, "status": LEAKS if refuted else PROVEN} for party in parties]
    statuses = {party["status"] for party in parties} or {NOT_TESTED}
    status = next(status for status in (LEAKS, NOT_TESTED, PROVEN, NO_LEAK) if status in statuses)
    more = {} if proof is None else {"refuted": refuted}
    return {"status": status, "level": level, "tests": len(findings), "parties": parties, **more}


def status_of(results: Sequence[Result]) -> str:
    """Return the status of runs that differ in their seeds only, judged together at a level of 5 %.

    One half of the level is for the p-values of each test combined over the runs by Fisher's method, whose noise is
    independent: a leak that each run shows weakly is found the better the more seeds there are. The other half is for
    each run by itself: clean seeds do not hide one that leaks. Both are corrected for the number of tests. Where an
    epsilon is proven the only test is whether the canaries contradict the proof. A run that ended with the weights of
    another one is the same training again and counts once.
    """
    from scipy.special import chdtrc

    results = _different(results)
    if len(results) == 1:
        return str(verdict_of(results[0])["status"])
    statuses: set[str] = set()
    p_values: dict[tuple[str, ...], list[float]] = {}
    alone = list[float]()
    for result in results:
        tests = list(_tests(result))
        alone += [p_value * len(tests) * len(results) for _, p_value in tests]
        for key, p_value in tests:
            p_values.setdefault(key, []).append(max(p_value, _LEAST_P))
        statuses.add(PROVEN if proof_of(result) else str(verdict_of(result, level=0.0)["status"]))
    together = [float(chdtrc(2 * len(each), -2.0 * sum(map(math.log, each)))) for each in p_values.values()]
    if together and min(min(together) * len(together), *alone) <= LEVEL / 2:
        return LEAKS
    return next(status for status in (LEAKS, NOT_TESTED, PROVEN, NO_LEAK) if status in statuses)


def _different(results: Sequence[Result]) -> list[Result]:
    """Return the results without those whose weights all equal those of an earlier one."""
    found: list[Result] = []
    for result in results:
        weights = result.get("weights")
        if not weights or all(weights != other.get("weights") for other in found):
            found.append(result)
    return found


def _tests(result: Result) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield the name of each test that decides on a run, the same in each run of a setting, and its p-value."""
    proof = proof_of(result)
    if proof is None:
        for finding in _findings(result):
            seen = str(finding.entry.get("sees"))  # the informed reader has a gain over embeddings, and over columns
            yield (finding.party, finding.kind, label_of(finding.entry), seen), finding.p_value
    elif (p_value := refutation_p_value(result, proof)) is not None:
        yield ("proof",), p_value


def parties_of(result: Result) -> list[str]:
    """Return the feature parties of a result and after them the colluding groups, as ``a+b``."""
    named = (result.get("parties") or {}).get("features")
    weights = sorted((result.get("weights") or {}).keys() - {"label"})
    known = [str(party) for party in (named if isinstance(named, list) else weights)]
    measured = sorted({str(entry["party"]) for entry in result["leakage"] if entry.get("party")})
    single = [party for party in measured if "+" not in party and party not in known]
    return [*known, *single, *(party for party in measured if "+" in party)]


def _findings(result: Result) -> Iterator[Finding]:
    """Yield all tests of a run, each with its p-value."""
    for entry in practical_entries(result):
        if entry.get("q95") is not None:
            p_value = practical_p_value(entry)
            p_value = 1.0 if p_value is None else p_value  # without a chance level a number is shown and proves nothing
            yield Finding(str(entry.get("party")), "practical", entry, reached(_worst_part(entry)), p_value)
    for entry in practical_entries(result, "accuracy"):
        if entry.get("q95") is not None and entry.get("p_value") is not None:
            yield Finding(str(entry.get("party")), "groups", entry, float(entry["q95"]), float(entry["p_value"]))
    for entry in read(result):
        party, mean = str(entry.get("party")), entry.get("mean")
        if is_informed(entry) and mean is not None and entry.get("p_value") is not None:
            yield Finding(party, "informed", entry, float(mean), float(entry["p_value"]))
        elif is_gain(entry) and entry.get("advantage") is not None and entry.get("advantage_p_value") is not None:
            yield Finding(party, "gain", entry, float(entry["advantage"]), float(entry["advantage_p_value"]))


def _with_alarm_value(finding: Finding, alarm: float) -> Finding:
    """Return a significant finding with the larger value of scores as they are or turned around."""
    if finding.kind != "practical" or is_remembered(finding.entry) or finding.p_value > alarm:
        return finding
    return replace(finding, value=max(finding.value, *sides(_worst_part(finding.entry))))


def practical_entries(result: Result, metric: str = "auc") -> list[Entry]:
    """Return the entries of attacks on the sent gradients of the cut that a real attacker could run.

    An attacker's own measurement replaces that of the monitor. Attacks on embeddings are left out. Attacks that score
    rows are measured by their AUC, those that form groups by their accuracy: `metric`.
    """
    entries = [
        entry
        for entry in received(result, metric)
        if entry.get("layer") == "cut"
        and not is_oracle(result, entry)
        and not on_embeddings(result, label_of(entry))
        and entry.get("sees") != "embeddings"
    ]
    return unrepeated(entries)


def is_informed(entry: Entry) -> bool:
    """Return True if an entry belongs to the informed reader of gradients alone."""
    return phase_of(entry) == AUDIT and entry.get("attack") == INFORMED and entry.get("sees") == ["gradients"]


def is_gain(entry: Entry) -> bool:
    """Return True if an entry compares a reader of gradients and other data with a reader without the gradients.

    Rows of the test set are left out: no gradient of theirs was ever sent, and the reader reads the model there.
    """
    return not (phase_of(entry) == AUDIT and entry.get("sees") == ["gradients"]) and entry.get("rows_of") != "test"


def with_own_data(entries: Iterable[Entry]) -> Entry | None:
    """Return the entry of the informed reader with the largest AUC on gradients and own data; None without any."""
    found = (entry for entry in entries if entry.get("attack") == INFORMED and is_gain(entry))
    return max((entry for entry in found if entry.get("mean") is not None), key=lambda one: one["mean"], default=None)


def _party_verdict(result: Result, party: str, findings: Sequence[Finding], alarm: float) -> dict[str, Any]:
    worst = {kind: _worst(party, kind, findings, alarm) for kind in ("practical", "groups", "informed", "gain")}
    several = (result.get("dataset") or {}).get("classes") not in (2, None)
    leak = _leak(party, worst["practical"], worst["informed"], alarm, several=several)
    leak["single_steps"] = _single_steps(party, findings, leak["value"], alarm)
    gain = _gain(worst["gain"], alarm)
    groups = _groups(party, worst["groups"], alarm)
    missing = not_run(result, party)
    leaks = leak["leaks"] or groups is not None or (gain is not None and gain["leaks"])
    status = LEAKS if leaks else NOT_TESTED if missing else NO_LEAK
    return {"party": party, "status": status, "leak": leak, "groups": groups, "gain": gain, "not_run": missing}


def _worst(party: str, kind: str, findings: Sequence[Finding], alarm: float) -> Finding | None:
    """Return a party's largest finding of a kind.

    A significant one comes before all that are not, and then one whose interval lies wholly above chance: it is no
    alarm, and no all-clear.

    A group of parties can read everything that a member reads from its own gradients. The tests of members are counted
    already. A gain is relative to all data of the group without gradients: a member's gain may lie in another
    member's embeddings.
    """
    here = [finding for finding in findings if finding.kind == kind and _concerns(finding, party)]
    return max(here, key=lambda one: (one.p_value <= alarm, _above_chance(one), one.value), default=None)


def _above_chance(finding: Finding) -> bool:
    """Return True if the 95 % interval of a reader's finding lies wholly above chance; single steps have none."""
    if finding.kind in ("practical", "groups"):
        return False
    gain = finding.kind == "gain"
    return lies_above(finding.entry.get("advantage_interval95" if gain else "interval95"), 0.0 if gain else 0.5)


def lies_above(ends: Any, chance: float) -> bool:
    """Return True if an interval is known and lies wholly above chance."""
    return isinstance(ends, Sequence) and len(ends) == 2 and float(ends[0]) > chance


def _concerns(finding: Finding, party: str) -> bool:
    """Return True for a finding of a party itself or, unless it is a gain, of a member of a group."""
    member = set(party.split("+")) > set(finding.party.split("+"))
    return finding.party == party or (finding.kind != "gain" and member)


def _leak(
    party: str, practical: Finding | None, informed: Finding | None, alarm: float, *, several: bool
) -> dict[str, Any]:
    """Return ``leak`` of a party's verdict; a reader of one class among several names the class."""
    found = [finding for finding in (practical, informed) if finding is not None]
    significant = [finding for finding in found if finding.p_value <= alarm]
    return {
        "leaks": bool(significant),
        "value": max((finding.value for finding in significant or found), default=None),
        "practical": None if practical is None else {**_practical(practical), **_member(party, practical)},
        "informed": None
        if informed is None
        else {
            "reached": informed.value,
            "interval95": informed.entry.get("interval95"),
            "p_value": informed.p_value,
            **_member(party, informed),
            **{key: informed.entry.get(key) for key in ("reader", "span") if key in informed.entry},
            **(
                {"class": informed.entry.get("positive_class")}
                if several and "positive_class" in informed.entry
                else {}
            ),
        },
    }


def _groups(party: str, finding: Finding | None, alarm: float) -> dict[str, Any] | None:
    """Return ``groups`` of a party's verdict: the attack whose groups match the labels; None where none does so."""
    if finding is None or finding.p_value > alarm:
        return None
    found = {"label": label_of(finding.entry), "accuracy": finding.value, "null": finding.entry.get("q95_null")}
    return {**found, "p_value": finding.p_value, **_member(party, finding)}


def _single_steps(party: str, findings: Sequence[Finding], value: float | None, alarm: float) -> dict[str, Any] | None:
    """Return the single steps that are read best, where the leak's value does not show them; else None.

    It does not where no other test of gradients alone rejects (``only``), or where they are read better by `MORE_READ`.
    """
    here = [
        one
        for one in findings
        if one.kind in ("practical", "informed") and _concerns(one, party) and one.p_value <= alarm
    ]
    read = [one for one in here if _by_steps(one) <= alarm and one.entry.get("steps_read_max") is not None]
    if not read:
        return None
    best = max(read, key=lambda one: float(one.entry["steps_read_max"]))
    most = float(best.entry["steps_read_max"])
    only = not any(one.kind == "informed" or _by_q95(one) <= alarm for one in here)
    if not only and most < (value or 0.0) + MORE_READ:
        return None
    found = {"label": label_of(best.entry), "reached": most, "only": only, **_member(party, best)}
    return {**found, "steps": best.entry["steps_read"], "scored": scored_steps(best.entry)}


def _by_q95(finding: Finding) -> float:
    """Return the corrected p-value of a practical finding without its single steps, 1 where there is none."""
    if is_remembered(finding.entry):
        return finding.p_value
    of_q95 = corrected(finding.entry)[0]
    return 1.0 if of_q95 is None else of_q95


def _by_steps(finding: Finding) -> float:
    """Return the corrected p-value of the single steps of a practical finding, 1 where there is none."""
    single_step = finding.kind == "practical" and not is_remembered(finding.entry)
    of_steps = corrected(finding.entry)[1] if single_step else None
    return 1.0 if of_steps is None else of_steps


def _member(party: str, finding: Finding) -> dict[str, Any]:
    """Return the field for the member of a group with this finding; empty for a finding of the whole group."""
    member = finding.party if finding.party != party else str(finding.entry.get("member") or "")
    return {"member": member} if member else {}


def _practical(finding: Finding) -> dict[str, Any]:
    part = _worst_part(finding.entry)
    return {
        "label": label_of(finding.entry),
        "layer": finding.entry.get("layer"),
        "phase": phase_of(finding.entry),
        "reached": finding.value,
        "null": part.get("q95_null"),
        "steps": scored_steps(part),
        "p_value": finding.p_value,
        **({"class": part["class"]} if "class" in part else {}),
    }


def _worst_part(entry: Entry) -> Entry:
    """Return an entry itself or, where several classes take turns, its part for the class that leaks most."""
    known = [one for one in entry.get("by_class") or () if one.get("q95") is not None]
    return max([entry, *(one for one in known if scored_steps(one) >= FEWEST_STEPS)], key=reached)


def _gain(finding: Finding | None, alarm: float) -> dict[str, Any] | None:
    if finding is None:
        return None
    entry = finding.entry
    seen = entry.get("sees")
    embeddings = isinstance(seen, Sequence) and "embeddings" in seen and "columns" not in seen
    return {
        "leaks": finding.p_value <= alarm,
        "value": finding.value,
        "interval95": entry.get("advantage_interval95"),
        "p_value": finding.p_value,
        "over": "embeddings" if embeddings else "columns",
        "label": label_of(entry),
        "reached": entry.get("mean"),
        "baseline": entry.get("baseline"),
    }


def not_run(result: Result, party: str) -> list[str]:
    """Return the missing measurements without which a party's status cannot be `NO_LEAK`, with reasons.

    Where nothing that depends on labels was sent, no measurement is needed.
    """
    if sends_nothing(result):
        return []
    entries = [entry for entry in practical_entries(result) if str(entry.get("party")) == party]
    groups = [entry for entry in practical_entries(result, "accuracy") if str(entry.get("party")) == party]
    reasons = []
    for name in needed(result):
        reason = _reason(name, entries if name in PRACTICAL else [*entries, *groups])
        if reason.endswith(_DID_NOT_RUN) and name not in PRACTICAL and _ran_elsewhere(result, party, name):
            reason = f"{name}: it read something other than the gradients at the cut, which alone a verdict is about"
        reasons += [reason] if reason else []
    readers = [entry for entry in read(result) if str(entry.get("party")) == party]
    informed = [entry for entry in readers if is_informed(entry)]
    gains = [entry for entry in readers if is_gain(entry)]
    if not any(entry.get("mean") is not None and entry.get("p_value") is not None for entry in informed):
        reasons.append(f"informed reader of the gradients: {_why(informed)}")
    reasons += [f"informed reader of the gradients: {entry['unread']}" for entry in informed if entry.get("unread")]
    reasons += [f"informed reader of the gradients: {why}" for entry in informed if (why := _left_out(result, entry))]
    if not any(entry.get("advantage") is not None for entry in gains):
        reasons.append(f"informed reader of gradients with embeddings or columns: {_why(gains)}")
    return reasons


def _left_out(result: Result, entry: Entry) -> str:
    """Return the classes that no informed reader reads because of `attack.positives`, in words; empty for none."""
    classes = (result.get("dataset") or {}).get("classes") or 0
    tried = {one.get("positive_class") for one in entry.get("candidates") or ()}
    left = [f"class {number}" for number in range(classes) if number not in tried]
    if classes < 3 or not tried or not left or entry.get("unread"):
        return ""
    return f"attack.positives leaves out {', '.join(left[:3])}{f' and {len(left) - 3} more' if left[3:] else ''}"


def needed(result: Result) -> list[str]:
    """Return the names of the attacks that must have run: the practical set, and those known to break the defenses."""
    defenses: Sequence[Mapping[str, Any]] = result["defenses"]
    known = [str(name) for defense in defenses for name in defense.get("read_by") or ()]
    return list(dict.fromkeys([*(PRACTICAL if defenses else UNDEFENDED), *known]))


def _reason(name: str, entries: Sequence[Entry]) -> str:
    """Return the reason why an attack tested nothing; empty where it did test."""
    here = [entry for entry in entries if entry.get("attack") == name]
    known = [entry for entry in here if entry.get("q95") is not None]
    if not known:
        steps = max((int(entry.get("steps") or 0) for entry in here), default=0)
        none = f"none of its {steps} steps had both classes and what it needs" if steps else _why(here)
        return f"{name}: {_why(here) if any(entry.get('unavailable') for entry in here) else none}"
    most = max(scored_steps(entry) for entry in known)
    if phase_of(known[0]) == TRAIN and most < FEWEST_STEPS:
        return f"{name}: {most} steps were scored, a 95 % quantile needs {FEWEST_STEPS}"
    return ""


def _why(entries: Sequence[Entry]) -> str:
    """Return the reason why entries have no number: their own, or that nothing ran."""
    return next((str(e["unavailable"]).rstrip(".") for e in entries if e.get("unavailable")), _DID_NOT_RUN)


def _ran_elsewhere(result: Result, party: str, name: str) -> bool:
    """Return True if an attack at a party has a number that is not one of sent gradients at the cut."""
    named = [e for e in result["leakage"] if (e.get("attack"), str(e.get("party"))) == (name, party)]
    return any(entry.get("q95") is not None or entry.get("mean") is not None for entry in named)
