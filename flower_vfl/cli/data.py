"""Commands on data: listing and preparing data sets, and a first configuration for the user's own tables."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from flower_vfl.cli.parameters import Command
from flower_vfl.config.parsing import parse_assignments

data_app = typer.Typer(help="List the data sets, and prepare your own.", no_args_is_help=True, rich_markup_mode=None)


@data_app.command("list", cls=Command)
def data_list(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Describe this data set.")] = "",
) -> None:
    """List the data sets, and say which are usable here."""
    from flower_vfl.simulations.listing import print_data_set, print_data_sets

    print_data_set(name) if name else print_data_sets()


@data_app.command("prepare", cls=Command)
def data_prepare(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Data set; `flower-vfl data list` shows them.")],
    out: Annotated[Path, typer.Option(help="Folder of the prepared data; must not exist.")],
    source: Annotated[
        Path | None, typer.Option("--from", metavar="PATH", help="The raw files: a folder, or the file if it is one.")
    ] = None,
    as_published: Annotated[
        bool, typer.Option("--as-published", help="Repeat the preprocessing of the papers' authors (criteo, avazu).")
    ] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="OPTION=VALUE", help="Set one option of the data set; repeatable."),
    ] = None,
) -> None:
    """Prepare a data set from raw files. The data set `files` is your own.

    \b
      flower-vfl data prepare files --out own --set files.bank=bank.csv
        --set files.shop=shop.csv --set id=customer --set label=default

    `flower-vfl data list files` shows the options that --set takes.

    The result is one folder a party, memory-mapped columns, and a manifest.
    Criteo and Avazu are read in pieces of bounded memory. After a kill the same command goes on where it was.
    """  # noqa: D301 - click wants the backspace
    from flower_vfl.data.sources.names import check_name

    check_name(name)
    from flower_vfl.simulations.tables import prepare_data

    prepare_data(name, source, out, parse_assignments(set_ or []), published=as_published)


@data_app.command("show", cls=Command)
def data_show(
    source: Annotated[
        str, typer.Argument(metavar="FOLDER|FILE.toml", help="Prepared data, a configuration, or a run's folder.")
    ],
) -> None:
    """Show the columns of a data set.

    For each: its party, its kind with the reason, and the option that changes the kind.
    The data of a configuration is prepared first, as a run does.
    """
    from flower_vfl.simulations.tables import show_data

    show_data(source)


@data_app.command("part", cls=Command)
def data_part(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A prepared data set.")],
    party: Annotated[str, typer.Option(help="Party of the part; the label party's contains the labels.")],
    out: Annotated[Path, typer.Option(help="Folder of the part; must not exist.")],
) -> None:
    """Write one party's part of a prepared data set.

    It is all that this party's host may hold.
    """
    from flower_vfl.data.store.parts import write_part

    part = write_part(folder, party, out)
    typer.echo(
        f"{out}: {part.alignment.rows:,} + {part.alignment.test_rows:,} rows, digest {part.alignment.digest[:16]}"
    )


def init(
    files: Annotated[list[str] | None, typer.Argument(metavar="PARTY=FILE ...", help="Each party's table.")] = None,
    id_: Annotated[str, typer.Option("--id", help="Column of the ID, the same in all files.")] = "",
    label: Annotated[str, typer.Option(help="Column of the label.")] = "",
    label_party: Annotated[str, typer.Option(help="Party whose label is used, where several files have it.")] = "",
    out: Annotated[Path, typer.Option(help="The configuration to write, a .toml file.")] = Path("run.toml"),
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="OPTION=VALUE",
            help="An option of the files, such as encoding=cp1252, delimiter.bank=tab, decimal=, or "
            "missing_values=-999; repeatable.",
        ),
    ] = None,
) -> None:
    """Write a commented configuration for tables of your own.

    It asks for what is not given, and checks the tables.
    """
    from flower_vfl.apps.first_config import ask_files, ask_person, check_first_config, files_of, write_first_config

    given = files_of(files or ask_files(ask_person))
    options = parse_assignments(set_ or [])
    holder = write_first_config(
        given, out, id_column=id_, label=label, label_party=label_party, options=options, ask=ask_person
    )
    path = shlex.quote(str(out))
    typer.echo(f"{holder} is the label party. How columns are read: flower-vfl data show {path}")
    dataset = check_first_config(out)
    from flower_vfl.simulations.tables import unaligned_rows

    unaligned = unaligned_rows(dataset)
    rows, test_rows = dataset.alignment.rows, dataset.alignment.test_rows
    if unaligned:
        labelled = " and have a label" if dataset.options.get("unlabelled") == "drop" else ""
        typer.echo(f"{rows + test_rows:,} people are in all files{labelled}; {unaligned}")
    typer.echo(f"{rows:,} rows are for training, {test_rows:,} for the test.")
    typer.echo(f"Next: flower-vfl run {path}")
