"""Report of a run, of a sweep or of several runs as one self-contained page."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError
from markupsafe import Markup

from flower_vfl.apps.alone import alone_by
from flower_vfl.apps.folder import RESULT
from flower_vfl.apps.result_schema import class_name, kept_utility, names_of, with_class_names
from flower_vfl.apps.sweeps import SUMMARY, is_sweep, summarised_runs
from flower_vfl.auditing.entries import TRAIN, label_of, phase_of, reached, read
from flower_vfl.errors import InputError
from flower_vfl.files import write_text_atomic
from flower_vfl.metrics import observations
from flower_vfl.reports import words
from flower_vfl.reports.advice import advice
from flower_vfl.reports.budget import of_budget
from flower_vfl.reports.certified import certificates
from flower_vfl.reports.classes import classes_in
from flower_vfl.reports.comparison import of_several
from flower_vfl.reports.figures import epoch_figure, leak_figure, snapshot_figures
from flower_vfl.reports.headline import headline_of, signed
from flower_vfl.reports.leaks import largest_null, side_information, way_of
from flower_vfl.reports.longitudinal import of_remembered
from flower_vfl.reports.periods import period_figures
from flower_vfl.reports.proof import upper
from flower_vfl.reports.run import PAGE, Run, load_run
from flower_vfl.reports.sweep import of_sweep
from flower_vfl.reports.trained import of_run
from flower_vfl.reports.worth import worth_in
from flower_vfl.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flower_vfl.reports.figures.training import CurvePoints

TEMPLATES = Path(__file__).parent / "templates"
Panel = tuple[str, dict[str, str]]
_LOSS: dict[str, Panel] = {
    "Loss by epoch": ("loss", {"train_loss": "training", "validation_loss": "validation", "test_loss": "test"}),
}
_TWO_CLASSES: dict[str, Panel] = {"AUC by epoch": ("AUC", {"validation_auc": "validation", "test_auc": "test"})}
_MANY_CLASSES: dict[str, Panel] = {
    "Accuracy by epoch": ("accuracy", {"validation_accuracy": "validation", "test_accuracy": "test"}),
    "AUC by epoch, mean over classes": ("AUC", {"validation_macro_auc": "validation", "test_macro_auc": "test"}),
}

_MADE_BY = b"Made by flower-vfl"
"""Words at the foot of each page."""


def render(run_dirs: Sequence[Path | str], out: Path | str | None = None) -> Path:
    """Write the report of one run, of a sweep, or the comparison of several runs, from the files in their folders.

    Reads ``config.toml``, ``result.json``, ``steps.parquet`` (or the journal of a run that was killed) and, where there
    are some, ``snapshots.parquet``, ``embeddings.parquet`` and ``periods.parquet``, and nothing else. The page needs no
    network and no other file.

    Parameters
    ----------
    run_dirs
        Folders of the runs, or the folder of a sweep or of a demo.
    out
        The file to write; by default ``report.html`` in the run's folder, and for several runs in the folder that
        holds them all.

    Returns
    -------
    Path
        The file, written whole or not at all.

    Raises
    ------
    InputError
        When there is no folder, or a file, which the message names, is missing or cannot be read.
    """
    folders = [Path(folder) for folder in run_dirs]
    if not folders:
        raise InputError("A report needs at least one run's folder.")
    if len(folders) == 1 and is_sweep(folders[0]):
        if out is not None:
            raise InputError(f"the page of a sweep is beside its tables, in {folders[0]}; leave out --out")
        return render_sweep(folders[0])
    if len(folders) == 1:
        folders = summarised_runs(folders[0]) or folders
    runs = [load_run(folder) for folder in folders]
    target = _target(folders, whole=len(run_dirs) == 1) if out is None else Path(out)
    with _refusing(folders):
        if len(runs) == 1:
            html = fill("run.html.j2", **_of_one(runs[0]))
        else:
            html = fill("comparison.html.j2", **of_several(runs, target.parent))
    write_text_atomic(target, html)
    return target


def _target(folders: Sequence[Path], *, whole: bool) -> Path:
    """Return the file of a page of these runs, which replaces no other page; `whole` for all runs of a demo."""
    if len(folders) == 1:
        return folders[0] / PAGE
    parent = Path(os.path.commonpath([one.resolve().parent for one in folders]))
    target = parent / PAGE
    if not whole and (is_sweep(parent) or (parent / SUMMARY).is_file()):
        raise InputError(f"{target} is the page of all runs in {parent}; name another file, as in --out some.html")
    if target.is_file() and _MADE_BY not in target.read_bytes():
        raise InputError(f"{target} is no page of flower-vfl; name another file, as in --out some.html")
    return target


@contextmanager
def _refusing(folders: Sequence[Path]) -> Iterator[None]:
    """Name the folders whose files have values of another kind than a run writes, which no check has found."""
    try:
        yield
    except InputError:
        raise
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, TemplateError) as error:
        raise InputError(
            f"no report can be made of {', '.join(map(str, folders))}: a value in {RESULT} or in a table beside it is "
            f"not one that a run writes ({type(error).__name__}: {error})"
        ) from error


def renew(folder: Path) -> None:
    """Write the report of a run that has a result, unless there is a report at least as new as the result.

    Raises
    ------
    InputError
        As `render`.
    """
    result, page = folder / RESULT, folder / PAGE
    if result.is_file() and not (page.is_file() and page.stat().st_mtime_ns >= result.stat().st_mtime_ns):
        render([folder])


def render_sweep(folder: Path | str) -> Path:
    """Write the report of a sweep from its record and the result of each run.

    Returns
    -------
    Path
        The file, written whole or not at all.

    Raises
    ------
    InputError
        When there is no sweep, no result yet, or a file cannot be read.
    """
    target = Path(folder) / PAGE
    with _refusing([Path(folder)]):
        html = fill("sweep.html.j2", **of_sweep(Path(folder)))
    write_text_atomic(target, html)
    return target


def render_search(folder: Path | str, **values: Any) -> Path:
    """Write the page of a search for settings: the values of ``search.html.j2`` other than its title and date.

    Returns
    -------
    Path
        The file, written whole or not at all.
    """
    target = Path(folder) / PAGE
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    write_text_atomic(target, fill("search.html.j2", title=target.parent.resolve().name, date=day, **values))
    return target


def fill(template: str, **values: Any) -> str:
    """Return a template of reports filled with these values; all text in them is escaped."""
    return _templates().get_template(template).render(**values)


@cache
def _templates() -> Environment:
    """Return the environment of the templates, with their filters; each template is compiled once in a process."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": words.number,
        "share": words.share,
        "interval": words.interval,
        "percent": words.percent,
        "size": words.size,
        "duration": words.duration,
        "listed": words.listed,
        "label": label_of,
        "with_params": words.with_params,
        "place": words.place,
        "reached": reached,
        "way": way_of,
        "signed": signed,
        "upper_epsilon": upper,
    }
    environment.globals |= {"version": VERSION, "date": "", "class_name": class_name}
    environment.globals["with_class_names"] = with_class_names
    return environment


