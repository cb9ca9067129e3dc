"""The command line; never a traceback for bad input.

Exit codes: 0 success, 1 failure, 2 bad input, 130 interrupted (Ctrl-C), 143 terminated (SIGTERM).
"""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from flower_vfl.cli_budget import budget
from flower_vfl.cli_data import SetOption, data_app
from flower_vfl.cli_deployment import keys, show_version, wait
from flower_vfl.files import default_folder

app = typer.Typer(
    name="flower-vfl",
    help="Vertical federated learning for Flower in which label privacy is measured.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(data_app, name="data")
app.command()(budget)
app.command()(keys)
app.command()(wait)

_INTERRUPTED = 130
_MEASURING = frozenset({"demo", "run", "sweep", "tune"})
"""Commands that keep what they have measured when they are interrupted."""

ResourcesOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[NAME:] cpus=N, gpus=N, node=ADDRESS",
        help="With --engine flower, what Ray gives to the process of each feature party, or of one; repeatable.",
    ),
]
AddressOption = Annotated[
    str, typer.Option(metavar="RAY", help="With --engine flower, a Ray cluster to join: HOST:PORT, or auto.")
]


class Method(StrEnum):
    """Methods of comparing IDs."""

    psi = "psi"
    hash = "hash"


class Engine(StrEnum):
    """Engines that carry a run."""

    local = "local"
    flower = "flower"


def _say(message: str) -> None:
    typer.echo(message)


@app.callback()
def _options(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log every stage, not only warnings.")] = False,
    _: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show what is installed, and exit.")
    ] = False,
) -> None:
    from flower_vfl.terminal import show_log

    show_log(verbose=verbose)


@app.command()
def run(
    source: Annotated[
        str,
        typer.Argument(metavar="PRESET|FILE.toml|DATA", help="A preset's name, a TOML file or a prepared data set."),
    ],
    set_: SetOption = None,
    engine: Annotated[Engine, typer.Option(help="In this process, or in Flower's simulation runtime.")] = Engine.local,
    out: Annotated[Path | None, typer.Option(help="Folder of the results [default: runs/<preset>-<time>].")] = None,
    alone: Annotated[bool, typer.Option("--alone", help="Also train on each party's columns alone.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run that was interrupted in --out; begin it if none was.")
    ] = False,
    resources: ResourcesOption = None,
    address: AddressOption = "",
) -> None:
    """Train, attack and measure one configuration."""
    from flower_vfl.config import load_config
    from flower_vfl.config.parsing import parse_assignments
    from flower_vfl.errors import ConfigError
    from flower_vfl.simulations.flower_engine import run_flower
    from flower_vfl.simulations.running import alone_aucs, run_here
    from flower_vfl.simulations.worth import compare_run

    config = load_config(source, parse_assignments(set_ or []))
    if resume and out is None:
        raise ConfigError("--resume goes on in a folder: name it with --out")
    _check_engine(engine, resources, address)
    if engine is Engine.flower and alone:
        raise ConfigError("--alone trains in this process: leave out --engine flower")
    folder = out or default_folder(source)
    options = ["--alone"] if alone else []
    options += ["--engine", engine.value] if engine is Engine.flower else []
    options += [word for text in resources or [] for word in ("--resources", text)]
    options += ["--address", address] if address else []
    with _way_on(folder, options):
        if engine is Engine.flower:
            summary = run_flower(config, folder, resume=resume, resources=resources or [], address=address)
        else:
            by_themselves = partial(alone_aucs, config) if alone else None
            summary = run_here(config, folder, title=Path(source).stem, alone=by_themselves, resume=resume)
    _finish([compare_run(config, place) if (place := folder.expanduser()).is_dir() else summary], folder)


def _check_engine(engine: Engine, resources: list[str] | None, address: str) -> None:
    from flower_vfl.errors import ConfigError

    if engine is Engine.local and (resources or address):
        raise ConfigError("--resources and --address are for --engine flower; without it all is one process")


@contextmanager
def _way_on(folder: Path, options: Sequence[str]) -> Iterator[None]:
    """Say how a run that was interrupted goes on, where it has left something to go on from."""
    from flower_vfl.apps.folder import has_ended
    from flower_vfl.apps.run_state import CHECKPOINTS
    from flower_vfl.errors import SessionError, StorageError

    try:
        yield
    except (KeyboardInterrupt, MemoryError, SessionError, StorageError):
        if (folder / CHECKPOINTS).is_dir() or has_ended(folder):
            _say_way_on("run", folder / "config.toml", folder, options)
        raise


