"""Commands that train, search and score."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from flower_vfl.cli.parameters import (
    AddressOption,
    Engine,
    EngineOption,
    ResourcesOption,
    SetOption,
    check_engine,
    check_named,
    check_source,
    folder_of,
)
from flower_vfl.config.parsing import parse_assignments
from flower_vfl.errors import ConfigError, FlowerVflError, InputError, SessionError, StorageError


class Method(StrEnum):
    """Methods of comparing IDs."""

    psi = "psi"
    hash = "hash"


def _names_data(source: str, set_: Sequence[str]) -> bool:
    """Return True if a TOML file or an assignment names the data."""
    from flower_vfl.config import canonical_key

    section = tomllib.loads(Path(source).read_text(encoding="utf8")).get("data")
    return "name" in (section or ()) or any(canonical_key(one.partition("=")[0].strip()) == "data.name" for one in set_)


def run(
    source: Annotated[
        str,
        typer.Argument(metavar="PRESET|FILE.toml|DATA", help="A preset's name, a TOML file or a prepared data set."),
    ],
    set_: SetOption = None,
    engine: EngineOption = Engine.local,
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

    check_source(source)
    config = load_config(source, parse_assignments(set_ or []))
    if source.endswith(".toml") and not _names_data(source, set_ or []):
        typer.echo(f"{source} is about {config.data.name}, the data of a file whose [data] names none", err=True)
    folder = folder_of(out, source, resume=resume)
    check_engine(engine, resources, address)
    if engine is Engine.flower and alone:
        raise ConfigError("--alone trains in this process: leave out --engine flower")
    check_named(config)
    from flower_vfl.apps.folder import check_free_for_run

    check_free_for_run(folder, resume=resume)
    # The arguments are checked: only now follow imports that take seconds.
    from flower_vfl.simulations.flower_engine import run_flower
    from flower_vfl.simulations.running import alone_aucs, run_here
    from flower_vfl.simulations.tables import print_results
    from flower_vfl.simulations.worth import compare_run

    options = ["--alone"] if alone else []
    options += ["--engine", engine.value] if engine is Engine.flower else []
    options += [*_repeated("--resources", resources), *(["--address", address] if address else [])]
    with _run_resume_hint(folder, options):
        if engine is Engine.flower:
            summary = run_flower(config, folder, resume=resume, resources=resources or [], address=address)
        else:
            train_alone = partial(alone_aucs, config) if alone else None
            summary = run_here(config, folder, title=Path(source).stem, alone=train_alone, resume=resume)
    print_results([compare_run(config, folder) if folder.is_dir() else summary])
    typer.echo(f"report: {folder / 'report.html'}")


@contextmanager
def _run_resume_hint(folder: Path, options: Sequence[str]) -> Iterator[None]:
    """Print the command that resumes a run if it is interrupted, where it has left a state or a result."""
    from flower_vfl.apps.folder import has_ended
    from flower_vfl.apps.run_state import CHECKPOINTS

    try:
        yield
    except (KeyboardInterrupt, MemoryError, SessionError, StorageError):
        if (folder / CHECKPOINTS).is_dir() or has_ended(folder):
            _print_resume_command("run", folder / "config.toml", folder, options)
        raise


@contextmanager
def _resume_hint(command: str, source: str, folder: Path, options: Sequence[str]) -> Iterator[None]:
    """Print the command that resumes a demo, a sweep or a search if it is interrupted or fails."""
    try:
        yield
    except (KeyboardInterrupt, FlowerVflError) as error:
        if not isinstance(error, InputError) and folder.is_dir():
            _print_resume_command(command, source, folder, options)
        raise


def _print_resume_command(command: str, source: str | Path, folder: Path, options: Sequence[str]) -> None:
    words = ["flower-vfl", command, *filter(None, [str(source)]), "--out", str(folder), "--resume", *options]
    typer.echo(f"what was measured is kept; it goes on with: {shlex.join(words)}", err=True)


def _repeated(option: str, values: Sequence[str] | None) -> list[str]:
    """Return a repeatable option with its values, as words of a command."""
    return [word for value in values or [] for word in (option, value)]


def align(
    source: Annotated[str, typer.Argument(metavar="FILE.toml", help="Configuration whose [data] names all files.")],
    out: Annotated[Path, typer.Option(help="Folder of the results, one folder a party; must not exist.")],
    method: Annotated[
        Method | None, typer.Option(help="psi: private; hash: salted hashes, fast and weak [default: psi].")
    ] = None,
    set_: SetOption = None,
    engine: EngineOption = Engine.local,
    resources: ResourcesOption = None,
    address: AddressOption = "",
) -> None:
    """Find the IDs that all parties have: private ID alignment.

    This command takes all roles on one machine, to try it out. Between companies it is a Flower run with two roles:

    \b
    LABEL PARTY  starts it; it learns which of its IDs all others have, and
      the number of IDs of each.
      In the environment of its SuperLink (or of its SuperExec):
        FLOWER_VFL_IDS=/srv/labels.csv
        FLOWER_VFL_IDS_COLUMN=id
        FLOWER_VFL_ALIGNMENT=/srv/alignment.parquet
      flwr run . FEDERATION --run-config "job='align' parties-features='a,b'"

    \b
    FEATURE PARTY  answers; it learns the same common IDs, and the number of
      the label party's IDs.
      flower-supernode ... --node-config "party='a' ids='/srv/people.csv'
        ids-column='id' alignment='/srv/alignment.parquet'"

    Each party then prepares its own file: flower-vfl data prepare files --set files.a=people.csv --set label=
    --set alignment=alignment.parquet --out prepared. Training checks that the digests are equal.
    """  # noqa: D301 - click wants the backspace
    from flower_vfl.config import load_config
    from flower_vfl.data.sources.names import check_name

    given = {"align.method": str(method)} if method else {}
    config = load_config(source, {**parse_assignments(set_ or []), **given})
    check_engine(engine, resources, address)
    check_name(config.data.name)
    from flower_vfl.simulations.aligning import align_here, align_in_flower

    if engine is Engine.local:
        align_here(config, out)
    else:
        align_in_flower(config, out, resources=resources or [], address=address)


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
    engine: EngineOption = Engine.local,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")] = False,
    resources: ResourcesOption = None,
    address: AddressOption = "",
) -> None:
    """Score IDs with a finished run.

    The label party gets the scores, nobody else.
    """
    from flower_vfl.apps.folder import check_is_run
    from flower_vfl.apps.scores import check_target

    check_engine(engine, resources, address)
    check_is_run(run_dir)
    check_target(out, overwrite=overwrite)
    from flower_vfl.apps.prediction_server import Request
    from flower_vfl.simulations.predicting import predict_flower, predict_here

    request = Request(run_dir, out, ids, data, overwrite)
    if engine is Engine.local:
        predict_here(request, app_)
    elif app_ is None:
        predict_flower(request, resources=resources or [], address=address)
    else:
        raise ConfigError("an app of your own scores in Flower with `flwr run APP --run-config \"job='predict' ...\"`")
    typer.echo(f"scores: {out}")


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
    from flower_vfl.simulations.demo.plan import demo_configs

    folder = folder_of(out, "demo", resume=resume)
    configs = demo_configs(parse_assignments(set_ or []), full=full)
    for config in configs.values():
        check_named(config)
    from flower_vfl.simulations.demo.folder import check_free_for_demo

    check_free_for_demo(folder, configs, resume=resume)
    from flower_vfl.simulations.demo.comparing import run_demo
    from flower_vfl.simulations.demo.table import print_last

    with _resume_hint("demo", "", folder, [*(["--full"] if full else []), *_repeated("--set", set_)]):
        summaries = run_demo(folder, configs, full=full, resume=resume)
    print_last(summaries, full=full, as_markdown=markdown)
    typer.echo(f"report: {folder / 'report.html'}")


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
        bool,
        typer.Option(
            "--plan", help="Only print the number of trials, the time and the memory, from a short measurement."
        ),
    ] = False,
    no_stacking: Annotated[
        bool, typer.Option("--no-stacking", help="Train each trial by itself, also where several are faster together.")
    ] = False,
    set_: SetOption = None,
) -> None:
    """Run many configurations on Ray, with one report at the end.

    The configurations are a grid, or random draws, over any keys.
    """
    from flower_vfl.simulations.sweep.definition import load_definition
    from flower_vfl.simulations.sweep.trials import setting_of, trials_of

    folder = folder_of(out, source, resume=resume)
    definition, given = load_definition(source), parse_assignments(set_ or [])
    trials = trials_of(definition, given)
    for trial in trials:
        check_named(trial.config)
    if not plan:
        from flower_vfl.apps.sweeps import check_free_for_sweep

        check_free_for_sweep(folder, resume=resume)
    from flower_vfl.simulations.sweep.board import print_sweep
    from flower_vfl.simulations.sweep.plan import print_plan
    from flower_vfl.simulations.sweep.sweeping import run_sweep

    if plan:
        print_plan(definition, given, workers=workers, stacking=not no_stacking)
        return
    options = [*(["--no-stacking"] if no_stacking else []), *_repeated("--set", set_)]
    options += ["--address", address] if address else []
    options += ["--workers", str(workers)] if workers else []
    with _resume_hint("sweep", source, folder, options):
        summaries = run_sweep(
            definition, folder, given, address=address, resume=resume, workers=workers, stacking=not no_stacking
        )
    print_sweep(summaries, {trial.run: setting_of(trial) for trial in trials})
    typer.echo(f"report: {folder / 'report.html'}")


def tune(
    source: Annotated[str, typer.Argument(metavar="FILE.toml|FOLDER|PRESET", help="Configuration to start from.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the search [default: runs/tune-<name>-<time>].")] = None,
    minutes: Annotated[
        float, typer.Option(min=0.1, help="Minutes of the search; a busy machine adds some seconds.")
    ] = 10.0,
    trials: Annotated[int, typer.Option(min=2, max=1000, help="Settings that are tried at most.")] = 48,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the search in --out, with as many minutes again.")
    ] = False,
    workers: Annotated[int, typer.Option(min=0, help="Most trials at once; 0: as many as there is room for.")] = 0,
    set_: SetOption = None,
) -> None:
    """Search for better settings of network and training.

    Validation chooses; run.toml in the folder has the chosen settings.
    """
    from flower_vfl.config import load_config

    folder = folder_of(out, f"tune-{Path(source).stem}", resume=resume)
    given = parse_assignments(set_ or [])
    check_named(load_config(source, given))
    from flower_vfl.apps.sweeps import check_free_for_sweep

    check_free_for_sweep(folder, resume=resume)
    from flower_vfl.simulations.sweep.search import CHOSEN, print_tuned, run_tune

    options = ["--minutes", f"{minutes:g}", "--trials", str(trials)]
    options += [*(["--workers", str(workers)] if workers else []), *_repeated("--set", set_)]
    with _resume_hint("tune", source, folder, options):
        found = run_tune(source, folder, given, minutes=minutes, trials=trials, resume=resume, workers=workers)
    print_tuned(found)
    typer.echo(f"next: flower-vfl run {shlex.quote(str(folder / CHOSEN))}")
