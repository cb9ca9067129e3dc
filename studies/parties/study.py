"""Several parties: noise on their joint gradient against noise on each one's. The study behind `parties.md`.

Usage::

    python -m studies parties run                 # all runs; a finished one is not made again
    python -m studies parties run --quick --runs runs/quick
    python -m studies parties page                # numbers, tables and the figure from the runs

Runs lie in `--runs` (default runs/parties) as `<layout>/<setting>/seed-<n>`; `page` writes `parties.json`, the figure
and the marked blocks of `parties.md`, in `docs/results`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from studies.common import (
    Job,
    Study,
    Summary,
    Values,
    Verdict,
    all_of,
    by_setting,
    claim_table,
    do,
    interval,
    places,
    save,
    shown,
    table,
    undefended,
    verdict,
    write_page,
)

if TYPE_CHECKING:
    from flower_vfl.config import Config
    from flower_vfl.data import MemoryData

SPLITS = ("equal", "unequal")
LAYOUTS = [f"{parties}-{split}" for split in SPLITS for parties in (2, 4, 8)]
LARGEST = 0.8
"""Share of the columns that the first of unequal parties has; the others share the rest."""

S, T, WIDTH = 4.0, 9.0, 16
ATTACKS = ["norm", "cosine", f"studies.parties.attack:EqualWeight(width={WIDTH})", "remembered_direction"]
WHO = ("alone", "together")
SHOWN = ("norm", "cosine", "equal_weight", "remembered_direction")
SETTINGS = (
    "none",
    "marvell-joint",
    "marvell-apart",
    "marvell-apart-more",
    "iso-joint",
    "iso-apart",
    "max_norm-joint",
    "max_norm-apart",
)
QUICK = ("none", "marvell-joint", "marvell-apart")
SEEDS = range(5)
EPOCHS, EVERY, ROWS = 5, 4, 20_000
COLOURS = {"marvell-joint": "#1f5fa8", "marvell-apart": "#c05020", "marvell-apart-more": "#3a8a3a", "none": "#444444"}
NEAR, COST = 0.02, 0.005
"""Largest differences that count as the same leak, and as the same test AUC."""

CLAIMS: list[tuple[str, tuple[str, str], tuple[str, str], tuple[float, float]]] = [
    (
        "*marvell-joint*: colluding parties have the same leak AUC as one party alone",
        ("marvell-joint", "equal_weight together"),
        ("marvell-joint", "equal_weight alone"),
        (-NEAR, NEAR),
    ),
    (
        "at the same s, one party alone has the same leak AUC behind *marvell-apart* as behind *marvell-joint*",
        ("marvell-apart", "equal_weight alone"),
        ("marvell-joint", "equal_weight alone"),
        (-NEAR, NEAR),
    ),
    (
        "at the same s, colluding parties have a higher leak AUC behind *marvell-apart* than behind *marvell-joint*",
        ("marvell-apart", "equal_weight together"),
        ("marvell-joint", "equal_weight together"),
        (0.0, math.inf),
    ),
    (
        "the same by `remembered_direction`, over all epochs",
        ("marvell-apart", "remembered_direction together"),
        ("marvell-joint", "remembered_direction together"),
        (0.0, math.inf),
    ),
    (
        f"at the same s, *marvell-apart* and *marvell-joint* have the same test AUC, within {COST}",
        ("marvell-apart", "test_auc"),
        ("marvell-joint", "test_auc"),
        (-COST, COST),
    ),
    (
        "with K times the power, colluding parties have the same leak AUC as behind *marvell-joint*",
        ("marvell-apart-more", "equal_weight together"),
        ("marvell-joint", "equal_weight together"),
        (-NEAR, NEAR),
    ),
    (
        "with K times the power, the test AUC is lower than behind *marvell-joint*",
        ("marvell-apart-more", "test_auc"),
        ("marvell-joint", "test_auc"),
        (-math.inf, 0.0),
    ),
    (
        "*iso*: colluding parties have the same leak AUC in both scopes",
        ("iso-apart", "equal_weight together"),
        ("iso-joint", "equal_weight together"),
        (-NEAR, NEAR),
    ),
    (
        "*iso*, added later: the same by the stronger of `cosine` and `equal_weight`",
        ("iso-apart", "oracle together"),
        ("iso-joint", "oracle together"),
        (-NEAR, NEAR),
    ),
    (
        "*iso*, added later: by the stronger of both, the strongest single party has a lower leak AUC with per-party "
        "noise than with joint noise",
        ("iso-apart", "oracle alone"),
        ("iso-joint", "oracle alone"),
        (-math.inf, 0.0),
    ),
    (
        "*max_norm*: colluding parties have a higher leak AUC with per-party noise than with joint noise",
        ("max_norm-apart", "equal_weight together"),
        ("max_norm-joint", "equal_weight together"),
        (0.0, math.inf),
    ),
]
"""Claims: in words, a number and the one that is subtracted from it seed by seed, and the limits of the result."""


def parties_of(layout: str) -> int:
    """Return the number of parties of a layout."""
    return int(layout.partition("-")[0])


def dealt(layout: str, columns: int) -> list[NDArray[np.int64]]:
    """Return the columns of each party, dealt in one random order for all layouts."""
    parties = parties_of(layout)
    first = 1.0 / parties if layout.endswith("-equal") else LARGEST
    ends = np.round(columns * np.linspace(first, 1.0, parties)).astype(np.int64)
    return np.split(np.random.default_rng(0).permutation(columns), ends[:-1])


def split_data(config: Config, layout: str) -> MemoryData:
    """Return the images with the pixels of each party as its columns."""
    from flower_vfl.apps.factories import open_data
    from flower_vfl.data import MemoryData, array_table

    opened = open_data(config)
    image = opened.party("image")
    parts = [source.gather(np.arange(len(source)))[0].flatten(1).numpy() for source in (image.train, image.test)]
    held = zip(ascii_lowercase, dealt(layout, parts[0].shape[1]), strict=False)
    tables = {name: array_table(name, *(part.take(columns, axis=1) for part in parts)) for name, columns in held}
    return MemoryData(f"{opened.name}, {layout}", tables, "label", opened.labels())


def defenses_of(setting: str, parties: int) -> list[dict[str, Any]]:
    """Return the defense of a setting."""
    name, _, scope = setting.partition("-")
    if name == "none":
        return []
    strength = {"marvell": {"s": S * parties if scope == "apart-more" else S}, "iso": {"t": T}}.get(name, {})
    return [{"name": name, **strength, "scope": "joint" if scope == "joint" else "per-party"}]


def run_one(job: Job) -> float:
    """Do one run and return its seconds; a quick one has one epoch of fewer rows."""
    from flower_vfl import build_config

    quick = job.options["quick"]
    config = build_config(
        {
            "seed": job.seed,
            "data": {"name": "fashion-mnist", "options": {"positive": "Shirt", "limit": 2_000 if quick else ROWS}},
            "model": {"bottom": [64], "cut": WIDTH, "top": [32]},
            "training": {"epochs": 1 if quick else EPOCHS, "batch_size": 256},
            # The monitor has the gradients of each party at the cut, and those of all together.
            "attack": {"names": ATTACKS, "every": EVERY, "audit": False, "snapshots": [], "embeddings": 0},
            "defenses": defenses_of(job.setting, parties_of(job.study)),
        }
    )
    return do(job, config, data=partial(split_data, layout=job.study))


def numbers(result: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Return the numbers of one run, by name and to five places; alone is the party with the highest leak."""
    return ((name, round(value, 5)) for name, value in _numbers(result))


