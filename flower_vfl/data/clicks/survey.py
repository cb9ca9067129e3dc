"""Survey of the rows: reading from the text, selection for training and test, and check of the IDs."""

from __future__ import annotations

import hashlib
import logging
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from flower_vfl.data.clicks import blocks
from flower_vfl.data.clicks.blocks import Block, BlockReader
from flower_vfl.data.clicks.parse import MOST_BAD_LINES, Format, parse
from flower_vfl.data.clicks.threads import in_order
from flower_vfl.data.clicks.work import WorkFolder
from flower_vfl.data.encoding.ids import drawn
from flower_vfl.data.sources.recipe import Progress
from flower_vfl.data.store.dataset import PARTS, Part
from flower_vfl.data.store.periods import Periods, days_of, runs_of
from flower_vfl.errors import DataError
from flower_vfl.files import replacing

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TestSplit:
    """Selection of the rows that are kept and of the test rows, by the number of the row or by its day.

    Parameters
    ----------
    sample, test_fraction : float
        Part of the rows that is kept, and part of these for the test.
    seed : int
        Seed of the draws.
    test_days : int
        Number of last days that are the test part; 0 to draw rows.
    """

    sample: float
    test_fraction: float
    seed: int
    test_days: int = 0

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that determine the test rows."""
        return ("day",) if self.test_days else ("row",)

    def keep(self, rows: pa.Table) -> pa.Table:
        """Return the rows that are kept."""
        if self.sample == 1.0:
            return rows
        return rows.filter(pa.array(drawn(_numbers(rows, "row"), self.sample, f"sample {self.seed}")))

    def held_out(self, rows: pa.Table, last_day: int) -> NDArray[np.bool_]:
        """Return a mask of the test rows."""
        if self.test_days:
            return np.asarray(_numbers(rows, "day") > last_day - self.test_days)
        return drawn(_numbers(rows, "row"), self.test_fraction, f"test {self.seed}")


@dataclass(frozen=True)
class Survey:
    """Facts about all rows before they are encoded.

    Parameters
    ----------
    rows : dict of Part to tuple of int
        Number of rows of each piece, by part.
    digest : str
        Digest of the IDs of all rows in their order.
    last_day : int
        Number of the last day; 0 where rows have no day.
    periods : Periods, optional
        The days of the rows, where the last ones are the test and all rows are in time order.
    """

    rows: dict[Part, tuple[int, ...]]
    digest: str
    last_day: int
    periods: Periods | None

    def total(self, part: Part) -> int:
        """Return the number of rows of a part."""
        return sum(self.rows[part])

    def start(self, part: Part, piece: int) -> int:
        """Return the position in a part of the first row of a piece."""
        return sum(self.rows[part][:piece])


@dataclass(frozen=True)
class Source:
    """Facts about the text that was read.

    Parameters
    ----------
    pieces, lines, bad : int
        Number of blocks, of lines without the header, and of bad ones among them.
    digest : str
        SHA-256 of the text, unpacked.
    """

    pieces: int
    lines: int
    bad: int
    digest: str


def read_source(
    path: Path, made: Format, split: TestSplit, work: WorkFolder, bad_lines: float, progress: Progress
) -> Source:
    """Read the text into pieces, except those that exist, and return the facts about it.

    Raises
    ------
    DataError
        When the file is broken, or more of its lines than the share `bad_lines` are bad.
    """
    if work.has_note("source"):
        return Source(**work.read_note("source"))
    reader = BlockReader(path, blocks.BLOCK_BYTES)

    def read_block(block: Block) -> tuple[Block, int, int, list[str]]:
        if not work.has_piece(block.number):
            parsed = parse(block, made)
            work.keep_piece(block.number, split.keep(parsed.table), parsed)
        return block, *work.piece_facts(block.number)

    pieces, lines, bad = 0, 0, 0
    examples: list[str] = []
    for block, more_lines, more_bad, more_examples in in_order(read_block, reader.blocks()):
        pieces, lines, bad = pieces + 1, lines + more_lines, bad + more_bad
        examples = (examples + more_examples)[:MOST_BAD_LINES]
        if bad > bad_lines * lines:
            raise DataError(
                f"{path}: {bad:,} of the first {lines:,} lines are bad, more than the option bad_lines = {bad_lines} "
                f"allows; {'; '.join(examples)}{'; ...' if bad > len(examples) else ''}"
            )
        progress(block.done)
    if not lines:
        raise DataError(f"{path} has no rows")
    if bad:
        _log.warning("%s: %d of %d lines are bad and left out; %s", path, bad, lines, "; ".join(examples))
    work.keep_note("source", {"pieces": pieces, "lines": lines, "bad": bad, "digest": reader.digest.hexdigest()})
    return Source(**work.read_note("source"))


def survey(path: Path, source: Source, split: TestSplit, work: WorkFolder, folder: Path, progress: Progress) -> Survey:
    """Count the rows of both parts, and write their IDs: those of the file, else the numbers of the rows.

    Raises
    ------
    DataError
        When an ID repeats, or all training rows have the same label.
    """
    if not work.has_note("survey"):
        _survey(path, source, split, work, folder, progress)
    note = work.read_note("survey")
    days = note["days"]
    periods = Periods(*(days_of(days[part]) for part in PARTS)) if days else None
    return Survey({part: tuple(note["rows"][part]) for part in PARTS}, note["digest"], note["last_day"], periods)


def _survey(path: Path, source: Source, split: TestSplit, work: WorkFolder, folder: Path, progress: Progress) -> None:
    has_ids = "id" in work.columns(0)
    kind = work.read_piece(0, ["id" if has_ids else "row"]).schema.field(0).type
    last_day = _last_day(source, split, work)
    rows: dict[Part, list[int]] = {part: [] for part in PARTS}
    digests = {part: hashlib.sha256() for part in PARTS}
    positives, seen = 0, []
    folder.mkdir(exist_ok=True)
    with ExitStack() as stack:
        writers = {
            part: pq.ParquetWriter(
                stack.enter_context(replacing(folder / f"{part}.parquet")), pa.schema([("id", kind)])
            )
            for part in PARTS
        }
        for writer in writers.values():
            stack.callback(writer.close)
        for number in range(source.pieces):
            piece = work.read_piece(number, dict.fromkeys([*split.columns, "label", "id" if has_ids else "row"]))
            test = split.held_out(piece, last_day)
            ids = piece.column("id" if has_ids else "row").combine_chunks()
            if has_ids:
                seen.append(id_keys(ids))
            for part, mask in zip(PARTS, (~test, test), strict=True):
                own = ids.filter(pa.array(mask))
                writers[part].write_table(pa.table({"id": own.cast(kind)}))
                digests[part].update(_bytes(own))
                rows[part].append(len(own))
            positives += int(_numbers(piece, "label")[~test].sum())
            progress(number / source.pieces)
    if sum(rows["train"]) and positives in (0, sum(rows["train"])):
        raise DataError(f"{path}: all {sum(rows['train']):,} training rows have the same label: nothing can be learned")
    if seen:
        _refuse_repeated(path, np.concatenate(seen), source, work)
    facts = " ".join(f"{part} {sum(rows[part])} {digests[part].hexdigest()}" for part in PARTS)
    digest = hashlib.sha256(facts.encode()).hexdigest()
    days = _days(path, source, split, work, last_day) if split.test_days else {}
    work.keep_note("survey", {"rows": rows, "digest": digest, "last_day": last_day, "days": days})


def id_keys(ids: pa.Array) -> NDArray[np.uint64]:
    """Return a number for each ID, its value modulo 2^64: equal IDs have equal numbers.

    Examples
    --------
    >>> id_keys(pa.array(["7", "18446744073709551623"])).tolist()
    [7, 7]
    """
    if not pa.types.is_string(ids.type):
        return np.asarray(ids.to_numpy(zero_copy_only=False)).astype(np.uint64)
    parts = [pc.utf8_slice_codeunits(ids, 0, -18), pc.utf8_slice_codeunits(ids, -18)]
    high, low = (pc.if_else(pc.equal(part, ""), "0", part).cast(pa.int64()) for part in parts)
    return np.asarray(high).astype(np.uint64) * np.uint64(10**18) + np.asarray(low).astype(np.uint64)


def _refuse_repeated(path: Path, keys: NDArray[np.uint64], source: Source, work: WorkFolder) -> None:
    keys.sort()
    twice = np.unique(keys[1:][keys[1:] == keys[:-1]])
    if not len(twice):
        return
    found: dict[object, int] = {}
    for number in range(source.pieces):
        piece = work.read_piece(number, ["row", "id"])
        suspects = piece.filter(pa.array(np.isin(id_keys(piece.column("id").combine_chunks()), twice)))
        for name, row in zip(suspects["id"].to_pylist(), suspects["row"].to_pylist(), strict=True):
            if name in found:
                raise DataError(
                    f"{path}: rows {found[name]} and {row} have the same ID; up to {len(twice):,} IDs occur more "
                    "than once; keep one row for each"
                )
            found[name] = row


def _last_day(source: Source, split: TestSplit, work: WorkFolder) -> int:
    if not split.test_days:
        return 0
    days = (_numbers(work.read_piece(number, ["day"]), "day") for number in range(source.pieces))
    return max((int(day.max()) for day in days if len(day)), default=0)


def _days(
    path: Path, source: Source, split: TestSplit, work: WorkFolder, last_day: int
) -> dict[Part, list[tuple[int, int]]]:
    """Return the days of each part with their numbers of rows; empty where rows are not in time order."""
    days: dict[Part, list[tuple[int, int]]] = {part: [] for part in PARTS}
    latest = 0
    for number in range(source.pieces):
        found = runs_of(_numbers(work.read_piece(number, ["day"]), "day"))
        if found is None or (found and found[0][0] < latest):
            _log.warning("%s: rows are not in time order; training.order = 'time' will not take them", path)
            return {}
        for day, rows in found:
            own = days["test" if day > last_day - split.test_days else "train"]
            if day == latest:
                own[-1] = (day, own[-1][1] + rows)
            else:
                own.append((day, rows))
            latest = day
    return days


def _numbers(rows: pa.Table, name: str) -> NDArray[np.int64]:
    return np.asarray(rows.column(name).to_numpy(), dtype=np.int64)


def _bytes(ids: pa.Array) -> bytes:
    """Return bytes that are equal exactly when the IDs are: numbers, or lengths and texts."""
    if not pa.types.is_string(ids.type):
        return np.asarray(ids.to_numpy(zero_copy_only=False), "<i8").tobytes()
    lengths = np.asarray(pc.binary_length(ids), "<i4").tobytes()
    return lengths + "".join(ids.to_pylist()).encode()
