"""A step and an intersection beside other packages, each run by the Python of an environment that you make for it.

Only packages that are named are measured. Lanes take turns, as in all benchmarks here, and both sides of a comparison
begin with the same weights and train on the same batches: the losses of both are compared.

  openmined-psi, an intersection:
    python3 -m venv /tmp/psi && /tmp/psi/bin/pip install openmined-psi==2.0.6
    python benchmarks/peers.py --psi-python /tmp/psi/bin/python
  NVFlare, a step of its SplitNN workflow in its simulator, with a learner of ours (it has none):
    python3 -m venv /tmp/nvflare && /tmp/nvflare/bin/pip install torch==2.13.0 nvflare==2.9.0
    python benchmarks/peers.py --nvflare-python /tmp/nvflare/bin/python
  FATE, a step of its trainers for networks across a cut, with its own federation on one machine:
    python3 -m venv /tmp/fate && /tmp/fate/bin/pip install torch==2.13.0 pyfate==2.2.0
    python benchmarks/peers.py --fate-python /tmp/fate/bin/python
  Flower's vertical example, a step of its scheme in its simulation, with the Flower that is installed here:
    python benchmarks/peers.py --flower-example

Both roles of an intersection compute on one core, and hold as many IDs of which half are common; CPU seconds are
compared. openmined-psi is called on lists in memory, with its raw (exact) data structure, and only its client learns
which IDs are common. Ours is the whole command: it reads two files, sends Flower messages with the result for both
sides, and writes two files.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from alignment import write_ids
from harness import Gate, Measured, Sample, compare, report
from lanes import joined, preset, split_processes
from peer_lanes import fate, flower, nvflare, write_work

from flower_vfl import align, build_config
from flower_vfl.config import Config

PSI = """
import importlib.metadata, json, os, sys
import private_set_intersection.python as psi

