"""Every command with its arguments and options, from the command line itself."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click
import typer

from flower_vfl.cli import app

_CODE_OR_BRACKET = re.compile(r"`[^`]*`|<")


def found(command: click.Command | None = None, path: str = "flower-vfl") -> Iterator[tuple[str, click.Command]]:
    """Return every command with the words that call it; one that only groups others comes before them."""
    command = command or typer.main.get_command(app)
    yield path, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from found(inner, f"{path} {name}")


def _text(command: click.Command) -> str:
    """Return the help of a command as Markdown; click's marked paragraphs keep their lines."""
    paragraphs = []
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        marked = paragraph.removeprefix("\b\n")
        paragraphs.append(f"```text\n{marked}\n```" if marked != paragraph else _escaped(paragraph))
    return "\n\n".join(paragraphs)


def _escaped(text: str) -> str:
    """Return a text in which Markdown takes no `<name>` for HTML."""
    return _CODE_OR_BRACKET.sub(lambda one: r"\<" if one[0] == "<" else one[0], text)


def _parameter(parameter: click.Parameter, context: click.Context) -> str:
    record = parameter.get_help_record(context)
    what = _escaped(record[1]) if record else ""
    if isinstance(parameter, click.Option):
        form = ", ".join([*parameter.opts, *parameter.secondary_opts])
        metavar = "" if parameter.is_flag else f" {parameter.make_metavar(context)}"
        return f"````{{option}} {form}{metavar}\n\n{what}\n````\n"
    return f"`{parameter.make_metavar(context)}`\n: {what}\n"


def commands() -> str:
    """Return all commands."""
    lines = []
    for path, command in found():
        context = click.Context(command, info_name=path)
        usage = " ".join([path, *command.collect_usage_pieces(context)])
        lines += [f"## {path}", "", _text(command), "", f"```text\n{usage}\n```", ""]
        lines += [f"```{{program}} {path}", "```", ""]
        shown = [one for one in command.params if not getattr(one, "hidden", False)]
        lines += [_parameter(one, context) for one in shown]
    return "\n".join(lines)
