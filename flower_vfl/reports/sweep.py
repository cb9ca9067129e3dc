"""Content of the page of a sweep: trade-offs with intervals over seeds, the choice of a setting, tables to copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from markupsafe import Markup

from flower_vfl.apps.folder import RESULT
from flower_vfl.apps.result_schema import kept_utility
from flower_vfl.apps.sweeps import TrialEntry, read_record
from flower_vfl.auditing.entries import reached, sends_nothing
from flower_vfl.auditing.verdict import NO_LEAK, NOT_TESTED, PROVEN, status_of
from flower_vfl.errors import InputError
from flower_vfl.metrics import mean_interval
from flower_vfl.reports import words
from flower_vfl.reports.choice import Candidate, Recommendation, choice_of
from flower_vfl.reports.export import to_csv, to_latex
from flower_vfl.reports.figures import Point, setting_figure
from flower_vfl.reports.headline import TONES, Headline, Worst, headline_of, worst_of
from flower_vfl.reports.leaks import largest_null, side_information, worst
from flower_vfl.reports.ranking import NOT_RANKED, not_beaten, validation, validation_name
from flower_vfl.reports.run import PAGE, Run, load_run
from flower_vfl.reports.settings import SEEDS, axes_of, measured_at, settings_of, strengths_of
from flower_vfl.reports.trained import of_settings

PROBLEM = ("base", "data", "model", "parties", "attack")
"""Keys that define the problem: each combination of their values has figures of its own."""

MOST_LINES = 4
"""Largest number of values of other keys that a figure draws as lines; more are drawn as points."""

NAMED = 8
"""Largest number of settings that a sentence names; of the others it gives the number."""

SETTING = "setting"
"""Word for a candidate of a sweep."""


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, with its 95 % interval where there are two or more."""

    mean: float
    low: float
    high: float
    count: int

    @property
    def half(self) -> float | None:
        """Half the width of the interval; None for a single run."""
        return (self.high - self.low) / 2 if self.count > 1 else None


def estimate(values: Sequence[float]) -> Estimate | None:
    """Return the mean of values with Student's interval; None without any.

    Examples
    --------
    >>> estimate([0.5, 0.7])
    Estimate(mean=0.6, low=-0.67..., high=1.87..., count=2)
    """
    if not values:
        return None
    mean = float(np.mean(values))
    low, high = mean_interval(values) or (mean, mean)
    return Estimate(mean, low, high, len(values))


