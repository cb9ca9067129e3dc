"""Gradients, transcripts and error bars for the tests of attacks."""

from __future__ import annotations

import numpy as np
import torch

from flower_vfl.attacks import Attack
from flower_vfl.protocol.transcript import StepTrace, Transcript

SCALES = [1e-30, 1e-12, 1.0, 1e30]
DTYPES = [torch.float32, torch.float64]


def gradients(seed=0, shape=(64, 8), dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def transcript_of(**layers):
    """A transcript of two steps; the last one has these gradients, the first one other ones."""
    rows = np.arange(len(next(iter(layers.values()))))
    transcript = Transcript(history=None)
    for step, factor in enumerate((-3.0, 1.0)):
        seen = {layer: g * factor for layer, g in layers.items()}
        transcript.record(StepTrace(step, 0, rows, torch.zeros(len(rows), 2), seen))
    return transcript


def auc_error(auc, positives, negatives, sigmas=5.0):
    """A bound on |measured AUC - AUC|, exceeded with a probability below 6e-7 at five standard deviations.

    The variance of the Mann-Whitney statistic is at most A (1 - A) / min(P, N), whatever the distributions are.
    """
    return sigmas * (auc * (1 - auc) / min(positives, negatives)) ** 0.5


class Remembering(Attack):
    """Keeps what it is told."""

    name = "remembering"

    def __init__(self, *needs, hints=1):
        self.needs = frozenset(needs)
        self._hints, self.told, self._seen = hints, [], set()

    def fresh(self):
        return self  # a test looks at what it was told

    @property
    def hints(self):
        return self._hints

    def score(self, transcript, layer, side=None):
        asked = id(transcript), transcript.last.step, layer
        if asked not in self._seen:  # the run asks twice, to find out whether instances share state
            self._seen.add(asked)
            self.told.append((layer, side))
        return transcript.last.gradients[layer][:, 0]
