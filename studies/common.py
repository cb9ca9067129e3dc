"""Shared code of the studies: runs that are made once, numbers over seeds, verdicts, and tables of a page."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from numpy.typing import NDArray
from scipy import stats

if TYPE_CHECKING:
    from flower_vfl.config import Config

PAGES = Path(__file__).resolve().parents[1] / "docs" / "results"
"""Folder of the pages of results, with their numbers and figures."""

Summary = dict[str, Any]
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Job:
    """One run.

    Attributes
    ----------
    study, setting : str
        Names of its study and setting.
    seed : int
        Seed of the run.
    folder : Path
        Folder of its results.
    options : Mapping[str, Any]
        Further options of the study, such as `quick`.
    """

    study: str
    setting: str
    seed: int
    folder: Path
    options: Mapping[str, Any]

    @property
    def done(self) -> bool:
        """True if the run is complete."""
        return (self.folder / "result.json").is_file()


def job_of(runs: Path, study: str, setting: str, seed: int, **options: Any) -> Job:
    """Return a run with its folder, `<runs>/<study>/<setting>/seed-<n>`."""
    return Job(study, setting, seed, runs / study / setting / f"seed-{seed}", options)


def do(job: Job, config: Config, **more: Any) -> float:
    """Do one run; its folder appears when it is complete.

    Parameters
    ----------
    job : Job
        The run.
    config : Config
        Configuration of the run.
    **more
        Further arguments of `flower_vfl.run`, such as `data`.

    Returns
    -------
    float
        Seconds of the run.

    Raises
    ------
    FolderInUseError
        When another process is doing the run.
    """
    from flower_vfl import run
    from flower_vfl.files import FolderLock

    started = time.perf_counter()
    part = job.folder.with_name(f"{job.folder.name}.part")
    if part.exists():
        with FolderLock(part):  # held by a process whose study was killed and that goes on nevertheless
            shutil.rmtree(part)
    result = run(config, out=part, **more)
    if result.status not in ("finished", "early stopping"):
        raise RuntimeError(f"{job.folder} ended with {result.status!r}")
    part.rename(job.folder)
    return time.perf_counter() - started


def do_all(jobs: Sequence[Job], work: Callable[[Job], float], processes: int) -> None:
    """Do the missing runs, each in a process with one torch thread; one that fails stops no other.

    Raises
    ------
    SystemExit
        At the end, if runs failed; the message names them.
    """
    waiting = [job for job in jobs if not job.done]
    print(f"{len(jobs) - len(waiting)} runs are there, {len(waiting)} to do", flush=True)
    failed = []
    # Not forked: torch's threads do not survive it.
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(work, job): job for job in waiting}
        for number, future in enumerate(as_completed(futures), start=1):
            folder, error = futures[future].folder, future.exception()
            failed += [] if error is None else [f"{folder}: {type(error).__name__}: {error}"]
            words = f"{future.result():.1f} s" if error is None else f"failed: {error}"
            print(f"[{number}/{len(waiting)}] {folder}: {words}", flush=True)
    if failed:
        raise SystemExit("\n".join(["some runs failed:", *failed]))


@dataclass(frozen=True)
class Study:
    """A page of results: its runs, and the function that makes the page from them.

    Attributes
    ----------
    description : str
        The subject of the page, and how its script is used.
    name : str
        Name of the page; runs lie in `runs/<name>` by default.
    studies, settings, seeds
        Studies, settings and seeds, of which each combination is a run.
    quick : Sequence[str]
        The settings of a quick run.
    run_one : Callable
        Function that does a run and returns its seconds; the job's option `quick` is true for a quick one.
    make_page : Callable
        Function of the folder of the runs and the folder of the page.
    """

    description: str | None
    name: str
    _: KW_ONLY
    studies: Iterable[str]
    settings: Iterable[str]
    seeds: Iterable[int]
    quick: Sequence[str]
    run_one: Callable[[Job], float]
    make_page: Callable[[Path, Path], None]

    def main(self) -> None:
        """Run the command line of the page."""
        parser, run = commands(self.description, self.name)
        for option, values in (("--study", list(self.studies)), ("--settings", list(self.settings))):
            run.add_argument(option, nargs="+", choices=values, default=values)
        run.add_argument("--seeds", nargs="+", type=int, default=list(self.seeds))
        obey(parser, self._jobs, self.run_one, self.make_page)

    def _jobs(self, given: argparse.Namespace) -> list[Job]:
        return [
            job_of(given.runs, study, setting, seed, quick=given.quick)
            for seed in (given.seeds[:1] if given.quick else given.seeds)
            for study in given.study
            for setting in given.settings
            if setting in self.quick or not given.quick
        ]


def commands(description: str | None, name: str) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """Return a parser with the subcommands `run` and `page`, and that of `run`, to which a study adds its options."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    subcommands = parser.add_subparsers(dest="command", required=True)
    run = subcommands.add_parser("run", help="do the runs that are not there yet")
    run.add_argument("--jobs", type=int, default=1, help="processes, each with one torch thread")
    run.add_argument("--quick", action="store_true", help="one seed, one epoch, a few settings: does it run?")
    page = subcommands.add_parser("page", help="numbers, tables and figures from the runs")
    page.add_argument("--out", type=Path, default=PAGES, help="where the page lies")
    for command in (run, page):
        command.add_argument("--runs", type=Path, default=Path("runs") / name)
    return parser, run


