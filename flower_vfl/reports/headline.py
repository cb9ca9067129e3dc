"""The verdict of a run in words: a headline, two separate lines for each party, and the attacks that ran or did not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flower_vfl.apps.result_schema import of_class, with_class_names
from flower_vfl.auditing.entries import REMEMBERED, Result, label_of, read, sends_nothing
from flower_vfl.auditing.verdict import (
    FEWEST_STEPS,
    LEAKS,
    NO_LEAK,
    NOT_TESTED,
    PROVEN,
    is_informed,
    lies_above,
    practical_entries,
    verdict_of,
    with_own_data,
)
from flower_vfl.registry import is_number
from flower_vfl.reports.proof import Epsilon, epsilon_of
from flower_vfl.reports.words import GRADES, interval, listed, number, reading

TONES = {LEAKS: "bad", NOT_TESTED: "warn", NO_LEAK: "good", PROVEN: "proof"}
"""The colour of a status."""

PLAIN = "plain"
"""The colour of a number that is no verdict."""

SEVERITY = {NO_LEAK: 0, PROVEN: 1, NOT_TESTED: 2, LEAKS: 3}
"""The rank of a status, the most severe one last."""


@dataclass(frozen=True)
class Lines:
    """The two lines of one party, or of a colluding group: the leak of gradients alone, and their gain.

    Attributes
    ----------
    party
        Name of the party, or of a group, such as ``a+b``.
    verdict
        Its part of the verdict, see docs/decisions/0024-verdict.md.
    result
        Result of the run, which has the names of the classes.
    """

    party: str
    verdict: Mapping[str, Any]
    result: Result = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Name of the party or parties, in words."""
        names = self.party.split("+")
        return f"Party {self.party}" if len(names) == 1 else f"Parties {listed(names)} together"

    @property
    def status(self) -> str:
        """Status in the verdict."""
        return str(self.verdict["status"])

    @property
    def tone(self) -> str:
        """The colour of its status; amber where no leak was found and an interval lies wholly above chance."""
        return TONES[NOT_TESTED if self.status == NO_LEAK and self.open else self.status]

    @property
    def value(self) -> float | None:
        """The leak AUC of gradients alone: the worst of the practical attacks and the informed reader."""
        value = self.verdict["leak"]["value"]
        return None if value is None else float(value)

    @property
    def null(self) -> float:
        """Chance level of guessing where the value was measured: by q95 for a practical attack, 0.5 for a reader."""
        practical = self.verdict["leak"]["practical"]
        if practical is None or practical["reached"] != self.value or practical["null"] is None:
            return 0.5
        return float(practical["null"])

    @property
    def leak_tone(self) -> str:
        """The colour of the first line; plain with a proof, because the number is no verdict then."""
        if self.status == PROVEN:
            return PLAIN
        leak = self.verdict["leak"]
        known = self.value is not None and not self._gaps("leak") and not self._above(leak["informed"], 0.5)
        return self._tone(leaks=leak["leaks"] or bool(self.groups), known=known)

    @property
    def gain_tone(self) -> str:
        """The colour of the second line."""
        gain = self.verdict["gain"]
        if self.status == PROVEN:
            return PLAIN
        return self._tone(
            leaks=gain is not None and gain["leaks"], known=gain is not None and not self._above(gain, 0.0)
        )

    @property
    def open(self) -> bool:
        """True if an interval lies wholly above chance, but the test over the whole run does not reject chance.

        That is no alarm: of many intervals one lies there by chance. It is no all-clear either, so it is amber.
        """
        leak, gain = self.verdict["leak"], self.verdict["gain"]
        found = ((leak["leaks"], leak["informed"], 0.5), (gain is not None and gain["leaks"], gain, 0.0))
        return any(not leaks and self._above(one, chance) for leaks, one, chance in found)

    @property
    def partial(self) -> bool:
        """True if an attack on gradients alone did not run, and the measured leak is below the highest grade."""
        return bool(self._gaps("leak")) and reading(self.value or 0.0, self.null, found=True) != GRADES[-1]

    @staticmethod
    def _above(found: Mapping[str, Any] | None, chance: float) -> bool:
        """Return True if the 95 % interval of a finding lies wholly above chance."""
        return found is not None and lies_above(found.get("interval95"), chance)

    @staticmethod
    def _tone(*, leaks: bool, known: bool) -> str:
        return TONES[LEAKS if leaks else NO_LEAK if known else NOT_TESTED]

    def _gaps(self, line: str) -> list[str]:
        """Return the attacks and readers that did not run for one of the two lines, with reasons."""
        of_gain = [reason for reason in self.verdict["not_run"] if "embeddings or columns" in reason]
        return of_gain if line == "gain" else [reason for reason in self.verdict["not_run"] if reason not in of_gain]

    @property
    def practical(self) -> str:
        """The worst practical attack in words; empty where none has a value."""
        found = self.verdict["leak"]["practical"]
        if found is None:
            return ""
        reached = f"{number(found['reached'])} (guessing {number(found['null'])})"
        return f"{found['label']}{of_class(self.result, found)} {reached}{_of_member(found)}"

    @property
    def single_steps(self) -> str:
        """The single steps that are read better than the leak AUC shows, in words; empty for none."""
        found = self.verdict["leak"].get("single_steps")
        if found is None:
            return ""
        steps = f"in {number(found['steps'])} of {number(found['scored'])} steps up to {number(found['reached'])}"
        return f"{steps} ({found['label']}{_of_member(found)})"

    @property
    def groups(self) -> str:
        """The attack whose groups match the labels, in words; empty for none."""
        found = self.verdict["groups"]
        if found is None:
            return ""
        accuracy = f"an accuracy of {number(found['accuracy'])} (guessing {number(found['null'])})"
        return f"groups of {found['label']} match the labels with {accuracy}{_of_member(found)}"

    @property
    def worst(self) -> Worst | None:
        """The leak AUC, its chance level and the largest leak AUC of single steps; None where it was not measured."""
        found = self.verdict["leak"].get("single_steps")
        return None if self.value is None else Worst(self.value, self.null, 0.0 if found is None else found["reached"])

    @property
    def practical_words(self) -> str:
        """Description of the number of the worst practical attack."""
        found = self.verdict["leak"]["practical"]
        if found is None:
            return ""
        if found["phase"] == REMEMBERED:
            return "the largest after any epoch"
        few = found["steps"] < FEWEST_STEPS
        return f"the largest of {found['steps']} steps" if few else "no higher in 95 of 100 steps"

    @property
    def informed(self) -> str:
        """The informed reader in words; empty where it has no value."""
        found = self.verdict["leak"]["informed"]
        if found is None:
            return ""
        ends = f" ({interval(found['interval95'])})" if found.get("interval95") else ""
        return f"{number(found['reached'])}{ends}{of_class(self.result, found)}{_of_member(found)}"

    @property
    def unread(self) -> str:
        """Reason for which the informed reader of the gradients has no value; empty where it has one."""
        missing = (str(reason) for reason in self.verdict["not_run"])
        why = next(
            (one.partition(": ")[2] for one in missing if one.startswith("informed reader of the gradients")), ""
        )
        return "" if self.informed else why or "did not run"

    @property
    def gain(self) -> str:
        """The advantage with its sign; empty where none was measured."""
        found = self.verdict["gain"]
        return "" if found is None else signed(found["value"])

    @property
    def own_data(self) -> float | None:
        """The leak AUC of a reader that has the party's own data beside gradients; None where none was measured."""
        found = with_own_data(entry for entry in read(self.result) if entry["party"] == self.party)
        return None if found is None else float(found["mean"])

    @property
    def gain_words(self) -> str:
        """Baseline of the gain, in words; empty where none was measured."""
        found = self.verdict["gain"]
        if found is None:
            return ""
        ends = found.get("interval95")
        gain = f" 95 % interval of the gain: {signed(ends[0])} … {signed(ends[1])}." if isinstance(ends, list) else ""
        return (
            f"With the gradients the best reader of the {found['over']} reaches {number(found['reached'])}; without "
            f"them {number(found['baseline'])}.{gain}"
        )

    @property
    def rank(self) -> tuple[float, ...]:
        """Severity as a sort key: status, leak found, open interval of a party without a finding, leak AUC, gain."""
        gain = self.verdict["gain"]
        leaks, most = self.verdict["leak"]["leaks"], 0.0 if self.worst is None else self.worst.most
        return (
            SEVERITY[self.status],
            leaks,
            self.open and self.status != LEAKS,
            most,
            0.0 if gain is None else float(gain["value"]),
        )