@dataclass(frozen=True)
class SweepSetting:
    """Trials that differ in their seeds only.

    Attributes
    ----------
    values
        Values of the keys that vary in the sweep, except seeds.
    runs
        Runs of its trials that ended by themselves.
    trials
        Number of its trials, ended or not.
    """

    values: Mapping[str, Any]
    runs: Sequence[Run]
    trials: int

    @property
    def problem(self) -> tuple[tuple[str, Any], ...]:
        """The values of the keys that define the problem."""
        return tuple((key, value) for key, value in self.values.items() if key.partition(".")[0] in PROBLEM)

    @property
    def rest(self) -> str:
        """The values that are neither the problem nor the defense, in words."""
        known = {"defenses", *(key for key, _ in self.problem)}
        return _named({key: value for key, value in self.values.items() if key not in known})

    @property
    def title(self) -> str:
        """The defense and the other values, without those of the problem."""
        return " · ".join(filter(None, (words.defenses(self.runs[0].result), self.rest)))

    def utility(self, name: str) -> Estimate | None:
        """Return a utility of the model that is kept, such as ``test_auc``."""
        values = [kept_utility(run.result).get(name) for run in self.runs]
        return estimate([float(value) for value in values if isinstance(value, int | float)])

    @property
    def validation(self) -> Estimate | None:
        """The validation measure by which settings are ranked."""
        return estimate([value for run in self.runs if (value := validation(run.result)) is not None])

    def leak(self, attack: str, layer: str) -> Estimate | None:
        """Return the q95 leak AUC of one attack at one layer, of the party that leaks most."""
        entries = [worst(run.result, layer, attack=attack) for run in self.runs]
        return estimate([reached(entry) for entry in entries if entry is not None])

    @property
    def worst(self) -> Estimate | None:
        """The worst leak of attacks other than oracles, and of the informed reader."""
        return estimate([leak.value for leak in self._leaks])

    @property
    def single(self) -> float:
        """The largest leak AUC of single steps that the worst leak of a run does not show; 0 for none."""
        return max((leak.single for leak in self._leaks), default=0.0)

    @property
    def null(self) -> float | None:
        """Chance level where the worst leak was measured."""
        return max((leak.null for leak in self._leaks), default=None)

    @cached_property
    def headlines(self) -> list[Headline]:
        """The headline of each run."""
        return [headline_of(run.result) for run in self.runs]

    @property
    def gain(self) -> Estimate | None:
        """The gain of gradients over embeddings or columns, of the party with the worst findings in each run."""
        found = [one.worst.verdict["gain"] for one in self.headlines if one.worst is not None]
        return estimate([float(gain["value"]) for gain in found if gain is not None])

    @property
    def own_data(self) -> Estimate | None:
        """The leak AUC of a reader with the party's own data too, of the party with the worst findings in each run."""
        found = [one.worst.own_data for one in self.headlines if one.worst is not None]
        return estimate([value for value in found if value is not None])

    @cached_property
    def status(self) -> str:
        """The verdict on all runs together."""
        return status_of([run.result for run in self.runs])

    @property
    def tone(self) -> str:
        """The colour of the verdict; amber where an interval of a run lies above chance, or its proof is weak."""
        if self.status == PROVEN:
            return next((one.tone for one in self.headlines if one.tone != TONES[PROVEN]), TONES[PROVEN])
        return TONES[NOT_TESTED if self.open else self.status]

    @property
    def open(self) -> bool:
        """True if no leak was found, but an interval of a run lies wholly above chance."""
        return self.status == NO_LEAK and any(one.open for one in self.headlines)

    @property
    def epsilon(self) -> float | None:
        """The largest proven epsilon of the runs; None unless each run has a proof."""
        proofs = [None if one.epsilon is None else one.epsilon.proof for one in self.headlines]
        known = [float(proof.epsilon) for proof in proofs if proof is not None]
        return max(known) if len(known) == len(proofs) else None

    @cached_property
    def _leaks(self) -> list[Worst]:
        return [leak for run in self.runs if (leak := worst_of(run.result)) is not None]


def settings_in(entries: Sequence[TrialEntry], runs: Mapping[str, Run]) -> list[SweepSetting]:
    """Return the settings of a sweep, in its order: trials that differ in their seeds only, with at least one run."""
    found: dict[tuple[tuple[str, Any], ...], list[TrialEntry]] = {}
    for entry in entries:
        key = tuple((key, value) for key, value in entry.values.items() if key not in SEEDS)
        found.setdefault(key, []).append(entry)
    settings = [
        SweepSetting(dict(key), [runs[entry.run] for entry in members if entry.run in runs], len(members))
        for key, members in found.items()
    ]
    return [setting for setting in settings if setting.runs]


def of_sweep(folder: Path) -> dict[str, Any]:
    """Return the values of ``sweep.html.j2``.

    Raises
    ------
    InputError
        When the folder holds no sweep, or no run of it has left a result.
    """
    entries = read_record(folder)
    runs = {
        entry.run: load_run(folder / entry.run, light=True)
        for entry in entries
        if (folder / entry.run / RESULT).is_file()
    }
    if not runs:
        raise InputError(f"no run of the sweep in {folder} has left a result yet")
    settings = settings_in(entries, {name: run for name, run in runs.items() if run.ended})
    seconds = [run.result["cost"].get("seconds") for run in runs.values()]
    problems: dict[tuple[tuple[str, Any], ...], list[SweepSetting]] = {}
    for setting in settings:
        problems.setdefault(setting.problem, []).append(setting)
    return {
        "title": folder.resolve().name,
        "date": max(run.date for run in runs.values()),
        "entries": entries,
        "runs": runs,
        "keys": list(dict.fromkeys(key for entry in entries for key in entry.values)),
        "settings": settings,
        "repeated": max((len(setting.runs) for setting in settings), default=0),
        "seconds": sum(value for value in seconds if isinstance(value, int | float)),
        "broken": {name: run for name, run in runs.items() if not run.ended},
        "missing": [entry.run for entry in entries if entry.run not in runs],
        "gaps": _gaps(settings),
        "problems": [_problem(dict(key), members) for key, members in problems.items()],
    }


