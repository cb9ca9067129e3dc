"""The leaks that a report states behind the recommended defense, and a conditional oracle: census, five seeds.

    python -m studies headline headline     # marvell_full(s=4), six epochs: the sentence beside our examples
    python -m studies headline conditional  # four defenses, one epoch: the table of docs/methods/certificate.md
    python -m studies headline page         # puts both into the pages, between their markers

The numbers lie in `docs/results/headline.json`. Each is a mean over the seeds with the half width of a 95 % interval
(Student's t).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flower_vfl import load_config, run
from flower_vfl.metrics import mean_interval

ROOT = Path(__file__).resolve().parents[2]
NUMBERS = ROOT / "docs" / "results" / "headline.json"
PAGES = (
    "README.md",
    "docs/deployment/trial.md",
    "docs/deployment/label-party.md",
    "docs/stream-training.md",
    "docs/tutorials/first-run.md",
    "docs/tutorials/two-csv-files.md",
    "docs/tutorials/steps-parquet.md",
    "examples/own-app/README.md",
    "docs/methods/leak-budget.md",
    "docs/methods/certificate.md",
    "docs/methods/marvell-full.md",
)
RECOMMENDED = "marvell_full(s=4.0)"
DEFENSES = (RECOMMENDED, "marvell(s=4.0)", "max_norm", "iso(t=25.0)")
SEEDS = range(5)
PARTY = "a"
BOUND = {"marvell_full": "marvell_full.auc_bound", "marvell": "marvell.auc_bound"}


def _run(defense: str, seed: int, overrides: Mapping[str, Any]) -> dict[str, Any]:
    config = load_config("census", {"defenses": defense, "seed": seed, **overrides})
    with tempfile.TemporaryDirectory() as folder:
        return run(config, out=Path(folder) / "run").summary


def headline(seed: int) -> dict[str, Any]:
    """Return what the verdict of a run with the recommended defense says of party a, and its utility."""
    summary = _run(RECOMMENDED, seed, {})
    found = next(one for one in summary["verdict"]["parties"] if one["party"] == PARTY)
    practical, informed, gain = found["leak"]["practical"], found["leak"]["informed"], found["gain"]
    return {
        "seed": seed,
        "status": found["status"],
        "test_auc": summary["utility"]["last"]["test_auc"],
        "practical": practical and {key: practical[key] for key in ("label", "reached", "null")},
        "informed": informed and {key: informed[key] for key in ("reached", "interval95", "reader", "span")},
        "gain": gain and {key: gain[key] for key in ("value", "interval95", "over")},
    }


def conditional(defense: str, seed: int) -> dict[str, Any]:
    """Return the leak of a conditional oracle behind one defense in the first epoch, its bound and the norm."""
    overrides = {"training.epochs": 1, "attack.names": "norm", "attack.every": 4}
    summary = _run(defense, seed, overrides)
    entries = {
        entry["attack"]: entry
        for entry in summary["leakage"]
        if (entry["source"], entry["defended"], entry["party"], entry["phase"]) == ("monitor", True, PARTY, "train")
    }
    bound = summary["log"].get(BOUND.get(defense.partition("(")[0], ""))
    oracle = entries["conditional_oracle"]
    return {
        "bound": bound,
        "norm": entries["norm"]["mean"],
        **{key: oracle[key] for key in ("mean", "q95", "q95_null")},
    }


def _mean(values: Sequence[float], digits: int = 3) -> str:
    interval = mean_interval(values)
    half = math.nan if interval is None else (interval[1] - interval[0]) / 2
    return f"{sum(values) / len(values):.{digits}f} ± {half:.{digits}f}"


def sentence(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the measured headline of the recommended defense in words."""
    practical = [one["practical"] for one in runs if one["practical"]]
    informed = [one["informed"] for one in runs if one["informed"]]
    names = " or ".join(sorted({f"`{one['label']}`" for one in practical}))
    over = "all epochs" if all(one["label"].startswith("remembered") for one in practical) else "q95 of single steps"
    values, worst = [one["reached"] for one in informed], [one["reached"] for one in practical]
    chance = sum(one["null"] for one in practical) / len(practical)
    leaks = sum(one["status"] == "leaks" for one in runs)
    text = (
        f"Measured behind `{RECOMMENDED.replace('.0', '')}` on the census preset (six epochs, seeds 0 to "
        f"{len(runs) - 1}): the strongest attack of the practical set, {names}, has a leak AUC of {_mean(worst)} "
        f"({over}; chance level {chance:.3f}). The informed reader has {_mean(values)} ({min(values):.3f} to "
        f"{max(values):.3f}). The test AUC is {_mean([one['test_auc'] for one in runs], 4)}. The report states a "
        f"leak in {leaks} of {len(runs)} runs: the defense reduces the leak, but does not end it "
        "(`python -m studies headline headline`)."
    )
    return "\n".join(textwrap.wrap(text, 118, break_long_words=False, break_on_hyphens=False))


def table(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the table of conditional oracles."""
    lines = [
        "| defense | bound, mean over steps | conditional oracle, mean | its q95 | `norm`, mean |",
        "|---|---|---|---|---|",
    ]
    for defense, runs in found.items():
        bounds = [one["bound"] for one in runs if one["bound"] is not None]
        cells = [
            _mean(bounds) if bounds else "none",
            *(_mean([one[key] for one in runs]) for key in ("mean", "q95", "norm")),
        ]
        lines.append(f"| `{defense.replace('.0', '')}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def pages(numbers: Mapping[str, Any]) -> dict[Path, str]:
    """Return each page that shows these numbers as it should be."""
    shown = {}
    if numbers.get("headline"):
        shown["headline"] = sentence(numbers["headline"])
    if numbers.get("conditional"):
        shown["conditional"] = table(numbers["conditional"])
    found = {}
    for name in PAGES:
        text = (ROOT / name).read_text(encoding="utf-8")
        for key, value in shown.items():
            begin, end = f"<!-- begin {key} -->", f"<!-- end {key} -->"
            if begin in text:
                before, rest = text.split(begin)
                text = f"{before}{begin}\n{value}\n{end}{rest.split(end)[1]}"
        found[ROOT / name] = text
    return found


def main() -> None:
    """Measure, or put what was measured into the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("headline", "conditional", "page"))
    what = parser.parse_args().what
    numbers = json.loads(NUMBERS.read_text(encoding="utf-8")) if NUMBERS.is_file() else {}
    if what == "page":
        for path, text in pages(numbers).items():
            path.write_text(text, encoding="utf-8")
        return
    if what == "headline":
        numbers["headline"] = [headline(seed) for seed in SEEDS]
        print(sentence(numbers["headline"]), file=sys.stderr)
    else:
        numbers["conditional"] = {defense: [conditional(defense, seed) for seed in SEEDS] for defense in DEFENSES}
        print(table(numbers["conditional"]), file=sys.stderr)
    NUMBERS.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