def _of_member(found: Mapping[str, Any]) -> str:
    """Return the member of a group whose messages alone leak most, in words; empty where those of all do."""
    return f", from what {found['member']} receives alone" if found.get("member") else ""


@dataclass(frozen=True)
class Headline:
    """First lines of a report.

    Attributes
    ----------
    status
        Status of the run.
    lines
        The parties' lines, as in the verdict: those of colluding groups come last.
    ran
        The attacks and readers that gave a number, by their labels.
    missing
        Attacks and readers that should have run and did not, with the reasons; with the parties' names where not all
        parties miss them.
    epsilon
        Its epsilon, as proven and as measured; None without either.
    sent
        False if nothing that depends on labels left the label party.
    """

    status: str
    lines: Sequence[Lines]
    ran: Sequence[str]
    missing: Sequence[str]
    epsilon: Epsilon | None = None
    sent: bool = True

    @property
    def tone(self) -> str:
        """The colour of the headline."""
        if self.epsilon is not None and self.epsilon.proof is not None:
            return self.epsilon.tone
        return TONES[NOT_TESTED if self.open else self.status]

    @property
    def open(self) -> bool:
        """True if no leak was found, but an interval of a party lies wholly above chance."""
        return self.status == NO_LEAK and any(lines.open for lines in self.lines)

    @property
    def worst(self) -> Lines | None:
        """The lines of the party with the worst findings; None where there is no party."""
        return max(self.lines, key=lambda lines: lines.rank, default=None)

    @property
    def gaps(self) -> str:
        """The attacks and readers that should have run and did not, in one line, each reason once."""
        by_reason: dict[str, list[str]] = {}
        for one in self.missing:
            name, _, reason = one.partition(": ")
            by_reason.setdefault(reason, []).append(name)
        return "; ".join(f"{listed(names)}: {reason}" for reason, names in by_reason.items())

    @property
    def sentence(self) -> str:
        """The verdict in one sentence: the proof where there is one, else the finding."""
        if not self.sent:
            return "Nothing that depends on labels left the label party."
        return self.epsilon.sentence if self.epsilon is not None and self.epsilon.sentence else self._finding

    @property
    def _finding(self) -> str:
        worst = self.worst
        if worst is None or (self.status == NOT_TESTED and worst.value is None):
            return "Whether the gradients give the labels away was not tested."
        if self.status == NOT_TESTED:
            return "Not tested: no leak was found, but not everything that could find one ran."
        if self.open:
            return (
                "No leak was found at a level of 5 % for the whole run, but one reader's 95 % interval lies wholly "
                "above guessing."
            )
        if self.status == NO_LEAK:
            return "No leak was found: nothing that ran reads the labels better than by guessing."
        return _of_leak(worst)

    @property
    def beside(self) -> str:
        """The measurements beside a proof, in sentences; empty without a proof."""
        worst = self.worst
        if self.epsilon is None or self.epsilon.proof is None or worst is None:
            return ""
        if not worst.gain:
            added = "What the gradients add to what a party knows anyway was not measured."
        else:
            gain = worst.verdict["gain"]
            added = (
                f"The {gain['over']} of {worst.title[0].lower()}{worst.title[1:]} alone reveal labels with an AUC of "
                f"{number(gain['baseline'])}; with the gradients it is {number(gain['reached'])} ({worst.gain})."
            )
        leak = worst.verdict["leak"]
        attack, reader = leak.get("practical"), leak.get("informed")
        readers = [
            attack and f"{attack['label']} {number(attack['reached'])} (guessing {number(attack['null'])})",
            reader and f"a fitted reader {number(reader['reached'])}",
        ]
        known = list(filter(None, readers))
        alone = f" From the gradients alone: {listed(known)}." if known else ""
        return f"{added}{alone if worst.gain else ''}"

    @property
    def line(self) -> str:
        """The verdict in one line for a console, with the numbers of the party with the worst findings."""
        worst = self.worst
        if not self.sent:
            return f"Verdict: {self.status}. {self.sentence}"
        if self.epsilon is not None and self.epsilon.sentence:
            return f"{self.epsilon.sentence} {self.beside}".rstrip()
        if worst is None:
            return f"Verdict: {self.status}."
        parts = [
            f"worst practical attack {worst.practical}" if worst.practical else "",
            f"single steps {worst.single_steps}" if worst.single_steps else "",
            worst.groups,
            f"informed reader {worst.informed}" if worst.informed else "",
            f"gain over {worst.verdict['gain']['over']} {worst.gain}" if worst.gain else "",
        ]
        numbers = "; ".join(filter(None, parts)) or "no leak was measured"
        found = self.epsilon.unbounded if self.epsilon is not None and self.epsilon.shown else ""
        return f"Verdict: {self.status}. {worst.title}: {numbers}. {found.partition('. ')[0]}".rstrip() + (
            "." if found else ""
        )


