"""Measure joint attacks on Census-Income behind each defense of gradients, with the gradients and without them.

python benchmarks/joint_attacks.py --seeds 3 --epochs 1
"""

from __future__ import annotations

import argparse
from collections import defaultdict

import numpy as np

from flower_vfl.apps.local import run
from flower_vfl.config import load_config

DEFENSES = ("none", "iso(t=25)", "max_norm", "marvell(s=4.0)", "marvell_full(s=4.0)")
ATTACKS = "joint_regression,joint_reader"


def entries(defense: str, seed: int, epochs: int) -> list[dict]:
    """Return the entries of the attacker's joint attacks and of the monitor's informed reader with columns."""
    settings = {"training.epochs": str(epochs), "seed": str(seed), "attack.names": ATTACKS}
    settings |= {} if defense == "none" else {"defenses": defense}
    leakage = run(load_config("census", settings)).summary["leakage"]
    return [entry for entry in leakage if entry["phase"] == "joint" or "columns" in entry.get("sees", ())]


def main() -> None:
    """Print one line of Markdown for each defense and reader: AUC, AUC without gradients and their difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--defenses", nargs="*", default=DEFENSES)
    given = parser.parse_args()
    print(f"| defense, {given.epochs} epochs, {given.seeds} seeds | reader, rows | reads | without | gain | by seed |")
    print("|---|---|---|---|---|---|", flush=True)
    for defense in given.defenses:
        found = defaultdict(list)
        for seed in range(given.seeds):
            for entry in entries(defense, seed, given.epochs):
                found[f"{entry['label']}, {entry.get('rows_of', 'train')}"].append(entry)
        for reader, seen in found.items():
            reads, without = (np.array([entry[key] for entry in seen], dtype=float) for key in ("mean", "baseline"))
            seeds = " ".join(f"{value:.3f}" for value in reads)
            numbers = " | ".join(f"{value:.3f}" for value in (reads.mean(), without.mean(), (reads - without).mean()))
            print(f"| {defense} | {reader} | {numbers} | {seeds} |", flush=True)
            names = {name for entry in seen for name in entry.get("baselines", {})}
            for name in sorted(names):
                mean = np.mean([entry["baselines"][name] for entry in seen if name in entry["baselines"]])
                print(f"|  | - {name} | {mean:.3f} |  |  |  |", flush=True)


if __name__ == "__main__":
    main()
