"""Commands for hosts of a deployment, and `--version`, by which two hosts are compared."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from flower_vfl.cli.parameters import SetOption
from flower_vfl.config.parsing import parse_assignments, read_list
from flower_vfl.errors import InputError, RunStoppedError, SessionError

STOPPED = 3
"""Exit code of `wait` for a run that was stopped on purpose: a service must not start it again."""


def show_version(asked: bool) -> None:
    """Print the versions that must be equal on two hosts, and exit."""
    if not asked:
        return
    import platform

    from flower_vfl.protocol import frame
    from flower_vfl.version import software

    found = software()
    typer.echo(f"flower-vfl {found.pop('version')}")
    for name, version in {**found, "protocol": frame.HEADER_VERSION, "python": platform.python_version()}.items():
        typer.echo(f"{name} {version}")
    raise typer.Exit


def keys(
    out: Annotated[Path, typer.Option(help="Folder to write; must not exist.")],
    host: Annotated[list[str], typer.Option(help="Name or address by which the SuperLink is dialled; repeatable.")],
    parties: Annotated[str, typer.Option(help="Feature parties, e.g. a,b.")],
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long the certificates are valid.")] = 90,
) -> None:
    """Write certificates and keys for a trial deployment.

    Each host gets a folder.
    """
    from flower_vfl.simulations.keys import LABEL_FOLDER, write_keys

    names = read_list(str, parties)
    write_keys(out, host, names, days=days)
    typer.echo(f"trial set-up, valid for {days} days")
    typer.echo(f"{out}/{LABEL_FOLDER} is for the host of the SuperLink and the label party")
    for name in names:
        typer.echo(
            f"{out}/{name} is for the host of party {name}; take it there and delete it here: it holds a private key"
        )
    typer.echo("the authority's key was not kept; for more than a trial use your own authority: docs/deployment/")


def wait(
    run_id: Annotated[
        str, typer.Argument(metavar="RUN_ID", help="The number; - reads what `flwr run --format json` prints.")
    ],
    superlink: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The SuperLink, as Flower's config.toml calls it.")
    ] = None,
    on_failure: Annotated[
        str,
        typer.Option(
            metavar="COMMAND",
            help="Run where the run did not finish, without a shell; FLOWER_VFL_RUN and FLOWER_VFL_REASON say more.",
        ),
    ] = "",
) -> None:
    """Wait until a run at a SuperLink has ended.

    The exit code is 1, with the reason, if it failed, and 3 if it was stopped.

    \b
    flwr run app NAME --format json |
        flower-vfl wait - NAME --on-failure /usr/local/bin/alert
    """  # noqa: D301 - click wants the backspace
    from flower_vfl.apps.run_status import ControlApi, alert, follow, read_hook, read_run_id

    hook = read_hook(on_failure) if on_failure else []
    run = ""
    try:
        number = read_run_id(run_id if run_id != "-" else sys.stdin.read())
        run = str(number)
        api = ControlApi(superlink)
        try:
            follow(api, number, lambda words: typer.echo(words, err=True))
        finally:
            api.close()
    except KeyboardInterrupt:
        if run:
            words = f"the run goes on; wait again with: flower-vfl wait {run} {superlink or ''}"
            typer.echo(words.rstrip(), err=True)
        raise
    except SessionError as error:
        if hook and not isinstance(error, InputError):
            alert(hook, run, str(error))
        if not isinstance(error, RunStoppedError):
            raise
        typer.echo(f"flower-vfl: {error}", err=True)
        raise typer.Exit(STOPPED) from None
    typer.echo(f"run {run} has finished")


def write_app(
    source: Annotated[str, typer.Argument(metavar="PRESET|FILE.toml", help="A preset's name or a TOML file.")],
    out: Annotated[Path, typer.Option(help="Folder of the Flower App; must not exist.")],
    set_: SetOption = None,
    results: Annotated[Path | None, typer.Option(help="Folder of the results on the label party's host.")] = None,
) -> None:
    """Write a Flower App for a deployment.

    It is what `flwr run` sends to every party.
    """
    from flower_vfl.config import load_config
    from flower_vfl.simulations.flower_engine import write_deployment

    write_deployment(out, load_config(source, parse_assignments(set_ or [])), results)
    typer.echo(f"start it with: flwr run {out} NAME --stream")
