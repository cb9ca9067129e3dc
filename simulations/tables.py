"""Tables of the command line."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from flower_vfl.apps.alone import alone_by
from flower_vfl.apps.folder import CONFIG
from flower_vfl.apps.result_schema import OWN_DATA, kept_utility, names_of
from flower_vfl.apps.run_state import LABEL
from flower_vfl.auditing.verdict import LEAKS, NOT_TESTED
from flower_vfl.config import build_config, load_config
from flower_vfl.data.encoding.columns import Column, class_counts, columns_of
from flower_vfl.data.encoding.messages import option_argument, option_line
from flower_vfl.data.sources.catalog import load, prepare
from flower_vfl.data.sources.names import RECIPE_CLASSES
from flower_vfl.data.sources.own_files import Files
from flower_vfl.data.store.dataset import Dataset, open_dataset
from flower_vfl.errors import ConfigError
from flower_vfl.terminal import console, wrapped

_ANY_WIDTH = 10_000
"""Width at which nothing is folded."""

_GAPS = {
    NOT_TESTED: "Not tested, because these gave no number",
    LEAKS: "The leak may be larger, because these gave no number or too few",
}
"""Introductions of what did not run, by the status of a verdict."""

_CLASSES = 10
"""Largest number of classes that are listed."""


def results_table(summaries: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table with a row for each run: its utility, and the worst leak of practical attacks and of oracles.

    Leaks of single steps are the papers' measure; beside them are those of longitudinal attacks.
    """
    from flower_vfl.auditing.entries import reached
    from flower_vfl.reports.leaks import worst
    from flower_vfl.reports.longitudinal import strongest
    from flower_vfl.reports.rebuilt import answers
    from flower_vfl.reports.words import defenses, number

    leaks = {("cut", False): "leak,\ncut", ("first", False): "leak,\nfirst"}
    if any(worst(summary, "cut", oracle=True) for summary in summaries):
        leaks["cut", True] = "oracle,\ncut"
    remembered = [strongest(summary) for summary in summaries]
    memory_column = ["all\nepochs"] if any(remembered) else []
    # Without lines between columns all nine fit a terminal of 80 with the names of methods whole.
    title = "Leak AUC (q95): 0.5 the attacker learns nothing, 1 it reads every label"
    table = Table(title=title, box=SIMPLE_HEAD, show_edge=False, padding=0, pad_edge=False)
    table.add_column("defense", overflow="fold")
    rebuilt = [next(iter(answers(summary)), None) for summary in summaries]
    rebuild = ["labels\nto\nrebuild"] if any(rebuilt) else []
    several = bool(summaries) and all(kept_utility(summary).get("test_auc") is None for summary in summaries)
    for column in (
        "test\naccuracy" if several else "test\nAUC",
        "test\nloss",
        *leaks.values(),
        *memory_column,
        "chance",
        *rebuild,
    ):
        table.add_column(column, justify="right", no_wrap=True)
    for summary, answer, memory in zip(summaries, rebuilt, remembered, strict=True):
        last = kept_utility(summary)
        auc = last.get("test_auc")
        found = [worst(summary, layer, oracle=oracle, remembered=False) or {} for layer, oracle in leaks]
        table.add_row(
            defenses(summary),
            f"{'' if several else 'acc. '}{number(last.get('test_accuracy'), 4)}" if auc is None else number(auc, 4),
            number(last.get("test_loss"), 4),
            *(number(reached(entry) if entry else None) for entry in found),
            *(number(max(memory.leaks) if memory else None) for _ in memory_column),
            number(next((entry["q95_null"] for entry in found if entry), None)),
            *("–" if answer is None or answer.federation is None else answer.labels(answer.k, ">") for _ in rebuild),
        )
    return table


def print_results(summaries: Sequence[Mapping[str, Any]]) -> None:
    """Print the table of runs, the labels that rebuild the model, and the utility of each party alone."""
    from flower_vfl.reports.rebuilt import answers
    from flower_vfl.reports.words import METRICS, alone_better, defenses, kept_model, nothing_chosen, number
    from flower_vfl.reports.worth import worth_in

    Console().print(results_table(summaries))
    answer = next((found[0] for summary in summaries if (found := answers(summary))), None)
    if answer is not None:
        text = (
            f"Labels to rebuild: with so many leaked labels party {answer.party}'s own copy of the trained model comes "
            f"{answer.share:.0%} of the way from guessing to the federation's test {answer.measure}. From scratch, "
            f"without what it learned in training: {answer.labels(answer.alone_k)}."
        )
        Console().print(text, highlight=False)
    for text in filter(None, [*map(kept_model, summaries), *map(nothing_chosen, summaries)]):
        Console().print(text, highlight=False)
    for line in [*_data_lines(summaries), *_class_lines(summaries)]:
        Console().print(line, highlight=False, markup=False)
    for line in _remembered_lines(summaries):
        Console().print(line, highlight=False)
    for line in _verdict_lines(summaries):
        Console().print(line, highlight=False, markup=False)
    alone = next((summary for summary in summaries if summary.get("alone")), None)
    if alone is not None:
        reached = ", ".join(f"party {party} {number(auc, 4)}" for party, auc in alone["alone"].items())
        measure = METRICS[alone_by(alone)].replace("Test", "test")
        Console().print(f"Alone, with the same architecture, {measure}: {reached}", highlight=False)
    for summary in summaries:
        worth = worth_in(summary)
        if worth is not None:
            line = f"Was it worth it? {worth.measure}. {worth.sentence} {worth.advice}".rstrip()
            Console().print(line, highlight=False, markup=False)
        words = alone_better(summary)
        if words:
            Console().print(f"{defenses(summary)}: {words}" if len(summaries) > 1 else words, highlight=False)


