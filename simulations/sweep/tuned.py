"""`flower-vfl tune`: a search that is set up already; validation chooses, the test is shown of the chosen one alone."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flower_vfl.apps.factories import open_data
from flower_vfl.apps.folder import ENDED, read_result
from flower_vfl.apps.result_schema import kept_utility
from flower_vfl.apps.sweeps import runs_of
from flower_vfl.config import Config, canonical_key, load_config, preset_names, read_source
from flower_vfl.config.schema import MANY_ROWS
from flower_vfl.data.store.memory import VerticalData
from flower_vfl.errors import ConfigError, TrainingError
from flower_vfl.files import write_text_atomic
from flower_vfl.reports.ranking import validation
from flower_vfl.reports.words import number
from flower_vfl.simulations.sweep.definition import Budget, parse_definition
from flower_vfl.simulations.sweep.sweeping import run_sweep
from flower_vfl.simulations.sweep.trials import show, trials_of
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
"""Of every trial: it is trained and validated, and not attacked."""

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
"""Of ensembles that are tried on tables with `MANY_ROWS` training rows; on smaller ones none was better."""
_RATES = (3e-4, 5e-3)


@dataclass(frozen=True)
class Tuned:
    """Result of a search.

    Parameters
    ----------
    run : str
        The trial that validation chose.
    values : Mapping
        What it has otherwise than the configuration that was given; empty where that was best.
    scores : Mapping
        Trial to its validation, the best first.
    given : float or None
        Validation of the configuration that was given.
    test : Mapping
        Measures of the test rows, of the trial that was chosen.
    measure : str
        What was compared.
    tried : int
        How many settings there were.
    """

    run: str
    values: Mapping[str, Any]
    scores: Mapping[str, float]
    given: float | None
    test: Mapping[str, float]
    measure: str
    tried: int


def search_space(config: Config, data: VerticalData, trials: int) -> list[dict[str, Any]]:
    """Return the settings that are tried: first those of the configuration, then draws that do not depend on chance.

    Of large tables an ensemble with the settings of the configuration comes second.

    Parameters
    ----------
    config : Config
        What is tuned.
    data : VerticalData
        Its data: tables have more to choose than images.
    trials : int
        How many settings.
    """
    tables = config.model.network == "auto" and not any(data.party(party).spec.shape for party in data.parties)
    large = tables and data.alignment.rows >= MANY_ROWS and config.model.cut % _MEMBERS == 0
    space = {**_TRAINING, **(_TABLES if tables else {}), **({"model.ensemble": [1, _MEMBERS]} if large else {})}
    plain = config.model_dump()
    first = {key: _at(plain, key) for key in ("training.learning_rate", *space)}
    found = [first, {**first, "model.ensemble": _MEMBERS}] if large else [first]
    for place in range(len(found), trials):
        draw = random.Random(f"flower-vfl tune {place}")
        rate = math.exp(draw.uniform(*map(math.log, _RATES)))
        drawn = {key: draw.choice(values) for key, values in space.items()}
        found.append({"training.learning_rate": float(f"{rate:.2g}"), **drawn})
    return found


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
        Of the command line's `--set`; what is named there is not tuned.
    minutes : float
        After which no trial goes on.
    trials : int
        How many settings are tried at most.
    resume : bool
        Whether a search that was begun there goes on, with as many minutes again.
    workers : int
        How many trials run at once; 0: as many as there is room for.

    Raises
    ------
    ConfigError
        When there is no validation part to choose by.
    TrainingError
        When no trial ended in time.
    """
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
    table = {"base": base, "set": {**_TRIAL, **overrides}, "cases": _different(settings)}
    definition = parse_definition(tomli_w.dumps(table), Path())
    budget = Budget(60.0 * minutes, measure)
    try:
        summaries = run_sweep(definition, out, resume=resume, workers=workers, stacking=False, budget=budget)
    except TrainingError:  # a setting that diverges is no reason to lose the others
        summaries = [{**read_result(folder), "run": folder.name} for folder in runs_of(out)]
        if not summaries:
            raise
    cases = {trial.run: case for trial, case in zip(trials_of(definition), definition.cases, strict=True)}
    tuned = _choose(summaries, cases, measure, minutes)
    write_text_atomic(out / CHOSEN, _configuration(source, overrides, config, tuned))
    return tuned


def _different(settings: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({str(setting): setting for setting in settings}.values())


def _choose(
    summaries: Sequence[Mapping[str, Any]], cases: Mapping[str, Mapping[str, Any]], measure: str, minutes: float
) -> Tuned:
    """Return what validation chose among the trials that ended; of equal ones, the least validation loss."""
    by_run = {str(summary["run"]): summary for summary in summaries if summary.get("status") in ENDED}
    known = {run: kept_utility(summary) for run, summary in by_run.items() if validation(summary) is not None}
    found = {run: float(value) for run, kept in known.items() if (value := kept.get(measure)) is not None}
    if by_run and not found:
        raise TrainingError(
            f"{len(by_run)} trials ended, and none has a {measure.replace('_', ' ')} to compare: its rows are all "
            "of one class; more of them are needed, as in training.validation = 0.2"
        )
    if not found:
        raise TrainingError(
            f"no trial ended within {minutes:g} minutes with a validation to compare; give more with --minutes, and go "
            "on with --resume"
        )

    def order(run: str) -> tuple[float, float]:
        loss = kept_utility(by_run[run]).get("validation_loss")
        return -found[run], float(loss) if isinstance(loss, int | float) else math.inf

    scores = {run: found[run] for run in sorted(found, key=order)}
    given, best = next(iter(cases)), next(iter(scores))
    changed = {key: value for key, value in cases[best].items() if value != cases[given][key]}
    kept = kept_utility(by_run[best])
    test = {name: float(value) for name in _TESTS if isinstance(value := kept.get(name), int | float)}
    return Tuned(best, changed, scores, scores.get(given), test, measure, len(cases))


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
    given = "ended too early to compare" if tuned.given is None else f"validated at {number(tuned.given, 4)}"
    lines = [
        f"# Chosen by `flower-vfl tune {source}` among {len(tuned.scores)} settings that ended, by {tuned.measure}:",
        f"# {number(tuned.scores[tuned.run], 4)}; the settings that were given {given}.",
        *(f"#   {key} = {show(key, value)}" for key, value in tuned.values.items()),
        *(["# Nothing was better than the settings that were given."] if not tuned.values else []),
        "#   flower-vfl run run.toml",
    ]
    return "\n".join([*lines, tomli_w.dumps(values)])


def print_tuned(tuned: Tuned) -> None:
    """Print the best trials by validation, and the test of the one that was chosen."""
    table = Table(title=f"{len(tuned.scores)} of {tuned.tried} settings ended; the best by validation")
    for column in ("trial", tuned.measure.replace("_", " ")):
        table.add_column(column, overflow="fold", justify="left" if column == "trial" else "right")
    for run, value in list(tuned.scores.items())[:_SHOWN]:
        table.add_row(Text(run), number(value, 4))
    Console().print(table)
    if tuned.given is not None:
        Console().print(f"settings that were given: {number(tuned.given, 4)}", highlight=False)
    words = ", ".join(f"{name.replace('_', ' ')} {number(value, 4)}" for name, value in tuned.test.items())
    Console().print(f"test rows, of the chosen one alone: {words}", highlight=False)
