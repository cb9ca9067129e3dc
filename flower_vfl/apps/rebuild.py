"""The number of leaked labels that rebuild the federation's model, from the results of attackers with labels."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from flower_vfl.auditing.entries import Entry


def rebuild(
    leakage: Sequence[Entry], utility: Mapping[str, float], *, classes: int, share: float
) -> list[dict[str, Any]]:
    """Return one entry for `result.json` for each party, layer and attack with labels on the trained model.

    A model counts as rebuilt once the attacker's, on average over the draws, covers the stated share of the gap from
    chance to the federation's own test utility, and does so with every larger number of labels that was tried: a
    lucky draw of few labels does not count. The measure does not depend on how frequent a class is: AUC for two
    classes, which no threshold enters, and balanced accuracy for more.

    Parameters
    ----------
    leakage : Sequence[Mapping]
        All entries of the run.
    utility : Mapping[str, float]
        The federation's metrics after its last epoch.
    classes : int
        Number of classes.
    share : float
        The share of the way, above 0 and at most 1.

    Returns
    -------
    list[dict]
        Entries with the sufficient number of labels of each class (`k`) and in all (`labels`), None where the largest
        number that was tried (`tried`) was not enough; the same for training from scratch on these labels (`alone_k`,
        `alone_labels`); and the curve that they are read from.
    """
    metric = "auc" if classes == 2 else "balanced_accuracy"
    own = utility.get(f"test_{metric}")
    grouped: dict[tuple[str, str, str, str], list[Entry]] = {}
    for entry in leakage:
        if entry.get("phase") == "inference" and entry.get("known"):
            others = {name: value for name, value in entry["params"].items() if name not in ("k", "draws")}
            place = entry["party"], entry["layer"], entry["attack"], json.dumps(others, sort_keys=True)
            grouped.setdefault(place, []).append(entry)
    found = []
    for (party, layer, attack, params), entries in grouped.items():
        curve = [_point(entry, metric, classes) for entry in sorted(entries, key=lambda entry: entry["known"])]
        chance = 1 / classes if metric == "balanced_accuracy" else 0.5
        target = None if own is None or not own > chance else chance + share * (own - chance)
        needed, alone = _smallest_sufficient(curve, "mean", target), _smallest_sufficient(curve, "baseline", target)
        found.append(
            {
                **{"party": party, "layer": layer, "attack": attack, "params": json.loads(params)},
                **{"metric": metric, "share": share},
                **{"federation": None if target is None else own, "chance": chance, "target": target},
                **{"k": needed, "labels": needed and needed * classes},
                **{"alone_k": alone, "alone_labels": alone and alone * classes},
                **{"tried": curve[-1]["k"], "curve": curve},
            }
        )
    return found


def _point(entry: Entry, metric: str, classes: int) -> dict[str, Any]:
    measure = entry["measures"].get(metric, {})
    k = entry["known"]
    names = ("mean", "interval95", "baseline", "baseline_interval95")
    return {"k": k, "labels": k * classes, **{name: measure.get(name) for name in names}}


def _smallest_sufficient(curve: Sequence[Mapping[str, Any]], name: str, target: float | None) -> int | None:
    """Return the smallest number of labels of each class from which on the average reaches the target."""
    enough = None
    for point in reversed(curve):
        if target is None or point[name] is None or point[name] < target:
            break
        enough = point["k"]
    return enough
