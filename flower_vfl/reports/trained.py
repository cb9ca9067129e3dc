"""Leak of the trained models of runs: tables and figures of attacks on them, and of their embeddings."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from flower_vfl.apps.result_schema import class_name, kept_utility
from flower_vfl.auditing.entries import label_of, unrepeated
from flower_vfl.metrics import mean_interval, pair_angles, sample_rows
from flower_vfl.metrics.embeddings import READ, RECEIVED
from flower_vfl.reports.figures import (
    Point,
    Reached,
    angle_figure,
    map_figure,
    protection_figure,
    rebuild_figure,
)
from flower_vfl.reports.rebuilt import MEASURES, Answer, answers, ends, in_words, number
from flower_vfl.reports.settings import families

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from flower_vfl.auditing.entries import Entry
    from flower_vfl.metrics import Embeddings
    from flower_vfl.reports.run import Run
    from flower_vfl.reports.settings import Setting

MOST_EMBEDDINGS = 300
"""Largest number of embeddings in one figure."""

PERPLEXITY, ITERATIONS, FEWEST_EMBEDDINGS = 30.0, 500, 10
UNBALANCED = 0.02
"""Excess of the most frequent class's share over 1 / C above which balanced accuracy is shown beside accuracy."""

VIEWS = {RECEIVED: "as sent", READ: "as the top model reads them"}


def of_run(run: Run) -> dict[str, Any]:
    """Return the values of ``trained.html.j2``."""
    found = answers(run.result)
    samples = [_thinned(sample) for sample in run.embeddings]
    changed = {sample.party for sample in samples if sample.view == READ}
    titles = [
        f"Party {sample.party}{', ' + VIEWS.get(sample.view, sample.view) if sample.party in changed else ''}"
        for sample in samples
    ]
    return {
        "answers": [(answer, in_words(answer)) for answer in found],
        "rebuild_figures": [
            _rebuild(f"Party {a.party}: {a.attack}", {"with its trained model": a.curve}, a) for a in found
        ],
        "trained": _table(run),
        "angles": [_angles(title, sample) for title, sample in zip(titles, samples, strict=True)],
        "maps": _maps(titles, samples, run),
    }


def of_settings(settings: Sequence[Setting], *, lines: int) -> dict[str, Any]:
    """Return the values of ``comparison.html.j2`` about trained models, with a line or a panel for `lines` settings."""
    shown = [(setting, _first_view(setting.runs[0])) for setting in settings[:lines]]
    known = [(setting.title, _thinned(sample)) for setting, sample in shown if sample is not None]
    return {
        "protections": _protections(settings),
        "rebuild_figure": _rebuild_of_settings(settings[:lines]),
        "angles": [_angles(title, sample) for title, sample in known],
    }


def worst_answer(run: Run) -> Answer | None:
    """Return the answer of the party that leaks most; None where no attacker tried to complete its model."""
    return next(iter(answers(run.result)), None)


def measures_of(entry: Entry) -> Mapping[str, Mapping[str, Any]]:
    """Return the values of an entry, by measure."""
    found = entry.get("measures")
    if not isinstance(found, dict) or not found:
        return {str(entry.get("metric")): entry}
    return {str(name): value for name, value in found.items() if isinstance(value, dict)}


def on_trained_models(run: Run) -> list[Entry]:
    """Return the entries of attacks on the trained model; the monitor's where no attacker reported the same."""
    return unrepeated([entry for entry in run.result["leakage"] if entry.get("phase") == "inference"])


def _table(run: Run) -> dict[str, Any]:
    """Return the attacks on the trained model as rows, with the measures that are informative on this data."""
    entries = on_trained_models(run)
    levels: dict[str, list[float | None]] = {}
    for name, value in (pair for entry in entries for pair in measures_of(entry).items()):
        levels.setdefault(name, []).append(number(value.get("chance")))
    # The least is that of a constant answer; clusters, whose best names are found, reach more by chance.
    chances = {name: min((one for one in each if one is not None), default=None) for name, each in levels.items()}
    usual, balanced = chances.get("accuracy"), chances.get("balanced_accuracy")
    rare = usual is not None and balanced is not None and usual - balanced > UNBALANCED
    names = sorted(chances, key=lambda name: [*MEASURES, name].index(name))
    names = [name for name in names if name != "balanced_accuracy" or rare]
    return {
        "rare": rare,
        "measures": [(name, MEASURES.get(name, name), chances[name]) for name in names],
        "rows": [(entry, [measures_of(entry).get(name, {}) for name in names]) for entry in entries],
    }


