"""The papers' claims, each as a verdict with its numbers. Thresholds were fixed before the runs were made."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np

from studies.common import Summary, Values, Verdict, family, interval, paired, places, shown, verdict
from studies.gradients import numbers as n

HIDDEN = 0.05
"""A leak is at chance level when its q95 is at most this far above that of a random score."""

EVERYTHING, MOST, ALMOST_EVERYWHERE = 0.995, 0.9, 0.9
ACE_MOVES = 0.01
"""A change of the calibration error up to this counts as none."""

ATTACKED = [(attack, layer) for attack in ("norm", "cosine") for layer in n.LAYERS]


def verdicts(summary: Summary) -> list[Verdict]:
    """Return the verdicts on all claims that the finished runs of a study can decide."""
    there = summary["settings"]
    found = [_nothing_hidden(summary), _first_layer(summary)]
    if family(summary, "marvell"):
        found.append(_marvell_is_monotone(summary))
    if family(summary, "iso"):
        found.append(_iso_leaves_directions(summary))
    if family(summary, "iso") and family(summary, "marvell"):
        found += _marvell_below_iso(summary)
    if "max_norm" in there:
        found.append(_max_norm(summary))
    found.append(_calibration(summary))
    return found + (_observations(summary["probe"]) if summary["probe"] else [])


def _nothing_hidden(summary: Summary) -> Verdict:
    cosine, norm = n.leak(summary, "none", "cosine"), n.leak(summary, "none", "norm")
    return verdict(
        "Without a defense, the leak AUC (q95) at the cut is 1.00 for cosine and above 0.9 for norm",
        cosine.mean() >= EVERYTHING and norm.mean() >= MOST,
        f"cosine {shown(cosine)}, norm {shown(norm)}",
    )


def _first_layer(summary: Summary) -> Verdict:
    leaks = {attack: n.leak(summary, "none", attack, "first") for attack in ("cosine", "norm")}
    return verdict(
        "Without a defense, the leak AUC (q95) at the first layer is above 0.9 for norm and cosine",
        all(values.mean() >= MOST for values in leaks.values()),
        ", ".join(f"{attack} {shown(values)}" for attack, values in leaks.items()),
    )


def _marvell_is_monotone(summary: Summary) -> Verdict:
    """Judge each step up in s, paired by seed: a rise counts when its 95 % interval lies above zero."""
    steps = list(pairwise(["none", *family(summary, "marvell")]))
    rises, ends = [], []
    for attack, layer in ATTACKED:
        for weaker, stronger in steps:
            mean, half = interval(
                paired(summary, stronger, weaker, partial(n.leak, summary, attack=attack, layer=layer))
            )
            if mean - (half if np.isfinite(half) else 0.0) > 0.0:
                rises.append(f"{attack} at {layer} from {weaker} to {stronger}: +{mean:.4f}")
        ends.append(f"{attack} at {layer} {n.leak(summary, steps[-1][1], attack, layer).mean():.3f}")
    return verdict(
        "Behind Marvell, the leak AUC of norm and cosine falls monotonically with s, at both layers",
        not rises,
        f"{len(rises)} of {len(ATTACKED) * len(steps)} steps up in s raise a leak"
        + (f" ({'; '.join(rises)})" if rises else "")
        + f"; at {steps[-1][1]}: {', '.join(ends)}",
    )


def _iso_leaves_directions(summary: Summary) -> Verdict:
    """Compare norm and cosine at the cut at each strength, and find where norm is at chance level."""
    holds, read = False, []
    for setting in family(summary, "iso"):
        norm, cosine = (n.leak(summary, setting, attack) for attack in ("norm", "cosine"))
        hidden = bool(norm.mean() <= n.leak(summary, setting, "norm", key="q95_null").mean() + HIDDEN)
        holds = holds or (hidden and cosine.mean() > MOST)
        read.append(f"{setting}: norm {shown(norm)}{' (at chance)' * hidden}, cosine {shown(cosine)}")
    return verdict(
        f"Behind iso, cosine stays above 0.9 at some strength at which norm is within {HIDDEN} of chance level",
        holds,
        "; ".join(read),
    )


def _marvell_below_iso(summary: Summary) -> list[Verdict]:
    found = []
    for attack, layer in [*ATTACKED, ("hint", "cut")]:
        share = n.trade_off(summary, attack, layer)
        decided = not share["low"] < ALMOST_EVERYWHERE <= share["high"]
        found.append(
            verdict(
                f"Marvell leaks less than iso at 90 % or more of equal test AUCs: {attack}, {layer}",
                share["share"] >= ALMOST_EVERYWHERE if decided else None,
                f"{share['share']:.0%} of the curve (95 % interval: {share['low']:.0%} to {share['high']:.0%})",
            )
        )
    return found


def _max_norm(summary: Summary) -> Verdict:
    """Judge if the leak of norm above chance falls by at least half, and hint and cosine stay higher, seed by seed."""
    at = places(summary, ["max_norm", "none"])
    norm = n.leak(summary, "max_norm", "norm")
    before = n.leak(summary, "none", "norm")[at["none"]].mean()
    null = np.nanmean(n.leak(summary, "max_norm", "norm", key="q95_null"))
    others = {attack: n.leak(summary, "max_norm", attack) for attack in ("hint", "cosine")}
    gaps = [interval(values - norm) for values in others.values()]
    weaker = all(mean - (half if np.isfinite(half) else 0.0) > 0.0 for mean, half in gaps)
    return verdict(
        "max_norm removes at least half of norm's leak above chance; hint and cosine stay above norm, at the cut",
        norm.mean() - null <= (before - null) / 2 and weaker,
        f"norm {shown(norm)} (chance {null:.3f}, without a defense {before:.3f}), "
        + ", ".join(f"{attack} {shown(values)}" for attack, values in others.items()),
    )


def _calibration(summary: Summary) -> Verdict:
    ace = partial(n.utility, summary, name="test_ace")
    moves = {setting: paired(summary, setting, "none", ace) for setting in summary["settings"]}
    most = max(moves, key=lambda setting: abs(moves[setting].mean()))
    return verdict(
        f"Calibration (ACE) changes by at most {ACE_MOVES}",
        abs(moves[most].mean()) <= ACE_MOVES,
        f"without a defense {shown(n.utility(summary, 'none', 'test_ace'), 4)}; largest change, at {most}: "
        f"{shown(moves[most], 4)}",
    )


def _observations(probe: Summary) -> list[Verdict]:
    """Judge the observations of L22, section 3.3, over all recorded steps of all seeds."""

    def of(name: str) -> Values:
        """Return the values of a metric, (seeds, steps)."""
        return np.asarray(probe[name], dtype=np.float64)

    error = of("error.positive") / of("error.negative")
    slope = of("slope.positive") / of("slope.negative")
    pairs = ("positive", "negative", "across")
    cosines = {pair: of(f"slope_share.{pair}") for pair in pairs}
    gradients = {pair: of(f"gradient_share.{pair}") for pair in pairs}
    return [
        verdict(
            "Observation 1: p1 is further from y for positives than for negatives (at 95 % of the steps or more)",
            (error > 1).mean() >= 0.95,
            f"further at {(error > 1).mean():.1%} of the steps; median ratio of the means {np.median(error):.1f}",
        ),
        verdict(
            "Observation 2: the median norms of dh/dz in both classes are within a factor of 2 (95 % of the steps)",
            ((slope > 0.5) & (slope < 2)).mean() >= 0.95,
            f"ratio of positives to negatives: median {np.median(slope):.2f}, 5 % to 95 % quantile of the steps "
            f"{np.quantile(slope, 0.05):.2f} to {np.quantile(slope, 0.95):.2f}",
        ),
        verdict(
            "Observation 4: at least 90 % of pairs have a positive cosine of dh/dz, within and across classes, and at "
            "most 10 % of pairs across classes a positive cosine of g",
            all(values.mean() >= MOST for values in cosines.values()) and gradients["across"].mean() <= 1 - MOST,
            "pairs with a positive cosine of dh/dz: "
            + ", ".join(f"{pair} {values.mean():.1%}" for pair, values in cosines.items())
            + "; of g: "
            + ", ".join(f"{pair} {values.mean():.1%}" for pair, values in gradients.items()),
        ),
    ]
