"""Tests of the papers' claims on label leakage from embeddings: the study behind `embeddings.md`.

Usage::

    export FLOWER_VFL_DATASETS=DIR  # with mnist, cifar10-jpeg and, without the package of Debian, fashion-mnist
    python -m studies embeddings run                              # all runs; a finished one is not made again
    python -m studies embeddings run --study mnist --quick --runs runs/quick
    python -m studies embeddings run --size paper --device cuda   # the papers' own size, for a GPU
    python -m studies embeddings page                             # numbers, tables and figures from the runs

Runs lie in `--runs` (default runs/embeddings) as `<study>/<setting>/seed-<n>`; all studies do their first seed before
any does its second. `page` writes `embeddings.json`, the figures and the marked blocks of `embeddings.md`, in
`docs/results`.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from studies.common import Job, claim_table, commands, do, job_of, obey, write_page
from studies.embeddings.settings import NIGHT, SIZES

SEEDS = max(study.seeds for studies in SIZES.values() for study in studies.values())
QUICK = ("none", "pe-4", "dcor-8", "label_dp-0.04", "marvell-4", "none-4", "none-128", "pe-4", "pe-128")


def jobs_of(given: Namespace) -> list[Job]:
    """Return the runs, seeds outermost: a study that is stopped early has fewer seeds, not fewer settings."""
    studies = {name: SIZES[given.size][name] for name in given.study}
    seeds = [0] if given.quick else given.seeds
    options = {"size": given.size, "quick": given.quick, "device": given.device}
    return [
        job_of(given.runs, name, setting, seed, **options)
        for seed in seeds
        for name, study in studies.items()
        if seed < study.seeds
        for setting in study.order
        if (setting in QUICK or not given.quick) and setting in (given.settings or [setting])
    ]


def config_of(job: Job) -> Mapping[str, Any]:
    """Return the configuration of a run as it is given to `build_config`."""
    from flower_vfl import load_config

    study = SIZES[job.options["size"]][job.study]
    attacks = study.attacks[:3] if job.options["quick"] else study.attacks
    # Only the attackers measure: they have what the monitor would have at the cut, and their own columns too.
    values: dict[str, Any] = {"attack": {"names": attacks, "layers": list(study.layers), "monitor": False}}
    if job.options["quick"]:
        values = merged(values, study.small, {"training": {"epochs": 1}})
    run = {"seed": job.seed, "device": job.options["device"]}
    preset = load_config(study.preset).model_dump()
    return merged(preset, study.changes, study.settings[job.setting], values, run)


def merged(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested mappings merged into one; later ones take precedence.

    Examples
    --------
    >>> merged({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}})
    {'a': {'b': 1, 'c': 3}}
    """
    found: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            inner = isinstance(value, Mapping) and isinstance(found.get(name), Mapping)
            found[name] = merged(found[name], value) if inner else value
    return found


def run_one(job: Job) -> float:
    """Do one run and return its seconds."""
    from flower_vfl import build_config

    return do(job, build_config(dict(config_of(job))))


def make_page(runs: Path, out: Path) -> None:
    """Compute everything that the page shows from the runs' files."""
    from studies.embeddings import claims, figures, numbers

    studies, blocks = {}, {}
    for name, study in NIGHT.items():
        summary = numbers.collect(runs / name, study.settings)
        if not summary["settings"]:
            continue
        summary["claims"] = claims.verdicts(name, summary)
        studies[name] = summary
        figures.draw(name, summary, runs / name, out)
        blocks[f"{name} claims"] = claim_table(summary["claims"])
        blocks[f"{name} attacks"] = numbers.attack_table(summary)
        blocks[f"{name} utility"] = numbers.utility_table(summary)
    write_page(out / "embeddings.md", studies, blocks)


def main() -> None:
    """Run the command line of the page."""
    parser, run = commands(__doc__, "embeddings")
    run.add_argument("--size", choices=list(SIZES), default="night", help="for two cores and a night, or the papers'")
    run.add_argument("--study", nargs="+", choices=list(NIGHT), default=list(NIGHT))
    run.add_argument("--settings", nargs="+", help="only these")
    run.add_argument("--seeds", nargs="+", type=int, default=list(range(SEEDS)), help="of a study as many as it has")
    run.add_argument("--device", default="cpu", help="torch device of the models")
    obey(parser, jobs_of, run_one, make_page)
