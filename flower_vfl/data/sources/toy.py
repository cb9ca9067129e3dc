"""Two generated data sets whose leaks have closed forms, for tests and for documentation: see docs/methods/toy.md.

One party has the features, the label party has only labels; rows are drawn independently of each other.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from flower_vfl.data.encoding.encoding import PartyEncoding
from flower_vfl.data.encoding.labels import EncodedLabels
from flower_vfl.data.sources.recipe import Options, Progress, Recipe
from flower_vfl.data.store.builder import Builder
from flower_vfl.data.store.dataset import PARTS, FeatureSpec, Part


class ToyOptions(Options):
    """Options of both toy data sets."""

    rows: int = Field(4_000, ge=20, le=1_000_000, description="training rows")
    test_rows: int = Field(2_000, ge=20, le=1_000_000, description="test rows")
    seed: int = Field(0, ge=0, description="seed of the generator")


class GapOptions(ToyOptions):
    """Options of toy-gap."""

    overlap: float = Field(0.1, ge=0.0, le=1.0, description="part of the negatives that look like positives")


class HemispheresOptions(ToyOptions):
    """Options of toy-hemispheres."""

    edge: float = Field(1.0, gt=0.0, le=100.0, description="how dense points are at the boundary; 1: as everywhere")


class _Toy(Recipe):
    """Base recipe of a generated table of numbers at party a and labels at the label party."""

    licence: ClassVar[str] = "none needed"
    rows: ClassVar[int | None] = 4_000
    pathless: ClassVar[str] = "is generated"
    columns: ClassVar[tuple[str, ...]]

    @abstractmethod
    def draw(self, count: int, options: Any, rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return features (N, F) and labels (N,)."""

    def write(self, builder: Builder, source: Path | None, options: ToyOptions, progress: Progress) -> None:
        """Draw and write the rows of both parts."""
        counts: dict[Part, int] = {"train": options.rows, "test": options.test_rows}
        facts = f"{self.name} {options.rows} {options.test_rows}"
        builder.align_numbered(counts, hashlib.sha256(facts.encode()).hexdigest())
        spec = FeatureSpec(len(self.columns), ())
        labels = []
        for number, part in enumerate(PARTS):
            features, drawn = self.draw(counts[part], options, np.random.default_rng([options.seed, number]))
            builder.create_arrays("a", spec, part)["numeric.npy"][:] = features
            labels.append(drawn)
            progress(0.5 * number + 0.4)
        builder.finish_party("a", spec, self.columns, PartyEncoding((), ()))
        builder.add_labels(EncodedLabels(labels[0], labels[1], ("0", "1")))
        self.finish(builder, options, label_party="label", source="generated")


class ToyGap(_Toy):
    """Balanced classes whose gradients still differ in length, as in Appendix A.2 of Li et al.

    All positives lie on the right, x in [0.5, 1.5]. So does a part q of the negatives (`overlap`); the others lie on
    the left, x in [-1.5, -0.5]. The best classifier has p1 = 1 / (1 + q) on the right and 0 on the left: the gap
    abs(p1 - y) is q / (1 + q) for every positive and 0 for all but the part q of the negatives. With q = 1/10: 10/11,
    1/11 and 0.
    """

    name: ClassVar[str] = "toy-gap"
    description: ClassVar[str] = "balanced classes, gaps of 1/11 and 0: norms leak in closed form"
    options: ClassVar[type[Options]] = GapOptions
    columns: ClassVar[tuple[str, ...]] = ("x",)

    def draw(
        self, count: int, options: GapOptions, rng: np.random.Generator
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Draw a class, a side and a position on it."""
        labels = rng.integers(0, 2, count)
        right = (labels == 1) | (rng.random(count) < options.overlap)
        x = np.where(right, 1.0, -1.0) + rng.uniform(-0.5, 0.5, count)
        return x[:, None], labels


class ToyHemispheres(_Toy):
    """Points on a circle, one class a half, as in section 4.1 of Zheng et al.

    The angle of a point from the middle of its class is (pi / 2) u^(1 / edge), u uniform in [0, 1), to either side. The
    density of points of class 1 at one end of the boundary is p1(0) = edge / (2 pi), and a boundary that is off by a
    small angle errs on about 2 angle p1(0) of the points; exactly, on (1 - (1 - 2 angle / pi)^edge) / 2.
    """

    name: ClassVar[str] = "toy-hemispheres"
    description: ClassVar[str] = "classes are half circles: what a boundary off by an angle costs, in closed form"
    options: ClassVar[type[Options]] = HemispheresOptions
    columns: ClassVar[tuple[str, ...]] = ("x", "y")

    def draw(
        self, count: int, options: HemispheresOptions, rng: np.random.Generator
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Draw a class and an angle; class 1 is where y > 0."""
        labels = rng.integers(0, 2, count)
        angle = np.pi / 2 * rng.random(count) ** (1 / options.edge) * rng.choice([-1.0, 1.0], count)
        side = np.where(labels == 1, 1.0, -1.0)
        return np.stack([np.sin(angle), side * np.cos(angle)], axis=1), labels
