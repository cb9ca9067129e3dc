"""Options that several commands share, their checks, and the format of the help."""

from __future__ import annotations

import glob
import os
import shlex
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from click import Context, HelpFormatter, Option, Parameter
from typer.core import TyperCommand

from flower_vfl.errors import ConfigError
from flower_vfl.files import default_folder

if TYPE_CHECKING:
    from flower_vfl.config import Config

SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one configuration value; repeatable.")
]
ResourcesOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[NAME:] cpus=N, gpus=N, node=ADDRESS",
        help="With --engine flower, Ray resources for the process of each feature party, or of one; repeatable.",
    ),
]
AddressOption = Annotated[
    str, typer.Option(metavar="RAY", help="With --engine flower, a Ray cluster to join: HOST:PORT, or auto.")
]


class Engine(StrEnum):
    """Engines that execute a run."""

    local = "local"
    flower = "flower"


EngineOption = Annotated[Engine, typer.Option(help="In this process, or in Flower's simulation runtime.")]


def _show_stages(_context: Context, _parameter: Parameter, verbose: bool) -> None:
    from flower_vfl.terminal import show_log

    if verbose:
        show_log(verbose=True)


_VERBOSE = Option(["-v", "--verbose"], is_flag=True, hidden=True, expose_value=False, callback=_show_stages)


class Command(TyperCommand):
    """A command with help that is plain text; it takes `-v` also behind its name."""

    def get_params(self, ctx: Context) -> list[Parameter]:
        """Return the parameters of the command, and `-v`, which the program's help shows."""
        return [*super().get_params(ctx), _VERBOSE]

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the help; typer escapes brackets for rich markup, which plain text does not have."""
        super().format_help(ctx, formatter)
        formatter.buffer = [part.replace("\\[", "[") for part in formatter.buffer]


def check_engine(engine: Engine, resources: Sequence[str] | None, address: str) -> None:
    """Refuse options of Flower's engine for a run in this process.

    Raises
    ------
    ConfigError
        When `resources` or `address` is given.
    """
    if engine is Engine.local and (resources or address):
        raise ConfigError("--resources and --address are for --engine flower; without it all is one process")


def check_source(source: str) -> None:
    """Refuse the name of a data set where that of a preset belongs.

    Raises
    ------
    ConfigError
        When it is one that no preset has; the message has the presets of this data set, or how it is prepared.
    """
    from flower_vfl.config import load_config, preset_names
    from flower_vfl.data.sources.names import RECIPE_CLASSES

    if source not in RECIPE_CLASSES or source in preset_names() or Path(source).exists():
        return
    presets = [name for name in preset_names() if load_config(name).data.name == source]
    prepared = f"run `flower-vfl data prepare {source} --out FOLDER`, then `flower-vfl run FOLDER`"
    meant = f"its presets are {', '.join(presets)}" if presets else prepared
    raise ConfigError(f"{source!r} is a data set and no preset; {meant}")


def folder_of(out: Path | None, source: str, *, resume: bool) -> Path:
    """Return the folder of results: `out`, `~` expanded, or one in `runs` that is named after the source and the time.

    Raises
    ------
    ConfigError
        When `resume` is set without `out`; the message names the last folder of this source.
    """
    new = default_folder(source)
    if out is None and resume:
        earlier = sorted(new.parent.glob(f"{glob.escape(Path(source).stem)}-{'[0-9]' * 8}-{'[0-9]' * 6}"))
        which = f"the last one is --out {shlex.quote(str(earlier[-1]))}" if earlier else "name it with --out"
        raise ConfigError(f"--resume continues in a folder: {which}")
    return (out or new).expanduser()


def check_named(config: Config) -> None:
    """Refuse a data set, an attack or a defense that is not there, before imports that take seconds.

    The data's options are not checked where this host's environment names other data, as at a label party.

    Raises
    ------
    ConfigError, DataError
        When one is not there; the message names the nearest ones.
    """
    from flower_vfl.config.methods import check_methods
    from flower_vfl.data.sources.names import check_name

    check_methods(config)
    check_name(config.data.name)
    from flower_vfl.apps.node import DATA_VARIABLE
    from flower_vfl.data.sources.catalog import check

    if config.data.path or not os.environ.get(DATA_VARIABLE):
        check(config.data.name, path=config.data.path, options=config.data.options)