def obey(
    parser: argparse.ArgumentParser,
    jobs: Callable[[argparse.Namespace], Sequence[Job]],
    run_one: Callable[[Job], float],
    make_page: Callable[[Path, Path], None],
) -> None:
    """Run the command line; `jobs` returns the runs for its options.

    They are ordered by seed: a study that is stopped early has fewer seeds, not fewer settings.
    """
    given = parser.parse_args()
    if given.command == "page":
        make_page(given.runs, given.out)
    else:
        do_all(jobs(given), run_one, given.jobs)


def finished(folder: Path) -> list[tuple[Path, Summary]]:
    """Return the folders and results of a setting's complete runs, by seed."""
    found = sorted(folder.glob("seed-*[0-9]"), key=lambda run: int(run.name.removeprefix("seed-")))
    results = [(run, run / "result.json") for run in found]
    return [(run, json.loads(path.read_text(encoding="utf8"))) for run, path in results if path.is_file()]


def by_setting(
    folder: Path, settings: Iterable[str], numbers: Callable[[Summary], Iterable[tuple[str, float]]]
) -> Summary:
    """Return, for each setting of a study that was run, the seeds and the values of `numbers` for each, by name."""
    found: dict[str, dict[str, list[float]]] = {}
    for setting in settings:
        for _, result in finished(folder / setting):
            entry = found.setdefault(setting, {"seeds": []})
            entry["seeds"].append(result["environment"]["seed"])
            for name, value in numbers(result):
                entry.setdefault(name, []).append(value)
    return {"settings": found}


def undefended(studies: Iterable[str], collect: Callable[[str], Summary]) -> dict[str, Summary]:
    """Return the collected numbers of each study that has runs without a defense."""
    found = {study: collect(study) for study in studies}
    return {study: summary for study, summary in found.items() if "none" in summary["settings"]}


def earlier(page: Path) -> dict[str, Summary]:
    """Return the numbers beside a page, by study; nothing where there are none."""
    numbers = page.with_suffix(".json")
    return json.loads(numbers.read_text(encoding="utf8")) if numbers.is_file() else {}


def write_page(page: Path, studies: Mapping[str, Summary], blocks: Mapping[str, str]) -> dict[str, Summary]:
    """Write the numbers beside a page, and its generated blocks into it; return the numbers of all its studies.

    A study without runs keeps the numbers and blocks that it has.
    """
    all_studies = {**earlier(page), **studies}
    text = json.dumps(all_studies, indent=1, allow_nan=False)
    text = re.sub(r"\[\s+([^][{}]*?)\s+\]", lambda match: f"[{' '.join(match[1].split())}]", text)  # a list, a line
    page.with_suffix(".json").write_text(f"{text}\n", encoding="utf8")
    if page.is_file():
        page.write_text(fill(page.read_text(encoding="utf8"), blocks), encoding="utf8")
    return all_studies


def fill(page: str, blocks: Mapping[str, str]) -> str:
    """Return a page with blocks between their marks, `<!-- begin NAME -->` and `<!-- end NAME -->`."""
    for name, block in blocks.items():
        marks = re.compile(rf"(<!-- begin {re.escape(name)} -->\n).*?(<!-- end {re.escape(name)} -->)", re.DOTALL)
        page = marks.sub(lambda match, block=block: f"{match[1]}{block}\n{match[2]}", page)  # type: ignore[misc]
    return page


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def interval(values: Sequence[float] | Values) -> tuple[float, float]:
    """Return the mean over seeds and half the width of its 95 % interval (Student's t); infinite for one seed."""
    array = np.asarray(values, dtype=np.float64)
    if array.size < 2:
        return float(array.mean()), float("inf")
    half = stats.t.ppf(0.975, array.size - 1) * array.std(ddof=1) / np.sqrt(array.size)
    return float(array.mean()), float(half)


