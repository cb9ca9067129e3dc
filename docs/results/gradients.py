"""Do the papers' claims on leakage through cut gradients hold on data within reach? The study behind `gradients.md`.

Usage::

    python docs/results/gradients.py run --jobs 2             # all runs; a finished one is not made again
    python docs/results/gradients.py run --study census --quick --runs runs/quick
    python docs/results/gradients.py page                     # numbers, tables and figures from the runs

Runs lie in `--runs` (default runs/gradients) as `<study>/<setting>/seed-<n>`; `page` writes `gradients.json`, the
figures and the marked blocks of `gradients.md`, all beside this file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from studies import Job, claim_table, commands, do, do_all, job_of, write_page

HERE = Path(__file__).resolve().parent
STUDIES = {"census": "census", "shirt": "fashion-shirt"}
"""Studies by name, and the preset of each."""

ATTACKS = ["norm", "cosine", "inner_product", "direction_count", "hint(k=5)"]
RATIOS = (0.25, 1, 2, 5, 10, 25)
STRENGTHS = (0.1, 0.25, 1, 2, 4, 10, 25)
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "none": [],
    **{f"iso-{ratio}": [{"name": "iso", "t": float(ratio**2)}] for ratio in RATIOS},
    "max_norm": [{"name": "max_norm"}],
    **{f"marvell-{s}": [{"name": "marvell", "s": float(s)}] for s in STRENGTHS},
    "probe": [{"name": "probe", "every": 10}],
}
"""Settings by name: the authors' `ratio` of iso (t = ratio ** 2), Marvell's s; "probe" looks into an undefended run."""

SEEDS = range(5)
QUICK = ("none", "iso-5", "max_norm", "marvell-0.25", "marvell-4", "probe")


def jobs_of(runs: Path, names: list[str], settings: list[str], seeds: list[int], *, quick: bool) -> list[Job]:
    """Return the runs, seed by seed: a study that is stopped early has fewer seeds, not fewer settings."""
    return [
        job_of(runs, study, setting, seed, quick=quick) for study in names for seed in seeds for setting in settings
    ]


def run_one(job: Job) -> float:
    """Do one run and return its seconds; a quick one has one epoch, of which each tenth step is attacked."""
    from gradients_probe import Probe

    from flower_vfl import build_config, load_config
    from flower_vfl.strategies import DEFENSES

    DEFENSES.setdefault(Probe.name, Probe)
    quick = job.options["quick"]
    # Only the attackers measure: at the cut they see what the label party's monitor would see.
    attack = {"names": ATTACKS, "monitor": False, "every": 10 if quick else 1}
    preset = load_config(STUDIES[job.study], {"seed": job.seed}).model_dump()
    training = {**preset["training"], **({"epochs": 1} if quick else {})}
    changed = {"attack": {**preset["attack"], **attack}, "training": training, "defenses": SETTINGS[job.setting]}
    return do(job, build_config({**preset, **changed}))


def make_page(runs: Path, out: Path) -> None:
    """Compute everything that the page shows from the runs' files."""
    import gradients_claims as claims
    import gradients_figures as figures
    import gradients_numbers as numbers

    found = {study: numbers.collect(runs / study, SETTINGS) for study in STUDIES}
    studies = {study: summary for study, summary in found.items() if "none" in summary["settings"]}
    blocks = {}
    for study, summary in studies.items():
        summary["claims"] = claims.verdicts(summary)
        figures.trade_off(summary, out / f"gradients-{study}-trade-off.png")
        if summary["probe"]:
            figures.observations(summary["probe"], out / f"gradients-{study}-observations.png")
        blocks[f"{study} leaks"] = numbers.leak_table(summary)
        blocks[f"{study} utility"] = numbers.utility_table(summary)
        blocks[f"{study} claims"] = claim_table(summary["claims"])
    write_page(out / "gradients.md", studies, blocks)


def main() -> None:
    """Read the command line."""
    parser, run = commands(__doc__, Path("runs/gradients"), HERE)
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
