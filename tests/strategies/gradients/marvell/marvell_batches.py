"""Gaussian gradients of two classes, their exact estimates, and a Marvell defense for tests."""

from __future__ import annotations

import math

import torch
from torch import nn

from flower_vfl.strategies import VerticalStrategy
from flower_vfl.strategies.gradients.marvell.isotropic import Marvell
from tests.sampling import generator
from tests.toys import toy_config

B, D = 30_000, 6
P = 0.2


def batch(rows=B, width=D, *, u=0.5, v=0.8, gap=2.0, scale=1.0, seed=1, dtype=torch.float64):
    """Return gradients and labels of two Gaussian classes, shuffled; exactly a share P of the rows is positive."""
    source = generator(seed)
    y = (torch.arange(rows) < round(P * rows)).long()[torch.randperm(rows, generator=source)]
    g = torch.randn(rows, width, generator=source, dtype=torch.float64)
    g *= torch.where(y == 1, math.sqrt(v), math.sqrt(u))[:, None]
    g += y[:, None] * gap * torch.nn.functional.normalize(torch.arange(1.0, width + 1, dtype=torch.float64), dim=0)
    return (g * scale).to(dtype), y


def estimates(g, y):
    """Return u, v, g, p and the direction, from their definitions."""
    negatives, positives = g[y == 0].double(), g[y == 1].double()
    difference = positives.mean(dim=0) - negatives.mean(dim=0)
    u, v = (rows.var(dim=0, unbiased=False).mean().item() for rows in (negatives, positives))
    gap = difference.square().sum().item()
    return u, v, gap, y.double().mean().item(), difference / math.sqrt(gap)


def defense(**more):
    config = toy_config(attack={"names": []})
    return Marvell(VerticalStrategy(nn.Linear(D, 1), torch.arange(2), config=config), **more)