def _say_way_on(command: str, source: str | Path, folder: Path, options: Sequence[str]) -> None:
    words = ["flower-vfl", command, *filter(None, [str(source)]), "--out", str(folder), "--resume", *options]
    typer.echo(f"it goes on with: {shlex.join(words)}", err=True)


@app.command()
def align(
    source: Annotated[str, typer.Argument(metavar="FILE.toml", help="Configuration whose [data] names all files.")],
    out: Annotated[Path, typer.Option(help="Folder of the results, one folder a party; must not exist.")],
    method: Annotated[
        Method | None, typer.Option(help="psi: private; hash: salted hashes, fast and weak [default: psi].")
    ] = None,
    set_: SetOption = None,
    engine: Annotated[Engine, typer.Option(help="In this process, or in Flower's simulation runtime.")] = Engine.local,
    resources: ResourcesOption = None,
    address: AddressOption = "",
) -> None:
    """Private ID alignment: find the people that all parties have, before training.

    This command plays all roles on one machine, to try it out. Between companies it is a Flower run with two roles:

    \b
    LABEL PARTY  asks, and learns which of its IDs all others have, and how many IDs each has.
      In the environment of its SuperLink (or of its SuperExec):
        FLOWER_VFL_IDS=/srv/labels.csv
        FLOWER_VFL_IDS_COLUMN=id
        FLOWER_VFL_ALIGNMENT=/srv/alignment.parquet
      flwr run . FEDERATION --run-config "job='align' parties-features='a,b'"

    \b
    FEATURE PARTY  answers, and learns the same common IDs, and how many the label party has.
      flower-supernode ... --node-config "party='a' ids='/srv/people.csv'
        ids-column='id' alignment='/srv/alignment.parquet'"

    Each party then prepares its own file: flower-vfl data prepare files --set files.a=people.csv --set label=
    --set alignment=alignment.parquet --out prepared. Training checks that the digests are equal.
    """  # noqa: D301 - click wants the backspace
    from flower_vfl.config import load_config
    from flower_vfl.config.parsing import parse_assignments
    from flower_vfl.simulations.aligning import align_here, align_in_flower

    given = {"align.method": str(method)} if method else {}
    config = load_config(source, {**parse_assignments(set_ or []), **given})
    _check_engine(engine, resources, address)
    if engine is Engine.local:
        align_here(config, out)
    else:
        align_in_flower(config, out, resources=resources or [], address=address)


@app.command()
def predict(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Folder of a finished run.")],
    out: Annotated[Path, typer.Option(help="File of the scores, .csv or .parquet.")],
    ids: Annotated[
        Path | None, typer.Option(help="CSV, Parquet or text file that names the IDs [default: the test rows].")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="New data: a prepared folder, a CSV or Parquet file, or a folder of them.")
    ] = None,
    app_: Annotated[
        Path | None, typer.Option("--app", help="Folder of your own Flower App, if that trained the run.")
    ] = None,
    engine: Annotated[Engine, typer.Option(help="In this process, or in Flower's simulation runtime.")] = Engine.local,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")] = False,
    resources: ResourcesOption = None,
    address: AddressOption = "",
) -> None:
    """Score IDs with a finished run; the label party gets the scores, nobody else."""
    from flower_vfl.apps.prediction_server import Request
    from flower_vfl.errors import ConfigError
    from flower_vfl.simulations.predicting import predict_flower, predict_here

    request = Request(run_dir, out, ids, data, overwrite)
    _check_engine(engine, resources, address)
    if engine is Engine.local:
        predict_here(request, app_)
    elif app_ is None:
        predict_flower(request, resources=resources or [], address=address)
    else:
        raise ConfigError("an app of your own scores in Flower with `flwr run APP --run-config \"job='predict' ...\"`")
    _say(f"scores: {out}")


@app.command()
def demo(
    out: Annotated[Path | None, typer.Option(help="Folder of the results [default: runs/demo-<time>].")] = None,
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="More and longer runs; longitudinal curves, labels to rebuild, parties alone.",
        ),
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the demo that was interrupted in --out; begin it if none was.")
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the last table as Markdown.")] = False,
    set_: SetOption = None,
) -> None:
    """Run the main job on real data: train, attack, compare, report."""
    from flower_vfl.config.parsing import parse_assignments
    from flower_vfl.errors import ConfigError, FlowerVflError, InputError
    from flower_vfl.simulations.demo.comparing import run_demo
    from flower_vfl.simulations.demo.table import print_last

    if resume and out is None:
        raise ConfigError("--resume goes on in a folder: name it with --out")
    folder = out or default_folder("demo")
    try:
        summaries = run_demo(folder, parse_assignments(set_ or []), full=full, resume=resume)
    except (KeyboardInterrupt, FlowerVflError) as error:
        if not isinstance(error, InputError) and folder.is_dir():
            options = ["--full"] if full else []
            options += [word for text in set_ or [] for word in ("--set", text)]
            _say_way_on("demo", "", folder, options)
        raise
    print_last(summaries, full=full, as_markdown=markdown)
    _say(f"report: {folder / 'report.html'}")


