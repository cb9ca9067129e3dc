"""Numbers and verdicts in words that a privacy officer reads."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flower_vfl.apps.alone import BETTER
from flower_vfl.apps.result_schema import class_name, with_class_names
from flower_vfl.auditing.entries import (
    CONDITIONAL,
    JOINT,
    READER_PHASES,
    is_remembered,
    label_of,
    null_of,
    on_embeddings,
    phase_of,
    reached,
    received,
    sends_nothing,
)
from flower_vfl.config.parsing import call
from flower_vfl.registry import DEFENSE_NAMES, is_number
from flower_vfl.reports.leaks import keeps_apart, side_information

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flower_vfl.reports.run import Run

NONE = "–"

LIMIT_REASONS = {
    "leak limit": "The leak passed its limit (attack.max_leak)",
    "bound limit": "The bound on the leak passed its limit (attack.max_bound)",
}
"""Reason for the end of a run, by its status."""

_OF_BASES = {"scope": "joint", "rho": 0.0}
"""Usual values of the parameters that every defense inherits from the base classes."""

_OF_BUILT_IN = {**_OF_BASES, "spread": 0.1, "reduction": "mean", "distance": "angular", "form": "dcor"}

METRICS = {
    "test_auc": "Test AUC",
    "test_macro_auc": "Test AUC, mean over classes",
    "test_loss": "Test loss",
    "test_ace": "Calibration error (ACE)",
    "test_accuracy": "Test accuracy",
    "test_balanced_accuracy": "Test accuracy, mean over classes",
    "train_loss": "Training loss",
    "validation_auc": "Validation AUC",
    "validation_macro_auc": "Validation AUC, mean over classes",
    "validation_loss": "Validation loss",
    "validation_ace": "Validation calibration error",
    "validation_accuracy": "Validation accuracy",
    "validation_balanced_accuracy": "Validation accuracy, mean over classes",
    "epoch": "Epoch",
}


def number(value: Any, digits: int = 3) -> str:
    """Return a number with `digits` decimals, a whole number with thousands separated, anything else as it is."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return NONE
    if not is_number(value):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}f}"


def kept_model(result: Mapping[str, Any]) -> str:
    """Return the sentence about the model that a run kept, where it is not the last one; otherwise empty."""
    model, limit = result.get("model"), LIMIT_REASONS.get(str(result.get("status")))
    if not isinstance(model, dict):
        return ""
    if limit is None:
        if not model.get("chosen_by") or model.get("step") == result["cost"].get("steps"):
            return ""
        measure = METRICS.get(model["chosen_by"], "").replace("Validation", "validation")
        return (
            f"The model that all parties kept is the one with the best {measure}: of "
            f"step {number(model['step'])}, the end of epoch {number(model.get('epoch'))}."
        )
    if model.get("step") is None:
        return f"{limit}, and there is no checkpoint from before: no party kept a model."
    return (
        f"{limit}. The model that all parties kept is the {'best' if model.get('chosen_by') else 'last'} one from "
        f"before: of "
        f"step {number(model['step'])}, the end of epoch {number(model.get('epoch'))}. The leaks that are shown are of "
        "everything that was sent, also after that step."
    )


def nothing_chosen(result: Mapping[str, Any]) -> str:
    """Return the sentence that validation chose no epoch, where its rows are all of one class; otherwise empty."""
    last = result["utility"].get("last")
    names = ("validation_auc", "validation_macro_auc")
    if not isinstance(last, dict) or all(last.get(name, 0.0) is not None for name in names):
        return ""
    return "All rows of the validation part are of one class. No AUC is known there: no epoch was chosen by validation."


def alone_better(result: Mapping[str, Any]) -> str:
    """Return the sentence that one party alone does better than all together; empty where none is known to."""
    found = result.get(BETTER)
    if not isinstance(found, dict):
        return ""
    measure = METRICS.get(str(found.get("measure")), NONE).replace("Test", "test")
    defended = " with its defense" if result["defenses"] else ""
    return (
        f"Together the parties do worse than party {found.get('party', NONE)} alone: {measure} "
        f"{number(found.get('together'), 4)} together{defended}, {number(found.get('alone'), 4)} alone, with the same "
        "architecture and without a defense. By this measure training together gains nothing."
    )


def size(value: Any) -> str:
    """Return a number of bytes in the unit that suits it."""
    if not is_number(value) or not math.isfinite(value):
        return NONE
    amount = float(value)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{amount:,.0f} {unit}" if unit == "bytes" else f"{amount:,.1f} {unit}"
        amount /= 1024
    return f"{amount:,.1f} TiB"


