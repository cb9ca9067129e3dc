"""`flower-vfl tune`: a predefined search; validation chooses a trial, and only its test result is shown."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Any

import tomli_w
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flower_vfl.apps.factories import open_data
from flower_vfl.apps.folder import ENDED
from flower_vfl.apps.result_schema import kept_utility
from flower_vfl.apps.sweeps import DEFINITION, is_sweep
from flower_vfl.config import Config, canonical_key, load_config, preset_names, read_source
from flower_vfl.data.store.memory import VerticalData
from flower_vfl.errors import ConfigError, TrainingError
from flower_vfl.files import write_text_atomic
from flower_vfl.reports import render_search
from flower_vfl.reports.ranking import validation
from flower_vfl.reports.words import number
from flower_vfl.simulations.sweep.definition import Budget, parse_definition
from flower_vfl.simulations.sweep.results import FAILED
from flower_vfl.simulations.sweep.sweeping import run_sweep
from flower_vfl.simulations.sweep.trials import show, trials_of
from flower_vfl.terminal import console
from flower_vfl.training.outcome import OF_MANY_CLASSES

CHOSEN = "run.toml"
_SHOWN = 5
_TESTS = ("test_auc", "test_macro_auc", "test_accuracy", "test_loss")
_TRIAL: dict[str, Any] = {
    "attack.names": [],
    "attack.informed": 0,
    "attack.max_leak": 1.0,
    "attack.max_bound": 1.0,
    "attack.embeddings": 0,  # only a report draws maps of them
    "attack.snapshots": [],
    "checkpoint.every": 500,
}
"""Settings of every trial, which is trained and validated, but not attacked."""

_TRAINING: dict[str, list[Any]] = {
    "training.weight_decay": [0.0, 1e-5, 1e-4],
    "model.dropout": [0.0, 0.1, 0.25],
}
_TABLES: dict[str, list[Any]] = {
    "model.bottom": [[64], [128], [256], [128, 128], [256, 128]],
    "model.cut": [8, 16, 32, 64],
    "model.top": [[64], [128], [64, 64]],
    "model.numeric_embedding": ["none", "bins"],
}
_MEMBERS = 4
"""Members of an ensemble; ensembles are tried on tables."""
_RATES = (3e-4, 5e-3)
SEARCH, FINALISTS, DRAWS = 0.6, 4, 8
"""Share of the time for the search, number of finalists, most draws of validation rows. After the search, finalists and
the given settings are trained again with other validation rows, because few rows hardly separate settings."""

_FINISHING = 8.0
"""Seconds for the end of the last trials and of Ray, and for the report."""


@dataclass(frozen=True)
class Tuned:
    """Result of a search.

    Parameters
    ----------
    run : str
        The trial that validation chose.
    values : Mapping
        Values that differ from the configuration that was given; empty where that was best.
    changes : Mapping
        Trial to its difference from the settings that were given, in words.
    scores : Mapping
        Trial to its validation, the best first.
    means : Mapping
        Finalist to the mean of its validation over several draws of validation rows, the best first; empty where only
        one setting ended, or no time was left.
    draws : int
        Number of these draws.
    given : float or None
        Validation of the configuration that was given, by the same rows as that of the chosen one.
    test : Mapping
        Measures of the test rows, of the trial that was chosen.
    measure : str
        Metric that was compared.
    tried : int
        Number of settings of the search.
    """

    run: str
    values: Mapping[str, Any]
    changes: Mapping[str, str]
    scores: Mapping[str, float]
    means: Mapping[str, float]
    draws: int
    given: float | None
    test: Mapping[str, float]
    measure: str
    tried: int

    @property
    def shown(self) -> list[str]:
        """The trials in the order of their means, and after them the others in that of their validation."""
        return [*self.means, *(run for run in self.scores if run not in self.means)]

    @property
    def none_better(self) -> str:
        """Sentence on a search that chose the settings that were given."""
        if len(self.scores) == 1 < self.tried:
            return "No other setting ended in the time that was given: give more with --minutes."
        return "Nothing was better than the settings that were given."

    @property
    def best(self) -> float:
        """Validation of the chosen trial."""
        return (self.means or self.scores)[self.run]


def search_space(config: Config, data: VerticalData, trials: int) -> list[dict[str, Any]]:
    """Return the settings that are tried: first those of the configuration, then draws from fixed seeds.

    For tables, two ensembles come in between: one with the settings of the configuration, and one with the other
    choice about embeddings of numbers.

    Parameters
    ----------
    config : Config
        Configuration to tune.
    data : VerticalData
        Its data: tables have more to choose than images.
    trials : int
        Number of settings.
    """
    tables = config.model.network == "auto" and not any(data.party(party).spec.shape for party in data.parties)
    ensembles = tables and config.model.cut % _MEMBERS == 0
    space = {**_TRAINING, **(_TABLES if tables else {}), **({"model.ensemble": [1, _MEMBERS]} if ensembles else {})}
    plain = config.model_dump()
    first = {key: _at(plain, key) for key in ("training.learning_rate", *space)}
    found = [first]
    if ensembles:
        numbers = config.fitted(data.alignment.rows).model.numeric_embedding
        found.append({**first, "model.ensemble": _MEMBERS})
        found.append({**found[-1], "model.numeric_embedding": "none" if numbers == "bins" else "bins"})
    for place in range(len(found), trials):
        draw = random.Random(f"flower-vfl tune {place}")
        rate = math.exp(draw.uniform(*map(math.log, _RATES)))
        drawn = {key: draw.choice(values) for key, values in space.items()}
        found.append({"training.learning_rate": float(f"{rate:.2g}"), **drawn})
    return found[:trials]


def _at(values: Mapping[str, Any], key: str) -> Any:
    section, _, name = key.partition(".")
    return values[section][name]


def run_tune(
    source: str,
    out: Path,
    overrides: Mapping[str, str],
    *,
    minutes: float,
    trials: int,
    resume: bool = False,
    workers: int = 0,
) -> Tuned:
    """Search for settings, and write the configuration of the best by validation to `out`/run.toml.

    Parameters
    ----------
    source : str
        A configuration, a preset or a prepared folder.
    out : Path
        Folder of the search.
    overrides : Mapping
        Values of the command line's `--set`; their keys are not tuned.
    minutes : float
        Time of the whole search, with its start and its report.
    trials : int
        Largest number of settings that are tried.
    resume : bool
        True if a search that was begun there goes on, with as many minutes again.
    workers : int
        Number of trials that run at once; 0: as many as there is room for.

    Raises
    ------
    ConfigError
        When there is no validation part to choose by.
    TrainingError
        When no trial ended in time.
    """
    began = time.monotonic()
    config = load_config(source, overrides)
    if not config.training.validation:
        raise ConfigError("tune chooses by validation rows, and training.validation is 0: set it to 0.1, for instance")
    data = open_data(config)
    several = OF_MANY_CLASSES[config.training.class_weights]
    measure = "validation_auc" if data.labels().classes == 2 else several
    named = {canonical_key(key) for key in overrides}
    settings = [
        {key: value for key, value in setting.items() if key not in named}
        for setting in search_space(config, data, trials)
    ]
    base = str(Path(source).absolute()) if Path(source).exists() else source
    different = list({str(setting): setting for setting in settings}.values())
    table = {"base": base, "set": {**_TRIAL, **overrides}, "cases": different}
    definition = parse_definition(tomli_w.dumps(table), Path())
    cases = {trial.run: case for trial, case in zip(trials_of(definition), definition.cases, strict=True)}
    given = next(iter(cases))
    changes = {run: _change(_changed(case, cases[given])) for run, case in cases.items()}
    end = began + 60.0 * minutes - _FINISHING
    budget = Budget(began + SEARCH * 60.0 * minutes, measure, given, changes, latest=end)
    summaries = run_sweep(definition, out, resume=resume, workers=workers, stacking=False, budget=budget)
    ranked = _ranked(summaries, measure, minutes)
    finalists = {run: cases[run] for place, run in enumerate(ranked) if place < FINALISTS or run == given}
    draws = [ranked]
    rest = Budget(end, measure, words=changes)
    if len(finalists) > 1 and rest.ends > time.monotonic():
        draws += _again(finalists, table, config.shared_seed, out, workers=workers, budget=rest)
    tuned = _choose(draws, cases, changes, measure)
    write_text_atomic(out / CHOSEN, _configuration(source, overrides, config, tuned))
    _render(out, tuned, cases)
    return tuned


def _render(out: Path, tuned: Tuned, cases: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the page of the search."""
    keys = list(dict.fromkeys(key for case in cases.values() for key in case))
    render_search(
        out,
        chosen=tuned.run,
        change=tuned.changes[tuned.run],
        values={key: show(key, value) for key, value in tuned.values.items()},
        test=[f"{name.replace('_', ' ')} {number(value, 4)}" for name, value in tuned.test.items()],
        measure=tuned.measure.replace("_", " "),
        draws=tuned.draws,
        none_better=tuned.none_better,
        keys=keys,
        rows=[
            {
                "run": run,
                "change": tuned.changes[run],
                "score": tuned.scores[run],
                "mean": tuned.means.get(run),
                "settings": {key: show(key, cases[run][key]) if key in cases[run] else "" for key in keys},
            }
            for run in tuned.shown
        ],
        tried=tuned.tried,
    )


