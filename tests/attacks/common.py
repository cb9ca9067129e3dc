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
    """Return a transcript of two steps; the last one has these gradients, the first one others."""
    rows = np.arange(len(next(iter(layers.values()))))
    transcript = Transcript(history=None)
    for step, factor in enumerate((-3.0, 1.0)):
        seen = {layer: g * factor for layer, g in layers.items()}
        transcript.record(StepTrace(step, 0, rows, torch.zeros(len(rows), 2), seen))
    return transcript


def auc_error(auc, positives, negatives):
    """Return a bound on |measured AUC - AUC| that is exceeded with a probability below 6e-7.

    It is five standard deviations. The variance of the Mann-Whitney statistic is at most A (1 - A) / min(P, N) for all
    distributions.
    """
    return 5.0 * (auc * (1 - auc) / min(positives, negatives)) ** 0.5


class RecordingAttack(Attack):
    """Attack that records the layers and the side information that it receives."""

    name = "recording"

    def __init__(self, *needs, hints=1):
        self.needs = frozenset(needs)
        self._hints, self.received, self._seen = hints, [], set()

    def fresh(self):
        return self  # a test reads what it received

    @property
    def hints(self):
        return self._hints

    def score(self, transcript, layer, side=None):
        key = id(transcript), transcript.last.step, layer
        if key not in self._seen:  # a run scores twice, to detect instances that share state
            self._seen.add(key)
            self.received.append((layer, side))
        return transcript.last.gradients[layer][:, 0]