@app.command()
def sweep(
    source: Annotated[str, typer.Argument(metavar="PRESET|FILE.toml", help="A sweep's preset or a TOML file.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the results [default: runs/<sweep>-<time>].")] = None,
    address: Annotated[
        str, typer.Option(metavar="RAY", help="HOST:PORT of a Ray cluster, or auto [default: Ray on this machine].")
    ] = "",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the sweep that was interrupted in --out; begin it if none was.")
    ] = False,
    workers: Annotated[int, typer.Option(min=0, help="Most trials at once; 0: as many as there is room for.")] = 0,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only say how many trials, how long and how much memory, measured briefly.")
    ] = False,
    no_stacking: Annotated[
        bool, typer.Option("--no-stacking", help="Train each trial by itself, also where several are faster together.")
    ] = False,
    set_: SetOption = None,
) -> None:
    """Run many configurations on Ray: a grid, or draws, over any keys; one table and one report at the end."""
    from flower_vfl.config.parsing import parse_assignments
    from flower_vfl.errors import ConfigError, FlowerVflError, InputError
    from flower_vfl.simulations.sweep.definition import load_definition
    from flower_vfl.simulations.sweep.listing import print_sweep
    from flower_vfl.simulations.sweep.plan import print_plan
    from flower_vfl.simulations.sweep.sweeping import run_sweep

    if resume and out is None:
        raise ConfigError("--resume goes on in a folder: name it with --out")
    folder = out or default_folder(source)
    definition, given = load_definition(source), parse_assignments(set_ or [])
    if plan:
        print_plan(definition, given, workers=workers, stacking=not no_stacking)
        return
    try:
        summaries = run_sweep(
            definition, folder, given, address=address, resume=resume, workers=workers, stacking=not no_stacking
        )
    except (KeyboardInterrupt, FlowerVflError) as error:
        if not isinstance(error, InputError) and folder.is_dir():
            options = ["--no-stacking"] if no_stacking else []
            options += [word for text in set_ or [] for word in ("--set", text)]
            options += ["--address", address] if address else []
            options += ["--workers", str(workers)] if workers else []
            _say_way_on("sweep", source, folder, options)
        raise
    print_sweep(summaries)
    _say(f"report: {folder / 'report.html'}")


@app.command()
def tune(
    source: Annotated[str, typer.Argument(metavar="FILE.toml|FOLDER|PRESET", help="What to tune; the start.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the search [default: runs/tune-<name>-<time>].")] = None,
    minutes: Annotated[float, typer.Option(min=0.1, help="After which no trial goes on.")] = 10.0,
    trials: Annotated[int, typer.Option(min=2, max=1000, help="Settings that are tried at most.")] = 48,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the search in --out, with as many minutes again.")
    ] = False,
    workers: Annotated[int, typer.Option(min=0, help="Most trials at once; 0: as many as there is room for.")] = 0,
    set_: SetOption = None,
) -> None:
    """Search for better settings of network and training; validation chooses, and run.toml has what it chose."""
    from flower_vfl.config.parsing import parse_assignments
    from flower_vfl.errors import ConfigError
    from flower_vfl.simulations.sweep.tuned import CHOSEN, print_tuned, run_tune

    if resume and out is None:
        raise ConfigError("--resume goes on in a folder: name it with --out")
    folder = out or default_folder(f"tune-{Path(source).stem}")
    found = run_tune(
        source, folder, parse_assignments(set_ or []), minutes=minutes, trials=trials, resume=resume, workers=workers
    )
    print_tuned(found)
    _say(f"next: flower-vfl run {shlex.quote(str(folder / CHOSEN))}")


@app.command()
def presets() -> None:
    """List the presets that come with the package: of single runs, and of sweeps."""
    from flower_vfl.simulations.sweep.listing import print_presets

    print_presets()


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of runs, or one of a sweep.")],
) -> None:
    """Rebuild report.html from what is in the folder of a run or a sweep; several runs are compared."""
    from flower_vfl.reports import render

    _say(f"report: {render(folders)}")


