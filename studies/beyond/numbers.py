"""From the runs' files to the numbers, verdicts and tables of `beyond.md`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from studies.common import Summary, Values, Verdict, finished, interval, paired, shown, table, verdict

LAYERS = ("cut", "first")
STEPS = ("norm", "residual")
"""Attacks on single steps."""

READERS = (
    "remembered_norm",
    "remembered_direction",
    "remembered_hint",
    "remembered_difference",
    "remembered_fit(k=256)",
    "remembered_quadratic(k=256,reads=mean)",
    "remembered_network(k=256,reads=mean)",
)
"""Attacks that keep a history, by the labels under which the runs have them."""

LEARNED = READERS[-3:]
"""Attacks that keep a history and know labels of 256 rows of each class."""

APART = ("remembered_fit(k=256,reads=epochs)", "remembered_quadratic(k=256,reads=epochs)")
"""Attacks on all epochs side by side; not all seeds have them."""

PAIRS = (
    ("s16-full-rho-0", "full-rho-0.25"),
    ("s16-full-rho-0", "full-rho-0.5"),
    ("s64-full-rho-0", "full-rho-0.9"),
)
"""Pairs of settings: stronger fresh noise, and weaker noise with a persistent share."""

NEAR, COST = 0.02, 0.005
"""Largest growth of a leak after one epoch, and largest loss of test AUC by persistent noise, for a claim to hold."""


def collect(folder: Path, settings: Iterable[str], control: str | None = None) -> Summary:
    """Read the finished runs of a study: values by setting, one a seed; of leaks, one list of epochs a seed.

    Of the control, `columns` has the test AUC of a network that was fitted to the party's own columns, one a seed.
    """
    found: Summary = {"dataset": {}, "settings": {}}
    found["columns"] = [_columns(result) for _, result in finished(folder / control)] if control else []
    for setting in settings:
        if setting == control:
            continue
        runs = finished(folder / setting)
        results = [result for _, result in runs]
        if results:
            found["dataset"] = results[0]["dataset"]
            found["settings"][setting] = {
                "seeds": [result["environment"]["seed"] for result in results],
                "test_auc": [result["utility"]["last"]["test_auc"] for result in results],
                "leak": _leaks(results, [run / "steps.parquet" for run, _ in runs]),
            }
    return found


def _columns(result: Summary) -> float:
    """Return the test AUC of model completion from scratch, the mean of its repeats, which no layer changes."""
    return float(result["rebuild"][0]["curve"][0]["baseline"])


def _leaks(results: list[Summary], steps: list[Path]) -> Summary:
    leaks: Summary = {}
    for result, path in zip(results, steps, strict=True):
        for entry in result["leakage"]:
            if entry.get("phase") == "remembered":
                values = [round(value, 5) for value in entry["values"]]
                leaks.setdefault(f"{entry['label']} {entry['layer']}", []).append(values)
        for attack in STEPS:
            for layer in LAYERS:
                leaks.setdefault(f"{attack} {layer}", []).append(_by_epoch(path, attack, layer))
    return {name: values for name, values in leaks.items() if any(values)}  # a layer may not have been attacked


def _by_epoch(path: Path, attack: str, layer: str) -> list[float]:
    """Return the mean leak AUC of an attack on single steps over each epoch's steps."""
    found = pq.read_table(path, columns=["epoch", "attack", "layer", "metric", "value"])
    for column, value in (("attack", attack), ("layer", layer), ("metric", "auc")):
        found = found.filter(pc.equal(found[column].cast("string"), value))
    found = found.filter(pc.is_finite(found["value"]))
    means = found.group_by("epoch").aggregate([("value", "mean")]).sort_by("epoch")
    return [round(value, 5) for value in means["value_mean"].to_pylist()]


def readers(summary: Summary) -> list[str]:
    """Return the attacks with a history that the study has."""
    known = {name.rsplit(" ", 1)[0] for values in summary["settings"].values() for name in values["leak"]}
    return [name for name in READERS if name in known]


def layers(summary: Summary) -> list[str]:
    """Return the layers at which the study has attacks with a history."""
    known = {name for values in summary["settings"].values() for name in values["leak"]}
    return [layer for layer in LAYERS if any(f"{attack} {layer}" in known for attack in readers(summary))]


def leak(summary: Summary, setting: str, attack: str, layer: str = "cut") -> Values:
    """Return a leak, (seeds, epochs); an AUC below one half reveals labels as well as one above."""
    values = np.asarray(summary["settings"][setting]["leak"][f"{attack} {layer}"], dtype=np.float64)
    return np.maximum(values, 1.0 - values)


def growth(summary: Summary, setting: str, attack: str, layer: str) -> Values:
    """Return the growth of a leak from the first epoch that an attack can use to the last, one value a seed."""
    values = leak(summary, setting, attack, layer)
    return values[:, -1] - values[:, 0]


def strongest(summary: Summary, setting: str, layer: str, epoch: int) -> Values:
    """Return the leak AUC of the strongest attack after an epoch, one value a seed."""
    values = [leak(summary, setting, attack, layer)[:, epoch] for attack in readers(summary)]
    return np.asarray(np.max(values, axis=0), dtype=np.float64)


