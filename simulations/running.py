"""What the command line runs: one configuration, or the demo's comparison of several."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from flower_vfl.apps.alone import ALONE, with_alone
from flower_vfl.apps.build import open_data, party_names
from flower_vfl.apps.folder import RESULT, check_folder, check_free, read_result
from flower_vfl.apps.local import run, run_alone
from flower_vfl.apps.node import DATA_VARIABLE, with_data_of_this_host
from flower_vfl.apps.progress import LiveProgress
from flower_vfl.config import Config, build_config, load_config
from flower_vfl.data.memory import VerticalData
from flower_vfl.errors import ConfigError, FolderInUseError, InputError
from flower_vfl.files import write_json_atomic
from flower_vfl.parsing import parse_defenses
from flower_vfl.reports import render, renew
from flower_vfl.strategies import Observer
from flower_vfl.terminal import console

DEMO_PRESET = "census"
DEMO_ATTACKS = ", ".join(
    [
        *("norm", "residual", "cosine", "remembered_norm", "remembered_direction"),
        *(f"model_completion(k={k})" for k in (1, 4, 16)),
        *(f"embedding_reader(reader=linear,k={k})" for k in (1, 4, 16)),
    ]
)
DEMO_DEFENSES = {
    "none": "",
    "iso-t1": "iso(t=1.0)",
    "iso-t25": "iso(t=25.0)",
    "max-norm": "max_norm",
    "marvell-s1": "marvell(s=1.0)",
    "marvell-s4": "marvell(s=4.0)",
    "marvell-s25": "marvell(s=25.0)",
    "marvell-full-s4": "marvell_full(s=4.0)",
    "potential-energy": "potential_energy(alpha=1.0)",
}
"""The demo's runs: no defense, those of gradients at a few of the strengths that the papers use, one of embeddings."""


_LOOK_AGAIN_SECONDS = 0.5


def run_here(
    config: Config,
    out: Path,
    *,
    title: str,
    alone: Callable[[], dict[str, float]] | None = None,
    resume: bool = False,
) -> dict[str, Any]:
    """Run a configuration in this process, write its report and return its `result.json`.

    What `alone` returns, by party, is what its columns reach by themselves, see `alone_aucs`, and goes into the result.
    With `resume`, a run that was interrupted in this folder goes on, and one that has ended is left as it is, but for
    what each party reaches alone, and the report, where these are wanted and not there yet.
    """
    out = out.expanduser().absolute()
    unfinished = check_folder(out, config, resume=resume)
    with _reported(out):
        if unfinished:
            with LiveProgress(title, console()) as progress:
                run(config, out=out, resume=resume, observers=(progress,))
        if alone is not None and ALONE not in read_result(out):
            aucs = alone()
            write_json_atomic(out / RESULT, with_alone(read_result(out), aucs))
    return read_result(out)


def run_observed(
    config: Config, out: Path, *, resume: bool, observers: tuple[Observer, ...], patience: float = 0.0
) -> None:
    """Run a configuration in this process without a display of its own, and write its report.

    A folder in which another process still works is waited for, `patience` seconds at most: it may be about to end.
    """
    unfinished = check_folder(out, config, resume=resume)
    deadline = time.monotonic() + patience
    with _reported(out):
        while unfinished:
            try:
                run(config, out=out, resume=resume, observers=observers)
            except FolderInUseError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_LOOK_AGAIN_SECONDS)
            else:
                return


@contextmanager
def _reported(out: Path) -> Iterator[None]:
    """Write a run's report, whatever ends the run: it shows what was measured, by an earlier attempt perhaps."""
    try:
        yield
    finally:
        renew(out)


def alone_aucs(config: Config) -> dict[str, float]:
    """Return the test AUC that each party's columns reach by themselves, with the same architecture.

    Of more than two classes it is the mean over them. The parties are those whose columns are here: on the label
    party's host of a deployment that is its own, from the data that the environment of the host names.

    Raises
    ------
    ConfigError
        When there are no columns here.
    """
    config, dataset = _opened(config)
    parties = [party for party in party_names(config, dataset) if party in dataset.parties]
    if config.parties.label_features and dataset.label_party in dataset.parties and dataset.label_party not in parties:
        parties.append(dataset.label_party)
    if not parties:
        raise ConfigError("--alone trains on a party's own columns, and the data of this host has none: leave it out")
    found = {}
    for party in parties:
        with LiveProgress(f"{party} alone", console()) as progress:
            reached = run_alone(config, party, observers=(progress,))
        found[party] = reached.test_auc if dataset.labels().classes == 2 else reached.test_macro_auc
    return found


def _opened(config: Config) -> tuple[Config, VerticalData]:
    """Open the data of a run; of a deployed one, whose configuration names no path, that of this host."""
    try:
        return config, open_data(config)
    except InputError:
        if config.data.path or not os.environ.get(DATA_VARIABLE):
            raise
    own = with_data_of_this_host(config)
    return own, open_data(own)


def run_demo(out: Path, overrides: dict[str, str]) -> list[dict[str, Any]]:
    """Train without a defense and with each, while one party attacks; compare and report."""
    out = out.expanduser().absolute()
    check_free(out)
    plain = load_config(DEMO_PRESET, {"attack.names": DEMO_ATTACKS, **overrides})
    alone = cache(partial(alone_aucs, plain))  # no defense changes it
    summaries: list[dict[str, Any]] = []
    try:
        for name, defenses in DEMO_DEFENSES.items():
            config = build_config({**plain.model_dump(), "defenses": parse_defenses(defenses)})
            summaries.append({"run": name, **run_here(config, out / name, title=name, alone=alone)})
            write_json_atomic(out / "summary.json", summaries)
    finally:
        if summaries:  # an interrupted demo compares what it has
            render([out / summary["run"] for summary in summaries], out / "report.html")
    return summaries
