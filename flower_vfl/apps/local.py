"""`run` and `align`: the whole federation in this process, with the same apps as everywhere else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from flower_vfl.apps.alignment.client import ALIGNMENT_RESULT
from flower_vfl.apps.alignment.place import remove_empty, remove_unfinished
from flower_vfl.apps.alignment.progress import StageProgress
from flower_vfl.apps.alignment.start import align_as_label, sources_of
from flower_vfl.apps.client_app import make_client_app
from flower_vfl.apps.factories import (
    BottomFactory,
    DataFactory,
    TopFactory,
    default_bottom,
    default_top,
    open_data,
    parties_here,
)
from flower_vfl.apps.flower_log import without_log
from flower_vfl.apps.folder import check_free
from flower_vfl.apps.local_grid import LocalGrid
from flower_vfl.apps.result import RunResult
from flower_vfl.apps.run_state import LABEL
from flower_vfl.apps.server_app import make_server_app
from flower_vfl.config import Config, to_run_config
from flower_vfl.config.schema import PrivacyConfig
from flower_vfl.data.store.memory import MemoryData
from flower_vfl.errors import TrainingError
from flower_vfl.strategies import Observer
from flower_vfl.training.factories import OptimizerFactory

_ALONE = "alone"


def run(
    config: Config,
    *,
    out: Path | str | None = None,
    resume: bool = False,
    top: TopFactory = default_top,
    bottom: BottomFactory = default_bottom,
    data: DataFactory = open_data,
    optimizer: OptimizerFactory | None = None,
    observers: tuple[Observer, ...] = (),
) -> RunResult:
    """Train, attack and measure in this process.

    Parameters
    ----------
    config : Config
        The configuration; see `flower_vfl.load_config`.
    out : Path, optional
        Folder of the results; without one nothing is written.
    resume : bool
        True to resume the run that was interrupted in that folder, or to begin one where there is none.
    top, bottom, data, optimizer
        As for `make_server_app` and `make_client_app`.
    observers : tuple of Observer
        Receive the progress of training.

    Returns
    -------
    RunResult
        Utility, leakage and cost.

    Raises
    ------
    FlowerVflError
        When something is wrong with the input, a party fails, or training diverges. What was measured is written.
    """
    results: list[RunResult] = []
    opened = data(config)
    server = make_server_app(
        top=top,
        bottom=bottom,
        data=lambda _: opened,
        optimizer=optimizer,
        config=config,
        out=Path(out) if out is not None else None,
        resume=resume,
        observers=observers,
        on_result=results.append,
    )
    client = make_client_app(bottom=bottom, top=top, data=lambda _: opened, optimizer=optimizer, config=config)
    parties = parties_here(config, opened)
    for party in parties:
        opened.party(party)  # bad data is found before the run starts
    with LocalGrid(client, len(parties), to_run_config(config)) as grid:
        grid.serve(server)
    if not results:
        raise TrainingError("the label party ended without a result")
    return results[-1]


def align(config: Config, *, out: Path | str, progress: StageProgress | None = None) -> dict[str, Path]:
    """Align the IDs of all parties' files in this process, with the messages of a deployment.

    Parameters
    ----------
    config : Config
        Names the files in `data`, as for training, and the method in `align`.
    out : Path
        Folder of the results; must not exist, or be empty.
    progress : Callable[[str, float], None], optional
        Receives the progress.

    Returns
    -------
    dict
        Each party to its alignment file.

    Raises
    ------
    FlowerVflError
        When something is wrong with the input, or no ID is common. Then, as after Ctrl-C, there is no result.
    """
    folder = Path(out).expanduser().absolute()
    check_free(folder)
    _, sources = sources_of(config)
    results = {party: folder / party / ALIGNMENT_RESULT for party in sources}
    try:
        with LocalGrid(make_client_app(config=config), len(sources) - 1, to_run_config(config)) as grid:
            align_as_label(grid, config, folder, progress)
    except BaseException:  # no party is running any more that would write again
        remove_unfinished(results.values())
        remove_empty(folder)
        raise
    return results


def run_alone(
    config: Config, party: str, *, data: DataFactory = open_data, observers: tuple[Observer, ...] = ()
) -> RunResult:
    """Train the same architecture on one party's columns alone, to compare it with all parties together."""
    name = _ALONE if party == LABEL else party  # here the label party's columns are a feature party's too
    opened = data(config)
    table, aligned = replace(opened.party(party), name=name), opened.alignment
    columns = MemoryData(
        opened.name, {name: table}, opened.label_party, opened.labels(), aligned.digest, aligned.periods
    )
    parties = config.parties.model_copy(update={"features": [name], "label_features": False, "attackers": []})
    attack = config.attack.without_attacks()
    transport = config.transport.model_copy(update={"kind": "inproc", "in_flight": 1, "wire_dtype": "exact"})
    alone = config.model_copy(
        update={
            "parties": parties,
            "attack": attack,
            "transport": transport,
            "defenses": [],
            "sinks": [],
            "privacy": PrivacyConfig(),  # nothing is sent to another party
        }
    )
    with without_log("flower_vfl.strategies.base"):  # it would warn of gradients without a defense: none is sent here
        return run(alone, data=lambda _: columns, observers=observers)