def shown(values: Sequence[float] | Values, digits: int = 3) -> str:
    """Write mean ± half-width; the mean alone where there is one seed."""
    mean, half = interval(values)
    return f"{mean:.{digits}f}" + (f" ± {half:.{digits}f}" if np.isfinite(half) else "")


def family(summary: Summary, name: str) -> list[str]:
    """Return the settings of a defense that were run, weakest first."""
    return [setting for setting in summary["settings"] if setting.startswith(f"{name}-")]


def places(summary: Summary, settings: Sequence[str]) -> dict[str, list[int]]:
    """Return, for each setting, the positions of the seeds that all settings have."""
    seeds = {setting: summary["settings"][setting]["seeds"] for setting in settings}
    shared = sorted(set.intersection(*(set(of) for of in seeds.values())))
    return {setting: [of.index(seed) for seed in shared] for setting, of in seeds.items()}


def paired(summary: Summary, one: str, other: str, values: Callable[[str], Sequence[float] | Values]) -> Values:
    """Return the difference of two settings in `values`, one a seed, seed by seed of those that both have."""
    at = places(summary, [one, other])
    ours, theirs = (np.asarray(values(setting), dtype=np.float64)[at[setting]] for setting in (one, other))
    return ours - theirs


def share_below(ours: Values, theirs: Values) -> float:
    """Return the share of 500 evenly spaced utilities that both curves reach at which `ours` leaks less.

    Parameters
    ----------
    ours, theirs : (N, 2) and (M, 2)
        Points (utility, leak) of one method each; between neighbours in utility, leak is interpolated.
    """
    ours, theirs = ours[ours[:, 0].argsort()], theirs[theirs[:, 0].argsort()]
    low, high = max(ours[0, 0], theirs[0, 0]), min(ours[-1, 0], theirs[-1, 0])
    if not low < high:
        return float("nan")
    # Without the ends: at the right one both curves may be the same undefended run.
    at = np.linspace(low, high, 502)[1:-1]
    return float((np.interp(at, *ours.T) < np.interp(at, *theirs.T)).mean())


def share_with_interval(ours: Values, theirs: Values) -> dict[str, float]:
    """Return `share_below` of the means over seeds, with its 95 % interval from 2,000 bootstrap draws of seeds.

    Parameters
    ----------
    ours, theirs : (N, 2, S) and (M, 2, S)
        Points (utility, leak) of one method each, with seeds in the last dimension.
    """
    seeds = ours.shape[2]
    share = share_below(ours.mean(axis=2), theirs.mean(axis=2))
    if seeds < 2:  # one seed has no interval
        return {"share": share, "low": 0.0, "high": 1.0}
    drawn = [
        share_below(ours[:, :, rows].mean(axis=2), theirs[:, :, rows].mean(axis=2))
        for rows in np.random.default_rng(0).integers(0, seeds, (2000, seeds))
    ]
    low, high = np.nanquantile(drawn, (0.025, 0.975))
    return {"share": share, "low": float(low), "high": float(high)}


class Verdict(TypedDict):
    """A claim, True if it holds (None: undecided, its interval contains the threshold), and its numbers."""

    claim: str
    holds: bool | None
    numbers: str


def verdict(claim: str, holds: bool | np.bool_ | None, numbers: str) -> Verdict:
    """Return a verdict that JSON can hold."""
    return {"claim": claim, "holds": None if holds is None else bool(holds), "numbers": numbers}


def above(mean: float, half: float) -> bool | None:
    """Return True if a number's whole interval is above 0, False if it is below, and None otherwise."""
    return True if mean - half > 0.0 else False if mean + half < 0.0 else None


def all_of(judged: Sequence[bool | None]) -> bool | None:
    """Return True if all parts of a claim hold, False if one does not, else None: undecided, or no part at all."""
    return False if False in judged else None if None in judged or not judged else True


def claim_table(found: Iterable[Verdict]) -> str:
    """Write a table of verdicts."""
    words = {True: "holds", False: "**does not hold**", None: "undecided"}
    return table(
        ["claim", "verdict", "numbers"], [[one["claim"], words[one["holds"]], one["numbers"]] for one in found]
    )


def save(figure: Any, path: Path, rect: tuple[float, float, float, float] | None = None, **options: Any) -> None:
    """Save a figure of matplotlib, laid out within `rect`, with these options of `savefig`, and close it."""
    from matplotlib import pyplot as plt

    figure.tight_layout(rect=rect)
    figure.savefig(path, **options)
    plt.close(figure)
