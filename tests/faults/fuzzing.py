"""A fuzzer of frames and files: the entry points that outsiders reach must refuse mutated input.

``python -m tests.faults.fuzzing --frames 1000000 --files 100000`` runs all of it and prints one line of JSON. The same
seed mutates the same way. An input that breaks a rule is written to `tests/faults/corpus/`; the tests feed it again.
"""

from __future__ import annotations

import argparse
import gzip
import json
import logging
import random
import shutil
import struct
import tempfile
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

from flower_vfl import build_config, run
from flower_vfl.apps.model import load_model
from flower_vfl.checkpoint import load_state, read_committed
from flower_vfl.config import load_config
from flower_vfl.data.sources.catalog import prepare
from flower_vfl.data.store.alignment import AlignmentFile
from flower_vfl.data.store.dataset import PARTS, open_dataset
from flower_vfl.errors import InputError
from flower_vfl.protocol.frame import Frame, Kind
from flower_vfl.reports.run import load_run
from flower_vfl.simulations.sweep.planning import peak, reset_peak
from flower_vfl.tracking import read_embeddings, read_snapshots, read_steps
from flower_vfl.transport.base import expect
from flower_vfl.transport.wire import Traffic, Wire
from tests.faults.common import SETUP
from tests.parties.test_feature import gradient_for, make_party, request

CORPUS = Path(__file__).parent / "corpus"
SECONDS = 1.0
"""Limit of an input's time, by the fastest of three attempts: other work on the machine may slow one."""

WIRE = Wire("5e55", "exact")
EMBEDDING = torch.linspace(-1, 1, 64).view(16, 4)
DOWN = [
    request(0),
    request(1, 0, gradient_for(0)),
    Frame(Kind.EVALUATE, 0, {"part": "test"}),
    Frame(Kind.FINISH),
    Frame(Kind.RESTORE, 4, {"count": 1}),
    Frame(Kind.KEEP, -1),
    Frame(Kind.BEST, 0),
    Frame(Kind.IN_FLIGHT, fields={"in_flight": 2}),
]
"""Frames that a party may receive."""

UP = Frame(Kind.EMBEDDING, 3, tensors={"embedding": EMBEDDING})
"""Frame that the label party expects."""


def mutate(data: bytes, generator: random.Random) -> bytes:
    """Change a few bytes, cut, repeat or splice; every other time, correct the checksum of a frame."""
    out = bytearray(data)
    for _ in range(generator.choice((1, 1, 2, 4, 16))):
        at = generator.randrange(len(out)) if out else 0
        kind = generator.randrange(6)
        if kind == 0 and out:
            out[at] ^= 1 << generator.randrange(8)
        elif kind == 1 and out:
            out[at] = generator.choice((0, 1, 9, 34, 44, 45, 48, 57, 91, 93, 123, 125, 127, 128, 255))
        elif kind == 2:
            del out[at : at + generator.choice((1, 2, 8, 64))]
        elif kind == 3:
            out[at:at] = bytes(generator.randrange(256) for _ in range(generator.choice((1, 4, 16))))
        elif kind == 4:
            other = generator.randrange(len(out)) if out else 0
            out[at:at] = out[other : other + generator.choice((4, 32, 256))]
        else:
            del out[at:]
    if data[:4] == b"FVFL" and len(out) > 14 and generator.random() < 0.5:
        out[10:14] = struct.pack("<I", zlib.crc32(out[14:]))
    return bytes(out)