def duration(value: Any) -> str:
    """Return seconds as hours, minutes and seconds."""
    if not is_number(value) or not math.isfinite(value):
        return NONE
    if value < 100:
        return f"{value:.1f} s"
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def ratio(amount: Any, seconds: Any) -> float | None:
    """Return an amount per second; None where one of the two is not known."""
    known = isinstance(amount, float | int) and isinstance(seconds, float | int) and seconds > 0
    return amount / seconds if known else None


def share(value: Any) -> str:
    """Return a share in percent; a small share above 0 is not rounded to 0 %.

    Examples
    --------
    >>> share(0.25), share(0.0), share(0.0004)
    ('25.0 %', '0 %', 'below 0.1 %')
    """
    if not is_number(value) or not math.isfinite(value):
        return NONE
    if value == 0:
        return "0 %"
    return f"{100 * value:.1f} %" if value >= 0.001 else "below 0.1 %"


def percent(value: float) -> str:
    """Return a share in whole percent.

    Examples
    --------
    >>> percent(0.8414)
    '84 %'
    """
    return f"{100 * value:.0f} %"


def interval(ends: Any) -> str:
    """Return both ends of the interval of a share, clipped to 0 and 1.

    Examples
    --------
    >>> interval([0.25, 1.2]), interval(None)
    ('0.250 … 1.000', '–')
    """
    known = isinstance(ends, list) and len(ends) == 2 and all(isinstance(end, int | float) for end in ends)
    return " … ".join(number(float(min(max(end, 0.0), 1.0))) for end in ends) if known else NONE


def listed(names: Sequence[str]) -> str:
    """Join names as a sentence does.

    Examples
    --------
    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def with_params(entry: Mapping[str, Any], name: str = "name") -> str:
    """Return a method with its unusual parameters as a configuration writes them, such as ``marvell(s=4)``."""
    params, method = entry.get("params"), str(entry.get(name, NONE))
    given, usual = params.items() if isinstance(params, dict) else (), usual_params(method)
    return call(method, {key: value for key, value in given if usual.get(key) != value})


def usual_params(method: str) -> Mapping[str, Any]:
    """Return the usual values of parameters, which texts leave out; of other packages, of inherited ones alone."""
    return _OF_BUILT_IN if method in DEFENSE_NAMES.builtin else _OF_BASES


def place(entry: Mapping[str, Any]) -> str:
    """Return the party and the layer of a leak, such as ``party a, cut layer``."""
    return f"party {entry.get('party', NONE)}, {entry.get('layer', NONE)} layer"


def defenses(result: Mapping[str, Any]) -> str:
    """Return the defenses of a run's result, outermost first, or ``none``; ``no gradients`` where none was sent."""
    if sends_nothing(result):
        return "no gradients"
    return ", ".join(map(with_params, result["defenses"])) or "none"


def undefended(result: Mapping[str, Any]) -> bool:
    """Return True if gradients left the label party without any defense."""
    return not result["defenses"] and not sends_nothing(result)


GRADES = (
    "no better than by guessing",
    "slightly better than by guessing",
    "clearly better than by guessing",
    "well",
    "almost completely",
)
"""Grades of a leak, in words that follow "the attacker reads the labels"."""


def grade(value: float, null: float) -> int:
    """Return the grade of a leak AUC by the share of the way from chance to certainty that it covers.

    Examples
    --------
    >>> grade(0.55, 0.55), grade(0.99, 0.55)
    (0, 4)
    """
    share = (value - null) / max(1 - null, 1e-9)
    return sum(share > limit for limit in (0.02, 0.15, 0.5, 0.8))


def reading(value: float, null: float, *, found: bool) -> str:
    """Return the grade of a leak AUC, in words; a leak that a test found has at least the grade "slightly".

    Examples
    --------
    >>> reading(0.56, 0.55, found=True), reading(0.99, 0.55, found=True)
    ('slightly better than by guessing', 'almost completely')
    """
    return GRADES[max(grade(value, null), int(found))]


@dataclass(frozen=True)
class Leak:
    """The worst leak of a run, graded.

    Attributes
    ----------
    entry
        The entry of ``result.json``.
    q95, null
        Its leak AUC and the chance level there.
    reached
        Leak AUC that an attacker can make of it: scores that are nearly always wrong read the labels as well as right
        ones.
    level
        0 (no better than guessing) to 4 (almost completely).
    """

    entry: Mapping[str, Any]
    q95: float
    null: float
    reached: float
    level: int

    @property
    def words(self) -> str:
        """The grade in words that follow "the attacker reads the labels"."""
        return GRADES[self.level]

    @property
    def remembered(self) -> bool:
        """True if a longitudinal attack measured it, not one on single steps."""
        return is_remembered(self.entry)

    @property
    def turned(self) -> bool:
        """True if the scores leak more with reversed sign."""
        return self.reached > max(self.q95, self.null)


