"""The label party's side of a prediction with a finished run."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray
from torch import nn

from flower_vfl.apps.factories import (
    BottomFactory,
    DataFactory,
    TopFactory,
    check_device,
    computing,
)
from flower_vfl.apps.folder import CONFIG, ENDED, RESULT, check_is_run, how_to_resume
from flower_vfl.apps.label_party import build_strategy
from flower_vfl.apps.local_grid import LocalGrid
from flower_vfl.apps.model import Model, check_data, check_factories, check_features, load_model, model_path
from flower_vfl.apps.node import with_data_of_this_host
from flower_vfl.apps.run_state import LABEL, differences
from flower_vfl.apps.scores import check_target, writing
from flower_vfl.apps.workers import wait_for_workers
from flower_vfl.config import Config, load_config, of_this_host
from flower_vfl.config.parsing import Value
from flower_vfl.data.store.dataset import Labels
from flower_vfl.data.store.memory import VerticalData
from flower_vfl.data.store.scoring import has_whole_ids, id_column, new_rows, read_requested_ids, rows_of
from flower_vfl.errors import ConfigError, DataError
from flower_vfl.rng import Secret
from flower_vfl.strategies import HookedStrategy, Observer, Outcome
from flower_vfl.training.grids import is_simulation
from flower_vfl.training.prediction import PredictionRequest, run_prediction
from flower_vfl.training.probe import fixed_rows
from flower_vfl.transport.signing import signer_of_this_host

_log = logging.getLogger(__name__)

NO_PREDICTION: dict[str, Value] = {
    "job": "train",
    **{f"predict-{name}": "" for name in ("run", "out", "ids", "data")},
    "predict-overwrite": False,
}
"""Keys that a Flower App's run config must hold, so that `flwr run APP --run-config` can ask for a prediction."""


@dataclass(frozen=True)
class Request:
    """A request for a prediction: the rows to score, and the file of the scores.

    Attributes
    ----------
    run : Path
        Folder of the finished run, at the label party.
    out : Path
        File of the scores, .csv or .parquet.
    ids : Path or None
        File that names the IDs; None for the test rows, or all rows of files of new data.
    data : Path or None
        New data; None for the data of the run.
    overwrite : bool
        True if a file at `out` may be replaced.
    """

    run: Path
    out: Path
    ids: Path | None = None
    data: Path | None = None
    overwrite: bool = False

    def run_config(self) -> dict[str, Value]:
        """Return the request as keys of Flower's run config."""
        paths = {"run": self.run, "out": self.out, "ids": self.ids, "data": self.data}
        given = {f"predict-{name}": str(path.expanduser().absolute()) for name, path in paths.items() if path}
        return {"job": "predict", **given, "predict-overwrite": self.overwrite}

    @classmethod
    def of(cls, run_config: Mapping[str, Value]) -> Request:
        """Return the request in the keys of a run config.

        Raises
        ------
        ConfigError
            When one is missing or wrong.
        """
        given = {name: str(run_config.get(f"predict-{name}") or "") for name in ("run", "out", "ids", "data")}
        for name in ("run", "out"):
            if not given[name]:
                raise ConfigError(f"job is 'predict', so predict-{name} must name a path on the label party's host")
        overwrite = run_config.get("predict-overwrite") or False
        if not isinstance(overwrite, bool):
            raise ConfigError(f"predict-overwrite must be true or false, given {overwrite!r}")
        paths = {name: Path(path).expanduser() if path else None for name, path in given.items()}
        return cls(
            Path(given["run"]).expanduser(), Path(given["out"]).expanduser(), paths["ids"], paths["data"], overwrite
        )


@dataclass(frozen=True)
class TrainedRun:
    """A finished run at the label party.

    Attributes
    ----------
    folder : Path
        Its folder.
    model : Model
        The label party's weights and their card.
    weights : Mapping[str, str]
        Digest of each feature party's weights, as it reported after training.
    class_rows : sequence of int
        (C,) training rows of each class where training weighted the classes; else empty.
    """

    folder: Path
    model: Model
    weights: Mapping[str, str]
    class_rows: Sequence[int]


def read_run(folder: Path) -> TrainedRun:
    """Read a finished run at the label party.

    Raises
    ------
    DataError
        When the folder holds no run, or one that is not finished.
    ConfigError
        When a setting of its computation was changed after training.
    """
    check_is_run(folder)
    result = _read_result(folder)
    model = load_model(model_path(folder, LABEL))
    weights = {name: str(digest) for name, digest in dict(result["weights"]).items()}
    if weights.pop(LABEL, "") != model.digest:
        raise DataError(f"the label party's weights in {folder} are not those that its result.json names")
    different = differences(load_config(str(folder / CONFIG)), model.card.config)
    if different:
        raise ConfigError(
            f"{folder / CONFIG} was changed after training ({', '.join(different)}); put back what the weights "
            "were trained with"
        )
    weighted = model.card.config.training.class_weights != "none"
    return TrainedRun(folder.absolute(), model, weights, _class_rows(result, folder) if weighted else [])


