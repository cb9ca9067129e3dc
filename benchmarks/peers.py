"""An intersection beside openmined-psi, which pip installs into an environment of its own.

Both sides hold as many IDs and share half of them; both roles run on this machine, on one core. Turns alternate, and
what is compared are the seconds that processors worked, which other work on the machine touches least. openmined-psi is
called on lists in memory, with its raw (exact) data structure, and the client alone learns which IDs are common. Ours
is the whole command: it reads two files, sends Flower messages, tells both sides, and writes two files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from alignment import write_ids
from harness import Sample, parser, report

from flower_vfl import align, build_config

PEER = "openmined-psi==2.0.6"

THEIRS = """
import json, os, sys
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


def environment(folder: Path) -> Path:
    """Make an environment with the peer and return its Python; nothing of ours is in it."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", PEER], check=True)
    return python


def theirs(python: Path, count: int) -> float:
    """Return the processor seconds of one intersection by the peer."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [python, "-c", THEIRS, str(count)], env=clean, capture_output=True, text=True, check=True, timeout=600
    )
    found = json.loads(done.stdout)
    _check(found["common"], count)
    return float(found["cpu_seconds"])


def ours(label: str, feature: str, count: int, out: Path) -> float:
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


def main() -> int:
    """Measure in turns and report."""
    options = parser(__doc__)
    options.add_argument("--ids", type=int, default=20_000, help="IDs a side")
    options.add_argument("--pairs", type=int, default=7, help="pairs of turns")
    given = options.parse_args()
    count, pairs = (1_000, 1) if given.quick else (given.ids, given.pairs)
    ratios = []
    with tempfile.TemporaryDirectory(prefix="flower-vfl-benchmark-") as temporary:
        folder = Path(temporary)
        python = environment(folder / "peer")
        label = write_ids(folder / "label.parquet", 0, count)
        feature = write_ids(folder / "a.parquet", count // 2, count)
        ours(label, feature, count, folder / "warm-up")
        for pair in range(pairs):
            peer = theirs(python, count) if pair % 2 else None
            own = ours(label, feature, count, folder / f"turn-{pair}")
            ratios.append(own / (peer or theirs(python, count)))
    ratio = Sample(ratios)
    report(
        "peers",
        target="none",
        met=True,
        quick=given.quick,
        ids_a_side=count,
        peer=PEER,
        cpu_seconds_ours_over_theirs=ratio.describe(3),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
