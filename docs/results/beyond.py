"""What does a party read that remembers, and what does persistent noise do about it? The study behind `beyond.md`.

Usage::

    python docs/results/beyond.py run --jobs 2                 # all runs; a finished one is not made again
    python docs/results/beyond.py run --study census --quick --runs runs/quick
    python docs/results/beyond.py page                         # numbers, tables and figures from the runs

Runs lie in `--runs` (default runs/beyond) as `<study>/<setting>/seed-<n>`; `page` writes `beyond.json`, the figures and
the marked blocks of `beyond.md`, all beside this file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from studies import Job, claim_table, commands, do, do_all, job_of, write_page

HERE = Path(__file__).resolve().parent
STUDIES = {"census": "census", "shirt": "fashion-shirt"}
"""Studies by name, and the preset of each."""

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
RHOS = (0, 0.5, 0.75, 0.9, 1)
DEFENSES: dict[str, tuple[dict[str, Any], tuple[float, ...]]] = {
    "marvell": ({"name": "marvell", "s": 4.0}, (0, 0.9)),
    "full": ({"name": "marvell_full", "s": 4.0}, RHOS),
    "max_norm": ({"name": "max_norm"}, (0,)),
    "iso": ({"name": "iso", "t": 25.0}, (0,)),
}
"""Defenses by name, and the persistent shares of their noise."""

SETTINGS: dict[str, list[dict[str, Any]]] = {
    "none": [],
    **{
        f"{name}-rho-{rho}": [{**defense, "rho": float(rho)}]
        for name, (defense, rhos) in DEFENSES.items()
        for rho in rhos
    },
}
SEEDS = range(5)
QUICK = ("none", "marvell-rho-0", "full-rho-0.5")


def jobs_of(runs: Path, names: list[str], settings: list[str], seeds: list[int], *, quick: bool) -> list[Job]:
    """Return the runs, seed by seed: a study that is stopped early has fewer seeds, not fewer settings."""
    return [
        job_of(runs, study, setting, seed, quick=quick) for study in names for seed in seeds for setting in settings
    ]


def run_one(job: Job) -> float:
    """Do one run and return its seconds; a quick one has two epochs."""
    from flower_vfl import build_config, load_config

    # Only the attackers measure: at the cut they see what the label party's monitor would see.
    attack = {"names": ATTACKS, "monitor": False, "every": 1, "snapshots": []}
    preset = load_config(STUDIES[job.study], {"seed": job.seed}).model_dump()
    training = {**preset["training"], "epochs": 2 if job.options["quick"] else EPOCHS}
    changed = {"attack": {**preset["attack"], **attack}, "training": training, "defenses": SETTINGS[job.setting]}
    return do(job, build_config({**preset, **changed}))


def make_page(runs: Path, out: Path) -> None:
    """Compute everything that the page shows from the runs' files."""
    import beyond_figures as figures
    import beyond_numbers as numbers

    found = {study: numbers.collect(runs / study, SETTINGS) for study in STUDIES}
    studies = {study: summary for study, summary in found.items() if "none" in summary["settings"]}
    blocks = {}
    for study, summary in studies.items():
        summary["claims"] = numbers.verdicts(summary)
        figures.epochs(summary, out / f"beyond-{study}-epochs.png")
        figures.shares(summary, out / f"beyond-{study}-rho.png")
        blocks[f"{study} leaks"] = numbers.leak_table(summary)
        blocks[f"{study} claims"] = claim_table(summary["claims"])
    write_page(out / "beyond.md", studies, blocks)


def main() -> None:
    """Read the command line."""
    parser, run = commands(__doc__, Path("runs/beyond"), HERE)
    run.add_argument("--study", nargs="+", choices=list(STUDIES), default=list(STUDIES))
    run.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    run.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    given = parser.parse_args()
    if given.command == "page":
        make_page(given.runs, given.out)
        return
    settings = [name for name in given.settings if name in QUICK] if given.quick else given.settings
    seeds = given.seeds[:1] if given.quick else given.seeds
    do_all(jobs_of(given.runs, given.study, settings, seeds, quick=given.quick), run_one, given.jobs)


if __name__ == "__main__":
    main()
