"""From the runs' files to the numbers and tables of `embeddings.md`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flower_vfl.metrics import Embeddings, pair_angles
from flower_vfl.tracking import read_embeddings
from studies.common import Summary, Values, family, finished, paired, places, share_with_interval, shown, table

UTILITY = ("test_accuracy", "test_auc", "test_loss", "train_loss", "validation_accuracy")
NEAR = 0.2
"""Radians within which an angle is near pi / 2."""

USABLE = 0.9
"""A setting counts as a defense while it keeps this part of the undefended test accuracy (of two classes: AUC)."""


def collect(folder: Path, settings: Iterable[str]) -> Summary:
    """Read the finished runs of a study: values by setting, one a seed."""
    found: Summary = {"dataset": {}, "settings": {}}
    for setting in settings:
        runs = finished(folder / setting)
        results = [result for _, result in runs]
        if results:
            found["dataset"] = results[0]["dataset"]
            found["settings"][setting] = {
                "seeds": [result["environment"]["seed"] for result in results],
                "epochs": results[0]["utility"]["last"]["epoch"],
                "seconds": [round(result["cost"]["seconds"], 1) for result in results],
                **{name: [result["utility"]["last"].get(name) for result in results] for name in UTILITY},
                "attacks": _attacks(results),
                "angles": _angles([run for run, _ in runs]),
            }
    return found


def _attacks(results: list[Summary]) -> Summary:
    """Return the results of attacks at each layer, and without the trained model, by measure, one value a seed."""
    found: Summary = {}
    for result in results:
        for entry in result["leakage"]:
            if entry["phase"] != "inference":
                continue
            place = found.setdefault(f"{key_of(entry)} {entry['layer']}", {})
            for measure, values in entry["measures"].items():
                of = place.setdefault(measure, {"mean": [], "baseline": []})
                of["mean"].append(values["mean"])
                of["baseline"].append(values["baseline"])
    return found


def key_of(entry: Mapping[str, Any]) -> str:
    """Return the short name of an entry's attack.

    Examples
    --------
    >>> key_of({"attack": "model_completion", "params": {"k": 4, "draws": 5, "normalise": True}})
    'completion 4 normalised'
    """
    params = entry["params"]
    known = f" {params['k']}" if "k" in params else ""
    return f"{entry['attack'].removeprefix('model_')}{known}{' normalised' * bool(params.get('normalise'))}"


def kept_of(folder: Path) -> Embeddings | None:
    """Return the embeddings that a run kept, as the top model reads them; None where it kept none."""
    kept = {sample.view: sample for sample in read_embeddings(folder)}
    return kept.get("read", kept.get("received"))


def _angles(folders: Iterable[Path]) -> Summary:
    """Return the mean angles of pairs of one class and of two, and shares near pi / 2, one a seed."""
    found: Summary = {}
    for sample in filter(None, map(kept_of, folders)):
        for name, angles in zip(("same", "different"), pair_angles(sample.z, sample.labels), strict=True):
            found.setdefault(name, []).append(round(float(angles.mean()), 4))
            near = np.abs(angles - np.pi / 2) < NEAR
            found.setdefault(f"{name}_near", []).append(round(float(near.mean()), 4))
    return found


def known_of(summary: Summary) -> list[int]:
    """Return the numbers of leaked labels a class, ascending."""
    names = [key.split() for values in summary["settings"].values() for key in values["attacks"]]
    return sorted({int(name[1]) for name in names if name[0] == "completion"})


def attacks_of(summary: Summary) -> list[str]:
    """Return the attacks by their short names, each once for both kinds of rows."""
    names = {key.split()[0] for values in summary["settings"].values() for key in values["attacks"]}
    plain = [name for name in ("spectral", "clustering") if name in names]
    return [*plain, *(f"completion {k}" for k in known_of(summary))]


def measure_of(summary: Summary, attack: str) -> str:
    """Return the measure of an attack; for two classes, of which one may be rare, it is not the accuracy."""
    if attack == "spectral":
        return "auc"
    return "balanced_accuracy" if summary["dataset"]["classes"] == 2 else "accuracy"


def reached(summary: Summary, setting: str, attack: str, layer: str = "cut") -> Values:
    """Return the result of an attack, one value a seed: the better of raw rows and of normalised ones.

    A spectral score with the wrong sign reveals as much as one with the right sign.
    """
    attacks, measure = summary["settings"][setting]["attacks"], measure_of(summary, attack)
    kinds = [attacks.get(f"{attack}{rows} {layer}") for rows in ("", " normalised")]
    values = np.array([kind[measure]["mean"] for kind in kinds if kind is not None], dtype=np.float64)
    if attack == "spectral":
        values = 0.5 + np.abs(values - 0.5)
    return values.max(axis=0)


def baseline(summary: Summary, setting: str, attack: str, layer: str = "cut") -> Values:
    """Return the result of the same attack without the trained model, one value a seed."""
    entry = summary["settings"][setting]["attacks"][f"{attack} {layer}"][measure_of(summary, attack)]
    values = np.array(entry["baseline"], dtype=np.float64)
    return 0.5 + np.abs(values - 0.5) if attack == "spectral" else values


def advantage(summary: Summary, setting: str, attack: str, layer: str = "cut") -> Values:
    """Return the bottom model advantage, one value a seed."""
    return reached(summary, setting, attack, layer) - baseline(summary, setting, attack, layer)


def utility(summary: Summary, setting: str) -> Values:
    """Return test accuracy, of two classes test AUC, one value a seed."""
    name = "test_auc" if summary["dataset"]["classes"] == 2 else "test_accuracy"
    return np.asarray(summary["settings"][setting][name], dtype=np.float64)


def usable(summary: Summary, name: str) -> list[str]:
    """Return the settings of a defense, weakest first, that keep the share `USABLE` of the undefended utility."""
    least = USABLE * utility(summary, "none").mean()
    return [setting for setting in family(summary, name) if utility(summary, setting).mean() >= least]


def trade_off(summary: Summary, ours: str, theirs: str, attack: str) -> dict[str, float]:
    """Return the share of one defense's curve that lies below another's, with its 95 % bootstrap interval.

    Both curves begin at the undefended run; settings that are no longer usable are left out.
    """
    curves = [["none", *usable(summary, name)] for name in (ours, theirs)]
    at = places(summary, [setting for curve in curves for setting in curve])
    first, second = (
        np.array([[utility(summary, s)[at[s]], reached(summary, s, attack)[at[s]]] for s in curve]) for curve in curves
    )
    return share_with_interval(first, second)


def attack_table(summary: Summary) -> str:
    """Write the results of attacks at each layer, in brackets the advantage over the same without the trained model."""
    attacks = attacks_of(summary)
    layers = list(dict.fromkeys(k.split()[-1] for v in summary["settings"].values() for k in v["attacks"]))
    rows = []
    for setting, values in summary["settings"].items():
        for layer in layers:
            cells = [
                f"{shown(reached(summary, setting, attack, layer))} "
                f"({np.mean(advantage(summary, setting, attack, layer)):+.3f})"
                for attack in attacks
            ]
            rows.append([setting, layer, str(len(values["seeds"])), *cells])
    heads = [f"{attack} per class" if "completion" in attack else attack for attack in attacks]
    return table(["defense", "layer", "seeds", *heads], rows)


def utility_table(summary: Summary) -> str:
    """Write utility, its difference to the undefended run of the same seed, and mean angles at the cut."""
    two = summary["dataset"]["classes"] == 2
    rows = []
    for setting, values in summary["settings"].items():
        angles = values["angles"]
        plain = f"none-{setting.split('-')[-1]}" if "none" not in summary["settings"] else "none"
        known = plain in summary["settings"]
        change = paired(summary, setting, plain, lambda name: utility(summary, name)) if known else []
        rows.append(
            [
                setting,
                str(len(values["seeds"])),
                shown(utility(summary, setting), 4),
                shown(values["test_loss"], 3),
                "" if setting == plain or not len(change) else shown(change, 4),
                *(shown(angles[name], 2) if angles else "" for name in ("same", "different")),
            ]
        )
    measure = "test AUC" if two else "test accuracy"
    heads = [measure, "test loss", f"{measure} minus none", "angle, same class", "angle, different classes"]
    return table(["defense", "seeds", *heads], rows)