def _rebuild(title: str, lines: Mapping[str, Sequence[Reached]], answer: Answer) -> Markup:
    own = answer.chance if answer.federation is None else answer.federation
    levels = answer.chance, answer.chance + answer.share * (own - answer.chance), own
    return Markup(rebuild_figure(title, f"test {answer.measure}", lines, answer.alone, levels))


def _rebuild_of_settings(settings: Sequence[Setting]) -> Markup | None:
    """Draw one line per setting; the federation's level is that of the run without a defense, or of the first."""
    found = [
        (setting, [a for run in setting.runs if (a := worst_answer(run)) is not None and a.federation is not None])
        for setting in settings
    ]
    found = [(setting, answers_) for setting, answers_ in found if answers_]
    if not found:
        return None
    reference = next((known[0] for setting, known in found if not setting.runs[0].result["defenses"]), found[0][1][0])
    lines = {
        setting.title: _averaged([a.curve for a in known if a.metric == reference.metric]) for setting, known in found
    }
    return _rebuild("Rebuilding the model", {name: line for name, line in lines.items() if line}, reference)


def _averaged(curves: Sequence[Sequence[Reached]]) -> list[Reached]:
    """Return the mean over runs with its interval; a single run keeps its own interval."""
    points: dict[int, list[Reached]] = {}
    for point in (point for curve in curves for point in curve):
        points.setdefault(point.k, []).append(point)
    return [_mean_of(same) for _, same in sorted(points.items())]


def _mean_of(points: Sequence[Reached]) -> Reached:
    values = [point.value for point in points]
    interval = mean_interval(values)
    if interval is None:
        return points[0]
    mean = sum(values) / len(values)
    return Reached(points[0].k, mean, *ends(list(interval), mean))


def _protections(settings: Sequence[Setting]) -> list[Markup]:
    """Draw each attack on the trained model at the cut against utility (Z23's Figures 3 and 4)."""
    attacks = dict.fromkeys(
        label_of(entry)
        for setting in settings
        for run in setting.runs
        for entry in on_trained_models(run)
        if entry.get("layer") == "cut"
    )
    return [figure for attack in attacks if (figure := _protection(settings, attack)) is not None]


def _protection(settings: Sequence[Setting], attack: str) -> Markup | None:
    classes = settings[0].runs[0].result["dataset"].get("classes")
    utility = "auc" if classes == 2 else "balanced_accuracy"
    lines: dict[str, list[Point]] = {}
    baselines: list[float] = []
    measure = ""
    for family, members in families(settings).items():
        for setting in members:
            found = [(run, entry) for run in setting.runs if (entry := _worst(run, attack)) is not None]
            measure = measure or next((_measure(entry, classes) for _, entry in found), "")
            point, known = _point(setting.strength.name, found, measure, f"test_{utility}")
            baselines += known
            lines.setdefault(family, []).extend([] if point is None else [point])
    lines = {family: points for family, points in lines.items() if points}
    if not lines:
        return None
    reached = MEASURES.get(measure, measure).replace(", ", ",\n")
    axes = f"test {MEASURES[utility]} (right is better)", f"attack’s {reached}"
    baseline = sum(baselines) / len(baselines) if baselines else None
    return Markup(protection_figure(f"{attack}, cut", axes, lines, baseline))


def _measure(entry: Entry, classes: Any) -> str:
    """Return the measure that is fair to every class: AUC of two classes, else the balanced accuracy."""
    known = measures_of(entry)
    preferred = ("auc", "balanced_accuracy") if classes == 2 else ("balanced_accuracy", "auc")
    return next((name for name in preferred if name in known), next(iter(known), ""))