count = int(sys.argv[1])
mine, others = ([f"customer-{number + first:012d}" for number in range(count)] for first in (0, count // 2))
before = os.times()
client, server = psi.client.CreateWithNewKey(True), psi.server.CreateWithNewKey(True)
setup = server.CreateSetupMessage(1e-9, count, others, psi.DataStructure.RAW)
common = client.GetIntersection(setup, server.ProcessRequest(client.CreateRequest(mine)))
after = os.times()
print(json.dumps({"cpu_seconds": sum(after[:4]) - sum(before[:4]), "common": len(common)}))
"""


def read_arguments() -> argparse.Namespace:
    """Read the command line; at least one peer must be named."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="a smoke run: small, and its numbers say nothing")
    options.add_argument("--psi-python", metavar="PATH", help="a Python that has openmined-psi")
    options.add_argument("--nvflare-python", metavar="PATH", help="a Python that has torch and nvflare")
    options.add_argument("--fate-python", metavar="PATH", help="a Python that has torch and pyfate")
    options.add_argument("--flower-example", action="store_true", help="Flower's example scheme, by this Python")
    options.add_argument("--ids", type=int, default=20_000, help="IDs a side of an intersection (default: 20000)")
    options.add_argument("--pairs", type=int, default=7, help="pairs of intersections (default: 7)")
    given = options.parse_args()
    if not (given.psi_python or given.nvflare_python or given.fate_python or given.flower_example):
        options.error("name at least one peer; --help says how to install each")
    needed = {
        "psi_python": "private_set_intersection",
        "nvflare_python": "nvflare",
        "fate_python": "fate.ml.nn.hetero.hetero_nn",
    }
    for name, module in needed.items():
        if python := getattr(given, name):
            _check_python(options, python, f"--{name.replace('_', '-')}", module)
    return given


def _check_python(options: argparse.ArgumentParser, python: str, option: str, module: str) -> None:
    try:
        subprocess.run([python, "-c", f"import {module}"], check=True, capture_output=True, text=True)
    except OSError as error:
        options.error(f"{option}: {python} cannot be run ({error.strerror}); name the Python of an environment")
    except subprocess.CalledProcessError as error:
        last = error.stderr.strip().splitlines()[-1]
        options.error(f"{option}: {python} cannot import {module} ({last}); --help says what to install")


def version(python: str, package: str) -> str:
    """Return the version of a package in the environment of a Python."""
    words = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([python, "-c", words], check=True, capture_output=True, text=True).stdout.strip()


def _theirs(python: str, count: int) -> float:
    """Return the processor seconds of one intersection by the peer."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [python, "-c", PSI, str(count)], env=clean, capture_output=True, text=True, check=True, timeout=600
    )
    found = json.loads(done.stdout)
    _check(found["common"], count)
    return float(found["cpu_seconds"])


def _ours(label: str, feature: str, count: int, out: Path) -> float:
    """Return the processor seconds of one alignment here, those of worker processes included."""
    import pyarrow.parquet as pq

    options = {"files": {"a": feature}, "labels_file": label, "ignore": "label"}
    values = {"data": {"name": "files", "options": options}, "align": {"method": "psi", "processes": 1}}
    before = os.times()
    found = align(build_config(values), out=out)
    after = os.times()
    _check(pq.read_metadata(found["a"]).num_rows, count)
    return sum(after[:4]) - sum(before[:4])


def _check(common: int, count: int) -> None:
    if common != count - count // 2:
        raise SystemExit(f"{common} common IDs were found")


def intersection(folder: Path, python: str, count: int, pairs: int) -> dict[str, Any]:
    """Compare an intersection with openmined-psi."""
    ratios = []
    label = write_ids(folder / "label.parquet", 0, count)
    feature = write_ids(folder / "a.parquet", count // 2, count)
    _ours(label, feature, count, folder / "warm-up")
    for pair in range(pairs):
        peer = _theirs(python, count) if pair % 2 else None
        own = _ours(label, feature, count, folder / f"turn-{pair}")
        ratios.append(own / (peer or _theirs(python, count)))
    ratio = Sample(ratios).describe(3)
    return {"version": version(python, "openmined-psi"), "ids_a_side": count, "cpu_seconds_ours_over_theirs": ratio}


def numbers(quick: bool, parties: int, width: int, batch_size: int, optimizer: str, **model: Any) -> Config:
    """Return a run on generated numbers, of these feature parties and a label party that has no column."""
    rows = batch_size * (8 if quick else 64)
    options = {"rows": rows, "test_rows": 256, "parties": parties + 1, "numeric": width, "categorical": 0}
    return preset(
        quick,
        data={"name": "synthetic", "options": options},
        parties={"features": list("abcdefgh"[:parties]), "label_features": False},
        training={"batch_size": batch_size, "validation": 0.0, "optimizer": optimizer},
        model=model,
        attack={"names": []},
        transport={"kind": "stream"},
    )


def steps(
    folder: Path, quick: bool, lane: Callable[[Gate, str, Path], None], python: str, package: str
) -> dict[str, Any]:
    """Compare a step of the census preset's perceptron, two parties, with a package in an environment of its own."""
    config = numbers(quick, 1, 64, 1024, "adam")
    work = folder / f"{package}.pt"
    bytes_each_way = write_work(config, work)
    size = {"starts": 1, "blocks": 3, "steps": 4} if quick else {"starts": 3, "blocks": 16, "steps": 20}
    lanes = ((package, lane, python, work), ("ours", split_processes, config), ("plain", joined, config))
    found = {"version": version(python, package), "bytes_each_way": bytes_each_way}
    return found | _described(compare(lanes, **size))


def steps_of_flower(folder: Path, quick: bool) -> dict[str, Any]:
    """Compare a step of the network of Flower's vertical example, three clients, with its scheme of messages."""
    import flwr

    config = numbers(quick, 3, 9, 889, "sgd", bottom=[], cut=4, top=[])
    work = folder / "flower.pt"
    bytes_each_way = write_work(config, work)
    size = {"starts": 1, "blocks": 3, "steps": 3} if quick else {"starts": 2, "blocks": 12, "steps": 6}
    lanes = (
        ("Flower's example", flower, config, work, 3, True),
        ("ours", flower, config, work, 3, False),
    )
    found = {"version": flwr.__version__, "bytes_each_way": bytes_each_way}
    return found | _described(compare(lanes, **size))


def _described(measured: Measured) -> dict[str, Any]:
    """Return the times of a step, theirs and ours, beside a plain loop, and the largest difference of the losses."""
    theirs, ours, *loops = measured.times
    apart = max(
        abs(mine - other)
        for start in measured.results
        for mine, other in zip(start[0]["values"], start[1]["values"], strict=False)
    )
    found: dict[str, Any] = {
        "theirs_over_ours": theirs.over(ours).describe(2),
        "theirs_ms": theirs.milliseconds,
        "ours_ms": ours.milliseconds,
        "losses_differ_by_at_most": float(f"{apart:.2g}"),
    }
    for plain in loops:
        found |= {"theirs_over_plain": theirs.over(plain).describe(2), "ours_over_plain": ours.over(plain).describe(2)}
    return found


def main() -> int:
    """Measure the packages that were named, and report."""
    given = read_arguments()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="flower-vfl-benchmark-") as temporary:
        folder = Path(temporary)
        if given.psi_python:
            count, pairs = (1_000, 1) if given.quick else (given.ids, given.pairs)
            found["openmined-psi"] = intersection(folder, given.psi_python, count, pairs)
        if given.nvflare_python:
            found["nvflare"] = steps(folder, given.quick, nvflare, given.nvflare_python, "nvflare")
        if given.fate_python:
            found["fate"] = steps(folder, given.quick, fate, given.fate_python, "pyfate")
        if given.flower_example:
            found["flower_example"] = steps_of_flower(folder, given.quick)
    report("peers", target="none", met=True, quick=given.quick, **found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