def _numbers(result: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    yield "test_auc", result["utility"]["last"]["test_auc"]
    received = [entry for entry in result["leakage"] if entry["defended"] == bool(result["defenses"])]
    leaks: dict[tuple[str, str], float] = {}
    for attack in SHOWN:
        for who in WHO:
            entries = [
                one for one in received if one["attack"] == attack and ("+" in one["party"]) == (who == "together")
            ]
            leaks[attack, who] = max(_leak(entry) for entry in entries)
            yield f"{attack} {who}", leaks[attack, who]
            yield f"{attack} {who} q95", max(entry["q95"] for entry in entries)
    for who in WHO:
        yield f"oracle {who}", max(leaks["cosine", who], leaks["equal_weight", who])
    log = {key.removeprefix("marvell."): value for key, value in result["log"].items() if key.startswith("marvell.")}
    left = {key: value for key, value in log.items() if key.split(".")[0] == "sum_kl_after"}
    if left:
        yield "sum_kl alone", max(value for key, value in left.items() if "+" not in key)
        yield "sum_kl together", max(left.values())
    powers = {key: value for key, value in log.items() if key.startswith("noise_power.") and "+" not in key}
    if powers:
        held = np.array(list(powers.values()))
        yield "best split", float(np.sqrt(held).sum() ** 2 / (len(held) * held.sum()))
        yield "first share", float(powers["noise_power.a"] / held.sum())


def _leak(entry: Mapping[str, Any]) -> float:
    """Return the mean AUC over the steps, or the last one of an attack with a history; one half or more."""
    value = float(entry["values"][-1] if entry.get("phase") == "remembered" else entry["mean"])
    return max(value, 1.0 - value)


def expected(sum_kl: float) -> float:
    """Return the AUC of the likelihood ratio of two Gaussians of one covariance at this divergence."""
    return 0.5 * (1.0 + math.erf(math.sqrt(sum_kl) / 2.0))


def verdicts(studies: Mapping[str, Summary]) -> list[Verdict]:
    """Judge every claim: it holds where the interval of the difference lies between the limits, in all layouts."""
    found = []
    for claim, ours, theirs, limits in CLAIMS:
        judged, words, differences = [], [], []
        for layout, summary in studies.items():
            if ours[0] in summary["settings"] and theirs[0] in summary["settings"]:
                differences.append(_values(summary, ours, theirs[0]) - _values(summary, theirs, ours[0]))
                mean, half = interval(differences[-1])
                judged.append(_between(mean, half, *limits))
                words.append(f"{layout}: {mean:+.3f} ± {half:.3f}")
        if len(differences) > 1 and len({len(one) for one in differences}) == 1:
            mean, half = interval(np.mean(differences, axis=0))
            words.append(f"mean of the layouts: {mean:+.3f} ± {half:.3f}")
        found.append(verdict(claim, all_of(judged), "; ".join(words)))
    return found


def _values(summary: Summary, of: tuple[str, str], beside: str) -> Values:
    setting, what = of
    return np.array(summary["settings"][setting][what])[places(summary, [setting, beside])[setting]]


def _between(mean: float, half: float, low: float, high: float) -> bool | None:
    if low <= mean - half and mean + half <= high:
        return True
    return False if mean + half < low or mean - half > high else None


def leak_table(studies: Mapping[str, Summary]) -> str:
    """Write, for every layout and setting, the leak AUC of one party and of all together, beside the test AUC."""
    rows = []
    for layout, summary in studies.items():
        for setting, entry in summary["settings"].items():
            leaks = [f"{shown(entry[f'{one} alone'])}, {shown(entry[f'{one} together'])}" for one in SHOWN]
            rows.append([layout, setting, str(len(entry["seeds"])), shown(entry["test_auc"], 4), *leaks])
    return table(["parties", "noise", "seeds", "test AUC", *(f"{name}: alone, together" for name in SHOWN)], rows)


def promise_table(studies: Mapping[str, Summary]) -> str:
    """Write the divergences that Marvell leaves, the AUC that they imply, and the measured leak AUC."""
    rows = []
    for layout, summary in studies.items():
        for setting, entry in summary["settings"].items():
            if "sum_kl together" in entry:
                cells = [shown(entry["sum_kl alone"]), shown(entry["sum_kl together"])]
                cells += [f"{expected(float(np.mean(entry[f'sum_kl {who}']))):.3f}" for who in ("alone", "together")]
                cells += [shown(entry["equal_weight alone"]), shown(entry["equal_weight together"])]
                cells += [shown(entry[what]) if what in entry else "" for what in ("best split", "first share")]
                rows.append([layout, setting, *cells])
    heads = [f"{what}: {who}" for what in ("divergence", "implied AUC", "measured AUC") for who in WHO]
    heads += ["divergence left by the best split", "first party's share of the power"]
    return table(["parties", "noise", *heads], rows)


def figure(studies: Mapping[str, Summary], path: Path) -> None:
    """Draw the leak AUC of single steps and of all epochs, and the test AUC, over the number of parties."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "parties"
    from matplotlib import pyplot as plt

    columns = (
        ("equal_weight together", "together, one step"),
        ("equal_weight alone", "alone, one step"),
        ("remembered_direction together", f"together, over {EPOCHS} epochs"),
        ("test_auc", "test AUC"),
    )
    splits = [split for split in SPLITS if any(name.endswith(f"-{split}") for name in studies)]
    shape = {"figsize": (13, 3 * len(splits) + 0.5), "squeeze": False, "sharex": True, "sharey": "col"}
    drawn, axes = plt.subplots(len(splits), len(columns), **shape)
    counts = np.linspace(2, 8, 50)
    for row, split in zip(axes, splits, strict=True):
        layouts = {name: one["settings"] for name, one in studies.items() if name.endswith(f"-{split}")}
        for axis, (what, title) in zip(row, columns, strict=True):
            for place, (setting, colour) in enumerate(COLOURS.items()):
                if setting != "none" or what == "test_auc":  # without a defense the leak AUC is 1
                    _line(axis, layouts, setting, what, colour, 0.1 * (place - 1))
            if what == "equal_weight together":
                axis.plot(counts, [expected(k / S) for k in counts], "k:", lw=1, label="best rule, K observations")
                axis.plot(counts, [expected(1 / S)] * 50, "k--", lw=1, label="best rule, one observation")
            axis.set_title(f"{split}: {title}", fontsize=9)
            axis.set_xticks([2, 4, 8])
            axis.grid(alpha=0.25)
            if what != "test_auc":  # leak AUCs share one scale
                axis.set_ylim(0.5, 1.0)
    for axis in axes[-1]:
        axis.set_xlabel("parties")
    named = {label: line for axis in axes[0] for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    drawn.legend(named.values(), named, loc="lower center", ncol=len(named), fontsize=8)
    save(drawn, path, (0, 0.06, 1, 1), metadata={"Date": None})


def _line(axis: Any, layouts: Mapping[str, Any], setting: str, what: str, colour: str, aside: float) -> None:
    points = [(parties_of(name), *interval(of[setting][what])) for name, of in layouts.items() if setting in of]
    if points:
        x, y, half = np.array(sorted(points)).T
        half = np.where(np.isfinite(half), half, 0.0)
        axis.errorbar(x + aside, y, yerr=half, color=colour, marker="o", ms=4, lw=1.2, elinewidth=0.8, label=setting)


def make_page(runs: Path, out: Path) -> None:
    """Compute everything that the page shows from the runs' files."""
    studies = undefended(LAYOUTS, lambda layout: by_setting(runs / layout, SETTINGS, numbers))
    claims = verdicts(studies)
    figure(studies, out / "parties.svg")
    blocks = {"claims": claim_table(claims), "leaks": leak_table(studies), "promises": promise_table(studies)}
    write_page(out / "parties.md", {**studies, "claims": {"verdicts": claims}}, blocks)


STUDY = Study(
    __doc__,
    "parties",
    studies=LAYOUTS,
    settings=SETTINGS,
    seeds=SEEDS,
    quick=QUICK,
    run_one=run_one,
    make_page=make_page,
)
