"""Number of leaked labels that rebuild the model: the answer of a run, in numbers and in words."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flower_vfl.registry import is_number
from flower_vfl.reports import words
from flower_vfl.reports.figures import Reached

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MEASURES = {
    "auc": "AUC",
    "balanced_accuracy": "accuracy, mean over classes",
    "accuracy": "accuracy",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """Labels with which one party can rebuild the model at the cut, from an entry of ``rebuild`` in ``result.json``.

    Attributes
    ----------
    party, attack, metric
        Party with the trained model, attack that reads this model best, and the measure.
    share
        Share of the way from chance to the federation's utility that counts as rebuilt.
    chance, federation
        Both ends of that way; the second is None where it is not above chance.
    k, alone_k
        Smallest number of labels of each class that was enough, with the trained model and from scratch, by the best
        attack; None where none was.
    classes
        Number of classes.
    curve, alone
        Accuracy by number of labels, with the trained model and from scratch.
    """

    party: str
    attack: str
    metric: str
    share: float
    chance: float
    federation: float | None
    k: int | None
    alone_k: int | None
    classes: int
    curve: Sequence[Reached]
    alone: Sequence[Reached]

    @property
    def measure(self) -> str:
        """The measure in words."""
        return MEASURES.get(self.metric, self.metric)

    @property
    def at(self) -> Reached:
        """Accuracy with the labels that were enough, or with the most that were tried where none were."""
        return next((point for point in self.curve if point.k == self.k), self.curve[-1])

    def way(self, value: float) -> float:
        """Return the share of the way from chance to the federation's utility that a value covers."""
        return (value - self.chance) / (self.federation - self.chance) if self.federation else math.nan

    def labels(self, k: int | None, more: str = "more than") -> str:
        """Return a number of labels over all classes, such as ``8``; where none was enough, ``more than 32``."""
        return f"{more} {self.curve[-1].k * self.classes:,}" if k is None else f"{k * self.classes:,}"

    @property
    def tone(self) -> str:
        """Colour of the severity; good only where the trained model is not known to help."""
        if self.federation is None:
            return "warn"
        if self.k is None:
            scratch = next((point.value for point in self.alone if point.k == self.at.k), self.chance)
            return "good" if self.at.low <= scratch else "warn"
        return "warn" if self.alone_k is not None and self.alone_k <= self.k else "bad"

    @property
    def alone_way(self) -> float | None:
        """Share of the way that training from scratch covers with as many labels; None where it is not known."""
        return next((self.way(point.value) for point in self.alone if point.k == self.at.k), None)


def answers(result: Mapping[str, Any]) -> list[Answer]:
    """Return the answer for each party at the cut, the one that leaks most first.

    Of several attackers, and of rows as they are and layer-normalised, the best one counts, also from scratch.
    """
    found: dict[str, list[Answer]] = {}
    for entry in result.get("rebuild", []):
        answer = _answer(entry) if entry.get("layer") == "cut" else None
        if answer is not None:
            found.setdefault(answer.party, []).append(answer)
    return sorted((_strongest(tried) for tried in found.values()), key=_severity, reverse=True)


def _severity(answer: Answer) -> tuple[float, float]:
    return -math.inf if answer.k is None else -float(answer.k), answer.curve[-1].value


def _strongest(tried: Sequence[Answer]) -> Answer:
    """Return the answer of one party's model that leaks most, with the best results of all answers from scratch."""
    alone: dict[int, Reached] = {}
    for point in (point for answer in tried for point in answer.alone):
        alone[point.k] = max(point, alone.get(point.k, point), key=lambda reached: reached.value)
    enough = min((answer.alone_k for answer in tried if answer.alone_k is not None), default=None)
    return replace(max(tried, key=_severity), alone_k=enough, alone=[alone[k] for k in sorted(alone)])


def _answer(entry: Mapping[str, Any]) -> Answer | None:
    curve = [point for point in entry.get("curve", []) if isinstance(point, dict)]
    reached, alone = (_points(curve, *names) for names in (("mean", "interval95"), ("baseline", "baseline_interval95")))
    share, chance = number(entry.get("share")), number(entry.get("chance"))
    labels, first = (number(curve[0].get(key)) if curve else None for key in ("labels", "k"))
    if not reached or share is None or chance is None or not labels or not first:
        return None
    return Answer(
        party=str(entry.get("party")),
        attack=_attack(entry),
        metric=str(entry.get("metric")),
        share=share,
        chance=chance,
        federation=number(entry.get("federation")),
        k=_whole(entry.get("k")),
        alone_k=_whole(entry.get("alone_k")),
        classes=round(labels / first),
        curve=reached,
        alone=alone,
    )


def _attack(entry: Mapping[str, Any]) -> str:
    """Return an attack's name and settings without the number of labels, as in ``embedding_reader(reader=linear)``."""
    params = entry.get("params")
    known = params.items() if isinstance(params, dict) else ()
    settings = [f"{name}={value}" for name, value in known if value is not False]
    name = str(entry.get("attack", "model_completion"))  # older results do not name it
    return f"{name}({','.join(settings)})" if settings else name


def _points(curve: Sequence[Mapping[str, Any]], name: str, interval: str) -> list[Reached]:
    points = []
    for point in curve:
        k, value = _whole(point.get("k")), number(point.get(name))
        if k is not None and value is not None:
            points.append(Reached(k, value, *ends(point.get(interval), value)))
    return points


def number(value: Any) -> float | None:
    """Return a finite number, None for anything else that a file may hold."""
    return float(value) if is_number(value) and math.isfinite(value) else None


def ends(interval: Any, value: float) -> tuple[float, float]:
    """Return the ends of an interval of a share, between 0 and 1; the value itself where there is none."""
    found = [number(end) for end in interval] if isinstance(interval, list) else []
    low, high = found if len(found) == 2 else (None, None)
    return (value, value) if low is None or high is None else (max(low, 0.0), min(high, 1.0))


def _whole(value: Any) -> int | None:
    known = number(value)
    return int(known) if known is not None and known >= 1 else None


def in_words(answer: Answer) -> list[str]:
    """Return the answer as sentences, the first for the headline."""
    if answer.federation is None:
        return ["The federation’s own model is no better than guessing: there is nothing to rebuild."]
    point, needed = answer.at, answer.labels(answer.k)
    reached = (
        f"{words.percent(answer.way(point.value))} of the way from guessing to the federation’s own test "
        f"{answer.measure} ({words.number(point.value)} against {words.number(answer.federation)})"
    )
    with_k = f"{point.k * answer.classes:,} labels ({point.k:,} of each class)"
    if answer.k is None:
        first = f"{needed.capitalize()} leaked labels would be needed to rebuild the model."
        second = f"With {with_k} party {answer.party} comes {reached}, by {answer.attack}."
    else:
        first = f"{needed.capitalize()} leaked labels are enough to rebuild the model."
        second = f"With {with_k} and its own trained model party {answer.party} comes {reached}, by {answer.attack}."
    return [first, second, *_from_scratch(answer), f"{words.percent(answer.share)} of the way counts as rebuilt."]


def _from_scratch(answer: Answer) -> list[str]:
    """Return the sentence about training from scratch; none where its result is not known."""
    if answer.alone_way is None:
        return []
    needs = answer.labels(answer.alone_k)
    return [
        f"From scratch, without that trained model, the same labels bring it "
        f"{words.percent(max(answer.alone_way, 0.0))} of the way, and {needs} would be needed."
    ]