def _class_rows(result: Mapping[str, Any], folder: Path) -> list[int]:
    dataset = result.get("dataset")
    found = dataset.get("class_rows") if isinstance(dataset, dict) else None
    classes = dataset.get("classes") if isinstance(dataset, dict) else None
    if (
        not isinstance(found, list)
        or len(found) != classes
        or not all(type(rows) is int and rows >= 0 for rows in found)
    ):
        raise DataError(f"{folder / RESULT} lacks the training rows of each class (dataset.class_rows): train again")
    return found


def _read_result(folder: Path) -> dict[str, Any]:
    try:
        result = json.loads((folder / RESULT).read_text(encoding="utf8"))
        status, reason = str(result["status"]), str(result["error"])
        weights, model = result["weights"], result.get("model")
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        raise DataError(
            f"the run in {folder} is not finished: it has no result.json that can be read; {how_to_resume(folder)}"
        ) from None
    if status not in ENDED or not isinstance(weights, dict):
        why = f": {reason}" if reason and status != "interrupted" else ""
        raise DataError(f"the run in {folder} is not finished, it is {status!r}{why}; {how_to_resume(folder)}")
    if isinstance(model, dict) and model.get("step", 0) is None:
        raise DataError(
            f"the run in {folder} kept no model: it passed the {status} before there was a checkpoint from within it"
        )
    return dict(result)


def score(
    grid: Grid,
    run_config: Mapping[str, Value],
    *,
    top: TopFactory,
    bottom: BottomFactory,
    data: DataFactory,
    observers: tuple[Observer, ...],
) -> None:
    """Score the rows that Flower's run config names, at the label party (called by its ServerApp)."""
    request = Request.of(run_config)
    check_target(request.out, overwrite=request.overwrite)
    run, simulation = read_run(request.run), is_simulation(grid)
    card = run.model.card
    config = of_this_host(card.config, run_config)
    check_device(config)
    made: dict[str, Callable[..., nn.Module]] = {"top": top, "bottom": bottom}
    check_factories(card, made if card.spec is not None else {"top": top})
    dataset = data(config if simulation else with_data_of_this_host(config))
    check_data(card, dataset)
    rows = rows_of(dataset) if request.data is None else new_rows(request.data, dataset)
    if rows.left_out:
        _log.warning("IDs without a score, because not all files of the new data have them: %d", rows.left_out)
    chosen: NDArray[np.int64] | range = rows.chosen
    if request.ids is not None:
        chosen = rows.find(read_requested_ids(request.ids, id_column(dataset), whole=has_whole_ids(dataset)))
    strategy = _strategy(config, dataset, len(card.classes), top=top, bottom=bottom, simulation=simulation)
    own = None if card.spec is None else check_features(card, rows.features(dataset.label_party)).source
    batches = _batches(chosen, config.training.eval_batch_size)
    fixed = None if card.spec is None else fixed_rows(dataset.party(dataset.label_party))
    ask = PredictionRequest(batches, rows.count, rows.digest, run.weights, own, fixed, card.answer)
    offer = _offer(run, request, len(chosen), simulation=simulation)
    sign = None if simulation else signer_of_this_host(run_config)
    if simulation and not isinstance(grid, LocalGrid):
        wait_for_workers(len(card.features), at_once=config.transport.kind == "stream")
    _log.info("%d rows are scored with %s", len(chosen), ", ".join(card.features))
    with computing(config), writing(request.out, card.classes, run.class_rows) as writer:
        done = 0
        with closing(run_prediction(strategy, grid, ask, run.model.load_into, offer, sign)) as predicted:
            for positions, logits in predicted:
                writer.write(rows.ids(positions), logits)
                done += len(positions)
                for observer in observers:
                    observer.on_scores(done, len(chosen))
    _log.info("scores: %s", request.out)


def _batches(chosen: NDArray[np.int64] | range, size: int) -> Iterator[NDArray[np.int64]]:
    """Yield positions in batches of the evaluation's size, so that test rows get exactly the same logits."""
    for low in range(0, len(chosen), size):
        yield np.asarray(chosen[low : low + size], dtype=np.int64)


def _offer(run: TrainedRun, request: Request, asked: int, *, simulation: bool) -> dict[str, str]:
    """Return the offer to the parties; it has paths of this host only in a simulation, where all share the host."""
    card = run.model.card
    offer = {"training": card.session, "parties": ",".join(card.features), "asked": str(asked)}
    offer["data"] = "" if request.data is None else str(request.data) if simulation else "new"
    return {**offer, **({"run": str(run.folder)} if simulation else {})}


def _strategy(
    config: Config, dataset: VerticalData, classes: int, *, top: TopFactory, bottom: BottomFactory, simulation: bool
) -> HookedStrategy:
    """Build the strategy of the trained run, without its attacks and without labels."""
    attack = config.attack.without_attacks()
    nothing = np.zeros(0, np.int64)
    return build_strategy(
        config.model_copy(update={"attack": attack}),
        dataset,
        Labels(nothing, nothing, classes),
        top=top,
        bottom=bottom,
        secret=Secret.for_simulation(config.seed, LABEL) if simulation else Secret.of_this_host(),
        observer=Observer(),
        outcome=Outcome(),
    )