def _gaps(settings: Sequence[SweepSetting]) -> list[tuple[str, list[str]]]:
    """Return the gaps of the runs' tests, in sentences, each with the settings or runs that have it.

    The list of settings is empty for a gap of all runs.
    """
    lacking: dict[str, set[str]] = {}
    runs = [run for setting in settings for run in setting.runs]
    for run in runs:
        for gap in words.not_tested(run):
            lacking.setdefault(gap, set()).add(run.name)
    return [
        (gap, [] if len(names) == len(runs) else _settings_or_runs(settings, names)) for gap, names in lacking.items()
    ]


def _settings_or_runs(settings: Sequence[SweepSetting], runs: Set[str]) -> list[str]:
    """Return the settings all of whose runs are given, and the single runs of the others; at most `NAMED` by name."""
    shown: list[str] = []
    for setting in settings:
        names = [run.name for run in setting.runs if run.name in runs]
        whole = " · ".join(filter(None, (_named(dict(setting.problem)), setting.title)))
        shown += [whole] if len(names) == len(setting.runs) else names
    return shown if len(shown) <= NAMED else [*shown[:NAMED], f"{len(shown) - NAMED:,} more"]


def _named(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in values.items())


def _problem(values: Mapping[str, Any], settings: Sequence[SweepSetting]) -> dict[str, Any]:
    """Return the section of one problem: its figures, its recommendation and its tables."""
    runs = [run for setting in settings for run in setting.runs]
    places = measured_at(runs)
    measure = "test_auc" if any(setting.utility("test_auc") for setting in settings) else "test_accuracy"
    rows = [_row(setting, places, measure) for setting in settings]
    undefended = _write_costs(rows)
    for position in not_beaten([(_mean(row["validation"]), _mean(row["worst"])) for row in rows]):
        rows[position]["front"] = True
    # Figures of the trained models distinguish settings by their configurations.
    trained = of_settings(settings_of(runs), lines=12)
    return {
        "title": _named(values),
        "data": runs[0].result["dataset"],
        "parties": runs[0].parties(),
        "measure": words.METRICS[measure],
        "words": words.METRICS[measure].replace("Test", "test"),
        "names": [_place(runs, attack, layer) for attack, layer in places],
        "places": places,
        "rows": rows,
        "chosen_by": words.METRICS[validation_name(runs[0].result)],
        "choice": _choice(rows, measure),
        "costs": undefended is not None and len(rows) > 1,
        "undefended": undefended,
        "baseline": _baseline(rows),
        "measured": any(row["utility"] and row["worst"] for row in rows),
        "figures": _figures(settings, places, measure),
        "rebuild_figure": trained["rebuild_figure"],
        "protections": trained["protections"],
        "csv": to_csv(rows, places, measure, validation_name(runs[0].result)),
        "latex": to_latex(rows, places, measure, validation_name(runs[0].result)),
    }


def _row(setting: SweepSetting, places: Sequence[tuple[str, str]], measure: str) -> dict[str, Any]:
    return {
        "setting": setting,
        "title": setting.title,
        "name": _name(setting),
        "validation": setting.validation,
        "utility": setting.utility(measure),
        "loss": setting.utility("test_loss"),
        "worst": setting.worst,
        "single": setting.single,
        "gain": setting.gain,
        "own_data": setting.own_data,
        "status": setting.status,
        "tone": setting.tone,
        "null": setting.null,
        "sent": all(one.sent for one in setting.headlines),
        "links": [_link(run, number) for number, run in enumerate(setting.runs)],
        "cost": None,
        "leaks": [setting.leak(attack, layer) for attack, layer in places],
        "front": False,
    }


def _name(setting: SweepSetting) -> str:
    """Return a setting's title, with "no defense" instead of "none"."""
    return setting.title.replace("none", "no defense", 1) if words.undefended(setting.runs[0].result) else setting.title


def _link(run: Run, number: int) -> tuple[str, str]:
    """Return a run's seed, or its number where that is not known, and the address of its report."""
    environment = run.result.get("environment")
    seed = environment.get("seed", number) if isinstance(environment, Mapping) else number
    return str(seed), f"{quote(run.folder.name)}/{PAGE}"


