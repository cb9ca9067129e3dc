"""Gaussian gradients of two classes, what is known of them, and a Marvell to try on them."""

from __future__ import annotations

import math

import torch
from torch import nn

from flower_vfl.strategies import VerticalStrategy
from flower_vfl.strategies.gradients.marvell.isotropic import Marvell
from tests.toys import toy_config

ALARM = 1e-7
B, D = 30_000, 6
P = 0.2


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def batch(rows=B, width=D, *, u=0.5, v=0.8, gap=2.0, positives=P, scale=1.0, seed=1, dtype=torch.float64):
    """Two Gaussian classes; exactly this share of positives, shuffled."""
    source = generator(seed)
    y = (torch.arange(rows) < round(positives * rows)).long()[torch.randperm(rows, generator=source)]
    g = torch.randn(rows, width, generator=source, dtype=torch.float64)
    g *= torch.where(y == 1, math.sqrt(v), math.sqrt(u))[:, None]
    g += y[:, None] * gap * torch.nn.functional.normalize(torch.arange(1.0, width + 1, dtype=torch.float64), dim=0)
    return (g * scale).to(dtype), y


def estimates(g, y):
    """u, v, g, p and the direction, straight from their definitions."""
    negatives, positives = g[y == 0].double(), g[y == 1].double()
    difference = positives.mean(dim=0) - negatives.mean(dim=0)
    u, v = (rows.var(dim=0, unbiased=False).mean().item() for rows in (negatives, positives))
    gap = difference.square().sum().item()
    return u, v, gap, y.double().mean().item(), difference / math.sqrt(gap)


def defense(classes=2, **more):
    config = toy_config(attack={"names": []})
    return Marvell(VerticalStrategy(nn.Linear(D, 1), torch.arange(classes), config=config), **more)


def within(value, distribution):
    """Whether a value lies where the distribution puts all but ALARM."""
    return distribution.ppf(ALARM / 2) <= value <= distribution.isf(ALARM / 2)
