"""Attacks on the gradients of several trainings of the same people: the study behind `trainings.md`.

Usage::

    python -m studies trainings run                       # all histories; a finished one is not made again
    python -m studies trainings run --quick --runs runs/quick
    python -m studies trainings page                      # numbers, tables and figure from them

A run is a whole history: eight trainings from scratch, and the leak AUCs after 1, 2, 4 and 8 of them. Histories lie in
`--runs` (default runs/trainings) as `<study>/<setting>/seed-<n>`; `page` writes `trainings.json`, the figure and the
marked blocks of `trainings.md`, in `docs/results`.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from studies.common import (
    Job,
    Study,
    Summary,
    Values,
    Verdict,
    claim_table,
    finished,
    interval,
    paired,
    save,
    shown,
    table,
    verdict,
    write_page,
)

if TYPE_CHECKING:
    from flower_vfl.config import Config
    from flower_vfl.data.store.memory import MemoryData
    from flower_vfl.rng import Secret

PEOPLE, TEST, EPOCHS, BATCH = 6_144, 2_000, 4, 512
PART = 0.7
"""The share of the people who take part in a training of a part."""

COUNTS = (1, 2, 4, 8)
"""Numbers of trainings after which all of them are attacked."""

RHO = 0.9
DEFENSES: dict[str, dict[str, Any]] = {
    "marvell": {"name": "marvell", "s": 4.0},
    "full": {"name": "marvell_full", "s": 4.0},
    "iso": {"name": "iso", "t": 25.0},
}


@dataclass(frozen=True)
class Scheme:
    """The properties that the trainings of a history share.

    Attributes
    ----------
    rho
        The persistent share of the noise.
    key
        True if all have one key of persistent noise.
    file
        True if all have one secret for everything, and one order of batches.
    part
        The share of the people who take part in each.
    ids
        True if noise follows the people's IDs; False if it follows their places in each training's table.
    """

    rho: float = RHO
    key: bool = True
    file: bool = False
    part: float = 1.0
    ids: bool = True


SCHEMES = {
    "fresh": Scheme(rho=0.0),
    "new-keys": Scheme(key=False),
    "one-key": Scheme(),
    "one-key-parts": Scheme(part=PART),
    "one-key-parts-by-place": Scheme(part=PART, ids=False),
    "one-secret-file": Scheme(file=True),
}
TRIED = {"marvell": list(SCHEMES)[:4], "full": list(SCHEMES), "iso": list(SCHEMES)[:3]}
"""The schemes of each defense; noise by places, and one secret for everything, are tried behind one defense only."""

SETTINGS = {f"{defense}-{scheme}": (defense, scheme) for defense, schemes in TRIED.items() for scheme in schemes}
SEEDS = range(5)
QUICK = ("full-fresh", "full-one-key-parts")
GAIN = 0.02
"""Largest growth of a leak by further trainings that counts as none."""


def some_people(config: Config, rows: NDArray[np.int64], test: NDArray[np.int64], *, ids: bool) -> MemoryData:
    """Return the census of these people only, in this order."""
    from flower_vfl.apps.factories import open_data
    from flower_vfl.data import Labels, MemoryData
    from flower_vfl.data.store.source import SomeRows

    whole = open_data(config)
    labels = whole.labels()
    tables = {
        party: replace(found, train=SomeRows(found.train, rows), test=SomeRows(found.test, test))
        for party, found in ((party, whole.party(party)) for party in whole.parties)
    }
    target = Labels(labels.train[rows], labels.test[test], labels.classes)
    known = [f"train-{row}" for row in rows.tolist()] if ids else None
    return MemoryData(whole.name, tables, whole.label_party, target, ids=known)


def train(config: Config, data: MemoryData, secret: Secret) -> float:
    """Train in this process, with a label party of this secret, and return the test AUC."""
    from flower_vfl.apps.client_app import make_client_app
    from flower_vfl.apps.factories import default_bottom, default_top, parties_here, torch_threads
    from flower_vfl.apps.label_party import build_strategy
    from flower_vfl.apps.local_grid import LocalGrid
    from flower_vfl.config import to_run_config
    from flower_vfl.strategies import Observer, Outcome

    strategy = build_strategy(
        config,
        data,
        data.labels(),
        top=default_top,
        bottom=default_bottom,
        secret=secret,
        observer=Observer(),
        outcome=Outcome(),
    )
    client = make_client_app(data=lambda _: data, config=config)
    grid = LocalGrid(client, len(parties_here(config, data)), to_run_config(config))
    with torch_threads(1):
        strategy.start(grid)
    grid.join(10.0)
    return float(strategy.base.outcome.epochs[-1]["test_auc"])


def history(job: Job, counts: Iterable[int]) -> Summary:
    """Train repeatedly; return the leak AUC of each reader after each of the numbers of trainings, in a list."""
    from flower_vfl import load_config
    from flower_vfl.metrics import leak_auc
    from flower_vfl.rng import Secret
    from flower_vfl.strategies import DEFENSES as BUILT_IN
    from studies.trainings.attack import Heedless, Kept, Notebook, read

    BUILT_IN[Heedless.name] = Heedless

    defense, name = SETTINGS[job.setting]
    scheme, rng = SCHEMES[name], np.random.default_rng(job.seed)
    changed = {
        "attack.names": ["studies.trainings.attack:Notebook"],
        "attack.layers": ["cut"],
        "attack.monitor": False,
        "attack.snapshots": [],
        "model.bottom": [128, 64],
        "training.epochs": EPOCHS,
        "training.batch_size": BATCH,
        "training.validation": 0.0,
        "defenses": [{**DEFENSES[defense], "rho": scheme.rho}],
    }
    config = load_config("census", changed)
    people, test = (
        rng.permutation(count)[:wanted] for count, wanted in zip(_rows(config), (PEOPLE, TEST), strict=True)
    )
    everyone = some_people(config, people, test, ids=True).labels().train
    key, secret, kept, utility = rng.bytes(32), rng.bytes(32), list[Kept](), []
    leaks: dict[str, list[float]] = {}
    for number in range(1, max(counts) + 1):
        took_part = rng.permutation(PEOPLE)[: round(PEOPLE * scheme.part)]
        own = Secret(secret if scheme.file else rng.bytes(32), "study", noise_key=key if scheme.key else None)
        data = some_people(config, people[took_part], test, ids=scheme.ids)
        seed = 1000 * job.seed + number
        order = 1000 * job.seed if scheme.file else seed
        utility.append(train(config.model_copy(update={"seed": seed, "schedule_seed": order}), data, own))
        seen, means = Notebook.latest[-1]
        kept.append(Kept(took_part[seen], means))
        if number in counts:
            for reader, scores in read(kept, PEOPLE).items():
                known = ~scores.isnan().numpy()
                leaks.setdefault(reader, []).append(leak_auc(scores.numpy()[known], everyone[known]))
    return {"environment": {"seed": job.seed}, "counts": list(counts), "test_auc": utility, "leak": leaks}


def _rows(config: Config) -> tuple[int, int]:
    from flower_vfl.apps.factories import open_data

    aligned = open_data(config).alignment
    return aligned.rows, aligned.test_rows


def run_one(job: Job) -> float:
    """Make one history and return its seconds; a quick one has two trainings."""
    started = time.perf_counter()
    found = history(job, COUNTS[:2] if job.options["quick"] else COUNTS)
    part = job.folder.with_name(f"{job.folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    (part / "result.json").write_text(json.dumps(found), encoding="utf8")
    part.rename(job.folder)
    return time.perf_counter() - started


def collect(folder: Path) -> Summary:
    """Read the finished histories: of each setting seeds, mean test AUC, and by reader a leak a count and seed."""
    found: Summary = {"counts": list(COUNTS), "settings": {}}
    for setting in SETTINGS:
        results = [result for _, result in finished(folder / setting) if result["counts"] == list(COUNTS)]
        if results:
            found["settings"][setting] = {
                "seeds": [result["environment"]["seed"] for result in results],
                "test_auc": [round(float(np.mean(result["test_auc"])), 5) for result in results],
                "leak": {
                    reader: [[round(value, 5) for value in result["leak"][reader]] for result in results]
                    for reader in results[0]["leak"]
                },
            }
    return found


def leak(summary: Summary, setting: str, reader: str) -> Values:
    """Return a leak, (seeds, counts), without the first count for differences; below one half the sign is reversed."""
    values = np.asarray(summary["settings"][setting]["leak"][reader], dtype=np.float64)
    turned: Values = np.maximum(values, 1.0 - values)
    return turned


def strongest(summary: Summary, setting: str) -> Values:
    """Return the leak AUC of the strongest attack after each count, (seeds, counts)."""
    found = [leak(summary, setting, reader) for reader in summary["settings"][setting]["leak"]]
    whole = max(values.shape[1] for values in found)
    best: Values = np.stack([np.pad(values, ((0, 0), (whole - values.shape[1], 0))) for values in found]).max(axis=0)
    return best


def growth(summary: Summary, setting: str) -> Values:
    """Return the leak AUC of the strongest attack after the last training minus that after the first, (seeds,)."""
    found = strongest(summary, setting)
    return found[:, -1] - found[:, 0]


def exceeds(values: Values, limit: float) -> bool | None:
    """Return True if a mean over seeds lies above a limit; None where its interval contains the limit."""
    mean, half = interval(values)
    return None if abs(mean - limit) <= half else mean > limit


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


def verdicts(summary: Summary) -> list[Verdict]:
    """Judge the expectations."""
    found = []
    for defense in DEFENSES:
        for name, scheme in SCHEMES.items():
            setting = f"{defense}-{name}"
            if setting in summary["settings"] and not scheme.file:
                added = growth(summary, setting)
                grows, holds = exceeds(added, GAIN), scheme.rho > 0.0 and scheme.key and scheme.ids
                words = f"add {'at most' if holds else 'more than'} {GAIN} to the leak AUC"
                found.append(
                    verdict(f"{setting}: seven more trainings {words}", _not(grows) if holds else grows, shown(added))
                )
        found += _compared(summary, f"{defense}-new-keys", f"{defense}-one-key", -1, "after eight trainings")
        found += _compared(summary, f"{defense}-one-secret-file", f"{defense}-fresh", 1, "after two trainings")
    return found


def _compared(summary: Summary, more: str, less: str, count: int, when: str) -> list[Verdict]:
    """Judge that one setting leaks more than another."""
    if not {more, less} <= summary["settings"].keys():
        return []
    gap = paired(summary, more, less, lambda setting: strongest(summary, setting)[:, count])
    return [verdict(f"{more} leaks more than {less} {when}", exceeds(gap, 0.0), shown(gap))]


def leak_table(summary: Summary) -> str:
    """Write the leak AUC of each attack after the counts."""
    readers = list(dict.fromkeys(name for entry in summary["settings"].values() for name in entry["leak"]))
    rows = []
    for setting, entry in summary["settings"].items():
        cells = [setting, str(len(entry["seeds"])), shown(entry["test_auc"])]
        for reader in readers:
            values = leak(summary, setting, reader)
            cells.append(" → ".join([*(f"{value:.3f}" for value in values.mean(axis=0)[:-1]), shown(values[:, -1])]))
        rows.append(cells)
    return table(["setting", "seeds", "test AUC", *readers], rows)


def draw(summary: Summary, path: Path) -> None:
    """Draw the leak AUC of the strongest attack over the number of trainings."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    there = [name for name in DEFENSES if any(setting.startswith(f"{name}-") for setting in summary["settings"])]
    figure, axes = plt.subplots(1, len(there), figsize=(4 * len(there) + 2.2, 3.6), sharey=True, squeeze=False)
    for axis, defense in zip(axes[0], there, strict=True):
        for number, scheme in enumerate(SCHEMES):
            if (setting := f"{defense}-{scheme}") not in summary["settings"]:
                continue
            means, halves = np.transpose([interval(values) for values in strongest(summary, setting).T])
            at, halves = np.asarray(COUNTS) * 1.03**number, np.where(np.isfinite(halves), halves, 0.0)
            axis.errorbar(at, means, halves, color=f"C{number}", marker="o", ms=3, lw=1.2, capsize=2, label=scheme)
        axis.set_xscale("log", base=2)
        axis.set_xticks(COUNTS, [str(count) for count in COUNTS])
        axis.axhline(0.5, color="grey", ls=":", lw=0.8)
        axis.set_title(defense, fontsize=9)
        axis.set_xlabel("trainings from scratch")
        axis.grid(alpha=0.25)
    axes[0][0].set_ylabel("leak AUC, strongest attack")
    named = {label: line for axis in axes[0] for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(named.values(), named.keys(), fontsize=8, loc="center right")
    save(figure, path, (0, 0, 1 - 2.2 / (4 * len(there) + 2.2), 1), dpi=130)


def make_page(runs: Path, out: Path) -> None:
    """Compute everything that the page shows from the histories."""
    summary = collect(runs / "census")
    summary["claims"] = verdicts(summary)
    draw(summary, out / "trainings.png")
    blocks = {"leaks": leak_table(summary), "claims": claim_table(summary["claims"])}
    write_page(out / "trainings.md", {"census": summary}, blocks)


STUDY = Study(
    __doc__,
    "trainings",
    studies=["census"],
    settings=SETTINGS,
    seeds=SEEDS,
    quick=QUICK,
    run_one=run_one,
    make_page=make_page,
)
