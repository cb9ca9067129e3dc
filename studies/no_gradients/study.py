"""Utility of training without gradients, with pre-training and without. The study behind `no-gradients.md`.

Usage::

    python -m studies no_gradients run                       # all runs; a finished one is not made again
    python -m studies no_gradients run --study census --seeds 0
    python -m studies no_gradients page                      # the tables of the page from the runs

Runs lie in `--runs` (default runs/no_gradients) as `<preset>/<setting>/seed-<n>`; `page` writes `no-gradients.json` and
the marked blocks of `no-gradients.md`, in `docs/results`. These runs are not attacked: the leak of a local head has a
page of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from studies.common import Job, Study, Summary, by_setting, do, shown, table, write_page

PRETRAIN = {"census": 6, "fashion-shirt": 10}
"""Epochs of pre-training: as many as the preset trains for."""

NONE = "none"
SILENT = {"training.gradients": False}
LOCAL = {"defenses": "local_head(epsilon=1.0)"}
SETTINGS: dict[str, Mapping[str, Any]] = {
    NONE: {},
    "no-gradients": SILENT,
    "no-gradients-pre": SILENT,
    "local-head": LOCAL,
    "local-head-pre": LOCAL,
}
WORDS = {
    NONE: "gradients, no defense",
    "no-gradients": "no gradients",
    "no-gradients-pre": "no gradients, pre-trained",
    "local-head": "`local_head(epsilon=1)`",
    "local-head-pre": "`local_head(epsilon=1)`, pre-trained",
}
SEEDS = range(3)
PLAIN = {"attack.names": [], "attack.informed": 0, "attack.snapshots": [], "attack.embeddings": 0, "threads": 1}


def settings_of(preset: str, setting: str, seed: int, *, quick: bool) -> dict[str, Any]:
    """Return the changes of a run to its preset."""
    epochs = 1 if quick else PRETRAIN[preset]
    pretrain = {"training.pretrain": epochs} if setting.endswith("-pre") else {}
    return {**PLAIN, **SETTINGS[setting], **pretrain, **({"training.epochs": 1} if quick else {}), "seed": seed}


def run_one(job: Job) -> float:
    """Do one run and return its seconds."""
    from flower_vfl import load_config

    return do(job, load_config(job.study, settings_of(job.study, job.setting, job.seed, quick=job.options["quick"])))


def _numbers(result: Summary) -> Iterator[tuple[str, float]]:
    last = result["utility"]["last"]
    yield from ((name, last[name]) for name in ("validation_auc", "test_auc"))


def utility_table(summary: Summary) -> str:
    """Write a row a setting: test AUC, mean over seeds, and that of each seed."""
    rows = [
        [
            WORDS[setting],
            ", ".join(map(str, entry["seeds"])),
            ", ".join(f"{value:.4f}" for value in entry["test_auc"]),
            shown(entry["test_auc"], 4),
        ]
        for setting, entry in summary["settings"].items()
    ]
    return table(["setting", "seeds", "test AUC of each seed", "mean"], rows)


def make_page(runs: Path, out: Path) -> None:
    """Compute everything that the page shows from the runs' files."""
    found = {preset: by_setting(runs / preset, SETTINGS, _numbers) for preset in PRETRAIN}
    found = {preset: summary for preset, summary in found.items() if summary["settings"]}
    write_page(out / "no-gradients.md", found, {preset: utility_table(summary) for preset, summary in found.items()})


STUDY = Study(
    __doc__,
    "no_gradients",
    studies=PRETRAIN,
    settings=SETTINGS,
    seeds=SEEDS,
    quick=[NONE, "no-gradients-pre"],
    run_one=run_one,
    make_page=make_page,
)
