"""Attacks on the gradients of all epochs, and persistent noise against them: the study behind `beyond.md`.

Usage::

    python -m studies beyond run --jobs 2                 # all runs; a finished one is not made again
    python -m studies beyond run --study census --quick --runs runs/quick
    python -m studies beyond page                         # numbers, tables and figures from the runs

Runs lie in `--runs` (default runs/beyond) as `<study>/<setting>/seed-<n>`; `page` writes `beyond.json`, the figures and
the marked blocks of `beyond.md`, in `docs/results`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from studies.common import Job, Study, claim_table, do, undefended, write_page

EPOCHS = 10
ATTACKS = [
    "norm",
    "residual",
    "remembered_norm",
    "remembered_direction",
    "remembered_hint(k=5)",
    "remembered_difference",
    "remembered_fit(k=256)",
    "remembered_quadratic(k=256, reads=mean)",
    "remembered_network(k=256, reads=mean)",
]
SIDE_BY_SIDE = ["remembered_fit(k=256, reads=epochs)", "remembered_quadratic(k=256, reads=epochs)"]
"""Attacks on all epochs side by side; those of the census have a page of their own, `all_epochs.md`."""

STUDIES: dict[str, dict[str, Any]] = {
    "census": {"preset": "census", "layers": ["cut", "first"], "apart": []},
    # The first layer of a party that has images is 50,176 numbers wide: too many to keep for each row. Attacks on the
    # epochs of images side by side take as long as the training.
    "shirt": {"preset": "fashion-shirt", "layers": ["cut"], "apart": [0]},
}
"""Studies by name: preset, attacked layers, and the seeds with attacks on all epochs side by side."""

COLUMNS = "columns"
"""The control: a reader of a party's own columns, with as many labels as the learned readers and no gradient."""

RHOS = (0, 0.25, 0.5, 0.75, 0.9, 1)
DEFENSES: dict[str, tuple[dict[str, Any], tuple[float, ...]]] = {
    "marvell": ({"name": "marvell", "s": 4.0}, (0, 0.9)),
    "full": ({"name": "marvell_full", "s": 4.0}, RHOS),
    "max_norm": ({"name": "max_norm"}, (0,)),
    "iso": ({"name": "iso", "t": 25.0}, (0,)),
}
"""Defenses by name, and the persistent shares of their noise."""

SETTINGS: dict[str, list[dict[str, Any]]] = {
    "none": [],
    COLUMNS: [],
    **{
        f"{name}-rho-{rho}": [{**defense, "rho": float(rho)}]
        for name, (defense, rhos) in DEFENSES.items()
        for rho in rhos
    },
}
SLOW = 0.4
"""Factor of the preset's learning rate in settings whose names begin so: recurring noise then disturbs less."""

SETTINGS |= {f"slow-full-rho-{rho}": SETTINGS[f"full-rho-{rho}"] for rho in (0, 0.5, 0.9)}

STRENGTHS: dict[int, tuple[float, ...]] = {1: (0, 0.5), 16: (0, 0.25, 0.5), 64: (0,)}
"""Further strengths of `marvell_full`, 4 elsewhere, with the persistent shares at each, to compare their costs."""

SETTINGS |= {
    f"s{s}-full-rho-{rho}": [{**DEFENSES["full"][0], "s": float(s), "rho": float(rho)}]
    for s, rhos in STRENGTHS.items()
    for rho in rhos
}
SEEDS = range(5)
QUICK = ("none", COLUMNS, "marvell-rho-0", "full-rho-0.5")


def run_one(job: Job) -> float:
    """Do one run and return its seconds; a quick one has two epochs, the control always one."""
    from flower_vfl import load_config

    control, study = job.setting == COLUMNS, STUDIES[job.study]
    readers = [*ATTACKS, *SIDE_BY_SIDE] if job.seed in study["apart"] else ATTACKS
    config = load_config(study["preset"])
    rate = config.training.learning_rate * (SLOW if job.setting.startswith("slow-") else 1.0)
    # Only the attackers measure: at the cut they have the gradients that the label party's monitor would have.
    changed = {
        "training.learning_rate": rate,
        "seed": job.seed,
        "attack.names": ["model_completion(k=256)"] if control else readers,
        "attack.layers": study["layers"],
        "attack.monitor": False,
        "attack.every": 1,
        "attack.snapshots": [],
        "training.epochs": 1 if control else 2 if job.options["quick"] else EPOCHS,
        "defenses": SETTINGS[job.setting],
    }
    return do(job, load_config(study["preset"], changed))


def make_page(runs: Path, out: Path) -> None:
    """Compute everything that the page shows from the runs' files."""
    from studies.beyond import figures, numbers

    studies = undefended(STUDIES, lambda study: numbers.collect(runs / study, SETTINGS, COLUMNS))
    blocks = {}
    for study, summary in studies.items():
        summary["claims"] = numbers.verdicts(summary)
        figures.epochs(summary, out / f"beyond-{study}-epochs.png")
        figures.shares(summary, out / f"beyond-{study}-rho.png")
        figures.frontier(summary, out / f"beyond-{study}-frontier.png")
        blocks[f"{study} leaks"] = numbers.leak_table(summary)
        blocks[f"{study} pairs"] = numbers.pairs_table(summary)
        blocks[f"{study} apart"] = numbers.apart_table(summary)
        blocks[f"{study} claims"] = claim_table(summary["claims"])
    write_page(out / "beyond.md", studies, blocks)


STUDY = Study(
    __doc__,
    "beyond",
    studies=STUDIES,
    settings=SETTINGS,
    seeds=SEEDS,
    quick=QUICK,
    run_one=run_one,
    make_page=make_page,
)
