"""What Marvell did in each epoch, and what all releases of a row promise together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flower_vfl.metrics import Release, together
from flower_vfl.protocol.schedule import Rows
from flower_vfl.strategies.marvell_estimates import Classes, working
from flower_vfl.strategies.marvell_solver import NoiseSpectrum

_NUMBERS = ("distance", "u", "v", "along_neg", "along_pos", "across_neg", "across_pos")

LARGEST = 400
"""Rows of the matrices that are inverted after an epoch, epochs times directions: some 20 epochs, 30 ms."""


def most_epochs(width: int) -> int:
    """Return after how many epochs something is still said of gradients (B, width): there are T directions at most.

    Examples
    --------
    >>> most_epochs(32), most_epochs(4)
    (20, 100)
    """
    return max(math.isqrt(LARGEST), LARGEST // max(width, 1))


class Course:
    """Keeps one `Release` an epoch, of the mean over its batches, each in units of its own root mean square row.

    How much of an example's deviation from its class comes again with it is measured on a sample, the rows of the first
    batch: their deviations of the last epoch are kept, (B, D), and correlated with those of this one. All of it is
    computed from labels and stays at the label party.

    Parameters
    ----------
    repeats : bool
        Whether a row comes again in each epoch; otherwise it has one release, that of its own epoch.
    """

    def __init__(self, *, repeats: bool = True) -> None:
        self._repeats = repeats
        self.largest = 0.0
        """The largest divergence so far, of a step and of all releases of a row; inf where that is not known."""
        self._releases: list[Release] = []
        self._batches, self._sums = 0, np.zeros(len(_NUMBERS))
        self._direction = torch.zeros(0, dtype=torch.float64)
        self._sample = np.zeros(0, dtype=np.int64)
        self._before, self._now = torch.zeros(0, 0), torch.zeros(0, 0)
        self._products = torch.zeros(3, dtype=torch.float64)

    def add(self, classes: Classes, spectrum: NoiseSpectrum[float], g: Tensor, y: Tensor, rows: Rows | None) -> None:
        """Take in a batch: its model and noise in units of `classes`, its clean gradients, labels and rows."""
        self.note(spectrum)
        if classes.rms <= 0.0:
            return
        square = classes.rms**2
        noise = (spectrum.lam1_neg, spectrum.lam1_pos, spectrum.lam2_neg, spectrum.lam2_pos)
        self._sums += np.array([classes.g, classes.u, classes.v, *noise]) / square
        pointing = classes.direction.double() * math.sqrt(classes.g / square)
        before = self._direction.to(pointing.device)
        self._direction = pointing + before if before.shape == pointing.shape else pointing
        self._batches += 1
        if rows is not None:
            self._compare(working(g) / (classes.unit * classes.rms), y, rows)

    def note(self, spectrum: NoiseSpectrum[float]) -> None:
        """Take in what the noise of a batch leaves, also of one that could not be estimated from."""
        self.largest = max(self.largest, spectrum.sum_kl)

    def _compare(self, g: Tensor, y: Tensor, rows: Rows) -> None:
        """Correlate the deviations of those rows of the sample that have come with those of the epoch before."""
        if not len(self._sample):
            self._sample = np.sort(rows)
            self._before = torch.full((len(rows), g.shape[1]), math.nan, dtype=g.dtype, device=g.device)
            self._now = self._before.clone()
        places = self._sample.searchsorted(rows).clip(max=len(self._sample) - 1)
        known = np.flatnonzero(self._sample[places] == rows)
        if not len(known) or g.shape[1] != self._now.shape[1]:
            return
        self._before, self._now = self._before.to(g.device), self._now.to(g.device)  # where a checkpoint had them
        mine, at = torch.from_numpy(known).to(g.device), torch.from_numpy(places[known]).to(g.device)
        members = torch.stack([y == 0, y == 1]).to(g.dtype)
        means = (members @ g) / members.sum(dim=1, keepdim=True).clamp(min=1.0)
        own, earlier = g[mine] - means[y[mine]], self._before[at]
        b = earlier.nan_to_num(0.0)
        a = own * earlier.isfinite()
        self._products = self._products.to(g.device) + torch.stack([(a * b).sum(), a.square().sum(), b.square().sum()])
        self._now[at] = own

    def end_epoch(self, rho: float) -> dict[str, float]:
        """Close the epoch; return the joint divergence of all releases so far and how much of a row's own comes again.

        Nothing, where no batch of it had both classes, and after so many epochs that it would take too long.
        """
        if not self._batches:
            self.largest = math.inf
            return {}
        numbers = dict(zip(_NUMBERS, (self._sums / self._batches).tolist(), strict=True))
        direction = self._direction.cpu().numpy()
        length, first = float(np.linalg.norm(direction)), np.eye(1, len(direction))[0]
        release = Release(
            direction / length if length > 0.0 else first,
            math.sqrt(numbers["distance"]),
            (numbers["u"], numbers["v"]),
            (max(numbers["along_neg"], numbers["across_neg"]), max(numbers["along_pos"], numbers["across_pos"])),
            (numbers["across_neg"], numbers["across_pos"]),
        )
        fits = [old for old in self._releases if self._repeats and old.direction.shape == release.direction.shape]
        self._releases = [*fits, release]
        product, mine, theirs = self._products.tolist()
        kept = min(1.0, max(0.0, product / math.sqrt(mine * theirs))) if mine > 0.0 and theirs > 0.0 else 0.0
        self._batches, self._sums, self._direction = 0, np.zeros(len(_NUMBERS)), torch.zeros(0, dtype=torch.float64)
        self._before, self._now = self._now, torch.full_like(self._now, math.nan)
        count = len(self._releases)
        if count > most_epochs(len(direction)):
            self.largest = math.inf
            return {}
        found = together(self._releases, rho=rho, kept=kept).sum_kl()
        self.largest = max(self.largest, found)
        return {"sum_kl": found, "kept": kept}

    def state(self) -> dict[str, Any]:
        """Return plain values and tensors."""
        fields = ("direction", "distance", "spread", "along", "across")
        releases = [{name: getattr(release, name) for name in fields} for release in self._releases]
        return {
            "releases": [{**one, "direction": torch.from_numpy(one["direction"])} for one in releases],
            "batches": self._batches,
            "sums": torch.from_numpy(self._sums.copy()),
            "direction": self._direction.clone(),
            "sample": torch.from_numpy(self._sample.copy()),
            "before": self._before.clone(),
            "now": self._now.clone(),
            "products": self._products.clone(),
            "largest": self.largest,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._releases = [
            Release(
                one["direction"].numpy(),
                one["distance"],
                *((one[name][0], one[name][1]) for name in ("spread", "along", "across")),
            )
            for one in state["releases"]
        ]
        self._batches = state["batches"]
        self._sums, self._direction = state["sums"].numpy().copy(), state["direction"].clone()
        self._sample, self._products = state["sample"].numpy().copy(), state["products"].clone()
        self._before, self._now = state["before"].clone(), state["now"].clone()
        self.largest = state["largest"]