def loss(summary: Summary, setting: str) -> Values:
    """Return the loss of test AUC of a setting against the same defense with fresh noise, one value a shared seed."""
    fresh = f"{setting.rsplit('-', 1)[0]}-0"
    return paired(summary, fresh, setting, lambda name: summary["settings"][name]["test_auc"])


def defended(summary: Summary) -> list[str]:
    """Return the settings with noise."""
    return [name for name in summary["settings"] if "-rho-" in name]


def share_of(setting: str) -> float:
    """Return the persistent share of a setting's noise."""
    return float(setting.rsplit("-", 1)[1])


def kind_of(setting: str) -> str:
    """Return a setting without its persistent share."""
    return setting.rsplit("-rho-", 1)[0]


def verdicts(summary: Summary) -> list[Verdict]:
    """Judge for each persistent share the growth of the leak, and the cost."""
    shares = [setting for setting in defended(summary) if share_of(setting) > 0.0]
    return [one for setting in shares for one in (*_kept(summary, setting), *_learned(summary, setting))]


def _kept(summary: Summary, setting: str) -> list[Verdict]:
    """Judge if the leak stays near that of one epoch, at each layer, and what the share costs."""
    found = []
    for layer in layers(summary):
        first, last = (strongest(summary, setting, layer, epoch) for epoch in (0, -1))
        claim = f"{setting}, {layer}: the highest leak AUC of all attacks grows by at most {NEAR} after one epoch"
        found.append(verdict(claim, _below(*interval(last - first), NEAR), f"{shown(first)} → {shown(last)}"))
        rows = {attack: interval(growth(summary, setting, attack, layer)) for attack in readers(summary)}
        worst = max(rows, key=lambda attack: rows[attack][0])
        grown, half = rows[worst]
        claim = f"{setting}, {layer}: no attack's leak AUC grows by more than {NEAR} over the epochs"
        found.append(verdict(claim, _below(grown, half, NEAR), f"largest growth {grown:+.3f} ± {half:.3f} ({worst})"))
    lost, spread = interval(loss(summary, setting))
    claim = f"{setting}: the persistent share costs at most {COST} of test AUC"
    return [*found, verdict(claim, _below(lost, spread, COST), f"{lost:+.4f} ± {spread:.4f}")]


def _learned(summary: Summary, setting: str) -> list[Verdict]:
    """Judge if attacks with known labels exceed a network on the party's columns with the same labels."""
    columns, learned = summary["columns"], [attack for attack in LEARNED if attack in readers(summary)]
    found = []
    if columns and learned:
        for layer in layers(summary):
            rows = {attack: leak(summary, setting, attack, layer)[:, -1] for attack in learned}
            worst = max(rows, key=lambda attack: float(rows[attack].mean()))
            (read, half), (alone, spread) = interval(rows[worst]), interval(columns)
            claim = f"{setting}, {layer}: attacks with known labels exceed the columns alone by at most {NEAR}"
            near = _below(read - alone, float(np.hypot(half, spread)), NEAR)
            found.append(verdict(claim, near, f"{shown(rows[worst])} ({worst}), columns alone {shown(columns)}"))
    return found


def _below(mean: float, half: float, limit: float) -> bool | None:
    if mean + half <= limit or (half == 0.0 and mean <= limit):
        return True
    return False if mean - half > limit else None


def leak_table(summary: Summary) -> str:
    """Write, for each setting and layer, the leaks of single steps of the last epoch and of the history."""
    rows = []
    for setting, values in summary["settings"].items():
        for layer in layers(summary):
            rows.append(
                [
                    setting,
                    layer,
                    str(len(values["seeds"])),
                    shown(values["test_auc"], 4),
                    *(shown(leak(summary, setting, attack, layer)[:, -1]) for attack in STEPS),
                    *(
                        f"{shown(leak(summary, setting, attack, layer)[:, 0])} → "
                        f"{shown(leak(summary, setting, attack, layer)[:, -1])}"
                        for attack in readers(summary)
                    ),
                ]
            )
    return table(
        ["defense", "layer", "seeds", "test AUC", *(f"{attack}, single steps" for attack in STEPS), *readers(summary)],
        rows,
    )


def pairs_table(summary: Summary) -> str:
    """Write differences of two settings, seed by seed: of the leak after the last epoch, and of the test AUC."""
    rows = []
    for one, other in PAIRS:
        if {one, other} <= set(summary["settings"]):
            read = paired(summary, one, other, lambda setting: strongest(summary, setting, "cut", -1))
            auc = paired(summary, one, other, lambda setting: summary["settings"][setting]["test_auc"])
            shown_more = (f"{mean:+.4f} ± {half:.4f}" for mean, half in map(interval, (read, auc)))
            rows.append([one, other, str(len(auc)), *shown_more])
    heads = ["strongest leak AUC at the cut, difference", "test AUC, difference"]
    return table(["setting", "compared with", "seeds", *heads], rows)


def apart_table(summary: Summary) -> str:
    """Write the leak AUC of attacks on the epochs side by side, after the first and after the last."""
    known = [name for name, values in summary["settings"].items() if f"{APART[0]} cut" in values["leak"]]
    rows = []
    for setting in known:
        read = [leak(summary, setting, attack) for attack in APART]
        ends = [f"{shown(values[:, 0])} → {shown(values[:, -1])}" for values in read]
        rows.append([setting, str(len(read[0])), *ends])
    return table(["defense", "seeds", *APART], rows)
