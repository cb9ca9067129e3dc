"""Lists of the command line: data sets, methods, presets, and the keys of a configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from flower_vfl.config import canonical_key, preset_names, preset_text, sweep_names
from flower_vfl.config.reference import ConfigKey, all_keys, find_keys, sections
from flower_vfl.data.sources.names import check_name
from flower_vfl.errors import ConfigError, suggestion
from flower_vfl.registry import ATTACK_NAMES, DEFENSE_NAMES
from flower_vfl.terminal import print_names


def print_data_sets() -> None:
    """Print the data sets, a line each, and whether they are usable here."""
    from flower_vfl.data.sources.catalog import available

    rows = [(entry.name, "usable" if entry.usable else "absent", entry.description) for entry in available()]
    print_names("Data sets", rows)
    _print_line("`flower-vfl data list NAME`: its rows, its licence, and what it still needs")


def print_data_set(name: str) -> None:
    """Print the description, the properties and the options of a data set.

    Raises
    ------
    ConfigError
        When there is none of this name.
    """
    check_name(name)
    from flower_vfl.data.sources.catalog import RECIPES, available

    (entry,) = (entry for entry in available() if entry.name == name)
    rows = f"{entry.rows:,}" if entry.rows else "any number"
    facts = {"Rows": rows, "Licence": entry.licence, "Usable here": "yes" if entry.usable else f"no: {entry.advice}"}
    _explain(name, entry.description, facts)
    options = [(key, field.description or "") for key, field in RECIPES[name].options.model_fields.items()]
    if options:
        _print_line("")
        print_names("Options (--set OPTION=VALUE of `data prepare`; data.options in a configuration)", options)


def print_methods() -> None:
    """Print the attacks and defenses that a configuration can name, a line each."""
    from flower_vfl.attacks import ATTACK_METHODS
    from flower_vfl.simulations.methods import sentence
    from flower_vfl.strategies import DEFENSE_METHODS

    print_names("Attacks", [(entry.name, sentence(entry)) for entry in ATTACK_METHODS.listed()])
    _print_line("")
    print_names("Defenses", [(entry.name, sentence(entry)) for entry in DEFENSE_METHODS.listed()])
    _print_line("`flower-vfl methods NAME`: what it sees or hides, and its parameters")


def print_method(name: str) -> None:
    """Print the description and the properties of an attack or a defense, by its name or as `module:Class`.

    Raises
    ------
    ConfigError
        When there is none of this name, or the class cannot be loaded.
    """
    known = ATTACK_NAMES.known() | DEFENSE_NAMES.known()
    if ":" not in name and name not in known:
        other = "module:Class of what is installed"
        raise ConfigError(f"there is no attack or defense named {name!r}; {suggestion(name, known, other=other)}")
    from flower_vfl.simulations.methods import details

    kind, text, facts = details(name)
    _explain(f"{name}: {kind}", text, facts)


def print_presets() -> None:
    """Print the presets with the first sentence of each."""
    print_names("Presets: flower-vfl run NAME", [(name, _sentence(name)) for name in preset_names()])
    _print_line("")
    print_names("Sweeps: flower-vfl sweep NAME", [(name, _sentence(name)) for name in sweep_names()])
    _print_line("`flower-vfl presets NAME`: the whole of one, as a file to begin with")


def print_preset(name: str) -> None:
    """Print the text of a preset, a TOML file.

    Raises
    ------
    ConfigError
        When there is none of this name.
    """
    known = [*preset_names(), *sweep_names()]
    if name not in known:
        raise ConfigError(f"there is no preset {name!r}; {suggestion(name, known)}")
    Console().out(preset_text(name).rstrip(), highlight=False)


def print_keys() -> None:
    """Print every key of a configuration, a line each, by section."""
    for section in ("", *sections()):
        print_names(
            f"[{section}]" if section else "Top level", [_row(key) for key in all_keys() if key.section == section]
        )
    _print_line("`flower-vfl config KEY`: type, default, what is allowed, and what it does")


def print_key(name: str) -> None:
    """Print the type, default, allowed values and effect of a key; for a section, print all its keys.

    Raises
    ------
    ConfigError
        When there is no such key; the message gives the nearest ones.
    """
    found = find_keys(name)
    if len(found) > 1:
        print_names(f"[{name}]: {sections()[name]}", [_row(key) for key in found])
        return
    (key,) = found
    allowed = {"Allowed": key.allowed} if key.allowed else {}
    use = {"Set it with": f"--set {key.name}=..."}
    if canonical_key(name) != key.name:
        use["Its entries"] = (
            f"{canonical_key(name)} is one of them; `flower-vfl data list NAME` lists those of a data set"
        )
    _explain(key.name, f"{_capital(key.what)}.", {"Type": key.kind, "Default": key.default, **allowed, **use})


def _row(key: ConfigKey) -> tuple[str, str]:
    return key.name, _capital(key.what)


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _explain(title: str, text: str, facts: Mapping[str, str]) -> None:
    """Print a title, paragraphs and facts, as wide as the terminal."""
    out = Console()
    out.print(Text(title, "bold"))
    for paragraph in re.split(r"\n\s*\n", text):
        joined = paragraph if re.search(r"^\s", paragraph, re.MULTILINE) else " ".join(paragraph.split())
        out.print(Padding(Text(joined), (0, 0, 0, 2)))
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(Text(f"  {name}", "bold"), Text(value.replace("`", "")))
    out.print(table)


def _print_line(text: str) -> None:
    Console().print(text, markup=False, highlight=False)


def _sentence(name: str) -> str:
    """Return the first sentence of the comment that a preset begins with."""
    lines = []
    for line in preset_text(name).splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return re.split(r"(?<!al)\. ", " ".join(lines))[0].removesuffix(".")