def _choose(
    draws: Sequence[Mapping[str, Mapping[str, Any]]],
    cases: Mapping[str, Mapping[str, Any]],
    changes: Mapping[str, str],
    measure: str,
) -> Tuned:
    """Return the choice by validation, from the metrics by draw: first those of all trials, then those of finalists."""
    ranked, given = draws[0], next(iter(cases))
    found = {run: [draw[run] for draw in draws] for run in ranked if run in draws[-1]}
    order = sorted(found, key=lambda run: _order(found[run], measure))
    means = {run: fmean(kept[measure] for kept in found[run]) for run in order} if len(draws) > 1 else {}
    scores = {run: float(kept[measure]) for run, kept in ranked.items()}
    best = order[0]
    return Tuned(
        run=best,
        values=_changed(cases[best], cases[given]),
        changes={run: changes[run] for run in ranked},
        scores=scores,
        means=means,
        draws=len(draws),
        given=(means or scores).get(given),
        test={name: float(value) for name in _TESTS if isinstance(value := ranked[best].get(name), int | float)},
        measure=measure,
        tried=len(cases),
    )


def _changed(case: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in case.items() if value != given[key]}


def _change(values: Mapping[str, Any]) -> str:
    """Return what a setting changes, in words: the names of its keys without their section, and the values."""
    words = (f"{key.rpartition('.')[2].replace('_', ' ')} {show(key, value)}" for key, value in values.items())
    return ", ".join(words) or "the given settings"


