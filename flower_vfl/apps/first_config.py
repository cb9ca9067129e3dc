"""A first configuration for the user's own tables: the questions, checks and file of `flower-vfl init`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flower_vfl.config import load_config
from flower_vfl.data.encoding.messages import option_line
from flower_vfl.data.formats.tables import Dialect, read_header
from flower_vfl.data.sources.catalog import load
from flower_vfl.data.sources.files_options import LABELS, FilesOptions
from flower_vfl.data.sources.own_files import Files
from flower_vfl.data.sources.recipe import build_options
from flower_vfl.data.store.dataset import Dataset
from flower_vfl.data.store.party_names import check_party_name
from flower_vfl.errors import ConfigError, DataError, suggestion
from flower_vfl.files import write_text_atomic

Ask = Callable[[str, str, str], str]
"""Function that asks for a value, given the option, the question and the answer for an empty line ("" for none)."""

_NAMES = 5
"""Largest number of columns of each file in a message."""

_ARGUMENTS = {"files": "PARTY=FILE", "id": "--id", "label": "--label", "label_party": "--label-party"}
"""Arguments of `init` in place of options of `files`."""

_TEMPLATE = """\
# Tables of {parties}, joined by {id!r}; {holder!r} has the label {label!r}.
#   flower-vfl run {name}
[data]
name = "files"

[data.options]
{options}
# test_fraction = 0.2              # of the IDs, for the test
# How each column is read, and how to change it: flower-vfl data show {name}
# dtype.postcode = "category"      # or number, boolean, date, "date:%d.%m.%Y", ignore
# missing_values = ["-999"]        # what else stands for a missing value
# unlabelled = "drop"              # leave out rows without a label; otherwise they are refused
# positive = "yes"                 # of two labels the one whose probability is predicted; each run names it
# decimal = ","                    # before fractions, where the columns do not tell

[training]
# epochs, batch_size and learning_rate fit the data; training ends when validation no longer improves.
# epochs = 20
# class_weights = "balanced"       # where a class is rare
# pretrain = 6                     # passes in which each party first learns from its own columns alone