class Frames:
    """The receivers of frames: a party, and the label party's checks."""

    def __init__(self) -> None:
        self._down, self._up = [WIRE.pack(frame) for frame in DOWN], WIRE.pack(UP)
        self._renew()

    def _renew(self) -> None:
        self._party = make_party()
        self._party.handle(request(0))

    def seed(self, generator: random.Random) -> bytes:
        """Return a valid frame."""
        return self._up if generator.random() < 0.3 else generator.choice(self._down)

    def feed(self, data: bytes, original: bytes) -> bool:
        """Give a frame to both ends; return True if one of them accepted it."""
        taken = False
        try:
            frame = expect(WIRE.unpack(Traffic().take(bytes(8) + data), 2**20), Kind.EMBEDDING, 3, "a")
            z = frame.tensor("embedding", shape=(16, 4), dtype=torch.float32)
            assert (z.shape, z.dtype) == ((16, 4), torch.float32)
            assert bool(z.isfinite().all())
            assert _checksum_changed(data, original) or torch.equal(z, EMBEDDING)
            taken = True
        except InputError:
            pass
        try:
            self._party.handle(WIRE.unpack(data, self._party.frame_limit))
            assert _checksum_changed(data, original) or data == original
            taken = True
        except InputError:
            pass
        if taken:
            self._renew()
        return taken


def _checksum_changed(data: bytes, original: bytes) -> bool:
    """Return True if the checksum is another one: then this is another frame, which may be valid."""
    return data[10:14] != original[10:14]


Reader = Callable[[Path], object]


class Files:
    """The readers of all files that come from others or from a disk that may be damaged."""

    def __init__(self, folder: Path) -> None:
        out = folder / "run"
        run(build_config(SETUP), out=out)
        AlignmentFile(tuple(f"id{row}" for row in range(50)), ("a", "b"), "c").write(folder / "a.parquet")
        state = next((out / "checkpoints" / "a").glob("*.safetensors"))
        self._scratch = folder / "scratch"
        self._readers: dict[Path, Reader] = {
            out / "config.toml": lambda path: load_config(str(path)),
            out / "result.json": lambda path: load_run(path.parent),
            out / "steps.parquet": lambda path: read_steps(path.parent),
            out / "snapshots.parquet": lambda path: read_snapshots(path.parent),
            out / "embeddings.parquet": lambda path: read_embeddings(path.parent),
            out / "weights" / "a.safetensors": load_model,
            state: load_state,
            next((out / "checkpoints" / "label").glob("*.json")): lambda path: read_committed(path.parent),
            folder / "a.parquet": AlignmentFile.read,
        }
        self._readers |= own_data(folder / "raw") | prepared_data(folder / "raw", folder / "prepared")
        self.known = list(self._readers)
        self._bytes = {path: path.read_bytes() for path in self._readers if path.is_file()}

    def seed(self, generator: random.Random) -> tuple[Path, bytes]:
        """Return the path and the content of a valid file."""
        path = generator.choice(sorted(self._bytes))
        return path, self._bytes[path]

    def feed(self, path: Path, data: bytes) -> bool:
        """Read a changed file; return True if it was accepted."""
        self._scratch.mkdir(exist_ok=True)
        for old in self._scratch.iterdir():
            old.unlink()
        target = self._scratch / path.name
        target.write_bytes(data)
        try:
            self._readers[path](target)
        except InputError:
            return False
        return True


def own_data(folder: Path) -> dict[Path, Reader]:
    """Write a user's files of each kind; return the reader of each."""
    folder.mkdir()
    rows = range(40)
    columns = {"id": [f"p{row}" for row in rows], "age": [20.5 + row % 7 for row in rows]}
    columns |= {"town": [("Ulm", "Bonn", "")[row % 3] for row in rows], "label": [row % 2 for row in rows]}
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    (folder / "a.csv").write_text("\n".join(lines) + "\n")
    (folder / "a.csv.gz").write_bytes(gzip.compress((folder / "a.csv").read_bytes(), mtime=0))
    pq.write_table(pa.table(columns), folder / "b.parquet")
    np.savez(folder / "a.npz", id=np.array(columns["id"]), label=np.arange(40) % 2, x=np.ones((40, 2, 3), np.float32))
    for row in rows:
        place = folder / "photos" / f"{row % 2}" / f"p{row}.{'jpg' if row % 2 else 'png'}"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (5, 4), (row, 0, 0)).save(place)

    def read(path: Path) -> None:
        photos = path.suffix in (".jpg", ".png")
        with tempfile.TemporaryDirectory(prefix="flower-vfl-fuzz-") as scratch:
            if photos:
                shutil.copytree(folder / "photos", Path(scratch) / "photos")
                shutil.copy(path, next((Path(scratch) / "photos").glob(f"*/{path.name}")))
            source = Path(scratch) / "photos" if photos else path
            prepare("files", out=Path(scratch) / "out", options={"files": {"a": str(source)}})

    names = ("a.csv", "a.csv.gz", "b.parquet", "a.npz", "photos/0/p0.png", "photos/1/p1.jpg")
    return {folder / name: read for name in names}


