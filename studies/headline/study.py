"""The leaks that a report states behind the recommended defense, and a conditional oracle: census, five seeds.

    python -m studies headline headline     # the recommended defense and noise without a proof: the table on many pages
    python -m studies headline conditional  # four defenses, one epoch: the table of docs/methods/certificate.md
    python -m studies headline page         # puts both into the pages, between their markers

The numbers lie in `docs/results/headline.json`. Each is a mean over the seeds with the half width of a 95 % interval
(Student's t).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flower_vfl import load_config, run
from flower_vfl.auditing.verdict import with_own_data
from studies.common import fill, shown

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
COMPARED: Mapping[str, Mapping[str, Any]] = {
    "local_head(epsilon=1.0)": {"training.pretrain": 6, "training.patience": 0},
    "marvell_full(s=4.0)": {},
}
"""The recommended defense and noise without a proof, and the other settings of a run with each."""
DEFENSES = ("marvell_full(s=4.0)", "marvell(s=4.0)", "max_norm", "iso(t=25.0)")
SEEDS = range(5)
PARTY = "a"
BOUND = {"marvell_full": "marvell_full.auc_bound", "marvell": "marvell.auc_bound"}


def _run(defense: str, seed: int, overrides: Mapping[str, Any]) -> dict[str, Any]:
    config = load_config("census", {"defenses": defense, "seed": seed, **overrides})
    with tempfile.TemporaryDirectory() as folder:
        return run(config, out=Path(folder) / "run").summary


def headline(defense: str, seed: int) -> dict[str, Any]:
    """Return the verdict on party a in a run of `COMPARED`, and the run's utility."""
    summary = _run(defense, seed, COMPARED[defense])
    found = next(one for one in summary["verdict"]["parties"] if one["party"] == PARTY)
    practical, informed = found["leak"]["practical"], found["leak"]["informed"]
    both = with_own_data(one for one in summary["leakage"] if one["party"] == PARTY)
    if both is None:
        raise SystemExit(f"no informed reader of {PARTY}'s own data has a number behind {defense}, seed {seed}")
    return {
        "seed": seed,
        "status": found["status"],
        "test_auc": summary["utility"]["last"]["test_auc"],
        "practical": {key: practical[key] for key in ("label", "reached", "null")},
        "informed": {key: informed[key] for key in ("reached", "interval95", "reader", "span")},
        "together": {key: both[key] for key in ("sees", "mean", "baseline", "reader", "span")},
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


def headline_table(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the table of the leaks behind the recommended defense and behind noise without a proof."""
    lines = [
        "| behind | test AUC | strongest attack of the practical set | informed reader of gradients alone "
        "| of the party's own data alone | of both |",
        "|---|---|---|---|---|---|",
    ]
    for defense, runs in found.items():
        more = ", pre-trained" if COMPARED[defense].get("training.pretrain") else ""
        names = " or ".join(sorted({f"`{one['practical']['label']}`" for one in runs}))
        chance = sum(one["practical"]["null"] for one in runs) / len(runs)
        attack = f"{names} {shown([one['practical']['reached'] for one in runs])} (guessing {chance:.2f})"
        alone, both = ([one["together"][key] for one in runs] for key in ("baseline", "mean"))
        cells = [attack, *(shown(values) for values in ([one["informed"]["reached"] for one in runs], alone, both))]
        utility = shown([one["test_auc"] for one in runs], 4)
        lines.append(f"| `{defense.replace('.0', '')}`{more} | {utility} | {' | '.join(cells)} |")
    seeds = len(next(iter(found.values())))
    text = (
        f"Leak AUC on the census preset, six epochs, seeds 0 to {seeds - 1}: 0.5 is guessing, 1 every label. Informed "
        "readers know half of all labels. A party always has its own data, its columns or embeddings: the last number "
        "is what readers of both reach. Both defenses reduce the leak, none ends it. `local_head` also bounds what "
        "*any* attack gains about one person (`python -m studies headline headline`)."
    )
    return "\n".join([*lines, "", *textwrap.wrap(text, 118, break_long_words=False, break_on_hyphens=False)])


def headline_sentence(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the leaks behind the recommended defense, and that of a reader with own data behind the other one."""
    (recommended, runs), (other, others) = found.items()
    names = " or ".join(sorted({f"`{one['practical']['label']}`" for one in runs}))
    attack, alone = (shown([one[key]["reached"] for one in runs]) for key in ("practical", "informed"))
    both, theirs = (shown([one["together"]["mean"] for one in of]) for of in (runs, others))
    text = (
        f"Census, six epochs, seeds 0 to {len(runs) - 1}: behind `{recommended.replace('.0', '')}`, pre-trained, the "
        f"test AUC is {shown([one['test_auc'] for one in runs], 4)}. The leak AUC of {names} is {attack}, that of an "
        f"informed reader {alone}, and with the party's own data {both}; behind `{other.replace('.0', '')}` a reader "
        f"with own data reaches {theirs} ([study](studies/headline/study.py))."
    )
    return textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False)


def table(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the table of conditional oracles."""
    lines = [
        "| defense | bound, mean over steps | conditional oracle, mean | its q95 | `norm`, mean |",
        "|---|---|---|---|---|",
    ]
    for defense, runs in found.items():
        bounds = [one["bound"] for one in runs if one["bound"] is not None]
        cells = [
            shown(bounds) if bounds else "none",
            *(shown([one[key] for one in runs]) for key in ("mean", "q95", "norm")),
        ]
        lines.append(f"| `{defense.replace('.0', '')}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def pages(numbers: Mapping[str, Any]) -> dict[Path, str]:
    """Return the new text of each page that shows these numbers."""
    blocks = {}
    if numbers.get("headline"):
        blocks["headline"] = headline_table(numbers["headline"])
        blocks["headline-sentence"] = headline_sentence(numbers["headline"])
    if numbers.get("conditional"):
        blocks["conditional"] = table(numbers["conditional"])
    return {ROOT / name: fill((ROOT / name).read_text(encoding="utf-8"), blocks) for name in PAGES}


def main() -> None:
    """Measure, or put the measured numbers into the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("headline", "conditional", "page"))
    what = parser.parse_args().what
    numbers = json.loads(NUMBERS.read_text(encoding="utf-8")) if NUMBERS.is_file() else {}
    if what == "page":
        for path, text in pages(numbers).items():
            path.write_text(text, encoding="utf-8")
        return
    if what == "headline":
        numbers["headline"] = {defense: [headline(defense, seed) for seed in SEEDS] for defense in COMPARED}
        print(headline_table(numbers["headline"]), file=sys.stderr)
    else:
        numbers["conditional"] = {defense: [conditional(defense, seed) for seed in SEEDS] for defense in DEFENSES}
        print(table(numbers["conditional"]), file=sys.stderr)
    NUMBERS.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
