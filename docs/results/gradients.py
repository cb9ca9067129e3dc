"""Do the papers' claims on leakage through cut gradients hold on data within reach? The study behind `gradients.md`.

Usage::

    python docs/results/gradients.py run --jobs 2             # all runs; a finished one is not made again
    python docs/results/gradients.py run --study census --quick --runs runs/quick
    python docs/results/gradients.py page                     # numbers, tables and figures from the runs

Runs lie in `--runs` (default runs/gradients) as `<study>/<setting>/seed-<n>`; `page` writes `gradients.json`, the
figures and the marked blocks of `gradients.md`, all beside this file.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import shutil
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True)
class Job:
    """One run.

    Attributes
    ----------
    study, setting : str
        Of `STUDIES` and `SETTINGS`.
    seed : int
        Seed of the run.
    folder : Path
        Where it goes.
    quick : bool
        One epoch, each tenth step attacked.
    """

    study: str
    setting: str
    seed: int
    folder: Path
    quick: bool

    @property
    def done(self) -> bool:
        """Whether the run is there, complete."""
        return (self.folder / "result.json").is_file()


def jobs_of(runs: Path, studies: list[str], settings: list[str], seeds: list[int], *, quick: bool) -> list[Job]:
    """Return the runs, seed by seed: a study that is stopped early has fewer seeds, not fewer settings."""
    return [
        Job(study, setting, seed, runs / study / setting / f"seed-{seed}", quick)
        for study in studies
        for seed in seeds
        for setting in settings
    ]


def run_one(job: Job) -> float:
    """Do one run; its folder appears when it is complete.

    Returns
    -------
    float
        Seconds.
    """
    from gradients_probe import Probe

    from flower_vfl import build_config, load_config, run
    from flower_vfl.strategies import DEFENSES

    DEFENSES.setdefault(Probe.name, Probe)
    # Only the attackers measure: at the cut they see what the label party's monitor would see.
    attack = {"names": ATTACKS, "monitor": False, "every": 10 if job.quick else 1}
    preset = load_config(STUDIES[job.study], {"seed": job.seed}).model_dump()
    training = {**preset["training"], **({"epochs": 1} if job.quick else {})}
    changed = {"attack": {**preset["attack"], **attack}, "training": training, "defenses": SETTINGS[job.setting]}
    started = time.perf_counter()
    part = job.folder.with_name(f"{job.folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    result = run(build_config({**preset, **changed}), out=part)
    if result.status != "finished":
        raise RuntimeError(f"{job.folder} ended with {result.status!r}")
    part.rename(job.folder)
    return time.perf_counter() - started


def run_all(jobs: list[Job], processes: int) -> None:
    """Do the runs that are not there yet, each in a process with one torch thread."""
    waiting = [job for job in jobs if not job.done]
    print(f"{len(jobs) - len(waiting)} runs are there, {len(waiting)} to do", flush=True)
    # Not forked: torch's threads do not survive it.
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(run_one, job): job for job in waiting}
        for number, future in enumerate(as_completed(futures), start=1):
            print(f"[{number}/{len(waiting)}] {futures[future].folder}: {future.result():.1f} s", flush=True)


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
        blocks[f"{study} claims"] = claims.claim_table(summary["claims"])
    (out / "gradients.json").write_text(
        _one_line_a_list(json.dumps(studies, indent=1, allow_nan=False)) + "\n", encoding="utf8"
    )
    page = out / "gradients.md"
    if page.is_file():
        page.write_text(numbers.fill(page.read_text(encoding="utf8"), blocks), encoding="utf8")


def _one_line_a_list(text: str) -> str:
    """Put each list of plain values on one line."""
    return re.sub(r"\[\s+([^][{}]*?)\s+\]", lambda match: f"[{' '.join(match[1].split())}]", text)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="do the runs that are not there yet")
    run.add_argument("--study", nargs="+", choices=list(STUDIES), default=list(STUDIES))
    run.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    run.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    run.add_argument("--jobs", type=int, default=1, help="processes, each with one torch thread")
    run.add_argument("--quick", action="store_true", help="one seed, one epoch, a few settings: does it run?")
    page = commands.add_parser("page", help="numbers, tables and figures from the runs")
    page.add_argument("--out", type=Path, default=HERE, help="where gradients.md lies")
    for command in (run, page):
        command.add_argument("--runs", type=Path, default=Path("runs/gradients"))
    given = parser.parse_args()
    if given.command == "page":
        make_page(given.runs, given.out)
        return
    settings = [name for name in given.settings if name in QUICK] if given.quick else given.settings
    seeds = given.seeds[:1] if given.quick else given.seeds
    run_all(jobs_of(given.runs, given.study, settings, seeds, quick=given.quick), given.jobs)


if __name__ == "__main__":
    main()
