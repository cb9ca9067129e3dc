"""Commands that show something: lists, reports, the configuration's keys, this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from flower_vfl.errors import InputError


def presets(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Print this preset, a TOML file.")] = "",
) -> None:
    """List the presets of runs and of sweeps; print one."""
    from flower_vfl.simulations.listing import print_preset, print_presets

    print_preset(name) if name else print_presets()


def methods(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="Explain this attack or defense, or a module:Class.")
    ] = "",
) -> None:
    """List the attacks and defenses that a run can name; explain one.

    Those of other installed packages are listed, too.
    """
    from flower_vfl.simulations.listing import print_method, print_methods

    print_method(name) if name else print_methods()


def explain_key(
    key: Annotated[str, typer.Argument(metavar="[KEY]", help="A key, such as training.patience, or a section.")] = "",
) -> None:
    """List the keys of a configuration; explain one."""
    from flower_vfl.simulations.listing import print_key, print_keys

    print_key(key) if key else print_keys()


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of runs, or of one sweep or demo.")],
    out: Annotated[
        Path | None,
        typer.Option(help="The file to write; by default report.html in the folder, or in the one that holds all."),
    ] = None,
) -> None:
    """Rebuild report.html of a run, sweep or demo; or compare runs.

    Of several names, those that are no folder of a run are left out.
    """
    what = "the folder of a run, or that of a sweep or a demo"
    _check_folders(folders if len(folders) == 1 else [one for one in folders if not one.exists()], what)
    from flower_vfl.apps.folder import CONFIG
    from flower_vfl.reports import render

    others = [one for one in folders if not (one / CONFIG).is_file()] if len(folders) > 1 else []
    named = [one for one in folders if one not in others]
    if others and named:
        typer.echo(f"left out, because they are no folder of a run: {', '.join(map(str, others))}", err=True)
    typer.echo(f"report: {render(named or folders, out)}")


def _check_folders(folders: Sequence[Path], what: str) -> None:
    """Refuse a folder that is not there."""
    for folder in folders:
        if not folder.is_dir():
            found = f"{folder} is a file" if folder.exists() else f"there is no folder {folder}"
            raise InputError(f"{found}; name {what}")


def watch(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Folder of a run, under way or ended.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this host's loopback; 0: a free one.")] = 0,
) -> None:
    """Serve a page on this host that follows a run.

    It shows loss, leak AUC beside guessing, steps a second, parties and the log. Open the address that it prints:
    nobody can guess it. Ctrl-C ends the page, not the run.
    """
    _check_folders([run_dir], "the folder of a run")
    from flower_vfl.reports.watching import serve

    serve(run_dir, port, lambda url: typer.echo(f"watching {run_dir}: {url} (Ctrl-C ends the page, the run goes on)"))


def doctor(
    party: Annotated[str, typer.Option(help="The party that this host is.")] = "",
    data: Annotated[Path | None, typer.Option(help="Its prepared data.")] = None,
    superlink: Annotated[str, typer.Option(metavar="HOST:PORT", help="The SuperLink that this host dials.")] = "",
    root_certificates: Annotated[Path | None, typer.Option(help="Certificate of the SuperLink's authority.")] = None,
    key: Annotated[Path | None, typer.Option(help="A private key of this host.")] = None,
    certificate: Annotated[Path | None, typer.Option(help="The certificate of that key.")] = None,
    dial: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address that must be reachable from here.")] = "",
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address that must be free here.")] = "",
) -> None:
    """Check this machine: what is usable and what is missing.

    With options, check whether it is ready for a deployment.
    """
    from flower_vfl.simulations import doctor, host

    described = host.Host(data, party, superlink, root_certificates, key, certificate, dial, listen)
    if doctor.show(host.findings(described) if described.given else doctor.findings()):
        raise typer.Exit(1)
