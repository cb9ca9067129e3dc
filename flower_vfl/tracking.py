"""The tracking of a run's measurements: a journal that survives a kill, and live sinks.

A journal is a file of frames, one after the other; a frame holds a few hundred rows as an Arrow IPC stream::

    b"FVL1" | length of the payload, uint32 | CRC-32 of the payload, uint32 | payload

Each process appends to a file of its own. A frame that a killed process wrote in part fails the check of length or
checksum and is cut off; all frames before it are read.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import struct
import time
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flower_vfl.errors import ConfigError, InputError, lookup
from flower_vfl.files import append_private, replacing, writing_to
from flower_vfl.metrics import Embeddings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Self

    from flower_vfl.metrics import Values

log = logging.getLogger(__name__)

STEPS = "steps.parquet"
SCHEMA = pa.schema(
    [
        ("step", pa.int64()),
        ("epoch", pa.int32()),
        ("party", pa.string()),
        ("layer", pa.string()),
        ("attack", pa.string()),
        ("metric", pa.string()),
        ("value", pa.float64()),
    ]
)
KEYS = SCHEMA.names[:-1]

SNAPSHOTS = "snapshots.parquet"
SNAPSHOT_SCHEMA = pa.schema(
    [("step", pa.int64()), ("quantity", pa.string()), ("group", pa.string()), ("value", pa.float64())]
)

EMBEDDINGS = "embeddings.parquet"
EMBEDDING_SCHEMA = pa.schema(
    [
        ("party", pa.string()),
        ("view", pa.string()),
        ("row", pa.int64()),
        ("label", pa.int64()),
        ("z", pa.list_(pa.float32())),
    ]
)

MAGIC = b"FVL1"
HEADER = struct.Struct("<4sII")
FLUSH_ROWS = 1024
FLUSH_SECONDS = 5.0

Series = tuple[str, str, str, str]  # party, layer, attack, metric
StepRow = tuple[int, int, int, float]  # step, epoch, position of its series, value
StepColumn = np.ndarray[Any, Any]


class Sink(Protocol):
    """A sink that shows values live, beside the journal."""

    def scalar(self, name: str, step: int, value: float) -> None:
        """Add one value to the curve ``name``, such as ``"a/cut/norm/auc"``."""

    def close(self) -> None:
        """Write the remaining values; none follows."""


class StepLog:
    """A log that appends one row a value to a journal in a run's folder, at about a microsecond a row.

    Rows are held back until there are 1024 of them, five seconds have passed, or `flush` is called; a kill loses no
    more than those.

    Parameters
    ----------
    folder
        The run's folder; made where it does not exist.
    name
        Name of the journal: each process that writes into a folder needs its own. Opening a journal again, as a resumed
        run does, cuts off a half-written frame and appends behind the others.
    sinks
        Live sinks that receive every row when it is flushed.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with StepLog(folder) as steps:
    ...     steps.add(step=0, epoch=0, party="a", layer="cut", attack="norm", metric="auc", value=0.9)
    >>> read_steps(folder)["value"].to_pylist()
    [0.9]
    """

    def __init__(self, folder: Path | str, *, name: str = "steps", sinks: Sequence[Sink] = ()) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_+-][A-Za-z0-9_.+-]*", name):
            raise ConfigError(f"{name!r} cannot name a journal: use letters, digits and any of _ . + -")
        self.path = Path(folder) / f"{name}.journal"
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._sinks = tuple(sinks)
        self._series: dict[Series, int] = {}
        self._rows: list[StepRow] = []
        self._next_flush = time.monotonic() + FLUSH_SECONDS
        if self.path.exists():
            _cut_torn_tail(self.path)

    def add(self, *, step: int, epoch: int, party: str, layer: str, attack: str, metric: str, value: float) -> None:
        """Log one value; ``attack`` or ``layer`` is empty (``""``) for a value without one."""
        key = (party, layer, attack, metric)
        series = self._series.setdefault(key, len(self._series))
        self._rows.append((step, epoch, series, float(value)))
        if len(self._rows) >= FLUSH_ROWS or time.monotonic() >= self._next_flush:
            self._write()

    def flush(self) -> None:
        """Write the rows that are held back; from here on they survive a kill of the process and a power cut.

        A checkpoint that survives must not outlive the values of the steps before it: none of these is done again.
        """
        self._write()
        if self.path.exists():
            with writing_to(self.path), self.path.open("rb") as file:
                os.fsync(file.fileno())

    def _write(self) -> None:
        self._next_flush = time.monotonic() + FLUSH_SECONDS
        if not self._rows:
            return
        names = list(self._series)
        _append(self.path, _frame(self._rows, names))
        rows, self._rows = self._rows, []
        for sink in self._sinks:
            for step, _, series, value in rows:
                sink.scalar("/".join(filter(None, names[series])), step, value)

    def close(self) -> None:
        """Flush, and close the sinks."""
        self.flush()
        for sink in self._sinks:
            sink.close()
        self._sinks = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TensorBoardSink:
    """A sink that writes event files into ``tensorboard/`` of the run's folder; needs the extra ``tensorboard``."""

    def __init__(self, folder: Path | str) -> None:
        self._writer = _optional("torch.utils.tensorboard", "tensorboard").SummaryWriter(Path(folder) / "tensorboard")

    def scalar(self, name: str, step: int, value: float) -> None:
        """Add one value to a curve."""
        self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write the remaining values."""
        self._writer.close()


class WandbSink:
    """A sink for Weights & Biases, set by its environment (``WANDB_MODE=offline`` ...); needs the extra ``wandb``.

    The step is logged as a value, which is the axis of all others: W&B drops values that follow a later one of its own
    steps, as leaks do, which are computed for several steps at once. Consecutive values of one step are one row.
    """

    STEP = "step"

    def __init__(self, folder: Path | str) -> None:
        folder = Path(folder)
        self._run = _optional("wandb", "wandb").init(project="flower-vfl", name=folder.name, dir=str(folder))
        self._run.define_metric("*", step_metric=self.STEP)
        self._row: dict[str, float] = {}

    def scalar(self, name: str, step: int, value: float) -> None:
        """Add one value to a curve."""
        if name in self._row or self._row.get(self.STEP) != step:
            self._send()
        self._row |= {self.STEP: step, name: value}

    def close(self) -> None:
        """Send the remaining values."""
        self._send()
        self._run.finish()

    def _send(self) -> None:
        if self._row:
            self._run.log(self._row)
            self._row = {}


class MlflowSink:
    """A sink that logs to the MLflow server at ``MLFLOW_TRACKING_URI``; needs the extra ``mlflow``."""

    BATCH = 1000  # most values of one call

    def __init__(self, folder: Path | str) -> None:
        self._mlflow = _optional("mlflow", "mlflow")
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            raise ConfigError("The sink 'mlflow' needs to know where to log: set MLFLOW_TRACKING_URI to your server.")
        self._client = self._mlflow.MlflowClient(tracking_uri=uri)
        known = self._client.get_experiment_by_name("flower-vfl")
        experiment = known.experiment_id if known else self._client.create_experiment("flower-vfl")
        self._run = self._client.create_run(experiment, run_name=Path(folder).name).info.run_id
        self._pending: list[Any] = []

    def scalar(self, name: str, step: int, value: float) -> None:
        """Add one value to a curve."""
        key = re.sub(r"[^\w./: -]", "_", name, flags=re.ASCII)
        self._pending.append(self._mlflow.entities.Metric(key, value, int(time.time() * 1000), step))
        if len(self._pending) == self.BATCH:
            self._send()

    def close(self) -> None:
        """Send the remaining values."""
        self._send()
        self._client.set_terminated(self._run)

    def _send(self) -> None:
        if self._pending:
            self._client.log_batch(self._run, metrics=self._pending)
            self._pending = []


SINKS: dict[str, Callable[[Path | str], Sink]] = {
    "tensorboard": TensorBoardSink,
    "wandb": WandbSink,
    "mlflow": MlflowSink,
}


def make_sink(name: str, folder: Path | str) -> Sink:
    """Make a live sink by its name: ``"tensorboard"``, ``"wandb"`` or ``"mlflow"``.

    Raises
    ------
    ConfigError
        When the name is another, or the sink's package is not installed.
    """
    return lookup("sink", name, SINKS)(folder)


def require_sinks(names: Sequence[str]) -> None:
    """Refuse live sinks with packages that are not installed, before a run begins.

    Raises
    ------
    ConfigError
        As `make_sink` does; the message names the missing package.
    """
    modules = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb", "mlflow": "mlflow"}
    for name in names:
        _optional(lookup("sink", name, modules), name)


def _optional(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        install = f"pip install 'flower-vfl[{extra}]'"
        raise ConfigError(f"The sink {extra!r} needs a package that is not installed ({error}): {install}") from error


def merge_steps(folder: Path | str) -> Path:
    """Merge the journals of a folder into its ``steps.parquet``, and remove them.

    Of rows that differ in their value only, the last is kept: a resumed run logs the steps since its checkpoint again.
    Merging twice, or again after a kill in between, changes nothing.

    Returns
    -------
    Path
        ``steps.parquet``, written whole or not at all; without rows where nothing was ever logged.
    """
    folder = Path(folder)
    journals = _journals(folder)
    target = folder / STEPS
    if journals or not target.exists():
        table = _collect(folder, journals)
        with replacing(target) as temporary:
            pq.write_table(table, temporary, compression="zstd")
        for journal in journals:
            journal.unlink()
    return target


def write_steps(folder: Path | str, series: Mapping[Series, tuple[StepColumn, StepColumn, StepColumn]]) -> None:
    """Write whole curves into a folder's ``steps.parquet`` at once, before anything else is logged there.

    Parameters
    ----------
    folder
        The run's folder.
    series
        Steps, epochs and values (T,) of each curve, by party, layer, attack and metric.
    """
    tables = []
    for key, (steps, epochs, values) in series.items():
        names = [pa.repeat(name, len(steps)) for name in key]
        columns = [pa.array(steps), pa.array(epochs, pa.int32()), *names, pa.array(values, pa.float64())]
        tables.append(pa.table(columns, schema=SCHEMA))
    with replacing(Path(folder) / STEPS) as temporary:
        whole = pa.concat_tables([SCHEMA.empty_table(), *tables])
        pq.write_table(whole.sort_by([(key, "ascending") for key in KEYS]), temporary, compression="zstd")


def read_steps(folder: Path | str) -> pa.Table:
    """Read all values of a run, finished, running or killed; sorted by step, each once.

    Raises
    ------
    InputError
        When the folder holds neither ``steps.parquet`` nor a journal, or the file cannot be read.
    """
    folder = Path(folder)
    journals = _journals(folder)
    if not journals and not (folder / STEPS).exists():
        raise InputError(f"{folder / STEPS} does not exist, and there is no journal beside it: is this a run's folder?")
    return _collect(folder, journals)


def add_snapshot(folder: Path | str, step: int, values: Values) -> None:
    """Add the parts of the gradients of one step to a folder's ``snapshots.parquet``, at the label party only.

    There are few snapshots: the file is replaced, whole or not at all, and a step that is repeated after an
    interruption replaces the old one.
    """
    known = read_snapshots(folder)
    tables = [known.filter(pc.not_equal(known["step"], step))]
    for (quantity, group), found in values.items():
        keys = [pa.repeat(key, found.size) for key in (step, quantity, group)]
        tables.append(pa.table([*keys, pa.array(found)], schema=SNAPSHOT_SCHEMA))
    with replacing(Path(folder) / SNAPSHOTS) as temporary:
        pq.write_table(pa.concat_tables(tables), temporary, use_dictionary=["quantity", "group"], compression="zstd")


def read_snapshots(folder: Path | str) -> pa.Table:
    """Read the snapshots of a run, a row a value; without rows where none was taken.

    Raises
    ------
    InputError
        When the file cannot be read.
    """
    return read_table(Path(folder) / SNAPSHOTS, SNAPSHOT_SCHEMA)


def write_embeddings(folder: Path | str, samples: Sequence[Embeddings]) -> None:
    """Write embeddings with their labels to a folder's ``embeddings.parquet``, at the label party only.

    Only its owner can access the file, because it holds the rows' labels.
    """
    tables = [EMBEDDING_SCHEMA.empty_table()]
    for sample in samples:
        keys = [pa.repeat(key, len(sample.rows)) for key in (sample.party, sample.view)]
        offsets = np.arange(len(sample.rows) + 1, dtype=np.int32) * sample.z.shape[1]
        z = pa.ListArray.from_arrays(offsets, sample.z.ravel())
        columns = [*keys, pa.array(sample.rows), pa.array(sample.labels), z]
        tables.append(pa.table(columns, schema=EMBEDDING_SCHEMA))
    with replacing(Path(folder) / EMBEDDINGS) as temporary:
        pq.write_table(pa.concat_tables(tables), temporary, use_dictionary=["party", "view"], compression="zstd")


def read_embeddings(folder: Path | str) -> list[Embeddings]:
    """Read the embeddings that a run kept, by party and view; none where there is no file.

    Raises
    ------
    InputError
        When the file cannot be read, or its rows are not of one width.
    """
    path = Path(folder) / EMBEDDINGS
    table = read_table(path, EMBEDDING_SCHEMA)
    found = []
    for keys in table.select(["party", "view"]).group_by(["party", "view"]).aggregate([]).to_pylist():
        rows = table.filter(pc.and_(pc.equal(table["party"], keys["party"]), pc.equal(table["view"], keys["view"])))
        widths = pc.list_value_length(rows["z"]).unique().to_pylist()
        z = rows["z"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        if len(widths) != 1 or not widths[0] or rows["z"].null_count:
            raise InputError(f"{path} cannot be read: rows of party {keys['party']!r} have {widths} numbers")
        positions, labels = rows["row"].to_numpy(), rows["label"].to_numpy()
        found.append(Embeddings(**keys, rows=positions, labels=labels, z=z.reshape(-1, widths[0])))
    return found


def _journals(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.journal"))


def _collect(folder: Path, journals: list[Path]) -> pa.Table:
    tables = [read_table(folder / STEPS, SCHEMA)]
    if not journals:
        return tables[0]
    for journal in journals:
        with _refusing(f"{journal} cannot be read as a journal of a run"):
            for payload, _ in frames(journal.read_bytes()):
                tables.append(_checked(pa.ipc.open_stream(payload).read_all(), SCHEMA))
    unique = pa.concat_tables(tables).group_by(KEYS, use_threads=False).aggregate([("value", "last")])
    order = [(key, "ascending") for key in KEYS]
    return unique.rename_columns({"value_last": "value"}).select(SCHEMA.names).sort_by(order).cast(SCHEMA)


@contextmanager
def _refusing(words: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise InputError(f"{words}: {error}") from error


def _checked(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table with the columns of a schema, once its content is known to be that of its types."""
    table = table.select(schema.names).cast(schema)
    table.validate(full=True)  # texts that are no UTF-8 would fail only where they are used
    empty = [name for name in schema.names[:-1] if table[name].null_count]
    if empty:
        raise ValueError(f"not every row has a value of {empty[0]!r}")
    return table