def _write_costs(rows: Sequence[dict[str, Any]]) -> str | None:
    """Write into each row its utility minus that of the setting without a defense, and return that setting's name.

    Of several settings without a defense, the one with the best validation counts.
    """
    open_ = [row for row in rows if row["utility"] and words.undefended(row["setting"].runs[0].result)]
    if not open_:
        return None
    plain = max(open_, key=lambda row: _mean(row["validation"]) or 0.0)
    for row in rows:
        row["cost"] = row["utility"].mean - plain["utility"].mean if row["utility"] else None
    return str(plain["name"])


def _choice(rows: Sequence[Mapping[str, Any]], measure: str) -> Recommendation:
    """Return the recommendation of a setting by validation alone, or the reason for none."""
    if not any(row["validation"] for row in rows):
        return Recommendation(NOT_RANKED, "", TONES[NOT_TESTED])
    return choice_of([_candidate(row) for row in rows], measure, SETTING)


def _candidate(row: Mapping[str, Any]) -> Candidate:
    setting = row["setting"]
    return Candidate(
        row,
        row["name"],
        row["status"],
        tested=not any(one.missing for one in setting.headlines),
        worst=None if row["worst"] is None else Worst(row["worst"].mean, row["null"], row["single"]),
        validation=_mean(row["validation"]),
        utility=_mean(row["utility"]),
        cost=row["cost"],
        epsilon=setting.epsilon,
        sent=row["sent"],
        open=setting.open,
        tone=setting.tone,
    )


def _baseline(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the row with the best validation of those that send nothing that depends on labels; None without any."""
    silent = [row for row in rows if row["utility"] and not row["sent"]]
    return max(silent, key=lambda row: _mean(row["validation"]) or 0.0, default=None)


def _figures(settings: Sequence[SweepSetting], places: Sequence[tuple[str, str]], measure: str) -> list[Markup]:
    """Draw each attack at each layer against each utility (L22's Figure 4; L21's Figure 3).

    A dotted line joins the settings that are not beaten by validation.
    """
    rests = {setting.rest for setting in settings}
    strengths = strengths_of([setting.runs[0].result["defenses"] for setting in settings])
    measured_runs = [run for setting in settings for run in setting.runs]
    silent = [setting for setting in settings if sends_nothing(setting.runs[0].result)]
    figures = []
    for attack, layer in places:
        leaks = (worst(run.result, layer, attack=attack) for run in measured_runs)
        null = largest_null(leak for leak in leaks if leak is not None)
        for utility, label in axes_of(measure).items():
            lines: dict[str, list[tuple[tuple[float, ...], Point]]] = {}
            ranked: list[tuple[float | None, Point]] = []
            for setting, strength in zip(settings, strengths, strict=True):
                leak, useful = setting.leak(attack, layer), setting.utility(utility)
                if leak is not None and useful is not None:
                    plain = len(rests) == 1 or len(rests) > MOST_LINES
                    name = strength.family if plain else f"{strength.family} · {setting.rest}"
                    point = _point(strength.name, leak, useful)
                    lines.setdefault(name, []).append((strength.values, point))
                    ranked.append((_mean(setting.validation), point))
            if lines:
                ordered = {name: [p for _, p in sorted(found, key=itemgetter(0))] for name, found in lines.items()}
                best = [ranked[index][1] for index in not_beaten([(rank, p.leak) for rank, p in ranked])]
                edge = [(point.utility, point.leak) for point in best]
                figure = setting_figure(
                    f"{_place(measured_runs, attack, layer)} layer",
                    label,
                    ordered,
                    null,
                    edge=edge,
                    joined=len(rests) <= MOST_LINES,
                    no_gradients=_mean(silent[0].utility(utility)) if silent else None,
                )
                figures.append(Markup(figure))
    return figures


def _place(runs: Sequence[Run], attack: str, layer: str) -> str:
    """Return attack and layer in words; an oracle is marked as one."""
    entry = next((e for run in runs if (e := worst(run.result, layer, attack=attack))), None)
    oracle = entry is not None and side_information(runs[0].result, entry)[0]
    return f"{attack}{' (oracle)' if oracle else ''}, {layer}"


def _mean(found: Estimate | None) -> float | None:
    return None if found is None else found.mean


def _point(name: str, leak: Estimate, useful: Estimate) -> Point:
    leaks = (max(0.0, leak.low), min(1.0, leak.high))
    return Point(name, leak.mean, useful.mean, leaks, (useful.low, useful.high))
