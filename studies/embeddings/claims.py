"""The papers' claims on embeddings, each as a verdict with its numbers. Thresholds were fixed before the runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from studies.common import Summary, Values, Verdict, family, interval, paired, places, shown, verdict
from studies.embeddings import numbers as n
from studies.embeddings.settings import WIDTHS

ALMOST_EVERYWHERE = 0.9
"""A curve lies below another when it does so at this share of the utilities that both reach."""

GATHERED = 0.1
"""Mean angles this close to pi / 2 count as concentrated there."""

SPLIT = 0.5
"""Mean angles of same-class and different-class pairs that differ by at least this count as split."""

KEPT = 0.9
"""An attack is unchanged when it keeps this part of its advantage without a defense."""

ONE_SEED = "one seed: "


def verdicts(study: str, summary: Summary) -> list[Verdict]:
    """Return the verdicts on all claims that the finished runs of a study can decide; one seed decides none."""
    return [
        {**found, "holds": None} if found["numbers"].startswith(ONE_SEED) else found
        for found in _judged(study, summary)
    ]


def _judged(study: str, summary: Summary) -> list[Verdict]:
    if study == "width":
        return _widths(summary)
    if "none" not in summary["settings"]:
        return []
    if study == "census":
        return _all_unchanged(summary)
    found = []
    if family(summary, "pe"):
        found = [
            *(_below(summary, other, attack) for other in ("dcor", "label_dp") for attack in n.attacks_of(summary)),
            _perfect(summary),
        ]
    found += [_split(summary)] if summary["settings"]["none"]["angles"] else []
    if family(summary, "pe") and summary["settings"]["none"]["angles"]:
        found.append(_gathered(summary))
    return [*found, *_all_unchanged(summary)]


def _seeds(values: Sequence[float] | Values) -> str:
    return ONE_SEED if len(values) < 2 else ""


def _sign(values: Values) -> bool | None:
    """Return True if a difference is above zero; None where its interval contains zero, or there is one seed only."""
    mean, half = interval(values)
    return None if not np.isfinite(half) or abs(mean) <= half else mean > 0


def _below(summary: Summary, theirs: str, attack: str) -> Verdict:
    claim = f"PELoss lowers attack accuracy more than {theirs} at 90 % or more of equal test accuracies: {attack}"
    missing = [name for name in ("pe", theirs) if not n.usable(summary, name)]
    if missing:
        return verdict(claim, None, f"no usable setting of {' and '.join(missing)}")
    share = n.trade_off(summary, "pe", theirs, attack)
    if not np.isfinite(share["share"]):
        return verdict(claim, None, "the two curves reach no common test accuracy")
    decided = not share["low"] < ALMOST_EVERYWHERE <= share["high"]
    return verdict(
        claim,
        share["share"] >= ALMOST_EVERYWHERE if decided else None,
        f"{share['share']:.0%} of the curve (95 % interval: {share['low']:.0%} to {share['high']:.0%})",
    )


def _perfect(summary: Summary) -> Verdict:
    """Judge if clustering has no advantage with any seed at some usable alpha; undecided if only with some seeds."""
    gains = {setting: n.advantage(summary, setting, "clustering") for setting in n.usable(summary, "pe")}
    protected = [setting for setting, values in gains.items() if (values <= 0).all()]
    some = [setting for setting, values in gains.items() if (values <= 0).any()]
    none = n.advantage(summary, "none", "clustering")
    return verdict(
        "PELoss reaches perfect protection against clustering (advantage 0 or less at some alpha)",
        True if protected else (None if some else False),
        f"{_seeds(none)}advantage without a defense {shown(none)}; "
        + ", ".join(
            f"{setting} {shown(values)} at a test accuracy of {shown(n.utility(summary, setting))}"
            for setting, values in gains.items()
        ),
    )


def _split(summary: Summary) -> Verdict:
    angles = summary["settings"]["none"]["angles"]
    same, different = (np.asarray(angles[name]) for name in ("same", "different"))
    return verdict(
        f"Without a defense, mean angles of same-class and different-class pairs are at least {SPLIT} rad apart",
        (different - same).mean() >= SPLIT,
        f"{_seeds(same)}same class {shown(same, 2)} rad, different classes {shown(different, 2)}",
    )


def _gathered(summary: Summary) -> Verdict:
    """Judge the mean angles at the strongest alpha that is usable."""
    able = n.usable(summary, "pe")
    if not able:
        return verdict("With PELoss, angles concentrate near pi / 2", None, "no usable alpha")
    angles = summary["settings"][able[-1]]["angles"]
    means = {name: np.asarray(angles[name]) for name in ("same", "different", "same_near", "different_near")}
    return verdict(
        "With PELoss, angles concentrate near pi / 2 "
        f"(1.57; both means within {GATHERED} rad, most pairs within {n.NEAR})",
        all(abs(means[name].mean() - np.pi / 2) <= GATHERED for name in ("same", "different"))
        and all(means[f"{name}_near"].mean() > 0.5 for name in ("same", "different")),
        f"{_seeds(means['same'])}{able[-1]}: same class {shown(means['same'], 2)} rad ({means['same_near'].mean():.0%} "
        f"within), different classes {shown(means['different'], 2)} ({means['different_near'].mean():.0%} within)",
    )


def _all_unchanged(summary: Summary) -> list[Verdict]:
    """Judge if each attack keeps its advantage behind noise on gradients, and behind flipped labels."""
    noise = [*family(summary, "iso"), *family(summary, "marvell")]
    noise += ["max_norm"] if "max_norm" in summary["settings"] else []
    kinds = {"Noise on gradients": noise, "Label DP": family(summary, "label_dp")}
    attacks = n.attacks_of(summary)
    return [_unchanged(summary, attack, kind, given) for kind, given in kinds.items() if given for attack in attacks]


def _unchanged(summary: Summary, attack: str, kind: str, given: Sequence[str]) -> Verdict:
    """Compare an attack's advantage with that of undefended runs with the same seeds, if they have one."""
    at = places(summary, ["none", *given])
    plain, *kept = (n.advantage(summary, setting, attack)[at[setting]] for setting in ("none", *given))
    claim = f"{kind} leaves at least 90 % of the attack's advantage: {attack}"
    numbers = f"{_seeds(plain)}advantage without a defense {shown(plain)}; " + ", ".join(
        f"{setting} {shown(values)}" for setting, values in zip(given, kept, strict=True)
    )
    if plain.mean() <= 0 or _sign(plain) is False:
        return verdict(claim, None, f"there is no advantage to keep: {numbers}")
    return verdict(claim, all(values.mean() >= KEPT * plain.mean() for values in kept), numbers)


def _widths(summary: Summary) -> list[Verdict]:
    """Compare the widest cut with the narrowest at alpha = 1, seed by seed."""
    narrow, wide = (f"pe-{width}" for width in (WIDTHS[0], WIDTHS[-1]))
    if not {narrow, wide} <= summary["settings"].keys():
        return []
    found = []
    for attack in n.attacks_of(summary):
        few = attack == "clustering" or int(attack.split()[1]) <= 5
        change = paired(summary, wide, narrow, partial(n.reached, summary, attack=attack))
        sign = _sign(change)
        found.append(
            verdict(
                f"A wider cut {'raises' if few else 'lowers'} the attack's accuracy at alpha = 1: {attack}",
                None if sign is None else sign is few,
                f"{_seeds(change)}width {WIDTHS[-1]} minus width {WIDTHS[0]}: {shown(change)}; "
                + ", ".join(
                    f"{setting.split('-')[1]}: {shown(n.reached(summary, setting, attack))}"
                    for setting in family(summary, "pe")
                ),
            )
        )
    return found