def graded(entry: Mapping[str, Any]) -> Leak | None:
    """Return one entry with its grade; None where it has no value."""
    if entry.get("q95") is None:
        return None
    q95 = float(entry["q95"])
    null, most = null_of(entry), reached(entry)
    return Leak(entry, q95, null, most, grade(most, null))


def worst_leak(run: Run, *, oracle: bool = False) -> Leak | None:
    """Return the worst leak of the gradients that the parties received; None where nothing was measured.

    Oracles have side information that no real attacker has, such as a clean gradient. They bound nothing: `oracle`
    selects either them alone or all others.
    """
    leaks = [graded(entry) for entry in received(run.result) if side_information(run.result, entry)[0] == oracle]
    return max((leak for leak in leaks if leak), key=lambda leak: (leak.level, leak.reached), default=None)


def _persistent(run: Run) -> bool:
    """Return True if a part of a defense's noise stays with each row."""
    given = [defense.get("params") for defense in run.result["defenses"]]
    return any(isinstance(params, dict) and params.get("rho") for params in given)


def _positives_in(run: Run) -> list[str]:
    """Return the classes that gradients were searched for; none for two classes, or where all were searched."""
    classes, attack = run.result["dataset"].get("classes"), tomllib.loads(run.config).get("attack")
    named = attack.get("positives") if isinstance(attack, dict) else None
    if not isinstance(classes, int) or classes == 2 or not isinstance(named, list) or not named:
        return []
    return [] if {*named} >= {*range(classes)} else [class_name(run.result, place) for place in sorted({*named})]


def _reasons(result: Mapping[str, Any], silent: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the reasons for which attacks measured nothing, by the labels of the attacks."""
    found: dict[str, str] = {}
    for entry in sorted(silent, key=lambda entry: not entry.get("unavailable")):
        steps = entry.get("steps")
        unexplained = (
            f"none of its {number(steps)} steps had both classes and its side information"
            if steps
            else "it has no value"
        )
        found.setdefault(label_of(entry), str(entry.get("unavailable") or unexplained).rstrip("."))
    return {label: with_class_names(result, why) for label, why in sorted(found.items())}


def not_tested(run: Run) -> list[str]:
    """Return the gaps of a run's tests, in sentences; an attack that ran without a value is a gap."""
    if sends_nothing(run.result):
        return ["Predictions and metrics that are given away later: they depend on labels."]
    named = [entry for entry in run.result["leakage"] if phase_of(entry) not in READER_PHASES]
    leakage = [entry for entry in named if entry.get("q95") is not None]
    joint = {label_of(entry) for entry in run.result["leakage"] if phase_of(entry) == JOINT and entry.get("mean")}
    attacks = sorted({label_of(entry) for entry in leakage} - {CONDITIONAL})
    silent = [entry for entry in named if label_of(entry) not in {*attacks, CONDITIONAL}]
    gaps = []
    if attacks:
        measured = "measured anything" if silent else "ran"
        gaps.append(
            f"Other attacks. Only {listed(sorted({*attacks, *joint}))} {measured}; a better attack may read more."
        )
    else:
        gaps.append(f"Any attack at all: none {'measured anything' if silent else 'ran'}.")
    gaps += [f"{label}, which ran and measured nothing: {why}." for label, why in _reasons(run.result, silent).items()]
    gradients = [entry for entry in received(run.result) if not on_embeddings(run.result, label_of(entry))]
    searched = _positives_in(run)
    if searched and any(entry.get("q95") is not None for entry in gradients):
        gaps.append(
            f"The other classes. Gradients were searched for examples of class {listed(searched)} alone "
            "(attack.positives); those of others may leak more."
        )
    if not any(entry.get("layer") == "first" and entry.get("q95") is not None for entry in gradients):
        gaps.append(
            "A party's first layer. A party can continue back-propagation to this layer, and gradients often leak more "
            "there. The monitor sees only what the label party sends."
        )
    if not any(entry.get("phase") == "inference" for entry in leakage):
        gaps.append("Embeddings: what a party can read from its own trained model, after training.")
    if not any(is_remembered(entry) for entry in leakage):
        gaps.append("Longitudinal attacks, which average noise away over the epochs.")
    elif _persistent(run) and not any(map(keeps_apart, leakage)):
        gaps.append(
            "Readers that keep the epochs apart. Noise that stays with a person largely cancels in the difference "
            "between two epochs; remembered_quadratic(reads=epochs) reads this difference."
        )
    if len(run.parties()) > 1 and not any("+" in str(entry.get("party")) for entry in leakage):
        gaps.append("Colluding parties, which combine what they receive.")
    return [
        *gaps,
        "Active attackers, which send crafted embeddings to steer the training.",
        "Leakage of features: what embeddings reveal to the label party about the other parties' columns, and what "
        "gradients reveal to these about its own: each carries its prediction for a person, which depends on them.",
    ]