def _of_leak(worst: Lines) -> str:
    """Return the sentence about a leak that was found."""
    who = "Colluding parties can read" if "+" in worst.party else "A party can read"
    if worst.verdict["leak"]["leaks"]:
        more = " The leak may be larger: this run was not fully tested." if worst.partial else ""
        if worst.single_steps and worst.verdict["leak"]["single_steps"]["only"]:
            return f"{who} the labels of single steps from the gradients: {worst.single_steps}.{more}"
        read = reading(worst.value or 0.0, worst.null, found=True)
        single = f" Single steps are read better: {worst.single_steps}." if worst.single_steps else ""
        return f"{who} the labels from the gradients {read}.{single}{more}"
    if worst.groups:
        return f"{who.removesuffix(' read')} sort the gradients by their labels: {worst.groups}."
    return f"{who} more of the labels with the gradients than from {worst.verdict['gain']['over']} alone."


def signed(value: Any, digits: int = 3) -> str:
    """Return a difference with its sign, a dash where there is none.

    Examples
    --------
    >>> signed(0.0042), signed(-0.5), signed(-0.0001), signed(None)
    ('+0.004', '−0.500', '0.000', '–')
    """
    if not is_number(value):
        return number(value)
    text = f"{abs(value):.{digits}f}"
    return text if float(text) == 0 else f"{'+' if value > 0 else '−'}{text}"


