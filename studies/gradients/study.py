"""Tests of the papers' claims on leakage through cut gradients: the study behind `gradients.md`.

Usage::

    python -m studies gradients run --jobs 2             # all runs; a finished one is not made again
    python -m studies gradients run --study census --quick --runs runs/quick
    python -m studies gradients page                     # numbers, tables and figures from the runs

Runs lie in `--runs` (default runs/gradients) as `<study>/<setting>/seed-<n>`; `page` writes `gradients.json`, the
figures and the marked blocks of `gradients.md`, in `docs/results`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from studies.common import Job, Study, claim_table, do, undefended, write_page

STUDIES = {"census": "census", "shirt": "fashion-shirt"}
"""Studies by name, and the preset of each."""

ATTACKS = ["norm", "cosine", "inner_product", "direction_count", "hint(k=5)", "residual"]
EVERY = 2
"""Number of steps from one attacked step to the next."""

RATIOS = (0.25, 1, 2, 5, 10, 25)
STRENGTHS = (0.1, 0.25, 1, 2, 4, 10, 25)
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "none": [],
    **{f"iso-{ratio}": [{"name": "iso", "t": float(ratio**2)}] for ratio in RATIOS},
    "max_norm": [{"name": "max_norm"}],
    **{f"marvell-{s}": [{"name": "marvell", "s": float(s)}] for s in STRENGTHS},
    "probe": [{"name": "studies.gradients.probe:Probe", "every": 10}],
}
"""Settings by name: the authors' `ratio` of iso (t = ratio ** 2), Marvell's s; "probe" logs an undefended run."""

SEEDS = range(5)
QUICK = ("none", "iso-5", "max_norm", "marvell-0.25", "marvell-4", "probe")


def run_one(job: Job) -> float:
    """Do one run and return its seconds; a quick one has one epoch, of which each tenth step is attacked.

    The monitor attacks the gradients that leave the label party, with named attacks and informed readers; the attackers
    attack the gradients at their first layers.
    """
    from flower_vfl import load_config

    quick = job.options["quick"]
    changed = {
        "seed": job.seed,
        "attack.names": ATTACKS,
        "attack.layers": ["first"],
        "attack.every": 10 if quick else EVERY,
        "defenses": SETTINGS[job.setting],
        **({"training.epochs": 1} if quick else {}),
    }
    return do(job, load_config(STUDIES[job.study], changed))


def make_page(runs: Path, out: Path) -> None:
    """Compute everything that the page shows from the runs' files."""
    from studies.gradients import claims, figures, numbers

    studies = undefended(STUDIES, lambda study: numbers.collect(runs / study, SETTINGS))
    blocks = {}
    for study, summary in studies.items():
        summary["claims"] = claims.verdicts(summary)
        figures.trade_off(summary, out / f"gradients-{study}-trade-off.png")
        if summary["probe"]:
            figures.observations(summary["probe"], out / f"gradients-{study}-observations.png")
        blocks[f"{study} leaks"] = numbers.leak_table(summary)
        blocks[f"{study} readers"] = numbers.reader_table(runs / study, summary["settings"])
        blocks[f"{study} utility"] = numbers.utility_table(summary)
        blocks[f"{study} claims"] = claim_table(summary["claims"])
    write_page(out / "gradients.md", studies, blocks)


STUDY = Study(
    __doc__,
    "gradients",
    studies=STUDIES,
    settings=SETTINGS,
    seeds=SEEDS,
    quick=QUICK,
    run_one=run_one,
    make_page=make_page,
)