@app.command()
def methods() -> None:
    """List the attacks and defenses that a run can name: built-in ones and those of other installed packages."""
    from flower_vfl.simulations.tables import print_methods

    print_methods()


@app.command()
def doctor(
    party: Annotated[str, typer.Option(help="The party that this host is.")] = "",
    data: Annotated[Path | None, typer.Option(help="Its prepared data.")] = None,
    superlink: Annotated[str, typer.Option(metavar="HOST:PORT", help="The SuperLink that this host dials.")] = "",
    root_certificates: Annotated[Path | None, typer.Option(help="Of the authority of the SuperLink.")] = None,
    key: Annotated[Path | None, typer.Option(help="A private key of this host.")] = None,
    certificate: Annotated[Path | None, typer.Option(help="The certificate of that key.")] = None,
    dial: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address that must be reachable from here.")] = "",
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address that must be free here.")] = "",
) -> None:
    """Say what of this machine is usable and what is missing; with options, whether it is ready for a deployment."""
    from flower_vfl.simulations import doctor, host

    asked = host.Host(data, party, superlink, root_certificates, key, certificate, dial, listen)
    if doctor.show(host.findings(asked) if asked.given else doctor.findings()):
        raise typer.Exit(1)


@app.command()
def init(
    files: Annotated[list[str] | None, typer.Argument(metavar="PARTY=FILE ...", help="Each party's table.")] = None,
    id_: Annotated[str, typer.Option("--id", help="Column of the ID, the same in all files.")] = "",
    label: Annotated[str, typer.Option(help="Column of the label.")] = "",
    label_party: Annotated[str, typer.Option(help="Whose label counts, where several files have it.")] = "",
    out: Annotated[Path, typer.Option(help="The configuration to write.")] = Path("run.toml"),
) -> None:
    """Write a commented configuration for tables of your own; asks for what is not given."""
    from flower_vfl.apps.first_config import ask_person, files_of, write_first_config

    given = files_of(files or [])
    holder = write_first_config(given, out, id_column=id_, label=label, label_party=label_party, ask=ask_person)
    _say(f"{holder} is the label party. Next: flower-vfl run {shlex.quote(str(out))}")


@app.command("app")
def write_app(
    source: Annotated[str, typer.Argument(metavar="PRESET|FILE.toml", help="A preset's name or a TOML file.")],
    out: Annotated[Path, typer.Option(help="Folder of the Flower App; must not exist.")],
    set_: SetOption = None,
    results: Annotated[Path | None, typer.Option(help="Folder of the results on the label party's host.")] = None,
) -> None:
    """Write a Flower App for a deployment: what `flwr run` sends to every party."""
    from flower_vfl.config import load_config
    from flower_vfl.config.parsing import parse_assignments
    from flower_vfl.simulations.flower_engine import write_deployment

    write_deployment(out, load_config(source, parse_assignments(set_ or [])), results)
    _say(f"start it with: flwr run {out} NAME --stream")


def _finish(summaries: Sequence[dict[str, Any]], folder: Path) -> None:
    from flower_vfl.simulations.tables import print_results

    print_results(summaries)
    _say(f"report: {folder / 'report.html'}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    from flower_vfl.errors import FlowerVflError, InputError
    from flower_vfl.files import keep_private

    signals: list[int] = []

    def terminate(number: int, frame: object) -> None:
        signals.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, terminate)
    keep_private()
    try:
        code = app(list(arguments) if arguments is not None else None, standalone_mode=False)
    except InputError as error:
        _fail(str(error), 2)
    except FlowerVflError as error:
        _fail(str(error), 1)
    except PermissionError as error:
        _fail(f"{error.filename or 'a file'} may not be used by this user: {error.strerror}", 2)
    except MemoryError:
        _fail("out of memory; smaller training.batch_size, training.eval_batch_size or attack.names need less", 1)
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    except Exception as error:
        import click

        if isinstance(error, click.ClickException):
            error.show()
            sys.exit(error.exit_code)
        raise
    if code == _INTERRUPTED:  # typer, too, makes this number of a KeyboardInterrupt
        words, code = ("terminated", 128 + signals[0]) if signals else ("interrupted", code)
        measures = _MEASURING & set((sys.argv[1:] if arguments is None else list(arguments))[:1])
        _fail(f"{words}; what was measured is kept" if measures else words, code)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> None:
    typer.echo(f"flower-vfl: {message}", err=True)
    sys.exit(code)
