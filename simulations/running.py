"""Runs of the command line: one configuration, in this process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flower_vfl.apps.alone import EACH_ALONE, with_alone
from flower_vfl.apps.factories import open_data, party_names
from flower_vfl.apps.folder import RESULT, check_folder, read_result
from flower_vfl.apps.local import run, run_alone
from flower_vfl.apps.node import DATA_VARIABLE, with_data_of_this_host
from flower_vfl.apps.progress import LiveProgress
from flower_vfl.config import Config
from flower_vfl.data.store.dataset import Dataset
from flower_vfl.data.store.memory import VerticalData
from flower_vfl.errors import ConfigError, FolderInUseError, InputError
from flower_vfl.files import write_json_atomic
from flower_vfl.reports import renew
from flower_vfl.strategies import Observer
from flower_vfl.terminal import console

_RETRY_SECONDS = 0.5


def run_here(
    config: Config,
    out: Path,
    *,
    title: str,
    alone: Callable[[], dict[str, float]] | None = None,
    resume: bool = False,
) -> dict[str, Any]:
    """Run a configuration in this process, write its report and return its `result.json`.

    The values that `alone` returns, by party (see `alone_aucs`), go into the result.
    With `resume`, a run that was interrupted in this folder goes on. One that has ended is not run again; only missing
    values of `alone` are added, and its report is written.
    """
    out = out.expanduser().absolute()
    unfinished = check_folder(out, config, resume=resume)
    with _completed(out, alone):
        if unfinished:
            with LiveProgress(title, console()) as progress:
                run(config, out=out, resume=resume, observers=(progress,))
    return read_result(out)


def run_observed(
    config: Config,
    out: Path,
    *,
    observers: tuple[Observer, ...],
    patience: float = 0.0,
    alone: Mapping[str, float] | None = None,
) -> None:
    """Run a configuration in this process without showing progress, or resume it, and write its report.

    If another process uses the folder, wait at most `patience` seconds for its end.
    `alone` is the test AUC of each party's columns alone; it goes into the result unless that has it already.
    """
    unfinished = check_folder(out, config, resume=True)
    deadline = time.monotonic() + patience
    with _completed(out, None if alone is None else lambda: alone):
        while unfinished:
            try:
                run(config, out=out, resume=True, observers=observers)
            except FolderInUseError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY_SECONDS)
            else:
                break


@contextmanager
def _completed(out: Path, alone: Callable[[], Mapping[str, float]] | None) -> Iterator[None]:
    """Add the values of `alone` to a run's result where they are missing, at the end of the block; write its report.

    The report is written even after an error: it shows all that was measured until then.
    """
    try:
        yield
        if alone is not None and EACH_ALONE not in read_result(out):
            aucs = alone()
            write_json_atomic(out / RESULT, with_alone(read_result(out), aucs))
    finally:
        renew(out)


def alone_aucs(config: Config) -> dict[str, float]:
    """Return the test AUC of each party's columns alone, with the same architecture.

    For more than two classes it is the mean over them. The parties are those with columns on this host: on the label
    party's host of a deployment that is the label party, with the data that the host's environment names.

    Raises
    ------
    ConfigError
        When this host has no columns.
    """
    config, dataset = opened_here(config)
    parties = alone_parties(config, dataset)
    if not parties:
        raise ConfigError("--alone trains on a party's own columns, and the data of this host has none: leave it out")
    found = {}
    for party in parties:
        with LiveProgress(f"{party} alone", console()) as progress:
            found[party] = alone_auc(config, party, observers=(progress,))
    return found


def alone_parties(config: Config, dataset: VerticalData) -> list[str]:
    """Return the parties of a run with columns on this host; the label party too, where its columns are used."""
    here = dataset.held if isinstance(dataset, Dataset) else dataset.parties
    parties = [party for party in party_names(config, dataset) if party in here]
    if config.parties.label_features and dataset.label_party in here and dataset.label_party not in parties:
        parties.append(dataset.label_party)
    return parties


def alone_auc(config: Config, party: str, *, observers: tuple[Observer, ...] = ()) -> float:
    """Return the test AUC of one party's columns alone, for more than two classes the mean over them."""
    reached = run_alone(config, party, observers=observers)
    return reached.test_auc if open_data(config).labels().classes == 2 else reached.test_macro_auc


def opened_here(config: Config) -> tuple[Config, VerticalData]:
    """Return the configuration and the data of a run; for a deployed one, without a path in it, this host's data."""
    try:
        return config, open_data(config)
    except InputError:
        if config.data.path or not os.environ.get(DATA_VARIABLE):
            raise
    own = with_data_of_this_host(config)
    return own, open_data(own)