# What the other parties receive tells them the labels. A defense makes that less, and each report says what is left:
# on census, five seeds, a reader with its own data and half of all labels reaches an AUC of 0.90 behind this one, and
# 0.87 without any gradient. It has a proof, for a number of epochs that validation does not choose; pretrain helps it.
# [[defenses]]
# name = "local_head"
# epsilon = 1.0
"""


def ask_person(option: str, question: str, usual: str) -> str:
    """Ask at the terminal, and return the answer.

    Raises
    ------
    ConfigError
        When there is no terminal to ask at.
    """
    if not sys.stdin.isatty():
        raise ConfigError(f"{option} is needed where there is no terminal to ask at: {question}")
    try:
        while not (answer := input(f"{question}{f' [{usual}]' if usual else ''}: ").strip() or usual):
            pass
    except EOFError:
        raise ConfigError(f"{option} is needed: {question}") from None
    return answer


def ask_files(ask: Ask) -> list[str]:
    """Ask for each party's file, and return the assignments that `files_of` takes.

    Raises
    ------
    ConfigError
        When a quote is left open, or there is nobody to ask.
    """
    answer = ask("PARTY=FILE", "each party's file, as in bank=bank.csv shop=shop.csv", "")
    try:
        return shlex.split(answer)
    except ValueError:
        raise ConfigError(f"a quote is left open in {answer!r}") from None


def files_of(assignments: Sequence[str]) -> dict[str, Path]:
    """Return each party's file, from `party=path`.

    Raises
    ------
    ConfigError
        For an assignment of another form, and for two files of one party.
    """
    found: dict[str, Path] = {}
    for assignment in assignments:
        party, equals, path = assignment.partition("=")
        if not equals or not party or not path:
            raise ConfigError(f"files are named PARTY=FILE, as in bank=bank.csv, given {assignment!r}")
        check_party_name(party)
        if party in found:
            raise ConfigError(f"party {party!r} has two files: {found[party]} and {path}; join them first")
        found[party] = Path(path).expanduser()
    return found


def write_first_config(
    files: Mapping[str, Path],
    out: Path,
    *,
    id_column: str = "",
    label: str = "",
    label_party: str = "",
    options: Mapping[str, str] | None = None,
    ask: Ask,
) -> str:
    """Write a commented configuration for these tables, once their headers were checked; return the label party.

    Parameters
    ----------
    files : Mapping
        Each party's table.
    out : Path
        The file to write; an existing one is not replaced.
    id_column, label, label_party : str
        Column of the ID, column of the label, and its party; "" to ask where the headers leave a choice.
    options : Mapping, optional
        Further options of `files`, such as "encoding" or "delimiter.bank", as texts.
    ask : callable
        Function that asks the user, or raises without a terminal.

    Raises
    ------
    ConfigError
        When `out` exists or is no .toml, an option is wrong, or a column is not in the files that need it.
    DataError
        When a file is missing or cannot be read.
    """
    if out.suffix != ".toml":
        raise ConfigError(f"a configuration is a .toml file: --out {out}.toml")
    if out.exists():
        raise ConfigError(f"{out} exists already; name another file with --out")
    options = options or {}
    given = _given_options(files, {name: text for name, text in options.items() if name.partition(".")[0] != "dtype"})
    tables = {**files, **({LABELS: Path(given.labels_file)} if given.labels_file else {})}
    headers = {party: _header(path, given.dialect(party)) for party, path in tables.items()}
    id_column = _id_column(headers, id_column, label, ask)
    labelled = {LABELS: headers[LABELS]} if given.labels_file else headers
    label = label or _choice("--label", "column of the label", _columns(labelled, id_column), "", ask)
    holder = _label_party(labelled, label, label_party, id_column, ask, alone=bool(given.labels_file))
    if set(files) <= {holder}:
        raise ConfigError(
            f"a run needs another party than {holder!r}, which has the labels: add its table, as in shop=shop.csv, or "
            "name a table of the labels alone, as in --set labels_file=labels.csv"
        )
    # The type "integer" is for the ID alone, so types are checked once its column is known.
    given = _given_options(files, options, id=id_column, label=label)
    chosen = {"id": id_column, "label": label, "label_party": holder, "join": "inner", "missing": "mean"}
    written = {**chosen, **given.model_dump(exclude_unset=True)}
    if not given.labels_file and set(headers[holder]) <= {id_column, label} and len(files) > 1:
        written = _with_labels_file(written, holder)
    lines = [line for key, value in written.items() for line in _lines(key, value)]
    text = _TEMPLATE.format(
        parties=", ".join(files), id=id_column, holder=holder, label=label, name=out, options="\n".join(lines)
    )
    write_text_atomic(out, text)
    return holder


def check_first_config(path: Path) -> Dataset:
    """Read the files of a configuration that `write_first_config` left, as a run does; return the data.

    Raises
    ------
    ConfigError, DataError
        When they cannot be used; the message says that the configuration was written, and how to go on.
    """
    data = load_config(str(path)).data
    try:
        return load(data.name, options=data.options)
    except (ConfigError, DataError) as error:
        raise type(error)(
            f"{error}\n{path} was written, but a run would stop at this. Correct the file or, in {path}, the options "
            f"below [data.options], then check again: flower-vfl data show {shlex.quote(str(path))}"
        ) from None


def _given_options(files: Mapping[str, Path], options: Mapping[str, str], **columns: str) -> FilesOptions:
    """Return the files, the further options and the columns of ID and label, checked."""
    for key, instead in _ARGUMENTS.items():
        if key in {name.partition(".")[0] for name in options}:
            raise ConfigError(f"--set {key} is not for init: use {instead}")
    paths = {party: str(path.resolve()) for party, path in files.items()}
    labels = options.get("labels_file", "")
    own = {"labels_file": str(Path(labels).expanduser().resolve())} if labels else {}
    given = build_options(Files(), {"files": paths, **options, **own, **columns})
    if not isinstance(given, FilesOptions):
        raise TypeError(type(given))
    return given


def _label_party(
    headers: Mapping[str, Sequence[str]], label: str, given: str, id_column: str, ask: Ask, *, alone: bool
) -> str:
    """Return the party of the label, from the headers of the files that may have it: one if labels are `alone`."""
    holders = [party for party, names in headers.items() if label in names]
    if not holders:
        where = "labels_file has no" if alone else "no file has the"
        raise ConfigError(f"{where} label column {label!r}; {suggestion(label, _columns(headers, id_column))}")
    if alone:
        return given or "label"
    question = f"the party with the {label!r} that counts"
    chosen = given or (
        holders[0] if len(holders) == 1 else _choice("--label-party", question, holders, holders[0], ask)
    )
    if chosen not in holders:
        raise ConfigError(f"the label {label!r} is in the file of {' and '.join(holders)}, not in that of {chosen!r}")
    return chosen


def _header(path: Path, dialect: Dialect) -> list[str]:
    if not path.exists():
        raise DataError(f"there is no file {path}")
    return list(read_header(path, dialect).column_names)


def _with_labels_file(options: Mapping[str, Any], holder: str) -> dict[str, Any]:
    """Return the options with the label party's file, which has no columns for the model, as the file of the labels."""
    by_party = {key: options[key] for key in ("files", "delimiter", "encoding") if isinstance(options.get(key), dict)}
    renamed = {
        key: {LABELS if party == holder else party: value for party, value in values.items()}
        for key, values in by_party.items()
    }
    return {"labels_file": renamed["files"].pop(LABELS), **options, **renamed}