def _ranked(summaries: Sequence[Mapping[str, Any]], measure: str, minutes: float) -> dict[str, dict[str, Any]]:
    """Return the metrics of the trials that ended, the best by validation first; of equal ones by the least loss."""
    by_run = {str(summary["run"]): summary for summary in summaries if summary.get("status") in ENDED}
    known = {run: kept_utility(summary) for run, summary in by_run.items() if validation(summary) is not None}
    found = {run: kept for run, kept in known.items() if kept.get(measure) is not None}
    if by_run and not found:
        raise TrainingError(
            f"{len(by_run)} trials ended, and none has a {measure.replace('_', ' ')} to compare: its rows are all "
            "of one class; more of them are needed, as in training.validation = 0.2"
        )
    if not found:
        raise TrainingError(
            f"no trial ended with a validation to compare in the time that was given, --minutes {minutes:g}; give more "
            "and go on, as in --resume --minutes "
            f"{max(10, math.ceil(3 * minutes))}, or shorten the trials, as in --set training.epochs=10"
        )
    return dict(sorted(found.items(), key=lambda entry: _order([entry[1]], measure)))


def _order(draws: Sequence[Mapping[str, Any]], measure: str) -> tuple[float, float]:
    """Return the sort key of a setting: the mean over draws of validation rows, then the mean of the losses."""
    losses = [loss if isinstance(loss := kept.get("validation_loss"), int | float) else math.inf for kept in draws]
    return -fmean(kept[measure] for kept in draws), fmean(losses)