def prepared_data(raw: Path, folder: Path) -> dict[Path, Reader]:
    """Prepare a user's table; return, for each prepared file, a reader of the folder with that file changed."""
    prepare("files", out=folder, options={"files": {"a": str(raw / "a.csv")}})
    copy = folder.with_name("changed")
    shutil.copytree(folder, copy)

    def reader(original: Path) -> Reader:
        def read(path: Path) -> None:
            place = copy / original.relative_to(folder)
            shutil.copyfile(path, place)
            try:
                dataset = open_dataset(copy)
                for party in dataset.parties:
                    table, _ = dataset.party(party), dataset.encoding(party)
                    table.train.gather(np.arange(len(table.train)))
                    table.test.gather(np.arange(len(table.test)))
                dataset.labels()
                [dataset.ids(part) for part in PARTS]
                dataset.verify()
            finally:
                shutil.copyfile(original, place)

        return read

    return {path: reader(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def _seconds(feed: Callable[[], bool]) -> float:
    started = time.perf_counter()
    with suppress(Exception):  # it was recorded the first time
        feed()
    return time.perf_counter() - started


def check(frames: int, files: int, seed: int) -> dict[str, object]:
    """Feed mutated frames and files; return the counts and the broken rules, and store the inputs that broke one."""
    found: dict[str, object] = {"seed": seed, "frames": frames, "files": files, "broken": []}
    broken: list[str] = found["broken"]  # type: ignore[assignment]
    generator = random.Random(seed)
    slowest, taken, memory = 0.0, 0, 0
    with tempfile.TemporaryDirectory(prefix="flower-vfl-fuzz-") as folder:
        ends, disk = Frames(), Files(Path(folder))
        for count in range(frames + files):
            if count == min(1000, frames // 2):
                reset_peak()
                memory = peak()
            if count < frames:
                original = ends.seed(generator)
                data, name = mutate(original, generator), "frame"
                feed = partial(ends.feed, data, original)
            else:
                path, original = disk.seed(generator)
                data, name = mutate(original, generator), path.name
                feed = partial(disk.feed, path, data)
            started = time.perf_counter()
            try:
                taken += feed()
            except Exception as error:  # noqa: BLE001 - any other error is a finding
                broken.append(f"{name} {count}: {type(error).__name__}: {error}"[:300])
                CORPUS.mkdir(exist_ok=True)
                (CORPUS / f"{zlib.crc32(data):08x}-{name}").write_bytes(data)
            seconds = time.perf_counter() - started
            if seconds > SECONDS:
                seconds = min(seconds, _seconds(feed), _seconds(feed))
            if seconds > SECONDS:
                broken.append(f"{name} {count}: {seconds:.1f} s")
            slowest = max(slowest, seconds)
    grown = peak() - memory
    return {**found, "taken": taken, "slowest_seconds": round(slowest, 3), "grown_mib": round(grown / 2**20, 1)}


def main() -> None:
    """Fuzz with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("frames", 10_000), ("files", 1_000), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    logging.disable(logging.WARNING)
    print(json.dumps(check(**vars(parser.parse_args()))))  # noqa: T201


if __name__ == "__main__":
    main()
