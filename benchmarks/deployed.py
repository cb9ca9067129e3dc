"""(o) Steps a second of a deployed run, TLS and authentication on, against the same run in one process.

All on one machine, over loopback: a SuperLink with the label party's ServerApp and a SuperNode with the feature party's
ClientApp. Census preset, one step in flight, no attacks, one torch thread a process, one epoch; runs take turns. The
compared numbers are from `result.json`: steps over the seconds from the first to the last one. Target: 0.8.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path

from harness import arguments, report
from session_up import deployment, flwr

from flower_vfl import run
from flower_vfl.config import Config, build_config, load_config
from flower_vfl.simulations.flower_engine import write_deployment

TARGET = 0.8


def settings(quick: bool, kind: str) -> Config:
    """Return the configuration of one epoch of the census preset, or of a small data set."""
    values = load_config("census").model_dump()
    values["training"] |= {"epochs": 1}
    values["attack"] |= {"names": [], "informed": 0, "snapshots": []}
    values["transport"] |= {"kind": kind, "in_flight": 1}
    if quick:
        values |= {"data": {"name": "breast-cancer"}}
        values["training"] |= {"batch_size": 64}
    return build_config(values)


def steps_a_second(result: Path) -> float:
    """Return the steps per second of a run."""
    cost = json.loads(result.read_text())["cost"]
    return float(cost["steps"] / cost["seconds"])


def main() -> None:
    """Measure and report."""
    quick = arguments(__doc__).quick
    deployed, here = [], []
    with tempfile.TemporaryDirectory(prefix="flower-vfl-benchmark-") as temporary:
        root = Path(temporary)
        config = settings(quick, "inproc")
        with deployment(root, config.data.name) as environment:
            write_deployment(root / "app", settings(quick, "stream"), None)
            for pair in range(2 if quick else 9):
                out = root / f"deployed-{pair}"
                done = flwr(environment, "run", str(root / "app"), "up", "--stream", "--run-config", f"out='{out}'")
                if not (out / "result.json").is_file():
                    raise SystemExit(f"the run failed:\n{done.stdout}{(root / 'log').read_text()[-3000:]}")
                run(config, out=root / f"here-{pair}")
                deployed.append(steps_a_second(out / "result.json"))
                here.append(steps_a_second(root / f"here-{pair}" / "result.json"))
    ratios = [there / own for there, own in zip(deployed, here, strict=True)][1:]  # the first one is a warm-up
    report(
        "deployed",
        target=f">= {TARGET}",
        met=statistics.median(ratios) >= TARGET,
        quick=quick,
        ratio=statistics.median(ratios),
        ratios=ratios,
        steps_a_second={"deployed": statistics.median(deployed), "inproc": statistics.median(here)},
    )


if __name__ == "__main__":
    main()
