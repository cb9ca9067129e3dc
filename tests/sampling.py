"""Seeded random numbers for tests, and the intervals with which they compare statistics."""

from __future__ import annotations

import torch

from flower_vfl.rng import Keystream

ALARM = 1e-7
"""Probability that a statistical comparison fails on correct code."""


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def keystream(seed=0):
    return Keystream(seed.to_bytes(32, "big"))


def within(value, distribution):
    """Return True if a value lies in the interval that has all but ALARM of the distribution's probability."""
    return distribution.ppf(ALARM / 2) <= value <= distribution.isf(ALARM / 2)