def _of_one(run: Run) -> dict[str, Any]:
    result = run.result
    last, best = (_dict(result["utility"].get(which)) for which in ("last", "best"))
    nothing_chosen, measure_alone = words.nothing_chosen(result), alone_by(result)
    headline = headline_of(result)
    best = {} if nothing_chosen else best
    names = [*words.METRICS, *sorted((last.keys() | best.keys()) - words.METRICS.keys())]
    return {
        "run": run,
        "title": run.name,
        "headline": headline,
        "advice": advice(result, headline),
        "readers": read(result),
        "date": run.date,
        "leak": words.worst_leak(run),
        "oracle": words.worst_leak(run, oracle=True),
        "kept": words.kept_model(result),
        **of_budget(run),
        "certificates": certificates(run),
        "leaks": [(e, side_information(result, e)[0]) for e in result["leakage"] if phase_of(e) == TRAIN],
        **of_remembered(run),
        "gaps": words.not_tested(run),
        "defenses": words.defenses(run.result),
        "utility": [
            (words.METRICS.get(name, name), *values)
            for name in names
            if (values := (last.get(name), best.get(name))) != (None, None)
        ],
        "last": kept_utility(result),
        "epochs": last.get("epoch"),
        "nothing_chosen": nothing_chosen,
        "alone": {party: _dict(value).get(measure_alone, value) for party, value in result.get("alone", {}).items()},
        "alone_by": measure_alone,
        "alone_measure": words.METRICS[measure_alone],
        "alone_better": words.alone_better(result),
        "worth": worth_in(result),
        "by_class": classes_in(result),
        "names": names_of(result),
        "speed": words.ratio(result["cost"].get("steps"), result["cost"].get("seconds")),
        "snapshots": [Markup(figure) for figure in snapshot_figures(run.snapshots)],
        "observed": {step: observations(values) for step, values in run.snapshots.items()},
        "leak_figures": _leak_figures(run),
        "epoch_figures": _epoch_figures(run),
        "period_figures": period_figures(run),
        **of_run(run),
    }


def _leak_figures(run: Run) -> list[Markup]:
    """Return one figure for each attack and party, with one curve for each layer."""
    panels: dict[tuple[str, str], dict[str, CurvePoints]] = {}
    for attack, party, layer, metric in run.leak_series():
        steps, _, values = run.curve(attack=attack, party=party, layer=layer, metric=metric)
        label = f"{layer} layer" + (" (monitor)" if metric == "monitor_auc" else "")
        panels.setdefault((attack, party), {})[label] = (steps, values)
    figures = []
    for (attack, party), curves in panels.items():
        entries = (e for e in run.result["leakage"] if (label_of(e), e.get("party")) == (attack, party))
        null = largest_null(entries)
        figures.append(Markup(leak_figure(f"Attack {attack}, party {party}", curves, null)))
    return figures


def _epoch_figures(run: Run) -> list[Markup]:
    figures = []
    several = run.result["dataset"].get("classes") not in (2, None)
    for title, (ylabel, names) in {**_LOSS, **(_MANY_CLASSES if several else _TWO_CLASSES)}.items():
        curves: dict[str, CurvePoints] = {}
        for metric, label in names.items():
            _, epochs, values = run.curve(attack="", metric=metric)
            epochs, values = epochs[np.isfinite(values)], values[np.isfinite(values)]
            if epochs.size:
                which, position = np.unique(epochs, return_inverse=True)
                curves[label] = (which, np.bincount(position, values) / np.bincount(position))
        if curves:
            figures.append(Markup(epoch_figure(title, ylabel, curves)))
    return figures


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
