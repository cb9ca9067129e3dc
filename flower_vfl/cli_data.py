"""Commands on data sets: which there are, preparing, looking at columns, one party's part."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

data_app = typer.Typer(help="Data sets: which there are, and preparing your own.", no_args_is_help=True)

SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one configuration value; repeatable.")
]


@data_app.command("list")
def data_list() -> None:
    """List the data sets and whether they are usable here."""
    from flower_vfl.simulations.tables import print_data_sets

    print_data_sets()


@data_app.command("prepare")
def data_prepare(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Data set; `flower-vfl data list` shows them.")],
    out: Annotated[Path, typer.Option(help="Folder of the prepared data; must not exist.")],
    source: Annotated[
        Path | None, typer.Option("--from", metavar="PATH", help="The raw files: a folder, or the file if it is one.")
    ] = None,
    as_published: Annotated[
        bool, typer.Option("--as-published", help="Repeat the preprocessing of the papers' authors (criteo, avazu).")
    ] = False,
    set_: SetOption = None,
) -> None:
    """Read raw files and write what runs read: one folder a party, memory-mapped columns, a manifest.

    Criteo and Avazu are read in pieces of bounded memory. After a kill the same command goes on where it was.
    """
    from flower_vfl.config.parsing import parse_assignments
    from flower_vfl.simulations.tables import prepare_data

    prepare_data(name, source, out, parse_assignments(set_ or []), published=as_published)


@data_app.command("show")
def data_show(folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A prepared data set.")]) -> None:
    """Show the columns of a prepared data set: whose, taken for what, how often missing, how many values."""
    from flower_vfl.data.store.dataset import open_dataset
    from flower_vfl.simulations.tables import print_columns

    print_columns(open_dataset(folder))


@data_app.command("part")
def data_part(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A prepared data set.")],
    party: Annotated[str, typer.Option(help="Whose part; the label party's has the labels in it.")],
    out: Annotated[Path, typer.Option(help="Folder of the part; must not exist.")],
) -> None:
    """Write one party's part of a prepared data set: all that this party's host may hold."""
    from flower_vfl.data.store.parts import write_part

    part = write_part(folder, party, out)
    typer.echo(
        f"{out}: {part.alignment.rows:,} + {part.alignment.test_rows:,} rows, digest {part.alignment.digest[:16]}"
    )