def read_table(path: Path, schema: pa.Schema) -> pa.Table:
    """Read a Parquet file of this schema that a run left; without rows where there is no such file.

    Raises
    ------
    InputError
        When the file cannot be read.
    """
    if not path.exists():
        return schema.empty_table()
    with _refusing(f"{path} cannot be read as a log of {', '.join(schema.names)}"):
        return _checked(pq.read_table(path, columns=schema.names), schema)


def _frame(rows: list[StepRow], names: list[Series]) -> bytes:
    step, epoch, series, value = zip(*rows, strict=True)
    labels = [pa.array(column, pa.string()).take(pa.array(series)) for column in zip(*names, strict=True)]
    batch = pa.record_batch([pa.array(step), pa.array(epoch, pa.int32()), *labels, pa.array(value)], schema=SCHEMA)
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    payload: bytes = stream.getvalue().to_pybytes()
    return HEADER.pack(MAGIC, len(payload), zlib.crc32(payload)) + payload


def frames(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield the payload and the end position of each whole frame, up to the first incomplete one."""
    end = 0
    while end + HEADER.size <= len(data):
        magic, length, checksum = HEADER.unpack_from(data, end)
        start = end + HEADER.size
        payload = data[start : start + length]
        if magic != MAGIC or len(payload) < length or zlib.crc32(payload) != checksum:
            return
        end = start + length
        yield payload, end


def _append(path: Path, frame: bytes) -> None:
    with writing_to(path), append_private(path, "ab") as file:
        size = file.tell()
        try:
            file.write(frame)
            file.flush()
        except OSError:  # a full disk: half a frame in the middle would hide all that follow
            file.truncate(size)
            raise


def _cut_torn_tail(path: Path) -> None:
    data = path.read_bytes()
    whole = max((end for _, end in frames(data)), default=0)
    if whole < len(data):
        log.warning("%s: the last %d bytes, half-written at a kill, are cut off.", path, len(data) - whole)
        with path.open("rb+") as file:
            file.truncate(whole)