def headline_of(result: Result) -> Headline:
    """Return the headline of a result; its verdict is computed again from the measurements."""
    verdict = verdict_of(result)
    lines = [
        Lines(
            str(party["party"]),
            {**party, "not_run": [with_class_names(result, str(reason)) for reason in party["not_run"]]},
            result,
        )
        for party in verdict["parties"]
    ]
    ran = [label_of(entry) for entry in practical_entries(result) if entry.get("q95") is not None]
    ran += [label_of(entry) for entry in practical_entries(result, "accuracy") if entry.get("q95") is not None]
    readers = [entry for entry in read(result) if entry.get("mean") is not None]
    ran += ["informed reader" for entry in readers if is_informed(entry)]
    ran += [_name(entry) for entry in readers if not is_informed(entry)]
    found = str(verdict["status"]), lines, list(dict.fromkeys(ran)), _missing(lines)
    return Headline(*found, epsilon_of(result), sent=not sends_nothing(result))


@dataclass(frozen=True, slots=True)
class Worst:
    """The largest leak AUC of a run, the chance level there, and the largest one of single steps that exceeds it."""

    value: float
    null: float
    single: float = 0.0

    @property
    def most(self) -> float:
        """The larger of both leak AUCs."""
        return max(self.value, self.single)


def worst_of(result: Result) -> Worst | None:
    """Return the largest leak AUC in the headline of a result; None without any."""
    found = [line.worst for line in headline_of(result).lines if line.worst is not None]
    return max(found, key=lambda one: one.most, default=None)


def _name(entry: Mapping[str, Any]) -> str:
    sees = entry.get("sees")
    others = [str(one) for one in sees if one != "gradients"] if isinstance(sees, list) else []
    name = "informed reader" if entry.get("attack") == "informed" else label_of(entry)
    return f"{name} with {listed(others)}" if others else name


def _missing(lines: Sequence[Lines]) -> list[str]:
    """Return the attacks and readers that did not run, with the parties where it is not all of them."""
    found: dict[str, list[str]] = {}
    for one in lines:
        for reason in one.verdict["not_run"]:
            found.setdefault(str(reason), []).append(one.title[0].lower() + one.title[1:])
    return [reason if len(of) == len(lines) else f"{reason} ({listed(of)})" for reason, of in found.items()]