def _worst(run: Run, attack: str) -> Entry | None:
    """Return the attack's entry at the cut of the party that leaks most; the monitor's where no attacker ran.

    An entry of the monitor has no baseline: the monitor has no columns to train an attack from scratch on.
    """
    entries = [e for e in on_trained_models(run) if label_of(e) == attack and e.get("layer") == "cut"]
    entries = [e for e in entries if e.get("source") != "monitor"] or entries
    classes = run.result["dataset"].get("classes")
    known = [(number(measures_of(e).get(_measure(e, classes), {}).get("mean")), e) for e in entries]
    return max(((value, e) for value, e in known if value is not None), key=lambda pair: pair[0], default=(0, None))[1]


def _point(
    name: str, found: Sequence[tuple[Run, Entry]], measure: str, utility: str
) -> tuple[Point | None, list[float]]:
    """Return a setting's point, the mean over its runs with its interval, and the baselines without the model."""
    pairs, baselines, interval = [], [], None
    for run, entry in found:
        values = measures_of(entry).get(measure, {})
        leak, useful = number(values.get("mean")), number(kept_utility(run.result).get(utility))
        if leak is not None and useful is not None:
            pairs.append((leak, useful))
            interval = values.get("interval95")
        baselines += [baseline] if (baseline := number(values.get("baseline"))) is not None else []
    if not pairs:
        return None, baselines
    leaks, utilities = zip(*pairs, strict=True)
    leak, useful = float(np.mean(leaks)), float(np.mean(utilities))
    if len(pairs) > 1:
        return Point(name, leak, useful, *(_ends_of(values) for values in (leaks, utilities))), baselines
    return Point(name, leak, useful, ends(interval, leak), (useful, useful)), baselines


def _ends_of(values: Sequence[float]) -> tuple[float, float]:
    interval = mean_interval(values)
    return ends(None if interval is None else list(interval), float(np.mean(values)))


def _first_view(run: Run) -> Embeddings | None:
    """Return the first party's embeddings as the top model reads them."""
    party = run.embeddings[0].party if run.embeddings else ""
    return next((sample for sample in reversed(run.embeddings) if sample.party == party), None)


def _thinned(sample: Embeddings) -> Embeddings:
    """Return at most `MOST_EMBEDDINGS` rows of the sample."""
    rows = sample_rows(sample.labels, MOST_EMBEDDINGS, generator=np.random.default_rng(0))
    return type(sample)(sample.party, sample.view, sample.rows[rows], sample.labels[rows], sample.z[rows])


def _angles(title: str, sample: Embeddings) -> Markup:
    return Markup(angle_figure(title, *pair_angles(sample.z, sample.labels)))


def _maps(titles: Iterable[str], samples: Iterable[Embeddings], run: Run) -> list[Markup | str]:
    """Return a map of each sample, an empty text where it has none."""
    classes = run.result["dataset"].get("classes")
    figures = []
    for title, sample in zip(titles, samples, strict=True):
        count = max(int(sample.labels.max(initial=0)) + 1, classes if isinstance(classes, int) else 2)
        several = [class_name(run.result, place) for place in range(count)]
        names = ["negative", "positive"] if count == 2 else several
        coordinates = _coordinates(sample.z.astype(np.float32).tobytes(), len(sample.z))
        figures.append("" if coordinates is None else Markup(map_figure(title, coordinates, sample.labels, names)))
    return figures


@lru_cache(maxsize=32)
def _coordinates(z: bytes, rows: int) -> NDArray[np.float32] | None:
    """Return the t-SNE coordinates of embeddings on a plane, (n, 2); None where there are too few, or all are equal.

    One thread and a fixed seed draw the same embeddings the same. Cached, because a page is often written twice.
    """
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    x = np.frombuffer(z, dtype=np.float32).reshape(rows, -1)
    if rows < FEWEST_EMBEDDINGS or not np.isfinite(x).all() or bool((x == x[0]).all()):
        return None
    start = "pca" if x.shape[1] > 1 else "random"
    method = TSNE(perplexity=min(PERPLEXITY, (rows - 1) / 3), init=start, random_state=0, max_iter=ITERATIONS)
    with threadpool_limits(limits=1):
        found: NDArray[np.float32] = method.fit_transform(x / np.abs(x).max())
    return found