def _lines(key: str, value: object) -> list[str]:
    """Return the TOML of an option, a line for each entry of a table."""
    if isinstance(value, Mapping):
        return [option_line(f"{key}.{name}", one) for name, one in value.items()]
    return [option_line(key, value)]


def _choice(option: str, question: str, choices: Sequence[str], usual: str, ask: Ask) -> str:
    """Ask until the answer is one of the choices."""
    question = f"{question}, of {', '.join(choices)}"
    answer = ask(option, question, usual)
    while answer not in choices:
        answer = ask(option, f"{answer!r} is none of them; {question}", usual)
    return answer


def _columns(headers: Mapping[str, Sequence[str]], id_column: str) -> list[str]:
    return sorted({name for names in headers.values() for name in names} - {id_column})


def _id_column(headers: Mapping[str, Sequence[str]], given: str, label: str, ask: Ask) -> str:
    """Return the column of all tables that identifies a row."""
    first, *others = headers.values()
    common = [name for name in first if all(name in names for names in others)]
    if label and (given == label or (not given and common == [label])):
        raise ConfigError(f"{label!r} is the column of the ID, which cannot be the label; name another with --label")
    shared = [name for name in common if name != label]
    if not shared:
        found = "; ".join(f"{party}: {', '.join(map(repr, names[:_NAMES]))}" for party, names in headers.items())
        raise ConfigError(
            "no column is in all files; an ID column of one name must be in each, so rename it where it has another. "
            f"First columns: {found}"
        )
    usual = next((name for name in shared if name.lower() in ("id", "uid", "key")), shared[0])
    chosen = given or (shared[0] if len(shared) == 1 else _choice("--id", "column of the ID", shared, usual, ask))
    if chosen not in shared:
        lacking = [party for party, names in headers.items() if chosen not in names]
        raise ConfigError(
            f"the file of {' and '.join(lacking)} has no ID column {chosen!r}; {suggestion(chosen, shared)}"
        )
    return chosen