def _data_lines(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return lines on the user's own files: the number of rows of each use, and the positive class."""
    lines = []
    for summary in summaries:
        data, names = summary.get("dataset") or {}, names_of(summary)
        if data.get("name") != OWN_DATA:
            continue
        if validated := data.get("validation_rows"):
            lines.append(
                f"Trained on {data['rows'] - validated:,} rows and tested on {data['test_rows']:,}; {validated:,} "
                "others are for validation (training.validation)"
            )
        if len(names) == 2:
            lines.append(_positive_line(names))
    return list(dict.fromkeys(lines))


def _positive_line(names: Sequence[str]) -> str:
    """Return a line on the positive one of the two classes of the user's own files."""
    negative, positive = names
    return (
        f"Positive class: {positive!r} (the label whose probability is predicted, against {negative!r}); the option "
        "positive of files names another"
    )


def _class_lines(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each run on the class that is recognised least; of two classes, only if it never is."""
    from flower_vfl.reports.classes import classes_in
    from flower_vfl.reports.words import defenses

    found = [(summary, classes) for summary in summaries if (classes := classes_in(summary)) and classes.notable]
    return [
        f"{defenses(summary)}: {classes.line}" if len(summaries) > 1 else classes.line for summary, classes in found
    ]


def _verdict_lines(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line with the verdict of each run, and one with its missing attacks where it is not tested."""
    from flower_vfl.reports.headline import headline_of
    from flower_vfl.reports.words import defenses

    lines = []
    for summary in summaries:
        headline = headline_of(summary)
        lines.append(f"{defenses(summary)}: {headline.line}" if len(summaries) > 1 else headline.line)
        if headline.missing and headline.status in _GAPS:
            lines.append(f"{_GAPS[headline.status]}: {headline.gaps}.")
    return lines


def _remembered_lines(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each run on its strongest longitudinal attack, beside the leak of single steps."""
    from flower_vfl.auditing.entries import reached
    from flower_vfl.reports.longitudinal import single_steps, strongest
    from flower_vfl.reports.words import defenses, number, place

    lines = []
    for summary in summaries:
        found = strongest(summary)
        if found is None:
            continue
        step = single_steps(summary, found.entry["party"], found.entry["layer"])
        alone = "" if step is None else f"; the strongest attack on single steps reads {number(reached(step))} (q95)"
        first = "" if len(found.epochs) == 1 else f"{number(found.first)} after epoch {found.epochs[0]}, "
        lines.append(
            f"Over all epochs, {defenses(summary)}: {found.name} at {place(found.entry)} reads {first}"
            f"{number(found.last)} after epoch {found.epochs[-1]}{' (turned around)' if found.turned else ''}{alone}"
        )
    return lines


def prepare_data(
    name: str, source: Path | None, out: Path, settings: Mapping[str, str], *, published: bool = False
) -> None:
    """Prepare a data set with a progress bar."""
    options = build_config({}, {f"data.options.{key}": value for key, value in settings.items()}).data.options
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(), transient=True) as progress:
        task = progress.add_task(f"preparing {name}", total=1.0)
        dataset = prepare(
            name,
            source=source,
            out=out,
            options=options,
            published=published,
            progress=lambda done: progress.update(task, completed=done),
        )
    rows = dataset.alignment
    parties = ", ".join(dataset.parties)
    Console().print(f"{name}: {rows.rows:,} + {rows.test_rows:,} rows, parties {parties} -> {out}", markup=False)
    if name == Files.name:
        print_columns(dataset)
        Console().print(
            "types were inferred where you named none; if one is wrong, prepare again with the option behind the "
            "column, as in --set dtype.postcode=category (others: number, boolean, date:%d.%m.%Y, ignore; in a "
            "configuration: data.options.dtype)",
            highlight=False,
        )
    # In a deployment a host has one party's part, which is compared with those of the others before a run.
    part = (
        not dataset.has_labels
        or dataset.held != dataset.parties
        or set(dataset.parties) <= {LABEL, dataset.label_party}
    )
    owner = LABEL if dataset.has_labels else dataset.held[0]
    command = f"doctor --party {shlex.quote(owner)} --data" if part else "run"
    Console().print(
        f"next: flower-vfl {command} {shlex.quote(str(out))}", markup=False, highlight=False, soft_wrap=True
    )


def data_of(source: str) -> Dataset:
    """Return the data of a prepared folder, a configuration or a run's folder; prepare it on first use.

    Raises
    ------
    ConfigError, DataError
        When it is none of them, or the data cannot be used.
    """
    path = Path(source)
    named = path / CONFIG if (path / CONFIG).is_file() else path
    if source in RECIPE_CLASSES and not path.exists():
        raise ConfigError(
            f"{source} is the name of a data set; show takes its prepared folder, a configuration or a run's folder. "
            f"`flower-vfl data list {source}` shows its options"
        )
    if named.suffix != ".toml":
        return open_dataset(path)
    data = load_config(str(named)).data
    return load(data.name, path=data.path, options=data.options)


def show_data(source: str) -> None:
    """Print the columns of the data that `data_of` returns, and where an option that changes a kind is written.

    Raises
    ------
    ConfigError, DataError
        As `data_of`.
    """
    dataset, path = data_of(source), Path(source)
    configured = path.suffix == ".toml" or (path / CONFIG).is_file()
    print_columns(dataset, toml=configured)
    if dataset.name == Files.name:
        where = "the configuration of another run" if path.is_dir() else source
        words = f"write the line behind it below [data.options] in {where}" if configured else "prepare again with it"
        Console().print(f"to change the type of a column, {words}", markup=False, highlight=False, soft_wrap=True)


def print_columns(dataset: Dataset, *, toml: bool = False) -> None:
    """Print the columns of the parties on this host, and the number of rows of each class if it has the labels.

    They are a table where it fits the terminal, else a few lines a column, so that no name or option is broken.
    Options are lines of a configuration with `toml`, else options of `data prepare`.
    """
    out, columns = Console(), columns_of(dataset)
    table = _columns_table(dataset.name, columns, toml=toml)
    if out.measure(table, options=out.options.update(width=_ANY_WIDTH)).maximum <= out.width:
        out.print(table)
    else:
        out.print(Text(f"Columns of {dataset.name}", "bold"))
        for column in columns:
            out.print(_column_lines(column, out.width, toml=toml), soft_wrap=True)
    unaligned = unaligned_rows(dataset)
    if unaligned:
        out.print(unaligned, markup=False, highlight=False)
    counts = class_counts(dataset)
    if counts:
        most = sorted(counts, key=lambda name: counts[name], reverse=True)[:_CLASSES]
        rows = ", ".join(f"{name!r}: {counts[name]:,}" for name in most)
        more = f", and {len(counts) - len(most)} smaller ones" if len(counts) > len(most) else ""
        out.print(f"training rows of {len(counts)} classes: {rows}{more}", markup=False, highlight=False)
    if len(counts) == 2 and dataset.name == OWN_DATA:
        out.print(_positive_line(dataset.class_names), markup=False, highlight=False)


def unaligned_rows(dataset: Dataset) -> str:
    """Return the number of each party's rows of people whom others lack, as text; empty where there are none."""
    unaligned = {name: dataset.party(name).unaligned for name in dataset.held}
    rows = ", ".join(f"{name}: {len(source):,}" for name, source in unaligned.items() if source)
    dropped = " or who have no label" if dataset.options.get("unlabelled") == "drop" else ""
    return f"rows of people whom others lack{dropped}: {rows}" if rows else ""


def _option(column: Column, *, toml: bool) -> str:
    """Return the option that sets another kind for a column; empty where none does."""
    if column.change is None:
        return ""
    name, kind = column.change
    return (option_line if toml else option_argument)(f"dtype.{name}", kind)


def _columns_table(name: str, columns: Sequence[Column], *, toml: bool) -> Table:
    """Return a table with a row for each column."""
    from flower_vfl.reports.words import share

    table = Table(title=f"Columns of {escape(name)}")
    for heading, justify in (("party", "left"), ("column", "left"), ("type", "left"), ("missing", "right")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for heading in ("values", "rare"):
        table.add_column(heading, justify="right")
    explained = any(column.why for column in columns)
    for heading in ("why", "to change") if explained else ():
        table.add_column(heading)
    for column in columns:
        table.add_row(
            *map(Text, (column.party, column.name, column.kind)),
            share(column.missing),
            "–" if column.values is None else f"{column.values:,}",
            share(column.rare),
            *(map(Text, (column.why, _option(column, toml=toml))) if explained else ()),
        )
    return table


def _column_lines(column: Column, width: int, *, toml: bool) -> Text:
    """Return a column's name, its properties on lines of this width, and the option that changes them."""
    from flower_vfl.reports.words import share

    facts = [column.kind, f"missing {share(column.missing)}"]
    facts += [] if column.values is None else [f"{column.values:,} values"]
    facts += [] if column.rare is None else [f"rare {share(column.rare)}"]
    facts += [column.why] if column.why else []
    text = Text.assemble(f"{column.party}: ", (column.name, "bold"), f"\n{wrapped('; '.join(facts), width, '    ')}")
    return text.append(f"\n    to change: {_option(column, toml=toml)}") if column.change else text
