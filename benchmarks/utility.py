"""(m) The cost in test AUC of several steps in flight and of half precision on the wire.

Census preset, attacks off; `inproc`, and `stream` for numbers rounded on the wire. Each seed trains once exactly,
with one step in flight and float32, and once with each of 1, 3 and 4 in flight and float32 or float16; 4 is the most
that the automatic choice takes (`flower_vfl/training/pipeline_depth.py`). Target: within 0.003 of the exact run with
the same seed.
"""

from __future__ import annotations

from typing import Any

from harness import arguments, report

from flower_vfl.apps import run
from flower_vfl.config import build_config, load_config

TARGET = 0.003
SEEDS = 5
LINES = [(in_flight, wire) for wire in ("exact", "float16") for in_flight in (1, 3, 4)]


def test_auc(quick: bool, seed: int, in_flight: int, wire_dtype: str) -> float:
    """Train and return the test AUC of the last epoch."""
    values: dict[str, Any] = load_config("census").model_dump()
    if quick:
        values["data"] = {"name": "synthetic", "options": {"rows": 2048, "test_rows": 512, "vocabulary": 64}}
        values["training"] |= {"batch_size": 256, "epochs": 1}
    values["seed"] = seed
    values["attack"] |= {"names": [], "informed": 0, "snapshots": []}
    kind = "inproc" if wire_dtype == "exact" else "stream"
    values["transport"] |= {"kind": kind, "in_flight": in_flight, "wire_dtype": wire_dtype}
    return run(build_config(values)).test_auc


def main() -> None:
    """Measure and report."""
    quick = arguments(__doc__).quick
    seeds = range(1 if quick else SEEDS)
    aucs = {line: [test_auc(quick, seed, *line) for seed in seeds] for line in LINES}
    exact = aucs[LINES[0]]
    lost = {
        f"{wire}, {in_flight} in flight": [round(auc - best, 5) for auc, best in zip(found, exact, strict=True)]
        for (in_flight, wire), found in aucs.items()
    }
    report(
        "utility",
        target=f"test AUC within {TARGET} of the exact run with the same seed",
        met={name: max(map(abs, differences)) <= TARGET for name, differences in lost.items()},
        quick=quick,
        test_auc=[round(auc, 5) for auc in exact],
        difference=lost,
    )


if __name__ == "__main__":
    main()