def _again(
    finalists: Mapping[str, Mapping[str, Any]],
    table: Mapping[str, Any],
    seed: int,
    out: Path,
    *,
    workers: int,
    budget: Budget,
) -> list[dict[str, dict[str, Any]]]:
    """Train finalists with other draws of validation rows; return the metrics of all, of each draw that all ended.

    A finalist that fails in this, because its training diverges, is dropped.
    """
    cases = [{**case, "schedule_seed": seed + draw} for draw in range(1, DRAWS) for case in finalists.values()]
    fixed = {key: value for key, value in table["set"].items() if canonical_key(key) != "schedule_seed"}
    again = parse_definition(tomli_w.dumps({**table, "set": fixed, "cases": cases}), Path())
    # A resumed search may have other finalists.
    folders = (out / f"again-{number}" for number in count(1))
    folder = next(path for path in folders if not is_sweep(path) or (path / DEFINITION).read_text() == again.text)
    console().print("the best and the given settings again, with other validation rows")
    runs = iter(trials_of(again))
    named = [{run: next(runs).run for run in finalists} for _ in range(1, DRAWS)]
    words = {
        name: f"{budget.words[run]}, draw {draw}" for draw, one in enumerate(named, 2) for run, name in one.items()
    }
    limit = replace(budget, words=words)
    try:
        summaries = run_sweep(again, folder, resume=True, workers=workers, stacking=False, budget=limit)
    except TrainingError:  # all failed: there is only the first draw to choose by
        return []
    by_run = {summary["run"]: summary for summary in summaries}
    draws = [{run: by_run.get(name, {}) for run, name in one.items()} for one in named]
    lasting = [run for run in finalists if all(draw[run].get("status") != FAILED for draw in draws)]
    ended = [draw for draw in draws if all(draw[run].get("status") in ENDED for run in lasting)]
    kept = [{run: kept_utility(draw[run]) for run in lasting} for draw in ended]
    return [draw for draw in kept if draw and all(one.get(budget.measure) is not None for one in draw.values())]


def _configuration(source: str, overrides: Mapping[str, str], config: Config, tuned: Tuned) -> str:
    """Return the configuration to use, with what was changed in comments above."""
    if (Path(source) / "manifest.json").is_file():
        values: dict[str, Any] = {"data": load_config(source).data.model_dump(exclude_defaults=True)}
        values["data"]["path"] = str(Path(source).absolute())
    else:
        _, values = read_source(source, preset_names(), preset="preset", file="configuration file")
    plain = config.model_dump()
    for key in map(canonical_key, overrides):
        section, _, rest = key.partition(".")
        if key.startswith("data.options."):
            values.setdefault("data", {})["options"] = plain["data"]["options"]
        elif rest:
            values.setdefault(section, {})[rest] = plain[section][rest]
        else:
            values[section] = plain[section]
    for key, value in tuned.values.items():
        section, _, rest = key.partition(".")
        values.setdefault(section, {})[rest] = value
    given = "have none to compare" if tuned.given is None else f"validated at {number(tuned.given, 4)}"
    lines = [
        f"# Chosen by `flower-vfl tune {source}` among {_settings(len(tuned.scores))} that ended, by {tuned.measure}:",
        f"# {number(tuned.best, 4)}{_on_average(tuned)}; the settings that were given {given}.",
        *(f"#   {key} = {show(key, value)}" for key, value in tuned.values.items()),
        *([f"# {tuned.none_better}"] if not tuned.values else []),
    ]
    return "\n".join([*lines, tomli_w.dumps(values)])


def _settings(count: int) -> str:
    return f"{count} setting{'s' * (count != 1)}"


def _on_average(tuned: Tuned) -> str:
    return f", the mean of {tuned.draws} draws of validation rows" if tuned.means else ""


def print_tuned(tuned: Tuned) -> None:
    """Print the best trials by validation, and the test of the one that was chosen."""
    table = Table(
        title=f"{len(tuned.scores)} of {_settings(tuned.tried)} ended; the best by validation, with what they change"
    )
    for column in ("change", tuned.measure.replace("_", " "), *([f"mean of {tuned.draws}"] if tuned.means else [])):
        table.add_column(column, overflow="fold", justify="left" if column == "change" else "right")
    for run in tuned.shown[:_SHOWN]:
        mean = [number(tuned.means[run], 4) if run in tuned.means else ""] if tuned.means else []
        table.add_row(Text(tuned.changes[run]), number(tuned.scores[run], 4), *mean)
    Console().print(table)
    if not tuned.values:
        Console().print(tuned.none_better, highlight=False)
    if tuned.given is not None:
        words = f"settings that were given: {number(tuned.given, 4)}{_on_average(tuned)}"
        Console().print(words, highlight=False)
    words = ", ".join(f"{name.replace('_', ' ')} {number(value, 4)}" for name, value in tuned.test.items())
    Console().print(f"test rows, of the chosen one alone: {words}", highlight=False)
